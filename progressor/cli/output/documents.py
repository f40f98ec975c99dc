"""JSON documents: what ``--json`` prints.

Keys are the names of the fields. A payload is embedded if it is JSON, else encoded as base64 under
``<key>_base64``; an empty payload is null. A duration is in seconds under ``<key>_seconds``.
"""

import base64
import dataclasses
import datetime as dt
import enum
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import grpc
import msgspec


def render(document: object, *, indent: int = 2) -> str:
    """Return a value as one JSON document without terminal control characters.

    Args:
        document: Any value of the SDK, or a collection of them.
        indent: Of its lines; -1: the document is one line.
    """
    encoded = msgspec.json.encode(plain(document))
    return escaped(msgspec.json.format(encoded, indent=indent).decode())


def escaped(document: str) -> str:
    """Return the same JSON document with an escape for each character that is not printable.

    JSON itself requires that for C0 controls only. Line ends between its parts stay.
    """
    if document.isprintable():
        return document
    lines = document.split("\n")
    return "\n".join(it if it.isprintable() else "".join(map(_escape, it)) for it in lines)


def _escape(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]


def plain(value: object) -> object:
    """Return a value as JSON types."""
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    match value:
        case Mapping():
            return dict(pair for key, it in value.items() for pair in _pairs(str(key), it))
        case tuple() | list():
            return [plain(inner) for inner in value]
        case _:
            return _scalar(value)


def _scalar(value: object) -> object:
    match value:
        case grpc.StatusCode():
            return value.name
        case enum.Enum():
            return value.value
        case dt.datetime():
            return value.isoformat()
        case Path():
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case _:
            raise AssertionError(f"cannot print a {type(value)}")


def is_json(payload: bytes) -> bool:
    """Return whether a payload is one JSON text."""
    try:
        msgspec.json.decode(payload, type=msgspec.Raw)
        payload.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _pairs(key: str, value: object) -> Iterator[tuple[str, object]]:
    match value:
        case b"":
            yield key, None
        case bytes() if is_json(value):
            # Raw: numbers keep all their digits.
            yield key, msgspec.Raw(value)
        case bytes():
            yield f"{key}_base64", base64.b64encode(value).decode("ascii")
        case dt.timedelta():
            yield f"{key}_seconds", value.total_seconds()
        case _:
            yield key, plain(value)
