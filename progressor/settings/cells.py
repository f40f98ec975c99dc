"""The cells of an engine: tables ``[[cells]]``; without one, ``database`` is the only cell."""

import dataclasses
from collections.abc import Iterator

from progressor import errors
from progressor.domain.processes.namespace import is_namespace_name
from progressor.settings.addresses import check_dsn
from progressor.settings.decoding import Faults, Given, decode, given_table, setting

TABLE = "cells"
MAIN = "main"
"""The name of the only cell of an engine without tables."""

_EMBEDDED_NAME_MAX = 52
"""With what comes before it, the name of a database, which has at most 63 bytes."""

CELLS_MAX = 65
"""As many have a range of ids (``priv/functions/cells/ids_from.sql``)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CellTable:
    """A PostgreSQL database that holds some of the namespaces; the first one is the home cell."""

    name: str = setting("", "the name of the cell: 1 to 64 of [a-z0-9._-]; it can never change")
    dsn: str = setting(
        "",
        "its PostgreSQL (URL or key=value); empty: a database of the embedded one",
        secret=True,
    )


def decode_cells(given: Given) -> tuple[CellTable, ...]:
    """Return the cells in the order of their tables.

    Raises:
        ConfigError: A key is unknown or missing, or its value is wrong.
    """
    if not isinstance(given.value, list) or not given.value:
        raise errors.ConfigError(TABLE, f"must be tables [[{TABLE}]]{given.where}")
    if len(given.value) > CELLS_MAX:
        words = f"must be at most {CELLS_MAX} tables, got {len(given.value)}"
        raise errors.ConfigError(TABLE, words)
    found, faults = [], Faults()
    for index, value in enumerate(given.value):
        with faults:
            table = given_table(dataclasses.replace(given, value=value), prefix=key_of(index))
            found.append(decode(CellTable, table, prefix=key_of(index)))
    faults.raise_all()
    for index, cell in enumerate(found):
        with faults:
            _check(index, cell, found[:index])
    faults.raise_all()
    return tuple(found)


def key_of(index: int) -> str:
    return f"{TABLE}[{index}]"


def _check(index: int, cell: CellTable, others: list[CellTable]) -> None:
    if not is_namespace_name(cell.name):
        words = f"must be 1 to 64 of [a-z0-9._-], got {cell.name!r}"
        raise errors.ConfigError(f"{key_of(index)}.name", words)
    if not cell.dsn and len(cell.name) > _EMBEDDED_NAME_MAX:
        words = f"must have at most {_EMBEDDED_NAME_MAX} characters without a dsn"
        raise errors.ConfigError(f"{key_of(index)}.name", f"{words}, got {cell.name!r}")
    if cell.dsn:
        check_dsn(f"{key_of(index)}.dsn", cell.dsn)
    for key, place in _same(cell, others):
        words = f"must differ from that of {key_of(place)}"
        raise errors.ConfigError(f"{key_of(index)}.{key}", words)


def _same(cell: CellTable, others: list[CellTable]) -> Iterator[tuple[str, int]]:
    for place, other in enumerate(others):
        if other.name == cell.name:
            yield "name", place
        if cell.dsn and other.dsn == cell.dsn:
            yield "dsn", place
