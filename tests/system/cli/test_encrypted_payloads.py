"""How commands show encrypted payloads: by their keys, or as an endpoint decrypts them."""

import base64
import dataclasses
import datetime as dt
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from progressor.sdk import JSON, DecodeEndpoint, Encrypted, Keys
from progressor.sdk.codec import decode_client
from progressor.v1 import process_service_pb2, types_pb2
from progressor.v1 import schedule_service_pb2 as schedules
from tests.support.api.scripted_engine import Cli, ScriptedEngine

TOKEN = "decoder-token"
CODEC = Encrypted(JSON, keys=Keys({"2026-11": bytes(range(32))}))
LOST = Encrypted(JSON, keys=Keys({"lost": bytes(range(32, 64))}))


def plain(place: str) -> str:
    return f"PLANTED-{place}"


def sealed(place: str) -> bytes:
    return CODEC.encode(plain(place))


def named(payload: bytes, key: str = "2026-11") -> str:
    return f"encrypted with key {key} ({len(payload):,} bytes)"


@dataclasses.dataclass
class Decoder:
    """An endpoint on this machine; ``answer``: instead of what it says itself."""

    url: str = ""
    bodies: list[bytes] = dataclasses.field(default_factory=list)
    answer: tuple[int, bytes] | None = None


@pytest.fixture
def decoder() -> Iterator[Decoder]:
    told = Decoder()
    endpoint = DecodeEndpoint(
        CODEC, authorize=lambda headers: headers.get("authorization") == f"Bearer {TOKEN}"
    )

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            told.bodies.append(body)
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, content = told.answer or endpoint.respond("POST", self.path, headers, body)
            self.send_response(status)
            if status == http.HTTPStatus.FOUND:
                self.send_header("location", f"http://127.0.0.1:{self.server.server_port}/decode")  # type: ignore[attr-defined]
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        told.url = f"http://127.0.0.1:{server.server_port}/decode"
        yield told
        server.shutdown()
        thread.join()


@pytest.fixture
def token(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    return str(path)


def _now() -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(dt.datetime(2026, 1, 31, tzinfo=dt.UTC))
    return stamp


def _process() -> types_pb2.Process:
    return types_pb2.Process(
        process_id="p",
        status=types_pb2.PROCESS_STATUS_RUNNING,
        created_at=_now(),
        aux_state=sealed("state"),
    )


def _event() -> types_pb2.Event:
    return types_pb2.Event(event_id=1, payload=sealed("event"))


ANSWERS: dict[str, tuple[tuple[str, ...], str, Any, set[str]]] = {
    "get": (
        ("get", "p"),
        "Get",
        lambda: process_service_pb2.GetResponse(process=_process(), history=[_event()]),
        {"state", "event"},
    ),
    "trace": (
        ("trace", "p"),
        "Trace",
        lambda: process_service_pb2.TraceResponse(
            tasks=[
                process_service_pb2.TaskTrace(
                    task_id=1,
                    type=types_pb2.TASK_TYPE_CALL,
                    status=types_pb2.TASK_STATUS_FINISHED,
                    created_at=_now(),
                    args=sealed("args"),
                    response=sealed("answer"),
                    events=[_event()],
                )
            ]
        ),
        {"args", "answer", "event"},
    ),
    "result": (
        ("result", "p"),
        "AwaitProcess",
        lambda: process_service_pb2.AwaitProcessResponse(result=sealed("result")),
        {"result"},
    ),
    "schedule": (
        ("schedule", "get", "s"),
        "GetSchedule",
        lambda: schedules.GetScheduleResponse(
            schedule=schedules.Schedule(
                schedule_id="s",
                created_at=_now(),
                spec=schedules.ScheduleSpec(
                    cron=schedules.CronTimes(expression="* * * * *", time_zone="UTC"),
                    start=schedules.ScheduledStart(args=sealed("args")),
                ),
            )
        ),
        {"args"},
    ),
}


@pytest.mark.parametrize("command", ANSWERS)
def test_encrypted_payloads_are_named_by_their_keys(
    command: str, engine: ScriptedEngine, cli: Cli
) -> None:
    arguments, rpc, response, places = ANSWERS[command]
    engine.answers[rpc] = response()

    ended = cli(*arguments)

    assert (ended.code, ended.err) == (0, "")
    assert ended.out.count("encrypted with key 2026-11 (") == len(places)
    assert "PLANTED" not in ended.out


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize("command", ANSWERS)
def test_an_endpoint_decrypts_all_payloads_in_one_request(
    command: str,
    form: tuple[str, ...],
    engine: ScriptedEngine,
    cli: Cli,
    decoder: Decoder,
    token: str,
) -> None:
    arguments, rpc, response, places = ANSWERS[command]
    engine.answers[rpc] = response()

    ended = cli(*arguments, *form, "--decode-url", decoder.url, "--decode-token-file", token)

    assert (ended.code, ended.err) == (0, "")
    assert {it for it in places if plain(it) in ended.out} == places
    assert "encrypted" not in ended.out
    assert len(decoder.bodies) == 1


def test_a_document_has_what_nobody_decrypts_as_base64(engine: ScriptedEngine, cli: Cli) -> None:
    result = sealed("result")
    engine.answers["AwaitProcess"] = process_service_pb2.AwaitProcessResponse(result=result)

    found = cli("result", "p", "--json").document

    assert base64.b64decode(found["result_base64"]) == result


def test_a_payload_whose_key_the_endpoint_lacks_is_named_and_the_others_are_shown(
    engine: ScriptedEngine, cli: Cli, decoder: Decoder, token: str
) -> None:
    lost = LOST.encode("x")
    process = _process()
    process.aux_state = lost
    engine.answers["Get"] = process_service_pb2.GetResponse(process=process, history=[_event()])

    ended = cli("get", "p", "--decode-url", decoder.url, "--decode-token-file", token)

    assert ended.code == 0
    assert named(lost, "lost") in ended.out
    assert plain("event") in ended.out
    assert ended.err.splitlines() == [
        "note: payloads stay encrypted: no key with the id 'lost' in the keys of this program"
    ]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((403, b"{}"), "answered 403"),
        ((500, b""), "answered 500"),
        ((302, b""), "answered 302"),
        ((200, b"<html>"), "has sent something else than decoded payloads"),
        ((200, b'{"payloads": []}'), "has sent something else than decoded payloads"),
        ((200, b'{"payloads": [{"data": "%"}, {}]}'), "has sent something else"),
    ],
)
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_a_failing_endpoint_costs_nothing_but_its_payloads(  # noqa: PLR0917
    form: tuple[str, ...],
    answer: tuple[int, bytes],
    why: str,
    engine: ScriptedEngine,
    cli: Cli,
    decoder: Decoder,
    token: str,
) -> None:
    engine.answers["Get"] = process_service_pb2.GetResponse(process=_process(), history=[_event()])
    decoder.answer = answer

    expected = cli("get", "p", *form)
    ended = cli("get", "p", *form, "--decode-url", decoder.url, "--decode-token-file", token)

    assert (ended.code, ended.out) == (0, expected.out)
    (line,) = ended.err.splitlines()
    note = json.loads(line)["note"] if form else line
    assert f"payloads stay encrypted: {decoder.url} {why}" in note
    assert TOKEN not in ended.err
    assert len(decoder.bodies) == 1


