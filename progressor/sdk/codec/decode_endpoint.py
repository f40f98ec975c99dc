"""An HTTP endpoint that decrypts payloads for those who may see them, such as the command line.

::

    POST /decode
    {"payloads": ["base64", …]}

    200 OK
    {"payloads": [{"data": "base64"}, {"error": "no key with the id '2026-08' in …"}]}

The answer has an item for each payload, in their order.
"""

import base64
import binascii
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeAlias

import msgspec

from progressor.sdk.codec.codecs import DecryptionError
from progressor.sdk.codec.encryption import Encrypted

BODY_BYTES_MAX = 32 * 1024 * 1024
"""Of a request; a payload of 16 MiB fits."""

PAYLOADS_MAX = 1000

_PATH = "/decode"

_Message: TypeAlias = MutableMapping[str, Any]
Headers: TypeAlias = Mapping[str, str]

_log = logging.getLogger(__name__)


class DecodeRequest(msgspec.Struct, frozen=True):
    """The body of a request."""

    payloads: list[str]


class DecodeItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One payload of an answer: its data as base64, or why it cannot be decrypted."""

    data: str = ""
    error: str = ""


class DecodeAnswer(msgspec.Struct, frozen=True):
    """The body of an answer."""

    payloads: list[DecodeItem]


class DecodeEndpoint:
    """An ASGI application that decrypts payloads; serve it over TLS.

    ``respond`` is all of it for other servers. It has the keys, so it shows every payload that it
    is given to every caller that `authorize` accepts.
    """

    def __init__(self, codec: Encrypted, *, authorize: Callable[[Headers], bool]) -> None:
        """Decrypt as `codec` does.

        Args:
            codec: Its keys decrypt; the codec within it is not used.
            authorize: Gets the headers of each request, with names in lower case, before its body
                is read; anything but True is answered with 403. It must be a plain function.
        """
        self._codec, self._authorize = codec, authorize

    def respond(self, method: str, path: str, headers: Headers, body: bytes) -> tuple[int, bytes]:
        """Return the status and the JSON body of the answer to a request."""
        refused = self._refused(method, path, headers)
        return refused or self._decoded(body)

    async def __call__(
        self,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[None]],
    ) -> None:
        """Answer a request of an ASGI server."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            message = f"no {scope['type']} is served here"
            raise ValueError(message)
        headers = {
            name.decode("latin-1").lower(): it.decode("latin-1") for name, it in scope["headers"]
        }
        answer = self._refused(scope["method"], scope["path"], headers)
        if answer is None:
            body = await _body(receive)
            answer = _error(413, f"the body has more than {BODY_BYTES_MAX} bytes")
            if body is not None:
                answer = self._decoded(body)
        await _send(send, *answer)

    def _refused(self, method: str, path: str, headers: Headers) -> tuple[int, bytes] | None:
        """Return the answer to a request whose body must not be read."""
        if path.rstrip("/") != _PATH:
            return _error(404, f"only {_PATH} is served here")
        if method != "POST":
            return _error(405, "only POST is served here")
        # A coroutine, for example, is true, too.
        if self._authorize(headers) is not True:
            _log.warning("decoding refused")
            return _error(403, "not allowed")
        return None

    def _decoded(self, body: bytes) -> tuple[int, bytes]:
        if len(body) > BODY_BYTES_MAX:
            return _error(413, f"the body has more than {BODY_BYTES_MAX} bytes")
        try:
            payloads = msgspec.json.decode(body, type=DecodeRequest).payloads
            given = [base64.b64decode(it, validate=True) for it in payloads]
        except (msgspec.DecodeError, binascii.Error, ValueError, RecursionError):
            return _error(400, 'the body must be {"payloads": ["base64", …]}')
        if len(given) > PAYLOADS_MAX:
            return _error(400, f"at most {PAYLOADS_MAX} payloads are decoded at once")
        items = [self._item(it) for it in given]
        failed = sum(bool(it.error) for it in items)
        _log.info("payloads decoded", extra={"count": len(items), "failed": failed})
        return 200, msgspec.json.encode(DecodeAnswer(items))

    def _item(self, payload: bytes) -> DecodeItem:
        try:
            data = self._codec.decrypted(payload)
        except (DecryptionError, ValueError) as error:
            return DecodeItem(error=str(error))
        return DecodeItem(data=base64.b64encode(data).decode("ascii"))


async def _live(
    receive: Callable[[], Awaitable[_Message]], send: Callable[[_Message], Awaitable[None]]
) -> None:
    """Answer the lifespan events of a server; there is nothing to start or stop."""
    while True:  # ends with the server
        phase = (await receive())["type"]
        await send({"type": f"{phase}.complete"})
        if phase == "lifespan.shutdown":
            return


async def _body(receive: Callable[[], Awaitable[_Message]]) -> bytes | None:
    """Return the body of a request; None if it is too large."""
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > BODY_BYTES_MAX:
            return None
        more = message["type"] == "http.request" and message.get("more_body", False)
    return b"".join(parts)


async def _send(send: Callable[[_Message], Awaitable[None]], status: int, body: bytes) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _error(status: int, why: str) -> tuple[int, bytes]:
    return status, msgspec.json.encode({"error": why})
