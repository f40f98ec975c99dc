"""Asks an endpoint to decrypt payloads, over HTTPS."""

import base64
import http.client
import ssl
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from progressor.sdk.codec.revealed import RevealError

TIMEOUT_SECONDS = 5.0

_ANSWER_BYTES_MAX = 64 * 1024 * 1024
_LOCAL = ("localhost", "127.0.0.1", "::1")


class Endpoint:
    """Asks the endpoint at a URL, as ``DecodeEndpoint`` serves it."""

    def __init__(self, url: str, token: str | None) -> None:
        """Take where it is, and the bearer token that it gets.

        Raises:
            ValueError: The URL is not ``https://…``, or ``http://`` and this machine.
        """
        try:
            parts = urlsplit(url)
            host, self._port = parts.hostname or "", parts.port
        except ValueError as error:
            message = f"must be a URL such as https://decode.internal/decode: {error}"
            raise ValueError(message) from None
        is_secret = parts.scheme == "https" or (parts.scheme == "http" and host in _LOCAL)
        if not host or not is_secret or parts.username is not None:
            message = (
                "must be https://HOST/decode without a user, or http:// for an endpoint on this "
                "machine"
            )
            raise ValueError(message)
        self._host, self._is_tls = host, parts.scheme == "https"
        self._path = parts.path if parts.path.strip("/") else "/decode"
        self._where = f"{parts.scheme}://{parts.netloc}{self._path}"
        self._headers = {"content-type": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"

    def __call__(self, payloads: Sequence[bytes], /) -> list[bytes | str]:
        """Return each payload decrypted, or why it is not.

        Raises:
            RevealError: The endpoint gives no answer, or refuses this one.
        """
        body = {"payloads": [base64.b64encode(it).decode("ascii") for it in payloads]}
        answer = self._answer(msgspec.json.encode(body))
        try:
            items = msgspec.json.decode(answer, type=_Answer).payloads
            found: list[bytes | str] = [
                it.error or base64.b64decode(it.data, validate=True) for it in items
            ]
        except (msgspec.DecodeError, ValueError):
            found = []
        if len(found) != len(payloads):
            raise RevealError(self._words("has sent something else than decoded payloads"))
        return found

    def _answer(self, body: bytes) -> bytes:
        # Not urllib, which follows redirects with the token, and uses proxies.
        connection = self._connection()
        try:
            connection.request("POST", self._path, body, self._headers)
            response = connection.getresponse()
            answer = response.read(_ANSWER_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise RevealError(self._words(f"cannot be asked: {why}")) from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise RevealError(self._words(f"answered {response.status} {response.reason}"))
        if len(answer) > _ANSWER_BYTES_MAX:
            raise RevealError(self._words("has sent too much"))
        return answer

    def _connection(self) -> http.client.HTTPConnection:
        if not self._is_tls:
            return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_SECONDS)
        return http.client.HTTPSConnection(
            self._host,
            self._port,
            timeout=TIMEOUT_SECONDS,
            context=ssl.create_default_context(),
        )

    def _words(self, what: str) -> str:
        return f"{self._where} {what}"


class _Item(msgspec.Struct):
    data: str = ""
    error: str = ""


class _Answer(msgspec.Struct):
    payloads: list[_Item]
