"""The endpoint that decrypts payloads: whom it answers, what it bounds, and what it says."""

import base64
import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from progressor.sdk import JSON, DecodeEndpoint, Encrypted, Keys
from progressor.sdk.codec import decode_endpoint

SECRET = "a payload that nobody else may read"
CODEC = Encrypted(JSON, keys=Keys({"new": bytes(range(32)), "old": bytes(range(32, 64))}))
OTHER = Encrypted(JSON, keys=Keys({"lost": bytes(range(64, 96))}))
HEADERS = {"authorization": "Bearer right"}


def is_allowed(headers: Mapping[str, str]) -> bool:
    return headers.get("authorization") == "Bearer right"


ENDPOINT = DecodeEndpoint(CODEC, authorize=is_allowed)


def body(*payloads: bytes) -> bytes:
    return json.dumps({"payloads": [base64.b64encode(it).decode() for it in payloads]}).encode()


def answer(content: bytes, endpoint: DecodeEndpoint = ENDPOINT, **changes: Any) -> tuple[int, Any]:
    asked = {"method": "POST", "path": "/decode", "headers": HEADERS, **changes}
    status, answered = endpoint.respond(body=content, **asked)
    return status, json.loads(answered)


def test_each_payload_is_answered_by_itself() -> None:
    status, found = answer(body(CODEC.encode(SECRET), OTHER.encode(SECRET), b'"plain"', b""))

    assert status == 200
    decoded, lost, plain, empty = found["payloads"]
    assert JSON.decode(base64.b64decode(decoded["data"])) == SECRET
    assert lost == {"error": "no key with the id 'lost' in the keys of this program"}
    assert "not encrypted" in plain["error"]
    assert empty == {}


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"headers": {}}, 403),
        ({"headers": {"authorization": "Bearer wrong"}}, 403),
        ({"method": "GET"}, 405),
        ({"path": "/"}, 404),
    ],
)
def test_who_is_not_allowed_gets_nothing(changes: dict[str, Any], status: int) -> None:
    code, found = answer(body(CODEC.encode(SECRET)), **changes)

    assert (code, [*found]) == (status, ["error"])


def test_a_hook_that_is_a_coroutine_allows_nobody() -> None:
    async def allow(_: Mapping[str, str]) -> bool:
        return True

    coroutines = []

    def forgetful(headers: Mapping[str, str]) -> Any:
        coroutines.append(allow(headers))
        return coroutines[-1]

    status, _ = answer(b"", DecodeEndpoint(CODEC, authorize=forgetful))
    coroutines[0].close()

    assert status == 403


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"payloads": [1]}',
        b'{"payloads": ["%"]}',
        b'{"payloads": null}',
        b"\xff",
        b'{"other": ' + b"[" * 100_000,
    ],
)
def test_a_body_of_another_form_is_refused(content: bytes) -> None:
    assert answer(content)[0] == 400


def test_bodies_and_counts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer(body(*[b""] * (decode_endpoint.PAYLOADS_MAX + 1)))[0] == 400
    monkeypatch.setattr(decode_endpoint, "BODY_BYTES_MAX", 10)
    assert answer(body(b"more than ten"))[0] == 413


def test_the_log_has_counts_and_no_payloads(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    answer(body(CODEC.encode(SECRET), OTHER.encode(SECRET)))

    (record,) = caplog.records
    assert (vars(record)["count"], vars(record)["failed"]) == (2, 1)
    assert SECRET not in str(vars(record))


class Server:
    """An ASGI server of one request."""

    def __init__(self, *parts: bytes, headers: Mapping[str, str] = HEADERS) -> None:
        self.parts = [*parts]
        self.sent: list[Any] = []
        self.scope = {
            "type": "http",
            "method": "POST",
            "path": "/decode",
            "headers": [(it.title().encode(), value.encode()) for it, value in headers.items()],
        }

    async def receive(self) -> dict[str, Any]:
        part = self.parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(self.parts)}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def status(self) -> int:
        await ENDPOINT(self.scope, self.receive, self.send)
        start, content = self.sent
        assert dict(start["headers"])[b"content-length"] == str(len(content["body"])).encode()
        status: int = start["status"]
        return status


async def test_it_is_an_asgi_application() -> None:
    content = body(CODEC.encode(SECRET))
    server = Server(content[:10], content[10:])

    assert await server.status() == 200
    (item,) = json.loads(server.sent[1]["body"])["payloads"]
    assert JSON.decode(base64.b64decode(item["data"])) == SECRET


async def test_no_body_is_read_of_whom_nobody_allows_nor_more_than_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decode_endpoint, "BODY_BYTES_MAX", 10)
    stranger = Server(b"part", headers={})
    large = Server(b"more than ten", b"part", b"part")

    assert (await stranger.status(), stranger.parts) == (403, [b"part"])
    assert (await large.status(), len(large.parts)) == (413, 2)


async def test_a_server_may_ask_for_the_life_of_the_application() -> None:
    phases, sent = ["lifespan.startup", "lifespan.shutdown"], []

    async def receive() -> dict[str, Any]:
        return {"type": phases.pop(0)}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await ENDPOINT({"type": "lifespan"}, receive, send)

    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
