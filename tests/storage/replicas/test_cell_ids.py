"""The ids of cells: each cell gives out its own, also after it has been restored."""

import itertools
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from progressor.storage.postgres.functions import Functions

NUMBER_MAX = 64
FIRST = 2**52
RANGE = 2**46
SEQUENCES = (
    "task_ids", "lease_tokens", "replica_ids", "message_ids", "audit_entries_entry_id_seq"
)  # fmt: skip


@pytest.fixture
def connection(own_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(own_database, autocommit=True) as opened:
        path = sql.SQL("SET search_path TO {}, progressor, pg_temp")
        opened.execute(path.format(sql.Identifier(Functions().schema)))
        yield opened


def _become(
    connection: psycopg.Connection[Any], number: int | None, name: str = "b"
) -> Any:  # a row
    query = "SELECT name, number, is_used FROM become_cell(%s, %s, %s)"
    return connection.execute(query, [name, number, uuid.uuid4()]).fetchone()


def _next(connection: psycopg.Connection[Any]) -> list[int]:
    found = [connection.execute("SELECT nextval(%s)", [it]).fetchone() for it in SEQUENCES]
    return [row[0] for row in found if row]


def test_the_ranges_of_all_cells_are_apart_and_below_2_to_53(
    connection: psycopg.Connection[Any],
) -> None:
    firsts = []
    for number in range(NUMBER_MAX + 1):
        connection.execute("DELETE FROM cell")
        connection.execute("INSERT INTO cell VALUES ('any', %s, %s)", [number, uuid.uuid4()])
        row = connection.execute("SELECT first_id, per_second FROM ids_from()").fetchone()
        assert row is not None
        firsts.append(row[0])
        # As many as the clock gives it until 2088.
        assert row[1] * 2**31 <= (FIRST if number == 0 else RANGE)

    assert firsts[:2] == [0, FIRST]
    assert {after - before for before, after in itertools.pairwise(firsts[1:])} == {RANGE}
    assert firsts[-1] + RANGE <= 2**53


@pytest.mark.parametrize("number", [1, 2, NUMBER_MAX])
def test_a_cell_gives_out_ids_of_its_range_alone(
    connection: psycopg.Connection[Any], number: int
) -> None:
    _become(connection, number)
    drawn = _next(connection)
    for _ in range(2):
        connection.execute("SELECT begin_epoch(1)")
        before, drawn = drawn, _next(connection)
        assert all(old < new for old, new in zip(before, drawn, strict=True))

    first = FIRST + (number - 1) * RANGE
    assert all(first <= it < first + RANGE for it in drawn)


def test_a_lost_database_that_is_replaced_by_an_empty_one_repeats_no_id(
    connection: psycopg.Connection[Any],
) -> None:
    _become(connection, 1)
    lost = _next(connection)
    # What a new database is: its sequences are at the beginning, and it is no cell.
    connection.execute("DELETE FROM cell")
    for sequence in SEQUENCES:
        connection.execute("SELECT setval(%s, 1)", [sequence])
    _become(connection, 1)

    assert all(old < new for old, new in zip(lost, _next(connection), strict=True))


def test_a_database_stays_the_cell_that_it_is(connection: psycopg.Connection[Any]) -> None:
    assert _become(connection, None) == (None, None, False)
    assert _become(connection, 1) == ("b", 1, False)
    assert _become(connection, 2, "c") == ("b", 1, False)
    assert _become(connection, None, "c") == ("b", 1, False)


def test_the_home_cell_goes_on_with_its_ids(connection: psycopg.Connection[Any]) -> None:
    before = _next(connection)
    _become(connection, 0, "main")

    assert _next(connection) == [it + 1 for it in before]
