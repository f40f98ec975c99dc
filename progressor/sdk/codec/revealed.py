"""Encrypted payloads for programs without keys: shown by key id, or decrypted by an endpoint.

`Sealed` payloads are collected as they are read, and sent to the endpoint together when the first
of them is needed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from progressor.sdk.codec.codecs import BytesCodec, DecryptionError
from progressor.sdk.codec.envelope import is_encrypted, opened

_BATCH_MAX = 500
_BATCH_BYTES_MAX = 8 * 1024 * 1024


class Ask(Protocol):
    """Sends payloads to an endpoint."""

    def __call__(self, payloads: Sequence[bytes], /) -> Sequence[bytes | str]:
        """Return each payload decrypted, or the reason why not; RevealError if none can be."""


class RevealError(Exception):
    """The endpoint did not answer."""


class Sealed(bytes):
    """An encrypted payload."""

    key_id: str
    revealer: "Revealer"

    @property
    def revealed(self) -> bytes | None:
        """The decrypted payload; None if it cannot be decrypted."""
        return self.revealer.reveal(bytes(self))


class Revealer(BytesCodec):
    """A codec of bytes that marks encrypted payloads, and has an endpoint decrypt them."""

    def __init__(self, ask: Ask | None, tell: Callable[[str], None]) -> None:
        """Take functions that call the endpoint (None without one) and report its errors."""
        self._ask, self._tell = ask, tell
        self._told: set[str] = set()
        # Bounded by what one command reads.
        self._unknown: dict[bytes, None] = {}
        self._known: dict[bytes, bytes] = {}

    def decode(self, data: bytes, kind: Any = Any, /) -> Any:  # noqa: ANN401  # as of any codec
        """Return `data`, `Sealed` if it is encrypted; None for ``b""``."""
        if not is_encrypted(data):
            return super().decode(data, kind)
        try:
            key_id = opened(data).key_id
        except DecryptionError:
            return data
        sealed = Sealed(data)
        sealed.key_id, sealed.revealer = key_id, self
        if data not in self._known:
            self._unknown[data] = None
        return sealed

    def reveal(self, data: bytes) -> bytes | None:
        """Return the decrypted payload; None if that failed, which has been reported."""
        if data in self._unknown:
            for batch in _batches(self._unknown):
                self._reveal(batch)
            self._unknown.clear()
        return self._known.get(data)

    def _reveal(self, batch: Sequence[bytes]) -> None:
        if self._ask is None:
            return
        try:
            answers = self._ask(batch)
        except RevealError as error:
            self._ask = None  # each further one would wait for its timeout
            self._say(str(error))
            return
        for payload, answer in zip(batch, answers, strict=True):
            if isinstance(answer, bytes):
                self._known[payload] = answer
            else:
                self._say(answer)

    def _say(self, why: str) -> None:
        """Tell people of an error, of each kind once."""
        if why not in self._told:
            self._told.add(why)
            self._tell(why)


def _batches(payloads: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for payload in payloads:
        if batch and (len(batch) == _BATCH_MAX or size + len(payload) > _BATCH_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(payload)
        size += len(payload)
    yield batch
