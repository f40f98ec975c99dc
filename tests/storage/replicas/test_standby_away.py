"""The synchronous standby is away: nothing that is given up becomes visible before it is back.

The server waits for a standby of a name that never connects. Its commits wait in PostgreSQL, after
the primary has written them and before anybody may see them. To cancel such a wait would show them,
and a failover to the standby would lose what others have acknowledged by then.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from psycopg.conninfo import make_conninfo

from progressor import errors
from progressor.clock import SystemClock
from progressor.domain.processes.admission import Verdict
from progressor.domain.processes.task import TaskType
from progressor.domain.views.replica import ReplicaLoad
from progressor.settings.sections import ReplicaSettings
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.migrations import migrate
from progressor.storage.replicas.heartbeats import Heartbeats, Identity
from progressor.storage.replicas.lineage import Lineage
from progressor.storage.steps.settlements import Written
from tests.support.postgres.cluster import Cluster, own_cluster
from tests.support.storage import store as storage
from tests.support.storage.store import (
    BROKEN,
    Store,
    a_request,
    create_namespace,
    fresh_key,
    running_stores,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="function")

SECONDS = 1.0
"""After which a statement is given up."""

MANY_SECONDS = 60.0
PROBES_MAX = 10_000
WORKER_CONNECTIONS = 8
"""As `running_desks` opens its pool."""


@pytest.fixture(scope="module")
def mortal() -> Iterator[Cluster]:
    """Return a server whose settings these tests may change."""
    with own_cluster() as cluster:
        yield cluster


@pytest.fixture
def conninfo(mortal: Cluster) -> Iterator[str]:
    """Return the conninfo of a fresh database with the schema, on a server of our own."""
    conninfo = mortal.create_database()
    migrate(conninfo)
    yield conninfo
    mortal.drop_database(conninfo)


@pytest.fixture
def observer(conninfo: str) -> Iterator[psycopg.Connection[Any]]:
    """Yield a connection that sees what others see."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        yield connection