def test_an_endpoint_that_is_away_or_hangs_is_given_up(
    engine: ScriptedEngine, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_client, "TIMEOUT_SECONDS", 0.2)
    engine.answers["Get"] = process_service_pb2.GetResponse(process=_process())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        hung = cli("get", "p", "--decode-url", f"http://{address}/decode")
    away = cli("get", "p", "--decode-url", f"http://{address}/decode")

    assert (hung.code, away.code) == (0, 0)
    assert f"payloads stay encrypted: http://{address}/decode: " in hung.err
    assert "Connection refused" in away.err
    assert named(sealed("state")) in hung.out


@pytest.mark.parametrize(
    "url",
    [
        "http://decode.internal/decode",
        "http://127.0.0.1.example.org/decode",
        "http://user:secret@127.0.0.1/decode",
        "https://user:secret@decode.internal/decode",
        "decode.internal",
        "file:///etc/passwd",
        "https://decode.internal:port/",
    ],
)
def test_a_url_by_which_payloads_would_leave_in_the_clear_is_refused(url: str, cli: Cli) -> None:
    ended = cli("get", "p", "--decode-url", url)

    assert ended.code == 2
    assert "error: --decode-url: " in ended.err
    assert "secret" not in ended.err


def test_a_token_file_that_cannot_be_read_is_named(cli: Cli) -> None:
    ended = cli(
        "get", "p", "--decode-url", "https://decode.internal", "--decode-token-file", "/nowhere"
    )

    assert (ended.code, "--decode-token-file: /nowhere" in ended.err) == (2, True)


def test_nothing_is_asked_without_encrypted_payloads(
    engine: ScriptedEngine, cli: Cli, decoder: Decoder
) -> None:
    engine.answers["AwaitProcess"] = process_service_pb2.AwaitProcessResponse(result=b'"plain"')

    ended = cli("result", "p", "--decode-url", decoder.url)

    assert (ended.out, ended.err, decoder.bodies) == ('"plain"\n', "", [])
