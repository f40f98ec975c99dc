"""The types that payloads are decoded to."""

import types
import typing
from typing import Any

from typing_extensions import TypeForm, TypeVar

Decoded = TypeVar("Decoded", default=Any)
"""The requested type; by default any."""

ANYTHING: TypeForm[Any] = Any
"""No type is requested."""

_UNIONS = (typing.Union, types.UnionType)
_NONES = (Any, object, None, type(None))


def admits_none(kind: object) -> bool:
    """Return whether `kind` admits None, as ``int | None`` and Any do."""
    if kind in _NONES:
        return True
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return admits_none(typing.get_args(kind)[0])
    if origin is typing.Literal:
        return None in typing.get_args(kind)
    if origin in _UNIONS:
        return any(map(admits_none, members_of(kind)))
    named = getattr(kind, "__value__", getattr(kind, "__supertype__", kind))
    return named is not kind and admits_none(named)


def members_of(kind: object) -> tuple[object, ...]:
    """Return the members of a union; of another type, itself."""
    return typing.get_args(kind) if typing.get_origin(kind) in _UNIONS else (kind,)


def name_of(kind: object) -> str:
    """Return the name of a type as in source code."""
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)
