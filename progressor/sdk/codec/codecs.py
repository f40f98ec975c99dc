"""Codecs: how values become the payloads that the engine stores, and back."""

import dataclasses
from collections.abc import Coroutine
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec
from typing_extensions import TypeForm

from progressor.sdk.codec.kinds import (
    ANYTHING,
    Decoded,
    admits_none,
    members_of,
    name_of,
    unreadable_json,
    unwritable_json,
)

Payload: TypeAlias = Any
"""A value of the user's: args, response, state, event. Only the codec knows its type."""


_BYTES_LIKE = (bytes, bytearray, memoryview, type(None), Coroutine)
"""What the bytes codec accepts, and coroutines, which are awaited first."""


class Codec(Protocol):
    """Encodes the user's values as bytes and decodes them.

    None is encoded as ``b""``, and ``b""`` is decoded as None, the state of a process without one.
    """

    def encode(self, value: Payload, /) -> bytes:
        """Return `value` as bytes, ``b""`` for None.

        Raises:
            TypeError: The codec cannot encode a value of this type.
        """

    def decode(self, data: bytes, kind: Payload = Any, /) -> Payload:
        """Return `data` as a value of the type `kind`, None for ``b""``.

        Raises:
            ValueError: `data` is not valid, or not a `kind`.
        """


@runtime_checkable
class CheckedCodec(Protocol):
    """A codec that can check types.

    A processor calls the checks when it is created and when a handler is registered, so that a
    mistake is found before the first process.
    """

    def unreadable(self, kind: object, /) -> str | None:
        """Return why the codec cannot write and read a `kind`; None: it may be able to."""

    def unwritable(self, kind: object, /) -> tuple[object, str] | None:
        """Return a part of `kind` that the codec cannot write, and why; None: it may write all."""


@runtime_checkable
class RepeatableCodec(Protocol):
    """A codec that may encode one value differently each time, unless it is told not to."""

    def repeatable(self, scope: str, /) -> Codec:
        """Return a codec that encodes the same value as the same bytes within a scope."""


class DecryptionError(Exception):
    """A payload cannot be decrypted: it was changed, or the key is not the one it was made with.

    In a handler it fails the attempt, which is retried by the policy of the namespace.
    """


class KeyNotFoundError(DecryptionError):
    """A payload is encrypted with a key that this program does not have.

    A handler that meets it counts as not reached: the step waits for a processor that has the key,
    uses up no attempt, and breaks nothing.
    """

    reason = "PAYLOAD_KEY_NOT_FOUND"

    def __init__(self, key_id: str, place: str) -> None:
        """Name the key, and where it was looked for."""
        self.key_id = key_id
        super().__init__(f"no key with the id {key_id!r} in {place}")


class JsonCodec:
    """JSON by msgspec: dataclasses, structs, datetimes, enums and the types of JSON."""

    def encode(self, value: Payload, /) -> bytes:
        """Return `value` as compact JSON, ``b""`` for None."""
        return b"" if value is None else msgspec.json.encode(value)

    def decode(self, data: bytes, kind: Payload = Any, /) -> Payload:
        """Return `data` as a `kind`, validated by msgspec, None for ``b""``."""
        return msgspec.json.decode(data, type=kind) if data else None

    def unreadable(self, kind: object, /) -> str | None:
        """Return why JSON cannot represent a `kind`, or msgspec cannot distinguish its members."""
        return unreadable_json(kind)

    def unwritable(self, kind: object, /) -> tuple[object, str] | None:
        """Return the class in `kind` that JSON cannot represent."""
        return unwritable_json(kind)


class BytesCodec:
    """Payloads as bytes, for programs that encode them."""

    def encode(self, value: Payload, /) -> bytes:
        """Return `value`, which must be bytes-like or None."""
        if value is None:
            return b""
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        message = f"the bytes codec accepts only bytes, got {type(value).__name__}"
        raise TypeError(message)

    def decode(self, data: bytes, kind: Payload = Any, /) -> Payload:
        """Return `data`; None for ``b""``, unless `kind` is bytes."""
        return data if kind is bytes else data or None

    def unreadable(self, kind: object, /) -> str | None:
        """Return why this codec cannot read a `kind`."""
        found = self.unwritable(kind)
        return None if found is None else found[1]

    def unwritable(self, kind: object, /) -> tuple[object, str] | None:
        """Return the class in `kind` that is not bytes."""
        for member in members_of(kind):
            if member is Any or not isinstance(member, type):
                continue
            if not any(issubclass(it, member) for it in _BYTES_LIKE):
                return member, f"the bytes codec accepts only bytes, got {name_of(member)}"
        return None


@dataclasses.dataclass(frozen=True, slots=True)
class Typed:
    """A codec, and the type to which the main payload of a response is decoded."""

    codec: Codec
    kind: Any = ANYTHING

    def decode(self, data: bytes) -> Payload:
        """Return any other payload of the response."""
        return self.codec.decode(data)


JSON = JsonCodec()
BYTES = BytesCodec()


def for_request(codec: Codec, idempotency_key: str, *scope: str) -> Codec:
    """Return the codec of a request, whose payloads are the same when it is sent again."""
    if not idempotency_key or not isinstance(codec, RepeatableCodec):
        return codec
    return codec.repeatable("\0".join((*scope, idempotency_key)))


def decoded(codec: Codec, data: bytes, kind: TypeForm[Decoded]) -> Decoded:
    """Return `data` as a `kind`.

    Raises:
        ValueError: It is not a `kind`, or it is empty and `kind` does not admit None.
    """
    value: Decoded = codec.decode(data, kind)
    if value is None and not admits_none(kind):
        message = f"expected `{name_of(kind)}`, got an empty payload"
        raise ValueError(message)
    return value
