"""Columns on their way to PostgreSQL: what arrives is what was sent."""

import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from progressor.storage.postgres.pools import Connection
from progressor.storage.postgres.rows.arrays import COLUMNS
from tests.support.storage.store import connect

pytestmark = pytest.mark.asyncio(loop_scope="module")

MICROSECOND = dt.timedelta(microseconds=1)
LAST = dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)
FIRST = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
ELSEWHERE = dt.timezone(dt.timedelta(hours=5, minutes=30))

VALUES: dict[str, list[Any]] = {
    "smallint": [0, -1, 32_767, -32_768],
    "integer": [0, -1, 2**31 - 1, -(2**31)],
    "bigint": [0, -1, 2**63 - 1, -(2**63)],
    "double precision": [0.0, -0.1, 1e308, 5e-324, float("inf")],
    "boolean": [True, False],
    "text": ["", "NULL", "a\"b'c\\d,{}", "Zoë 🦉 \U0010ffff", "x" * 70_000],
    "bytea": [b"", b"\0", bytes(range(256)), b"\\x00", b"y" * 70_000],
    "json": [b"{}", '{"ü": [1, null, "\\u0041"]}'.encode()],
    "jsonb": [b"{}", '{"ü": [1, null]}'.encode()],
    "timestamptz": [
        dt.datetime(2000, 1, 1, tzinfo=dt.UTC),
        dt.datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC),
        dt.datetime(2026, 11, 20, 12, 0, 0, 1, tzinfo=ELSEWHERE),
        LAST,
        FIRST,
    ],
}
SHAPES = ("all", "none among them", "only none", "empty")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def connection(database: str) -> AsyncIterator[Connection]:
    async with await connect(database) as connection:
        await connection.execute("SET timezone = 'UTC'")
        yield connection


def shaped(values: list[Any], shape: str) -> list[Any]:
    return {
        "all": values,
        "none among them": [None, *values, None],
        "only none": [None, None],
        "empty": [],
    }[shape]


async def test_every_type_is_covered() -> None:
    assert {f"{type_}[]" for type_ in VALUES} == set(COLUMNS)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("type_", VALUES)
async def test_a_column_arrives_as_it_was_sent(
    connection: Connection, type_: str, shape: str
) -> None:
    column, sent = COLUMNS[f"{type_}[]"], shaped(VALUES[type_], shape)

    cursor = await connection.execute(
        "SELECT pg_typeof(%b)::text, array_ndims(%b), cardinality(%b)",
        [column(sent)] * 3,
    )
    described = await cursor.fetchone()
    cursor = await connection.execute(
        "SELECT u::text, u FROM unnest(%b) WITH ORDINALITY AS v (u, n) ORDER BY n", [column(sent)]
    )
    received = await cursor.fetchall()

    assert described == (f"{_full_name(type_)}[]", 1 if sent else None, len(sent))
    if type_ in {"json", "jsonb"}:
        texts = [None if value is None else value.decode() for value in sent]
        assert [row[0] for row in received] == texts
    else:
        assert [row[1] for row in received] == sent


async def test_an_instant_keeps_its_microsecond(connection: Connection) -> None:
    cursor = await connection.execute(
        "SELECT extract(microseconds FROM (%b)[1])::integer",
        [COLUMNS["timestamptz[]"]([FIRST.replace(year=2026) + MICROSECOND])],
    )

    assert await cursor.fetchone() == (1,)


def _full_name(type_: str) -> str:
    return "timestamp with time zone" if type_ == "timestamptz" else type_
