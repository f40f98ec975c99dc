"""The types that payloads are decoded to, and which of them JSON can represent."""

import collections.abc
import inspect
import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect as shapes
from typing_extensions import TypeForm, TypeVar

Decoded = TypeVar("Decoded", default=Any)
"""The requested type; by default any."""

ANYTHING: TypeForm[Any] = Any
"""No type is requested."""

_UNIONS = (typing.Union, types.UnionType)
_NONES = (Any, object, None, type(None))
_NATIVE = (dict, list, str, int, float, bool, type(None))
_TAGS = "; give them tags, as in `class Paid(msgspec.Struct, tag=True)`"
_COMPOSITE_KEYS = (
    shapes.TupleType,
    shapes.VarTupleType,
    shapes.ListType,
    shapes.SetType,
    shapes.FrozenSetType,
    shapes.DictType,
    shapes.DataclassType,
    shapes.StructType,
    shapes.NamedTupleType,
    shapes.BoolType,
    shapes.NoneType,
)


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


def unreadable_json(kind: object) -> str | None:
    """Return why values of a type cannot be written and read back; None: they may be."""
    try:
        shape = shapes.type_info(kind)
        msgspec.json.Decoder(kind)
    except TypeError as error:
        return f"{error}{_TAGS if _needs_tags(error) else ''}"
    except NameError:  # a class that is not defined yet
        return None
    return next(_problems(shape, "", set()), None)


def _needs_tags(error: TypeError) -> bool:
    """Return whether msgspec refuses a union that tags would make valid."""
    return any(it in str(error) for it in ("one dataclass", "must be tagged"))


def unwritable_json(kind: object) -> tuple[object, str] | None:
    """Return the part of a type that cannot be written (the type or a member of a union), and why.

    A class counts only if none of its subclasses can be written either.
    """
    for member in members_of(kind):
        if isinstance(member, type) and not typing.get_args(member) and _is_unwritable(member):
            return member, _no_form(member)
    return None


def _is_unwritable(kind: type) -> bool:
    if inspect.isabstract(kind) or getattr(kind, "_is_protocol", False) or _is_lenient(kind):
        return False
    if issubclass(kind, collections.abc.Awaitable):
        return False
    try:
        shape = shapes.type_info(kind)
    except (TypeError, NameError):
        return False
    is_custom = isinstance(shape, shapes.CustomType)
    return is_custom and all(map(_is_unwritable, type.__subclasses__(kind)))


def _problems(shape: shapes.Type, where: str, seen: set[type]) -> Iterator[str]:
    """Yield each part of a type that JSON cannot represent, with its field."""
    if isinstance(shape, shapes.CustomType) and not _is_lenient(shape.cls):
        yield _no_form(shape.cls) + where
    if isinstance(shape, shapes.DictType) and isinstance(shape.key_type, _COMPOSITE_KEYS):
        key = getattr(shape.key_type, "cls", type(shape.key_type)).__name__
        yield f"JSON cannot represent a key of type `{key.removesuffix('Type').lower()}`{where}"
    for part in _parts(shape):
        yield from _problems(part, where, seen)
    cls = getattr(shape, "cls", None)
    if cls is not None and cls not in seen:
        seen.add(cls)
        for field in getattr(shape, "fields", ()):
            yield from _problems(field.type, f" (in `{name_of(cls)}.{field.name}`)", seen)


def _parts(shape: shapes.Type) -> tuple[shapes.Type, ...]:
    """Return the types that a type consists of, except for fields."""
    match shape:
        case shapes.DictType(key_type=key, value_type=value):
            return (key, value)
        case shapes.UnionType(types=members) | shapes.TupleType(item_types=members):
            return members
        case (
            shapes.ListType(item_type=item)
            | shapes.SetType(item_type=item)
            | shapes.FrozenSetType(item_type=item)
            | shapes.VarTupleType(item_type=item)
        ):
            return (item,)
        case shapes.Metadata(type=inner):
            return (inner,)
        case _:
            return ()


def _is_lenient(kind: object) -> bool:
    """Return whether decoded JSON is an instance of a class, as of `object` and `Iterable`."""
    try:
        return isinstance(kind, type) and any(issubclass(it, kind) for it in _NATIVE)
    except TypeError:  # a protocol that does not support issubclass
        return True


def _no_form(kind: object) -> str:
    return f"JSON cannot represent `{name_of(kind)}`"
