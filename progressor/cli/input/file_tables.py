"""Tables of a JSON or TOML file, read key by key; what is wrong is told with its place.

Numbers of JSON keep each digit until somebody reads them; a key that stands twice is refused, which
parsers of JSON do not.
"""

import datetime as dt
import json
import re
import tomllib
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import msgspec

from progressor import errors
from progressor.cli.input.inputs import bad_input, file_bytes

Value = TypeVar("Value")

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class FileTable:
    """A table, of which each key is taken once; `check_empty` refuses what is left."""

    def __init__(self, path: str, place: str, rows: dict[str, msgspec.Raw]) -> None:
        self._path, self._place, self._rows = path, place, rows

    def __contains__(self, key: str) -> bool:
        """Tell whether a key is there, and was not taken."""
        return key in self._rows

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that were not taken, in the order of the file."""
        return tuple(self._rows)

    def take(self, key: str, kind: type[Value], default: Value) -> Value:
        """Return the value of a key, or `default` where it is not there.

        Raises:
            InvalidRequestError: It is of another kind; the place within it is named.
        """
        found: Value = default if key not in self._rows else self.optional(key, kind)
        return found

    def optional(self, key: str, kind: Any) -> Any:  # noqa: ANN401  # a kind may be a union
        """Return the value of a key as a `kind`, None where it is not there; as `take`."""
        row = self._rows.pop(key, None)
        if row is None:
            return None
        try:
            return msgspec.json.decode(row, type=kind)
        except msgspec.ValidationError as error:
            description, _, inner = str(error).partition(" - at `$")
            words = f"{description[:1].lower()}{description[1:]}"
            raise self.wrong(words, key, inner.removesuffix("`")) from error
        except RecursionError as error:
            raise self.wrong("is nested too deeply", key) from error

    def read(self, key: str, parse: Callable[[Any], Value]) -> Value | None:
        """Return what `parse` makes of the value of a key; None where it is not there.

        Raises:
            InvalidRequestError: `parse` raised a ValueError.
        """
        if key not in self._rows:
            return None
        try:
            return parse(self.optional(key, Any))
        except (ValueError, OverflowError) as error:
            raise self.wrong(str(error), key) from error

    def raw(self, key: str) -> bytes | None:
        """Return the JSON of a value as it stands in the file; None where it is not there."""
        row = self._rows.pop(key, None)
        return None if row is None else bytes(row)

    def table(self, key: str) -> "FileTable":
        """Return the table of a key, an empty one where it is not there.

        Raises:
            InvalidRequestError: It is not a table.
        """
        rows = self.take(key, dict[str, msgspec.Raw], {})
        return FileTable(self._path, self._place_of(key), rows)

    def check_empty(self) -> None:
        """Refuse what was not taken.

        Raises:
            InvalidRequestError: Something was not.
        """
        for key in self._rows:
            raise self.wrong("there is no such key", key)

    def wrong(
        self, description: str, key: str | None = None, inner: str = ""
    ) -> errors.InvalidRequestError:
        """Return the error for a key, or a place in its value as ``[0]``; None: for the table."""
        return bad_input(self.name_of(key, inner), description)

    def name_of(self, key: str | None = None, inner: str = "") -> str:
        """Return what a place in the file is called."""
        place = self._place_of(key) + inner
        return f"{self._path}: {place}" if place else self._path

    def _place_of(self, key: str | None) -> str:
        if key is None:
            return self._place
        shown = key if _BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)
        return f"{self._place}.{shown}" if self._place else shown


def read_table(path: str, *, option: str) -> FileTable:
    """Return the table that a file is: TOML by its name, else JSON; ``-`` is standard input.

    Raises:
        InvalidRequestError: It cannot be read or is not a table; `option` is named if there is no
            such file.
    """
    text = file_bytes(option, path)
    name = "standard input" if path == "-" else path
    try:
        document = _from_toml(text) if path.endswith(".toml") else text
        json.loads(document, object_pairs_hook=_once, parse_constant=_refuse)
        rows = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as error:
        raise bad_input(name, "is not a table") from error
    except (ValueError, RecursionError) as error:
        form = "TOML" if path.endswith(".toml") else "JSON"
        raise bad_input(name, f"is not {form}: {error}") from error
    return FileTable(name, "", rows)


def _from_toml(text: bytes) -> bytes:
    document = tomllib.loads(text.decode())
    return json.dumps(
        document, default=_instant_text, allow_nan=False, separators=(",", ":")
    ).encode()


def _instant_text(value: object) -> str:
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    message = f"{value!r} is nothing that JSON knows"
    raise ValueError(message)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            message = f"the key {key!r} stands twice in one table"
            raise ValueError(message)
        found[key] = value
    return found


def _refuse(constant: str) -> NoReturn:
    message = f"{constant} is not a JSON number"
    raise ValueError(message)
