"""The metrics endpoint: a scrape, its address, and clients that are slow, many or odd."""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from progressor import errors
from progressor.settings.addresses import http_bind
from progressor.settings.sections import METRICS_KEY
from progressor.telemetry.metrics import scrape_server
from progressor.telemetry.metrics.prometheus import MetricsEndpoint
from progressor.telemetry.metrics.registry import METRICS, Metrics
from progressor.telemetry.metrics.scrape_server import CONNECTIONS_MAX, HEAD_BYTES_MAX
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.telemetry.metrics import families, filled_metrics, scrape

ALL = {it.name for it in METRICS.values()}
LONG = b"x" * (2 * HEAD_BYTES_MAX)
GET = b"GET /metrics HTTP/1.1\r\nHost: engine\r\n"

ODD = {
    b"GET /metrics HTTP/1.0\r\n\r\n": 200,
    GET + b"\r\n": 200,
    GET + b"Content-Length: 100000\r\n\r\n" + LONG: 200,
    GET + b"Accept: application/openmetrics-text;version=none\r\n\r\n": 200,
    GET + b"Accept: application/openmetrics-text;version=9\r\n\tx: y\r\n\r\n": 200,
    GET + b"Accept: text/plain;version=1..;escaping=\xff\r\n\r\n": 200,
    b"GET /metrics?name[]=none&name[]=%ff HTTP/1.1\r\n\r\n": 200,
    b"HEAD /metrics HTTP/1.1\r\n\r\n": 200,
    b"GET / HTTP/1.1\r\n\r\n": 404,
    b"GET http://[/metrics HTTP/1.1\r\n\r\n": 400,
    b"GET /metrics?" + b"a=&" * 4100 + b" HTTP/1.1\r\n\r\n": 400,
    b"GET /metrics HTTP/x.y\r\n\r\n": 400,
    b"GET /metrics HTTP/2.0\r\n\r\n": 505,
    b"GET  /a b HTTP/1.1\r\n\r\n": 400,
    b"\r\n\r\n": 400,
    b"\n": 400,
    b"no HTTP at all\n": 400,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\n": 400,
    b"\x00\xff\xfe\n": 400,
    b"POST /metrics HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}": 501,
    b"__init__ /metrics HTTP/1.1\r\n\r\n": 501,
    b"GET /" + LONG: 414,
    GET + b"X: " + LONG: 431,
    GET + b"X: y\r\n" * 200 + b"\r\n": 431,
}


@pytest.fixture
def place() -> Iterator[tuple[str, int]]:
    """Return host and port of an endpoint."""
    endpoint = MetricsEndpoint(filled_metrics(), http_bind("key", "127.0.0.1:0"))
    host, _, port = endpoint.open().removeprefix("http://").partition("/")[0].rpartition(":")
    yield host, int(port)
    endpoint.close()


def connect(place: tuple[str, int]) -> socket.socket:
    return socket.create_connection(place, timeout=PATIENCE_SECONDS)


def url_of(place: tuple[str, int]) -> str:
    return f"http://{place[0]}:{place[1]}/metrics"


def all_of(connection: socket.socket) -> bytes:
    """Return all that comes until the end."""
    answer = b""
    while chunk := connection.recv(65_536):
        answer += chunk
    return answer


async def test_a_scrape_is_answered_while_the_event_loop_stands_still(
    place: tuple[str, int],
) -> None:
    # The thread of the loop is the one that waits here.
    text = scrape(url_of(place))

    assert families(text).keys() >= ALL
    assert "process_resident_memory_bytes" in families(text)


async def test_a_scrape_of_openmetrics_gets_that(place: tuple[str, int]) -> None:
    text = scrape(url_of(place), {"Accept": "application/openmetrics-text;version=1.0.0"})

    assert text.endswith("# EOF\n")
    assert "# UNIT progressor_heartbeat_age_seconds seconds\n" in text


def test_where_it_may_be_another_port_the_next_free_one_is_taken(place: tuple[str, int]) -> None:
    host, port = place
    second = MetricsEndpoint(Metrics(), http_bind("key", f"{host}:{port}+"))

    url = second.open()
    told = scrape(url)
    second.close()

    assert url != url_of(place)
    assert families(told).keys() >= ALL


