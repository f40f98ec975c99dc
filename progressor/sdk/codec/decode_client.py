"""Asks an endpoint to decrypt payloads, over HTTPS."""

import base64
import http
from collections.abc import Sequence

import msgspec

from progressor.sdk.codec.revealed import RevealError
from progressor.wire.https import HttpsError, exchanged, split_url

TIMEOUT_SECONDS = 5.0

_ANSWER_BYTES_MAX = 64 * 1024 * 1024


class _Item(msgspec.Struct):
    data: str = ""
    error: str = ""


class _Answer(msgspec.Struct):
    payloads: list[_Item]


class Endpoint:
    """Asks the endpoint at a URL, as ``DecodeEndpoint`` serves it."""

    def __init__(self, url: str, token: str | None) -> None:
        """Take where it is, and the bearer token that it gets.

        Raises:
            ValueError: The URL is not ``https://…``, or ``http://`` and this machine.
        """
        parts = split_url(url)
        self._url = url if parts.path.strip("/") else parts._replace(path="/decode").geturl()
        self._headers = {"content-type": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"

    def __call__(self, payloads: Sequence[bytes], /) -> list[bytes | str]:
        """Return each payload decrypted, or why it is not.

        Raises:
            RevealError: The endpoint gives no answer, or refuses this one.
        """
        body = {"payloads": [base64.b64encode(it).decode("ascii") for it in payloads]}
        try:
            status, answer = exchanged(
                self._url,
                msgspec.json.encode(body),
                headers=self._headers,
                timeout=TIMEOUT_SECONDS,
                answer_bytes_max=_ANSWER_BYTES_MAX,
            )
        except HttpsError as error:
            raise RevealError(str(error)) from error
        if status != http.HTTPStatus.OK:
            raise RevealError(f"{self._url} answered {status}")
        return self._read(answer, len(payloads))

    def _read(self, answer: bytes, count: int) -> list[bytes | str]:
        try:
            items = msgspec.json.decode(answer, type=_Answer).payloads
            found: list[bytes | str] = [
                it.error or base64.b64decode(it.data, validate=True) for it in items
            ]
        except (msgspec.DecodeError, ValueError):
            found = []
        if len(found) != count:
            message = f"{self._url} has sent something else than decoded payloads"
            raise RevealError(message)
        return found
