"""What PostgreSQL's errors become, and what admission, settlement and claim make of them.

The table is in ``progressor/storage/postgres/pools.py``. A trigger raises the errors inside the
functions of the hot path, as often as a test says; those that can be had for real are.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, LiteralString

import psycopg
import pytest
import pytest_asyncio
from psycopg import sql

from progressor import errors
from progressor.domain.processes.task import TaskType
from progressor.settings.sections import Database
from progressor.storage.commit.group_commit import CONFLICT_ATTEMPTS_MAX
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.migrations import migrate
from progressor.storage.postgres.pools import Connection, Pool, Pools, connection_of, open_pools
from progressor.storage.steps.settlements import Written
from tests.support.clock import ManualClock
from tests.support.postgres.cluster import direct
from tests.support.storage.store import (
    Store,
    a_request,
    create_namespace,
    empty,
    fresh_key,
    running_stores,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
POISON = "poison"
FAULTS = """
    CREATE TABLE public.faults (state text NOT NULL, times integer NOT NULL);
    -- What a sequence has counted, no rollback takes back.
    CREATE SEQUENCE public.strikes;
    CREATE FUNCTION public.strike() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        fault public.faults;
    BEGIN
        SELECT * INTO fault FROM public.faults;
        IF FOUND AND nextval('public.strikes') <= fault.times THEN
            RAISE EXCEPTION 'struck' USING ERRCODE = fault.state;
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER strike BEFORE INSERT OR UPDATE ON progressor.tasks
        FOR EACH STATEMENT EXECUTE FUNCTION public.strike();
    CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'refused' USING ERRCODE = (SELECT state FROM public.faults);
    END $$;
    CREATE TRIGGER refuse BEFORE UPDATE ON progressor.tasks
        FOR EACH ROW WHEN (NEW.process_id LIKE 'poison%') EXECUTE FUNCTION public.refuse();