@pytest_asyncio.fixture
async def store(conninfo: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    monkeypatch.setattr(storage, "STATEMENT_TIMEOUT", dt.timedelta(seconds=SECONDS))
    create_namespace(conninfo)
    async with running_stores(conninfo) as [store]:
        # The first connection of all notes the identity of the database, by a commit.
        await store.context.now()
        yield store


@contextlib.contextmanager
def standby_away(observer: psycopg.Connection[Any]) -> Iterator[None]:
    """Have commits wait for a standby that never connects."""
    try:
        observer.execute("ALTER SYSTEM SET synchronous_standby_names = 'away'")
        _reload(observer, "away")
        _wait_until_commits_wait(observer)
        yield
    finally:
        observer.execute("ALTER SYSTEM RESET synchronous_standby_names")
        _reload(observer, "")


def _reload(observer: psycopg.Connection[Any], names: str) -> None:
    observer.execute("SELECT pg_reload_conf()")
    while observer.execute("SHOW synchronous_standby_names").fetchone() != (names,):
        pass


def _wait_until_commits_wait(observer: psycopg.Connection[Any]) -> None:
    """Commit until one waits: PostgreSQL's checkpointer takes up the new setting by itself."""
    dsn, password = observer.info.dsn, observer.info.password
    with contextlib.closing(psycopg.connect(dsn, autocommit=True, password=password)) as writer:
        for _ in range(PROBES_MAX):
            writer.pgconn.send_query(b"SELECT pg_logical_emit_message(true, 'probe', '')")
            while writer.pgconn.flush():
                pass
            while writer.info.backend_pid not in stuck(observer):
                writer.pgconn.consume_input()
                if not writer.pgconn.is_busy():
                    break
            else:
                observer.execute("SELECT pg_terminate_backend(%s)", [writer.info.backend_pid])
                while stuck(observer):
                    pass
                return
            while writer.pgconn.get_result() is not None:
                pass
    raise AssertionError("commits do not wait for the standby")


def stuck(observer: psycopg.Connection[Any]) -> list[int]:
    """Return the sessions whose commits wait for the standby."""
    found = observer.execute("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
    return [row[0] for row in found.fetchall()]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(MANY_SECONDS):
        while not holds():  # noqa: ASYNC110  without a notification
            await asyncio.sleep(0.02)


def seen(observer: psycopg.Connection[Any], key: Any) -> list[Any]:
    """Return what others see of a process."""
    return observer.execute(
        "SELECT p.status, p.last_event_id FROM progressor.processes p WHERE p.process_id = %s",
        [key.process_id],
    ).fetchall()


async def test_a_settlement_that_is_given_up_is_not_seen_and_is_found_again_later(
    store: Store, observer: psycopg.Connection[Any]
) -> None:
    task = await store.start(fresh_key())
    before = seen(observer, task.key)
    with standby_away(observer):
        settling = asyncio.ensure_future(store.settle(task, success(events=1)))
        await until(lambda: bool(stuck(observer)))
        first = set(stuck(observer))
        # Given up, and tried again: that meets the locks of the first try, which still waits.
        await until(lambda: store.settlements.waiting()[0].count == 1)

        assert first <= set(stuck(observer))
        assert seen(observer, task.key) == before
        assert not settling.done()

    written = await settling
    assert isinstance(written, Written)
    assert [event for _, event in seen(observer, task.key)] == [1]


async def test_an_admission_that_is_given_up_is_not_seen_and_its_key_tells_later(
    store: Store, observer: psycopg.Connection[Any]
) -> None:
    key = fresh_key()
    with standby_away(observer):
        with pytest.raises(errors.StorageUnavailableError, match="timed out"):
            await store.start(key, idempotency_key="once")

        assert seen(observer, key) == []
        assert stuck(observer) != []

    await until(lambda: stuck(observer) == [])
    again = await store.admit(a_request(key, TaskType.INIT, idempotency_key="once"))
    assert again.verdict is Verdict.DUPLICATE


@pytest.mark.parametrize("how", ["remove", "repair", "break", "set a gate", "delete a namespace"])
async def test_a_rare_write_that_is_given_up_is_not_seen(
    store: Store, conninfo: str, observer: psycopg.Connection[Any], how: str
) -> None:
    key = fresh_key()
    if how == "repair":
        await store.broken(key)
    else:
        await store.started(key)
    writes: dict[str, Callable[[], Awaitable[object]]] = {
        "remove": lambda: store.remove(key),
        "repair": lambda: store.recover(key),
        "break": lambda: store.halt(key, "stopped"),
        "set a gate": lambda: store.set_capacity("new", 1),
        "delete a namespace": lambda: store.namespaces.delete("empty"),
    }
    create_namespace(conninfo, dataclasses.replace(storage.NAMESPACE, name="empty"))
    question = (
        "SELECT (SELECT array_agg(p::text) FROM progressor.processes p),"
        " (SELECT array_agg(g::text) FROM progressor.gates g),"
        " (SELECT array_agg(n.name) FROM progressor.namespaces n)"
    )
    before = observer.execute(question).fetchall()
    with standby_away(observer):
        with pytest.raises((errors.StorageUnavailableError, TimeoutError)):
            async with asyncio.timeout(SECONDS):
                await writes[how]()
        assert observer.execute(question).fetchall() == before

    await until(lambda: observer.execute(question).fetchall() != before)


def beats_waiting(observer: psycopg.Connection[Any]) -> int:
    """Return how many sessions of heartbeats wait for the standby, or for each other."""
    row = observer.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'beats'"
        " AND (wait_event = 'SyncRep' OR wait_event_type = 'Lock')"
    ).fetchone()
    assert row is not None, "an aggregate has one row"
    return int(row[0])


async def give_up_beat(heartbeats: Heartbeats, observer: psycopg.Connection[Any]) -> str:
    """Beat, cut the beat once it waits, and return how it failed."""
    before = beats_waiting(observer)
    beating = asyncio.create_task(asyncio.to_thread(_beat, heartbeats))
    await until(lambda: beating.done() or beats_waiting(observer) > before)
    heartbeats.cut()
    return await beating


def _beat(heartbeats: Heartbeats) -> str:
    try:
        heartbeats.beat(draining=False, load=ReplicaLoad(step_count=0, caller_count=0))
    except errors.StorageUnavailableError as error:
        return str(error)
    return "written"


async def test_heartbeats_that_are_given_up_keep_one_session(
    conninfo: str, observer: psycopg.Connection[Any]
) -> None:
    """Or each replica would take one more connection of the server every few seconds."""
    heartbeats = Heartbeats(
        dsn=make_conninfo(conninfo, application_name="beats"),
        identity=Identity(replica_id=4711, name="r", version="1", functions=""),
        lineage=Lineage(Functions()),
        replica=ReplicaSettings(),
        clock=SystemClock(),
    )
    with contextlib.closing(heartbeats):
        first = _beat(heartbeats)
        with standby_away(observer):
            failures = [await give_up_beat(heartbeats, observer) for _ in range(4)]
            waiting = beats_waiting(observer)
        await until(lambda: beats_waiting(observer) == 0)
        last = _beat(heartbeats)

    assert waiting == 1
    assert [first, last] == ["written", "written"]
    assert all("still waits for a standby" in failure for failure in failures[1:])


@pytest.mark.slow
async def test_the_sessions_that_were_given_up_are_bounded(
    store: Store, observer: psycopg.Connection[Any]
) -> None:
    """Or they would take all connections of a server whose standby is away for long."""
    refusals: list[str] = []
    with standby_away(observer):
        while "still wait for a standby" not in "".join(refusals[-1:]):
            results = await asyncio.gather(
                *(store.start(fresh_key()) for _ in range(4 * WORKER_CONNECTIONS)),
                return_exceptions=True,
            )
            refusals += [str(each) for each in results if isinstance(each, BaseException)]
        assert len(stuck(observer)) <= 2 * WORKER_CONNECTIONS

    await until(lambda: stuck(observer) == [])
    assert (await store.start(fresh_key())).attempt == 1


async def test_a_process_whose_settlement_waits_is_named_without_waiting_itself(
    store: Store, observer: psycopg.Connection[Any]
) -> None:
    task = await store.start(fresh_key())
    with standby_away(observer):
        settling = asyncio.ensure_future(store.settle(task, BROKEN))
        await until(lambda: store.settlements.waiting()[0].count == 1)

        assert all(
            "find_locked" not in query
            for (query,) in observer.execute(
                "SELECT query FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            ).fetchall()
        )
    assert isinstance(await settling, Written)
