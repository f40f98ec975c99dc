"""The proxy does what its faults say: asked of PostgreSQL itself, past the proxy."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from tests.support.faults.faults import (
    Fault,
    cut_after,
    cut_before,
    cut_in,
    cut_uncommitted,
    refused,
    stalled_after,
    stalled_before,
    terminated,
)
from tests.support.faults.ground import eventually
from tests.support.postgres.proxy import Proxy

INSERT = "INSERT INTO notes VALUES (%s) RETURNING number"

Client = psycopg.AsyncConnection[tuple[Any, ...]]


@pytest.fixture
def notes(observer: psycopg.Connection[Any]) -> Iterator[psycopg.Connection[Any]]:
    """Return a connection past the proxy, to a database with an empty table."""
    observer.execute("CREATE TABLE notes (number integer PRIMARY KEY)")
    yield observer
    observer.execute("DROP TABLE notes")


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[Client]:
    async with await psycopg.AsyncConnection.connect(proxy.conninfo, autocommit=True) as opened:
        yield opened
    proxy.restore()


def noted(observer: psycopg.Connection[Any]) -> list[int]:
    return [
        row[0] for row in observer.execute("SELECT number FROM notes ORDER BY number").fetchall()
    ]


@pytest.mark.parametrize(
    ("fault", "done"),
    [
        (cut_before, False),
        (cut_after, True),
        (cut_in, True),
        (cut_uncommitted, False),
        (terminated, False),
    ],
    ids=lambda it: getattr(it, "__name__", ""),
)
async def test_a_connection_that_breaks_leaves_done_what_was_done(
    proxy: Proxy, client: Client, notes: psycopg.Connection[Any], fault: Any, done: bool
) -> None:
    struck: Fault = proxy.arm(fault("INTO notes", number=2))
    await client.execute(INSERT, [1])
    with pytest.raises(psycopg.OperationalError):
        await client.execute(INSERT, [2])
    await struck.struck()

    assert client.closed
    assert noted(notes) == [1, *([2] if done else [])]


async def test_a_statement_that_is_refused_leaves_the_connection_as_it_was(
    proxy: Proxy, client: Client, notes: psycopg.Connection[Any]
) -> None:
    proxy.arm(refused("INTO notes", "53100"))
    with pytest.raises(psycopg.errors.DiskFull):
        await client.execute(INSERT, [1])
    await client.execute(INSERT, [2])

    assert noted(notes) == [2]


@pytest.mark.parametrize("fault", [stalled_before, stalled_after])
async def test_what_stalls_arrives_late(
    proxy: Proxy, client: Client, notes: psycopg.Connection[Any], fault: Any
) -> None:
    stalled: Fault = proxy.arm(fault("INTO notes"))
    waiting = asyncio.ensure_future(client.execute(INSERT, [1]))
    await stalled.struck()
    before = noted(notes)
    proxy.restore()
    await waiting

    assert before == ([] if fault is stalled_before else [1])
    assert noted(notes) == [1]


async def test_a_client_that_hangs_up_on_a_stall_is_seen_and_what_it_said_arrives(
    proxy: Proxy, client: Client, notes: psycopg.Connection[Any]
) -> None:
    given_up = proxy.given_up_count
    stalled: Fault = proxy.arm(stalled_before("INTO notes"))
    client.pgconn.send_query_params(b"INSERT INTO notes VALUES ($1)", [b"1"])
    client.pgconn.flush()
    await stalled.struck()
    await client.close()
    await proxy.gave_up(given_up + 1)
    proxy.restore()
    await eventually(lambda: noted(notes) == [1])


async def test_a_proxy_that_refuses_breaks_what_there_is_and_takes_nothing_new(
    proxy: Proxy, client: Client
) -> None:
    proxy.refuse()
    with pytest.raises(psycopg.OperationalError):
        await client.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        await psycopg.AsyncConnection.connect(proxy.conninfo)
    proxy.restore()
    async with await psycopg.AsyncConnection.connect(proxy.conninfo) as again:
        await again.execute("SELECT 1")