"""
CONFLICTS = ("40P01", "40001")
LOCKED = ("55P03",)
AWAY = (
    "08006", "25P03", "25P04", "40003", "53000", "53100", "53200", "53300", "55006", "57014",
    "57P01", "57P02", "57P03", "57P05", "58030",
)  # fmt: skip
READ_ONLY = ("25006",)
SCHEMA = ("0A000", "28000", "3D000", "3F000", "42501", "42883", "42P01", "42703")
VALUES = ("22001", "22003", "22021", "22P02", "23502", "23505", "23514", "21000", "54000", "P0001")
CORRUPT = ("XX001", "XX002")
DOUBTFUL = ("XX000",)
CLASSES: dict[str, type[errors.StorageError]] = {
    **dict.fromkeys(CONFLICTS, errors.StorageConflictError),
    **dict.fromkeys(LOCKED, errors.StorageLockedError),
    **dict.fromkeys(AWAY, errors.StorageUnavailableError),
    **dict.fromkeys(READ_ONLY, errors.StorageReadOnlyError),
    **dict.fromkeys(SCHEMA, errors.StorageSchemaError),
    **dict.fromkeys((*VALUES, *CORRUPT, *DOUBTFUL), errors.StorageRefusedError),
}
TRANSIENT = (*CONFLICTS, *LOCKED, *AWAY, *READ_ONLY, *SCHEMA)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(database: str, clock: ManualClock) -> AsyncIterator[Store]:
    create_namespace(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(FAULTS)
    async with running_stores(database, clock=clock) as (store,):
        await store.beat()
        yield store


Strike = Callable[..., None]


@pytest.fixture
def strike(store: Store, observer: psycopg.Connection[Any]) -> Iterator[Strike]:
    """Return what makes the next `times` writes fail with an SQLSTATE."""
    assert store is not None, "the triggers are there"

    def begin(state: str, *, times: int = 1) -> None:
        observer.execute("DELETE FROM public.faults")
        observer.execute("ALTER SEQUENCE public.strikes RESTART")
        observer.execute("INSERT INTO public.faults VALUES (%s, %s)", [state, times])

    yield begin
    observer.execute("DELETE FROM public.faults")
    empty(observer, keep=("namespaces", "replicas"))


def struck(observer: psycopg.Connection[Any]) -> int:
    """Return how many writes were tried since the last `strike`, those that succeeded included."""
    row = observer.execute("SELECT last_value FROM public.strikes").fetchone()
    assert row is not None
    return int(row[0])


def raising(state: str) -> bytes:
    return f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END $$".encode()


async def by_cursor(connection: Connection, statement: bytes) -> None:
    await connection.execute(statement)


async def past_the_cursor(connection: Connection, statement: bytes) -> None:
    await direct(statement).execute(connection, [])


async def limited(store: Store, limit: LiteralString, statement: LiteralString) -> None:
    """Execute a statement that the server itself gives 10 ms."""
    async with connection_of(store.pool) as connection, connection.transaction():
        await connection.execute(f"SET LOCAL {limit} = '10ms'")
        await connection.execute(statement)


class TestAnErrorOfPostgresql:
    @pytest.mark.parametrize("send", [by_cursor, past_the_cursor])
    @pytest.mark.parametrize(("state", "expected"), CLASSES.items())
    async def test_has_the_class_that_the_table_says(
        self,
        store: Store,
        state: str,
        expected: type[errors.StorageError],
        send: Callable[[Connection, bytes], Awaitable[None]],
    ) -> None:
        with pytest.raises(errors.StorageError) as raised:
            async with connection_of(store.pool) as connection:
                await send(connection, raising(state))

        assert type(raised.value) is expected
        assert getattr(raised.value, "doubtful", False) is (state in DOUBTFUL)

    @pytest.mark.parametrize("send", [by_cursor, past_the_cursor])
    async def test_says_in_the_log_where_it_was_and_nothing_of_the_row(
        self, store: Store, send: Callable[[Connection, bytes], Awaitable[None]]
    ) -> None:
        statement = b"""DO $$ BEGIN
            CREATE TEMP TABLE guarded (args text CONSTRAINT not_this CHECK (args <> 'secret'))
                ON COMMIT DROP;
            INSERT INTO guarded VALUES ('secret');
        END $$"""
        with pytest.raises(errors.StorageRefusedError) as raised:
            async with connection_of(store.pool) as connection:
                await send(connection, statement)
        logged = "".join(traceback.format_exception(raised.value))

        assert "not_this" in str(raised.value)
        assert "PL/pgSQL function inline_code_block line 4" in str(raised.value)
        assert "Failing row" not in logged

    async def test_that_comes_of_a_statement_timeout_of_the_server_is_no_refusal(
        self, store: Store
    ) -> None:
        with pytest.raises(errors.StorageUnavailableError, match="statement timeout"):
            await limited(store, "statement_timeout", "SELECT pg_sleep(10)")

    async def test_that_comes_of_a_lock_timeout_is_a_conflict(
        self, store: Store, observer: psycopg.Connection[Any]
    ) -> None:
        with observer.transaction():
            observer.execute("LOCK TABLE progressor.namespaces")
            with pytest.raises(errors.StorageConflictError):
                await limited(store, "lock_timeout", "LOCK TABLE progressor.namespaces")

    async def test_that_ends_the_session_is_no_refusal(
        self, store: Store, observer: psycopg.Connection[Any]
    ) -> None:
        async def killed() -> None:
            async with connection_of(store.pool) as connection:
                observer.execute(
                    "SELECT pg_terminate_backend(%s, 5000)", [connection.info.backend_pid]
                )
                await connection.execute("SELECT 1")

        with pytest.raises(errors.StorageUnavailableError):
            await killed()


class TestASettlement:
    @pytest.mark.parametrize(
        ("state", "times"),
        [
            *((state, 2) for state in TRANSIENT),
            *((state, CONFLICT_ATTEMPTS_MAX + 1) for state in (*CONFLICTS, *LOCKED)),
            ("XX000", CONFLICT_ATTEMPTS_MAX - 1),
        ],
    )
    async def test_is_written_once_whatever_was_wrong_for_a_while(
        self, store: Store, strike: Strike, state: str, times: int
    ) -> None:
        init = await store.start(fresh_key())
        strike(state, times=times)

        written = await store.settled(init, success(events=1))

        assert written.process is not None
        assert written.process.last_event_id == 1

    @pytest.mark.parametrize("state", [*VALUES, *CORRUPT, *DOUBTFUL])
    async def test_that_is_refused_for_good_leaves_its_neighbours_alone(
        self, store: Store, strike: Strike, state: str
    ) -> None:
        inits = [await store.start(fresh_key()) for _ in range(3)]
        key = dataclasses.replace(fresh_key(), process_id=f"{POISON}-{state}")
        poisoned = await store.start(key)
        strike(state, times=0)
        entries = [store.entry(each) for each in (*inits[:2], poisoned, inits[2])]
        ends = await asyncio.gather(
            *(store.settlements.submit(entry) for entry in entries), return_exceptions=True
        )

        refused = ends.pop(2)
        assert isinstance(refused, errors.StorageRefusedError)
        assert all(isinstance(each, Written) for each in ends)


class TestAnAdmission:
    @pytest.mark.parametrize("state", [*AWAY, *READ_ONLY, *SCHEMA])
    async def test_that_cannot_be_written_is_told_so_and_may_be_repeated(
        self, store: Store, strike: Strike, state: str
    ) -> None:
        asked = a_request(fresh_key(), TaskType.INIT, idempotency_key="once")
        strike(state)
        with pytest.raises(errors.StorageUnavailableError) as raised:
            await store.admit(asked)
        admission = await store.admit(asked)

        assert type(raised.value) is CLASSES[state]
        assert raised.value.retry_after > dt.timedelta()
        assert admission.running is not None

    @pytest.mark.parametrize("state", [*CONFLICTS, *LOCKED])
    async def test_that_was_undone_for_another_is_repeated_unseen(
        self, store: Store, strike: Strike, state: str
    ) -> None:
        strike(state, times=CONFLICT_ATTEMPTS_MAX - 1)

        task = await store.start(fresh_key())

        assert task.attempt == 1

    @pytest.mark.parametrize("state", VALUES)
    async def test_with_a_value_that_is_refused_fails_alone(
        self, store: Store, strike: Strike, state: str
    ) -> None:
        strike(state)
        with pytest.raises(errors.StorageRefusedError):
            await store.start(fresh_key())

        later = await store.start(fresh_key())

        assert later.attempt == 1


class TestAClaim:
    @pytest.mark.parametrize("state", TRANSIENT)
    async def test_that_fails_leaves_the_task_to_be_claimed_again(
        self, store: Store, strike: Strike, state: str
    ) -> None:
        key, timer = await store.timed(dt.timedelta(seconds=1))
        store.clock.advance(dt.timedelta(seconds=2))
        await store.beat()
        strike(state)
        if state not in LOCKED:  # which is repeated at once without what is locked
            with pytest.raises(errors.StorageUnavailableError):
                await store.claim(key, timer)

        [claimed] = await store.claim(key, timer)
        assert (claimed.task.task_id, claimed.task.attempt) == (timer, 1)


class TestWithoutTheFunctions:
    """An operator has dropped them."""

    @pytest_asyncio.fixture(loop_scope="module")
    async def running(self, own_database: str) -> AsyncIterator[Store]:
        create_namespace(own_database)
        async with running_stores(own_database, clock=ManualClock()) as (store,):
            yield store

    async def test_requests_are_told_and_settlements_wait_until_they_are_back(
        self, running: Store, own_database: str
    ) -> None:
        init = await running.start(fresh_key())
        drop = sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(Functions().schema))
        with psycopg.connect(own_database, autocommit=True) as connection:
            connection.execute("SET client_min_messages = error")
            connection.execute(drop)
        with pytest.raises(errors.StorageSchemaError):
            await running.start(fresh_key())
        settling = running.settlements.submit(running.entry(init))
        with pytest.raises(errors.StorageSchemaError):
            await running.start(fresh_key())
        pending = not settling.done()
        await asyncio.to_thread(migrate, own_database)
        written = await settling

        assert pending
        assert isinstance(written, Written)
        await running.start(fresh_key())


@pytest.fixture
def demoted(own_database: str) -> Iterator[Callable[[], None]]:
    """Return what makes a database refuse writes; it takes them again at the end."""
    name = sql.Identifier(str(psycopg.conninfo.conninfo_to_dict(own_database)["dbname"]))
    change = sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = {}")

    def demote() -> None:
        with psycopg.connect(own_database, autocommit=True) as connection:
            connection.execute(change.format(name, sql.SQL("on")))

    yield demote
    with psycopg.connect(own_database, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(change.format(name, sql.SQL("off")))


@contextlib.asynccontextmanager
async def opened(dsn: str, **config: Any) -> AsyncIterator[Pools]:
    pools = await open_pools(Database(dsn=dsn, **config), dsn)
    try:
        yield pools
    finally:
        await pools.close()


async def use(pool: Pool, statement: bytes = b"SELECT 1") -> int:
    """Execute a statement on a connection of a pool, and return the id of its session."""
    async with connection_of(pool) as connection:
        await connection.execute(statement)
        return connection.info.backend_pid


async def two_of(pool: Pool) -> set[int]:
    async with connection_of(pool) as one, connection_of(pool) as two:
        return {one.info.backend_pid, two.info.backend_pid}


class TestAServerThatTakesNoWrites:
    async def test_is_away_to_a_pool_which_drops_its_connections_to_it(
        self, own_database: str
    ) -> None:
        async with opened(own_database) as pools:
            seen = await two_of(pools.front)
            with pytest.raises(errors.StorageReadOnlyError):
                await use(pools.front, raising("25006"))
            later = await two_of(pools.front)

        assert not seen & later

    async def test_gets_no_new_connection(
        self, own_database: str, demoted: Callable[[], None]
    ) -> None:
        demoted()
        async with opened(own_database, connect_timeout=dt.timedelta(seconds=0.5)) as pools:
            with pytest.raises(errors.StorageUnavailableError):
                await use(pools.front)

    async def test_is_left_by_all_pools_also_by_connections_that_are_lent(
        self, own_database: str
    ) -> None:
        async def lent(pools: Pools) -> None:
            async with connection_of(pools.front) as connection:
                await pools.leave()
                await connection.execute("SELECT 1")

        async with opened(own_database) as pools:
            before = await use(pools.scan)
            with pytest.raises(errors.StorageUnavailableError):
                await lent(pools)
            after = await use(pools.scan)

        assert before != after

    async def test_gets_connections_where_the_operator_wants_it_so(
        self, own_database: str, demoted: Callable[[], None]
    ) -> None:
        demoted()
        dsn = psycopg.conninfo.make_conninfo(own_database, target_session_attrs="any")
        async with opened(dsn) as pools:
            await use(pools.front)


class TestOneLostConnection:
    async def test_has_all_that_are_as_old_replaced(self, own_database: str) -> None:
        async with opened(own_database) as pools:
            seen = await two_of(pools.front)
            with psycopg.connect(own_database, autocommit=True) as observer:
                for backend in seen:
                    observer.execute("SELECT pg_terminate_backend(%s, 5000)", [backend])
            with pytest.raises(errors.StorageUnavailableError):
                await use(pools.front)
            for _ in range(3):
                await use(pools.front)

    async def test_that_stands_still_is_given_up_by_the_pool(self, own_database: str) -> None:
        async with opened(own_database, statement_timeout=dt.timedelta(seconds=0.1)) as pools:
            with pytest.raises(errors.StorageUnavailableError):
                await use(pools.front, b"SELECT pg_sleep(60)")


async def test_a_cancellation_that_the_driver_has_swallowed_is_heeded(store: Store) -> None:
    """Before Python 3.12 asyncio.wait_for does so where the answer comes at the same moment."""
    begun = asyncio.Event()
    after: list[str] = []

    async def scan() -> None:
        async with connection_of(store.pool):
            begun.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        after.append("went on")

    scanning = asyncio.ensure_future(scan())
    await begun.wait()
    scanning.cancel()
    await asyncio.wait({scanning})

    assert scanning.cancelled()
    assert not after


async def test_a_connection_whose_answer_came_just_before_the_hang_up_is_not_lent_again(
    database: str,
) -> None:
    options = {"autocommit": True}
    async with Pool(database, patience=60.0, kwargs=options, min_size=1, max_size=1) as pool:
        async with pool.connection() as connection:
            await connection.execute("SELECT 1")
            # As where a scan is cancelled while its answer arrives: all of it has been read.
            await connection.cancel_safe()
            assert not connection.closed

        async with pool.connection() as another:
            cursor = await another.execute("SELECT 2")
            assert await cursor.fetchone() == (2,)
