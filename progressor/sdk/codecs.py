"""How values become the payloads that the engine keeps, and come back."""

from typing import Any, Protocol, TypeAlias

import msgspec

Payload: TypeAlias = Any
"""A value of the user's own: args, response, state, event. Only the codec knows its type."""


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


class JsonCodec:
    """JSON by msgspec: dataclasses, structs, datetimes, enums, and what JSON itself knows."""

    def encode(self, value: Payload, /) -> bytes:
        """Return `value` as compact JSON, ``b""`` for None."""
        return b"" if value is None else msgspec.json.encode(value)

    def decode(self, data: bytes, kind: Payload = Any, /) -> Payload:
        """Return `data` as a `kind`, checked by msgspec, None for ``b""``."""
        return msgspec.json.decode(data, type=kind) if data else None


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


JSON = JsonCodec()
BYTES = BytesCodec()
