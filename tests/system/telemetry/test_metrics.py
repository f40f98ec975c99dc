"""The metrics leave the process: scraped over a socket, pushed to a collector, printed where."""

import asyncio
import dataclasses
import datetime as dt
import os
import re
import socket
import sys
import urllib.error
from collections.abc import Iterator

import pytest

from progressor import errors
from progressor.clock import SystemClock
from progressor.settings.addresses import http_bind
from progressor.settings.sections import METRICS_KEY
from progressor.telemetry.metrics.otlp import Push
from progressor.telemetry.metrics.prometheus import MetricsEndpoint
from progressor.telemetry.metrics.registry import METRICS, Metrics
from progressor.telemetry.setup import resource_of
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.process import running_supervisor
from tests.support.engine.replica import answering, open_env, running_replica
from tests.support.telemetry.collector import running_collector
from tests.support.telemetry.metrics import (
    families,
    filled_metrics,
    read,
    scrape,
    scraped,
)

HOUR = dt.timedelta(hours=1)
ALL = {it.name for it in METRICS.values()}
THE_EIGHT = {it.name for it in METRICS.values() if it.name.endswith("_duration_ms")}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Metrics with a value in each, served at an address."""

    url: str

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.url.removeprefix("http://").partition("/")[0].rpartition(":")
        return host.strip("[]"), int(port)


@pytest.fixture
def served() -> Iterator[Served]:
    endpoint = MetricsEndpoint(filled_metrics(), http_bind("key", "127.0.0.1:0"))
    yield Served(url=endpoint.open())
    endpoint.close()


def push(endpoint: str, metrics: Metrics, *, interval: dt.timedelta = HOUR) -> Push:
    return Push(
        metrics,
        endpoint=endpoint,
        interval=interval,
        resource=resource_of(service_name="service", instance="replica:1"),
        clock=SystemClock(),
    )


async def test_a_scrape_is_answered_while_the_event_loop_stands_still(served: Served) -> None:
    # The thread of the loop is the one that waits here.
    text = scrape(served.url)

    assert families(text).keys() >= ALL
    assert "process_resident_memory_bytes" in families(text)


async def test_a_scrape_of_openmetrics_gets_that(served: Served) -> None:
    text = scrape(served.url, {"Accept": "application/openmetrics-text;version=1.0.0"})

    assert text.endswith("# EOF\n")
    assert "# UNIT progressor_heartbeat_age_seconds seconds\n" in text


async def test_there_is_nothing_but_the_metrics(served: Served) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        scrape(served.url.removesuffix("metrics"))


def test_a_port_that_is_taken_is_an_error_by_its_key(served: Served) -> None:
    host, port = served.place
    second = MetricsEndpoint(Metrics(), http_bind("key", f"{host}:{port}"))

    with pytest.raises(errors.ConfigError, match=re.escape(f"'{host}:{port}'")) as caught:
        second.open()

    assert caught.value.key == METRICS_KEY


def test_where_it_may_be_another_port_the_next_free_one_is_taken(served: Served) -> None:
    host, port = served.place
    second = MetricsEndpoint(Metrics(), http_bind("key", f"{host}:{port}+"))

    url = second.open()
    told = scrape(url)
    second.close()

    assert url != served.url
    assert families(told).keys() >= ALL


@pytest.mark.parametrize("bind", ["192.0.2.1:0", "192.0.2.1:9464+"])
def test_an_address_that_is_not_ours_is_an_error_by_its_key(bind: str) -> None:
    with pytest.raises(errors.ConfigError) as caught:
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


async def test_the_last_values_are_pushed_at_the_end() -> None:
    metrics = Metrics()
    async with running_collector() as collector:
        pushing = push(collector.endpoint, metrics)
        pushing.start()
        metrics.notifications_lost.add(7)
        await asyncio.to_thread(pushing.stop)

        assert collector.count("progressor_notifications_lost") == 7


async def test_all_is_pushed_again_and_again() -> None:
    metrics = filled_metrics()
    async with running_collector() as collector:
        pushing = push(collector.endpoint, metrics, interval=dt.timedelta(milliseconds=20))
        pushing.start()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await collector.pushed(3)
        await asyncio.to_thread(pushing.stop)

        assert collector.names == ALL


async def test_one_that_accepts_and_says_nothing_does_not_hold_up_the_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pushing = push(f"http://127.0.0.1:{silent.getsockname()[1]}", Metrics())
        pushing.start()

        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.to_thread(pushing.stop)

    assert not pushing.is_running


async def test_an_engine_counts_what_it_does(database: str) -> None:
    async with (
        running_replica(database, {"telemetry.metrics_bind": "127.0.0.1:0"}) as replica,
        open_env(replica) as env,
    ):
        await env.running("p", answering(b"event"))
        await env.client.call("p", b"args")
        told = read(await scraped(replica.engine.metrics_url))

    names = {name for name, _ in told}
    requests = [
        value
        for (name, labels), value in told.items()
        if name == "progressor_requests_total"
        and dict(labels)["namespace"] == env.namespace
        and dict(labels)["outcome"] == "ok"
    ]
    assert sum(requests) == 2
    assert {"progressor_task_processing_duration_ms_count", "progressor_pool_connections"} <= names
    assert 0 <= told["progressor_heartbeat_age_seconds", ()] < PATIENCE_SECONDS


async def test_serve_prints_where_all_metrics_are_read(database: str) -> None:
    settings = {"database.dsn": database, "telemetry.metrics_bind": "127.0.0.1:0"}
    async with running_supervisor(settings, count=1) as engine:
        url = (await engine.log_record("engine serves"))["metrics"]
        text = await scraped(url)

        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", url)
        assert (await engine.log_record("engine listening"))["metrics"] == url
    assert families(text).keys() >= ALL
    assert families(text).keys() >= THE_EIGHT
    assert len(THE_EIGHT) == 8


async def test_dev_prints_where_all_metrics_are_read(own_database: str) -> None:
    settings = {
        "database.dsn": own_database,
        "server.bind": "127.0.0.1:0",
        "telemetry.metrics_bind": "127.0.0.1:0",
    }
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "progressor", "dev", *flags,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PROGRESSOR_CONFIG": "", "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    printed = ""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (found := re.search(r"^metrics at (\S+)$", printed, re.MULTILINE)):
                line = await process.stdout.readline()
                assert line, printed
                printed += line.decode()
            text = await scraped(found[1])
    finally:
        process.kill()
        await process.communicate()

    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", found[1])
    assert families(text).keys() >= ALL


async def test_each_worker_prints_where_its_own_are_read(own_database: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        bind = f"127.0.0.1:{port}+"
        settings = {"database.dsn": own_database, "telemetry.metrics_bind": bind}
        async with running_supervisor(settings) as supervisor:
            urls = (await supervisor.log_record("engine serves"))["metrics"]
            texts = [await scraped(url) for url in urls]

    assert len(set(urls)) == 2
    assert f"http://{bind[:-1]}/metrics" not in urls
    assert [families(text).keys() >= ALL for text in texts] == [True, True]


async def test_a_port_in_use_of_a_replica_process_ends_all_with_its_key(database: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = {
            "database.dsn": database,
            "telemetry.metrics_bind": f"127.0.0.1:{taken.getsockname()[1] - 1}",
        }
        async with running_supervisor(settings) as supervisor:
            code = await supervisor.left()
            printed = supervisor.text.splitlines()

    assert code == 2
    assert any(METRICS_KEY in line for line in printed if line.startswith("error: "))
