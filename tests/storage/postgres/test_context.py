"""What storage classes take from the replica around them: rows by name."""

from typing import NamedTuple

import psycopg
import pytest

from progressor.storage.postgres.context import fetch_named


class Place(NamedTuple):
    slot: int
    name: str


async def test_a_statement_returns_rows_with_the_fields_of_their_type(database: str) -> None:
    async with await psycopg.AsyncConnection.connect(database) as connection:
        cursor = await connection.execute("SELECT 1 AS slot, 'a' AS name")

        assert await fetch_named(cursor, Place) == [Place(slot=1, name="a")]


async def test_a_statement_with_other_columns_is_refused(database: str) -> None:
    async with await psycopg.AsyncConnection.connect(database) as connection:
        cursor = await connection.execute("SELECT 'a' AS name, 1 AS slot")

        with pytest.raises(AssertionError, match=r"returns \('name', 'slot'\), not \('slot',"):
            await fetch_named(cursor, Place)
