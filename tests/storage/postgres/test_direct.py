"""Statements past the driver's cursors, on asyncio's loop and on uvloop, through everything."""

import asyncio
import datetime as dt
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import psycopg
import pytest
import uvloop
from psycopg.pq import TransactionStatus

from progressor import errors
from progressor.storage.postgres.pools import Connection, Pool, connection_of, translated
from progressor.storage.postgres.rows.arrays import COLUMNS
from tests.support.postgres.cluster import direct
from tests.support.postgres.locks import blocked_count, until_blocked, until_none_blocked
from tests.support.storage.store import connect

T = TypeVar("T")
Int8Column, TextColumn = COLUMNS["bigint[]"], COLUMNS["text[]"]
ByteaColumn, InstantColumn = COLUMNS["bytea[]"], COLUMNS["timestamptz[]"]
Run = Callable[[Callable[[Connection], Coroutine[Any, Any, T]]], T]

LARGE = 40_000_000
AN_INSTANT = dt.datetime(2026, 11, 21, 13, 34, 17, 123456, tzinfo=dt.UTC)
LOCKED = 42
PATIENT_SECONDS = 30.0


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=request.param) as opened:
        yield opened


@pytest.fixture
def run(runner: asyncio.Runner, database: str) -> Run[Any]:
    """Return what runs some work with a connection of its own."""

    async def connected(work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        async with await connect(database) as connection:
            return await work(connection)

    return lambda work: runner.run(connected(work))


@pytest.fixture
def holder(database: str) -> Iterator[psycopg.Connection[Any]]:
    """Return a session that holds a lock for which `WAITING` waits."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", [LOCKED])
        yield connection


ECHO = direct(b"SELECT unnest(%b::bytea[])")
NUMBER = b"SELECT %b::bigint"
WAITING = direct(b"SELECT pg_advisory_xact_lock(%b::bigint)")


def one_connection(database: str) -> Pool:
    options = {"autocommit": True}
    return Pool(database, patience=60.0, kwargs=options, min_size=1, max_size=1)


async def given_up(connection: Connection, observer: psycopg.Connection[Any]) -> asyncio.Task[Any]:
    """Return a statement that was cancelled while it waited for a lock."""
    task = asyncio.ensure_future(WAITING.execute(connection, [LOCKED]))
    await until_blocked(observer)
    task.cancel()
    await asyncio.wait({task})
    return task


async def prepared(connection: Connection) -> list[str]:
    cursor = await connection.execute("SELECT name FROM pg_prepared_statements")
    return [row[0] for row in await cursor.fetchall()]


@pytest.mark.parametrize(
    ("statement", "arguments", "rows"),
    [
        (
            b"SELECT * FROM unnest(%b::bigint[], %b::text[], %b::bytea[], %b::timestamptz[])",
            [
                Int8Column([1, 2]), TextColumn(["Zoë", None]), ByteaColumn([b"\0", b""]),
                InstantColumn([AN_INSTANT, None]),
            ],
            [(1, "Zoë", b"\0", AN_INSTANT), (2, None, b"", None)],
        ),
        (
            b"SELECT %b::bigint, %b::double precision, %b::boolean, %b::timestamptz, %b::bigint",
            [-7, 0.25, True, AN_INSTANT, None],
            [(-7, 0.25, True, AN_INSTANT, None)],
        ),
    ],
    ids=["columns", "scalars"],
)  # fmt: skip
def test_what_is_sent_arrives_as_it_was(
    run: Run[Any], statement: bytes, arguments: list[Any], rows: list[tuple[Any, ...]]
) -> None:
    assert run(lambda connection: direct(statement).execute(connection, arguments)) == rows


def test_a_statement_is_prepared_once_per_connection(run: Run[Any]) -> None:
    statement = direct(NUMBER)

    async def work(connection: Connection) -> list[str]:
        for number in range(3):
            assert await statement.execute(connection, [number]) == [(number,)]
        return await prepared(connection)

    assert len(run(work)) == 1
    assert len(run(work)) == 1


def test_a_statement_whose_name_is_gone_goes_without(run: Run[Any]) -> None:
    statement = direct(NUMBER)

    async def work(connection: Connection) -> list[str]:
        await statement.execute(connection, [1])
        await connection.execute("DEALLOCATE ALL")
        assert await statement.execute(connection, [2]) == [(2,)]
        assert await statement.execute(connection, [3]) == [(3,)]
        return await prepared(connection)

    assert run(work) == []


def test_a_statement_whose_name_is_taken_goes_without(run: Run[Any]) -> None:
    statement = direct(NUMBER)

    async def use(connection: Connection) -> list[str]:
        await statement.execute(connection, [1])
        return await prepared(connection)

    [name] = run(use)

    async def work(connection: Connection) -> list[tuple[Any, ...]]:
        await connection.execute(f"PREPARE {name} AS SELECT 'of another session'".encode())
        return await statement.execute(connection, [2])

    assert run(work) == [(2,)]


def test_an_error_is_the_drivers_and_leaves_the_connection_idle(run: Run[Any]) -> None:
    statement = direct(b"SELECT 1 / %b::bigint")

    async def work(connection: Connection) -> list[tuple[Any, ...]]:
        with pytest.raises(psycopg.errors.DivisionByZero):
            await statement.execute(connection, [0])
        with pytest.raises(errors.StorageRefusedError, match="division by zero"), translated():
            await statement.execute(connection, [0])
        assert connection.pgconn.transaction_status == TransactionStatus.IDLE
        return await statement.execute(connection, [1])

    assert run(work) == [(1,)]


def test_what_no_column_can_hold_is_not_sent(run: Run[Any]) -> None:
    statement = direct(b"SELECT %b::bigint[]")

    async def work(connection: Connection) -> list[tuple[Any, ...]]:
        with pytest.raises(errors.StorageRefusedError, match=r"^error: "):
            await statement.execute(connection, [Int8Column([1 << 64])])
        assert connection.pgconn.transaction_status == TransactionStatus.IDLE
        return await statement.execute(connection, [Int8Column([])])

    assert run(work) == [([],)]


def test_of_a_cancelled_statement_the_connection_is_closed_and_postgresql_goes_on(
    run: Run[Any], holder: psycopg.Connection[Any], observer: psycopg.Connection[Any]
) -> None:
    async def work(connection: Connection) -> None:
        task = await given_up(connection, observer)

        assert task.cancelled()
        assert connection.closed

    run(work)
    # A commit that waits for a standby would be shown to others if it were cancelled.
    assert blocked_count(observer) == 1
    holder.execute("SELECT pg_advisory_unlock(%s)", [LOCKED])
    asyncio.run(until_none_blocked(observer))


def test_a_statement_that_takes_too_long_is_given_up(
    run: Run[Any], holder: psycopg.Connection[Any], observer: psycopg.Connection[Any]
) -> None:
    async def work(connection: Connection) -> None:
        limit = asyncio.timeout(None)

        async def wait() -> None:
            async with limit:
                await WAITING.execute(connection, [LOCKED])

        task = asyncio.ensure_future(wait())
        await until_blocked(observer)
        limit.reschedule(asyncio.get_running_loop().time())

        with pytest.raises(errors.StorageUnavailableError, match="timed out"), translated():
            await task
        assert connection.closed

    run(work)
    assert not holder.closed


@pytest.mark.parametrize("reads_only", [False, True])
def test_a_cursors_statement_that_is_given_up_is_cancelled_only_if_it_is_a_read(
    runner: asyncio.Runner,
    database: str,
    holder: psycopg.Connection[Any],
    observer: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    *,
    reads_only: bool,
) -> None:
    monkeypatch.setattr("progressor.storage.postgres.pools.CANCEL_SECONDS", PATIENT_SECONDS)

    async def wait(pool: Pool) -> None:
        async with connection_of(pool, reads_only=reads_only) as connection:
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", [LOCKED])

    async def work() -> None:
        async with one_connection(database) as pool:
            task = asyncio.ensure_future(wait(pool))
            await until_blocked(observer)
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled()

    runner.run(work())
    assert blocked_count(observer) == (0 if reads_only else 1)
    holder.execute("SELECT pg_advisory_unlock(%s)", [LOCKED])
    asyncio.run(until_none_blocked(observer))


def test_a_pool_lends_no_connection_in_the_middle_of_an_answer(
    runner: asyncio.Runner,
    database: str,
    holder: psycopg.Connection[Any],
    observer: psycopg.Connection[Any],
) -> None:
    statement = direct(NUMBER)

    async def lend(pool: Pool) -> None:
        async with connection_of(pool) as connection:
            await given_up(connection, observer)

    async def work() -> list[tuple[Any, ...]]:
        async with one_connection(database) as pool:
            await lend(pool)
            async with connection_of(pool) as connection:
                return await statement.execute(connection, [1])

    assert runner.run(work()) == [(1,)]
    assert not holder.closed


def test_statements_under_way_together_are_done_in_turn(run: Run[Any]) -> None:
    statement = direct(b"INSERT INTO kept SELECT %b::bigint RETURNING n, txid_current()")

    async def work(connection: Connection) -> tuple[list[str], list[Any]]:
        await connection.execute("CREATE TEMPORARY TABLE kept (n bigint)")
        rows = await asyncio.gather(
            *(statement.execute(connection, [number]) for number in range(10))
        )
        names = await prepared(connection)  # a cursor, in the ordinary mode again
        return names, [row for [row] in rows]

    names, rows = run(work)
    assert len(names) == 1
    assert [number for number, _ in rows] == list(range(10))
    assert [transaction for _, transaction in rows] == sorted({row[1] for row in rows})


def test_an_error_does_not_touch_the_statements_under_way_beside_it(run: Run[Any]) -> None:
    statement = direct(b"SELECT 12 / %b::bigint")

    async def work(connection: Connection) -> list[Any]:
        answers = [statement.execute(connection, [number]) for number in (3, 0, 4)]
        ended: list[Any] = await asyncio.gather(*answers, return_exceptions=True)
        return ended

    three, failed, four = run(work)
    assert (three, four) == ([(4,)], [(3,)])
    assert isinstance(failed, psycopg.errors.DivisionByZero)


def test_an_error_at_the_commit_is_the_statements(run: Run[Any]) -> None:
    statement = direct(b"INSERT INTO kept VALUES (%b::bigint) RETURNING n")

    async def work(connection: Connection) -> list[Any]:
        await connection.execute(
            "CREATE TEMPORARY TABLE kept (n bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)"
        )
        answers = [statement.execute(connection, [number]) for number in (1, 1, 2)]
        ended: list[Any] = await asyncio.gather(*answers, return_exceptions=True)
        return ended

    first, refused, last = run(work)
    assert (first, last) == ([(1,)], [(2,)])
    assert isinstance(refused, psycopg.errors.UniqueViolation)


def test_a_name_that_is_gone_is_no_loss_to_those_under_way_together(run: Run[Any]) -> None:
    statement = direct(NUMBER)

    async def work(connection: Connection) -> list[Any]:
        await statement.execute(connection, [1])
        await connection.execute("DEALLOCATE ALL")
        return list(await asyncio.gather(*(statement.execute(connection, [n]) for n in range(3))))

    assert run(work) == [[(0,)], [(1,)], [(2,)]]


def test_a_killed_session_is_an_outage_to_all_that_is_under_way(
    run: Run[Any], holder: psycopg.Connection[Any], observer: psycopg.Connection[Any]
) -> None:
    statement = direct(NUMBER)

    async def work(connection: Connection) -> None:
        first = asyncio.ensure_future(WAITING.execute(connection, [LOCKED]))
        await until_blocked(observer)
        second = asyncio.ensure_future(statement.execute(connection, [2]))
        await asyncio.sleep(0)
        observer.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])

        for task in (first, second):
            with pytest.raises(errors.StorageUnavailableError), translated():
                await task
        assert connection.closed
        with pytest.raises(psycopg.OperationalError):
            await WAITING.execute(connection, [LOCKED])

    run(work)
    assert not holder.closed


def test_a_cancelled_statement_leaves_nobody_behind_it_without_an_answer(
    run: Run[Any], holder: psycopg.Connection[Any], observer: psycopg.Connection[Any]
) -> None:
    async def work(connection: Connection) -> None:
        first = asyncio.ensure_future(WAITING.execute(connection, [LOCKED]))
        await until_blocked(observer)
        second = asyncio.ensure_future(WAITING.execute(connection, [LOCKED]))
        await asyncio.sleep(0)
        first.cancel()

        with pytest.raises(errors.StorageUnavailableError, match="abandoned"), translated():
            await second
        assert first.cancelled()
        assert connection.closed

    run(work)
    assert not holder.closed


@pytest.mark.parametrize("count", [1, 3])
def test_more_than_a_socket_holds_goes_out_and_comes_in(run: Run[Any], count: int) -> None:
    async def work(connection: Connection) -> list[int]:
        column = ByteaColumn([bytes(LARGE)])
        rows = await asyncio.gather(*(ECHO.execute(connection, [column]) for _ in range(count)))
        return [len(row[0]) for [row] in rows]

    assert run(work) == [LARGE] * count


def test_notices_and_notifications_do_not_get_in_the_way(
    run: Run[Any], observer: psycopg.Connection[Any]
) -> None:
    observer.execute(
        "CREATE OR REPLACE FUNCTION loud(n bigint) RETURNS bigint LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE NOTICE 'heard %', n; PERFORM pg_notify('here', n::text); RETURN n; END $$"
    )
    statement = direct(b"SELECT loud(%b)")
    heard: list[str | None] = []

    async def work(connection: Connection) -> list[list[tuple[Any, ...]]]:
        connection.add_notice_handler(lambda notice: heard.append(notice.message_primary))
        await connection.execute("LISTEN here")
        observer.execute("NOTIFY here, 'from elsewhere'")
        return [await statement.execute(connection, [number]) for number in range(3)]

    assert run(work) == [[(0,)], [(1,)], [(2,)]]
    assert heard == ["heard 0", "heard 1", "heard 2"]


def test_a_statement_is_part_of_its_connections_transaction(run: Run[Any]) -> None:
    statement = direct(b"INSERT INTO kept VALUES (%b::bigint)")

    async def work(connection: Connection) -> list[tuple[Any, ...]]:
        await connection.execute("CREATE TEMPORARY TABLE kept (n bigint)")
        async with connection.transaction(force_rollback=True):
            assert await statement.execute(connection, [1]) == []
        await statement.execute(connection, [2])
        return await direct(b"SELECT n FROM kept").execute(connection, [])

    assert run(work) == [(2,)]
