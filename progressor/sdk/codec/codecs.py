"""How values become the payloads that the engine keeps, and come back."""

from collections.abc import Coroutine
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec
from typing_extensions import TypeForm

from progressor.sdk.codec import json_types
from progressor.sdk.codec.kinds import Asked, admits_none, members_of, name_of

Payload: TypeAlias = Any
"""A value of the user's own: args, response, state, event. Only the codec knows its type."""


_BYTES_LIKE = (bytes, bytearray, memoryview, type(None), Coroutine)
"""What the bytes codec takes, and what a handler may return to be awaited first."""


class Codec(Protocol):
    """Turns the user's values into bytes and back; one codec speaks for a whole processor.

    None and no bytes at all mean each other: that is how a process without a state looks.
    """

    def encode(self, value: Payload, /) -> bytes:
        """Return `value` as bytes, ``b""`` for None.

        Raises:
            TypeError: The codec has no form for a value of this type.
        """

    def decode(self, data: bytes, kind: Payload = Any, /) -> Payload:
        """Return `data` as a value of the type `kind`, None for ``b""``.

        Raises:
            ValueError: `data` is not what this codec writes, or is no `kind`.
        """


@runtime_checkable
class CheckedCodec(Protocol):
    """What a codec may have besides: it knows types that it can never carry.

    A processor asks it when it is made and when a handler is registered, so that a mistake shows
    there and not in the first process.
    """

    def unreadable(self, kind: object, /) -> str | None:
        """Return why no value of type `kind` can be written and read back; None: one may."""

    def unwritable(self, kind: object, /) -> tuple[object, str] | None:
        """Return the part of `kind` that can never be written, and why; None: all may be."""


class JsonCodec:
    """JSON by msgspec: dataclasses, structs, datetimes, enums, and what JSON itself knows."""

    def encode(self, value: Payload, /) -> bytes:
        """Return `value` as compact JSON, ``b""`` for None."""
        return b"" if value is None else msgspec.json.encode(value)

    def decode(self, data: bytes, kind: Payload = Any, /) -> Payload:
        """Return `data` as a `kind`, checked by msgspec, None for ``b""``."""
        return msgspec.json.decode(data, type=kind) if data else None

    def unreadable(self, kind: object, /) -> str | None:
        """Return why JSON cannot represent a `kind`, or msgspec cannot distinguish its members."""
        return json_types.unreadable(kind)

    def unwritable(self, kind: object, /) -> tuple[object, str] | None:
        """Return the class in `kind` that JSON cannot represent."""
        return json_types.unwritable(kind)


class BytesCodec:
    """Payloads as they are, for those who encode by themselves."""

    def encode(self, value: Payload, /) -> bytes:
        """Return `value`, which must be bytes-like or None."""
        if value is None:
            return b""
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        message = f"the bytes codec takes bytes, not {type(value).__name__}"
        raise TypeError(message)

    def decode(self, data: bytes, kind: Payload = Any, /) -> Payload:
        """Return `data`; None for ``b""``, unless bytes are asked for."""
        return data if kind is bytes else data or None

    def unreadable(self, kind: object, /) -> str | None:
        """Return why a `kind` is not what this codec reads."""
        found = self.unwritable(kind)
        return None if found is None else found[1]

    def unwritable(self, kind: object, /) -> tuple[object, str] | None:
        """Return the class in `kind` that is not bytes."""
        for member in members_of(kind):
            if member is Any or not isinstance(member, type):
                continue
            if not any(issubclass(it, member) for it in _BYTES_LIKE):
                return member, f"the bytes codec takes bytes, not {name_of(member)}"
        return None


JSON = JsonCodec()
BYTES = BytesCodec()


def decoded(codec: Codec, data: bytes, kind: TypeForm[Asked]) -> Asked:
    """Return `data` as a `kind`.

    Raises:
        ValueError: It is not, or it is empty, and `kind` does not admit None.
    """
    value: Asked = codec.decode(data, kind)
    if value is None and not admits_none(kind):
        message = f"expected `{name_of(kind)}`, got an empty payload"
        raise ValueError(message)
    return value