@pytest.mark.parametrize("bind", ["{host}:{port}", "192.0.2.1:0", "192.0.2.1:9464+"])
def test_an_address_that_is_taken_or_not_ours_is_an_error_by_its_key(
    place: tuple[str, int], bind: str
) -> None:
    bind = bind.format(host=place[0], port=place[1])

    with pytest.raises(errors.ConfigError, match=re.escape(f"'{bind}'")) as caught:
        MetricsEndpoint(Metrics(), http_bind("key", bind)).open()

    assert caught.value.key == METRICS_KEY


def test_an_endpoint_that_was_closed_leaves_its_port_to_the_next() -> None:
    first = MetricsEndpoint(Metrics(), http_bind("key", "127.0.0.1:0"))
    url = first.open()
    scrape(url)
    first.close()
    place = url.removeprefix("http://").removesuffix("/metrics")
    second = MetricsEndpoint(Metrics(), http_bind("key", place))

    assert second.open() == url
    second.close()


@pytest.mark.parametrize("request_", ODD, ids=lambda it: ascii(it[:60]))
def test_whatever_comes_is_answered_with_a_status(
    place: tuple[str, int], caplog: pytest.LogCaptureFixture, request_: bytes
) -> None:
    with connect(place) as connection:
        connection.sendall(request_)
        answer = all_of(connection)

    # A version that is repeated to the client adds no header.
    assert b"x: y" not in answer.partition(b"\r\n\r\n")[0]
    assert answer.split(b" ", 2)[:2] == [b"HTTP/1.0", b"%d" % ODD[request_]], answer[:200]
    assert caplog.records == []


def test_half_a_request_is_answered_when_no_more_of_it_comes(place: tuple[str, int]) -> None:
    with connect(place) as connection:
        connection.sendall(GET)
        connection.shutdown(socket.SHUT_WR)

        assert all_of(connection).startswith(b"HTTP/1.0 400 ")


def test_a_look_whether_the_port_is_open_leaves_nothing_in_the_log(
    place: tuple[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    connect(place).close()
    scrape(url_of(place))

    assert caplog.records == []


def test_a_request_has_its_time_as_a_whole_however_it_trickles_in(
    place: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape_server, "REQUEST_SECONDS", 0.5)
    ended = threading.Event()

    def trickle(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(GET + b"X: ")
            while not ended.wait(0.02):
                connection.sendall(b"x")

    with connect(place) as connection:
        trickling = threading.Thread(target=trickle, args=(connection,))
        trickling.start()
        begun_at = time.monotonic()
        answer = connection.recv(65_536)
        seconds = time.monotonic() - begun_at
        ended.set()
        trickling.join()

    assert answer.startswith(b"HTTP/1.0 408 ")
    assert seconds < PATIENCE_SECONDS / 2


def test_any_number_of_slow_requests_leaves_room_for_a_scrape(place: tuple[str, int]) -> None:
    with contextlib.ExitStack() as slow:
        connections = [slow.enter_context(connect(place)) for _ in range(CONNECTIONS_MAX + 8)]
        for each in connections[8:]:
            each.sendall(b"GET /met")
        text = scrape(url_of(place))
        closed = [each.recv(1) for each in connections[:8]]

    assert families(text).keys() >= ALL
    assert closed == [b""] * 8


def test_no_more_connections_are_served_than_there_are_places(
    place: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape_server, "CONNECTIONS_MAX", 0)
    with connect(place) as connection:
        answer = all_of(connection)

    assert answer.startswith(b"HTTP/1.0 503 ")


def test_a_bug_of_ours_is_answered_too_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    monkeypatch.setattr(metrics, "families", lambda: [object()])
    endpoint = MetricsEndpoint(metrics, http_bind("key", "127.0.0.1:0"))
    host, _, port = endpoint.open().removeprefix("http://").partition("/")[0].rpartition(":")
    with connect((host, int(port))) as connection:
        connection.sendall(GET + b"\r\n")
        answer = all_of(connection)
    endpoint.close()

    assert answer.startswith(b"HTTP/1.0 500 ")
    assert [it.getMessage() for it in caplog.records] == ["scrape failed"]
