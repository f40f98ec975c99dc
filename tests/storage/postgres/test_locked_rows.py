"""A row of any table that another session holds locked: its neighbours are written all the same.

Three processes are held: a plain one, one with a gate and an order, and a follower of a job. Their
steps are settled together with those of others, in the same batches, and so are requests to them.
Writes unrelated to the locked row must be done soon; the others once it is unlocked.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from psycopg import sql

from progressor.domain.gates.constraint import Constraints, Order, Version
from progressor.domain.processes.admission import Verdict
from progressor.domain.processes.intent import RemoveProcess, SetTimer
from progressor.domain.processes.process import ProcessKey, process_key
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.settings.sections import Commit
from progressor.storage.postgres import statements
from progressor.storage.postgres.locks import LOCK_TIMEOUT
from progressor.storage.processes import admissions
from progressor.storage.steps.claims import Wanted
from progressor.storage.steps.settlements import Entry, Written
from tests.support.clock import ManualClock
from tests.support.models.jobs.graphs import specs
from tests.support.storage.jobs.store import DONE, JobStore, job_store
from tests.support.storage.store import (
    EXPIRES_AFTER,
    NAMESPACE,
    NO_TIME,
    Store,
    a_request,
    create_namespace,
    empty,
    running_stores,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECONDS = 5.0
"""Within which the neighbours are written: ten times what is promised, on a busy machine."""

MANY_SECONDS = 60.0
NEIGHBOURS = 20
MANY_ROWS = 40
CLAIMS = 60
HOLDERS = 200
ROUNDS = 10
SCHEMA = (Path(statements.priv()) / "migrations" / "schema.sql").read_text("utf-8")
TABLES = sorted(re.findall(r"^CREATE TABLE progressor\.(\w+)", SCHEMA, re.MULTILINE))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Steps in hand, and requests to make."""

    steps: list[Entry]
    requests: list[admissions.Entry]


@pytest_asyncio.fixture(loop_scope="module")
async def jobs(database: str, observer: psycopg.Connection[Any]) -> AsyncIterator[JobStore]:
    """Return a replica's storage in which all writes of a kind are in one shard."""
    create_namespace(database)
    empty(observer)
    commit = Commit(gather=NO_TIME, shard_count=1)
    async with running_stores(database, clock=ManualClock(), commit=commit) as [store]:
        yield job_store(store)


def _key(name: str) -> ProcessKey:
    return process_key(NAMESPACE.name, name)


def _through(name: str, version: int) -> Constraints:
    return Constraints(gates={name: 100}, order=Order(key=name, version=Version((version,))))


async def crowd(jobs: JobStore, name: str, count: int) -> Crowd:
    """Return `count` of each kind of process with a step in hand; gate, order, job of that name."""
    store, leaving = jobs.store, []
    for number in range(count):
        await store.started(_key(f"{name}-plain-{number}"), success(SetTimer(after=EXPIRES_AFTER)))
        leaving.append(await store.start(_key(f"{name}-leaving-{number}")))
        through = _through(name, 1)
        if number < 2:
            through = dataclasses.replace(through, gates={name: 100, f"{name}-tight": 1})
        start = a_request(_key(f"{name}-gated-{number}"), TaskType.INIT, constraints=through)
        await store.admit(start, run=False)
    await jobs.submit(
        _key(f"{name}-job"), specs({f"n{number}": () for number in range(count)} | {"z": ("n0",)})
    )
    claimed = [each.task for each in await store.claim_due(limit=1000)]
    calls = [
        await store.run_task(a_request(_key(f"{name}-plain-{number}"))) for number in range(count)
    ]
    # The second call waits behind the first, and is in line when that is settled.
    for number in range(count):
        await store.admit(a_request(_key(f"{name}-plain-{number}")))
    tasks = [each for each in (*claimed, *calls) if each.key.process_id.startswith(name)]
    return Crowd(
        steps=[await jobs.entry(task, _answer(task)) for task in tasks]
        + [store.entry(task, success(RemoveProcess())) for task in leaving],
        requests=[
            admissions.Entry(request, True, EXPIRES_AFTER)
            for number in range(count)
            for request in (
                a_request(_key(f"{name}-plain-{number}")),
                a_request(_key(f"{name}-late-{number}"), TaskType.INIT),
                a_request(_key(f"{name}-gated-{number}"), constraints=_through(name, 2 + number)),
                a_request(
                    _key(f"{name}-gated-late-{number}"),
                    TaskType.INIT,
                    constraints=_through(name, 2 + number),
                ),
            )
        ],
    )


def _answer(task: RunningTask) -> Any:
    return DONE if task.process.part is not None else success(events=2)


@contextlib.contextmanager
def holding(database: str, table: str, name: str) -> Iterator[None]:
    """Hold the rows of a table that have to do with a crowd; all where it does not say so."""
    with psycopg.connect(database) as holder:
        found = holder.execute(
            "SELECT column_name FROM information_schema.columns"
            " WHERE table_schema = 'progressor' AND table_name = %s",
            [table],
        )
        columns = {row[0] for row in found.fetchall()}
        column = next(
            (each for each in ("process_id", "gate", "order_key", "queue") if each in columns), None
        )
        if column is None:
            which: sql.Composable = sql.SQL("")
        elif column == "process_id":
            # Of one process, and rather of one without gates: it is in a batch with most others.
            which = sql.SQL(
                "WHERE process_id = (SELECT o.process_id FROM progressor.{} o"
                " WHERE o.process_id LIKE {} ORDER BY o.process_id LIKE '%plain%' DESC LIMIT 1)"
            ).format(sql.Identifier(table), sql.Literal(f"{name}%"))
        else:
            which = sql.SQL("WHERE {} LIKE {}").format(
                sql.Identifier(column), sql.Literal(f"%{name}%")
            )
        holder.execute(
            sql.SQL("SELECT FROM progressor.{} {} FOR UPDATE").format(sql.Identifier(table), which)
        )
        yield
        holder.rollback()


async def test_every_table_is_locked_by_a_test(observer: psycopg.Connection[Any]) -> None:
    found = observer.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'progressor'")

    assert sorted(row[0] for row in found.fetchall()) == TABLES


@pytest.mark.matrix
@pytest.mark.parametrize("table", TABLES)
async def test_what_has_nothing_to_do_with_a_locked_row_is_written_soon(
    jobs: JobStore, database: str, table: str
) -> None:
    held, others = await crowd(jobs, "held", 2), await crowd(jobs, "free", NEIGHBOURS)
    with holding(database, table, "held"):
        waiting = _submit(jobs, held, steps=True)
        seconds = await _seconds(_submit(jobs, others, steps=True))
        admitted = _submit(jobs, held, steps=False)
        later = await _seconds(_submit(jobs, others, steps=False))
    async with asyncio.timeout(MANY_SECONDS):
        written = [await each for each in waiting]
        verdicts = [(await each)[0].verdict for each in admitted]

    assert all(isinstance(each, Written) for each in written)
    assert set(verdicts) == {Verdict.ACCEPTED}
    assert max(seconds, later) < SECONDS


@pytest.mark.parametrize("table", ["processes", "running", "tasks"])
async def test_many_locked_rows_in_a_batch_cost_its_neighbours_one_wait(
    jobs: JobStore, database: str, table: str
) -> None:
    store = jobs.store
    held = [await store.start(_key(f"held-{number}")) for number in range(MANY_ROWS)]
    others = [await store.start(_key(f"free-{number}")) for number in range(NEIGHBOURS)]
    with psycopg.connect(database) as holder:
        holder.execute(
            sql.SQL("SELECT FROM progressor.{} WHERE process_id LIKE 'held%' FOR UPDATE").format(
                sql.Identifier(table)
            )
        )
        waiting = [store.settlements.submit(store.entry(task)) for task in held]
        seconds = await _seconds([store.settlements.submit(store.entry(task)) for task in others])
    async with asyncio.timeout(MANY_SECONDS):
        written = [await each for each in waiting]

    assert all(isinstance(each, Written) for each in written)
    assert seconds < SECONDS


async def test_an_insertion_of_the_same_key_elsewhere_holds_up_nobody_else(
    jobs: JobStore, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = jobs.store
    held = await store.start(_key("held"))
    others = [await store.start(_key(f"free-{number}")) for number in range(NEIGHBOURS)]
    with psycopg.connect(database) as holder:
        holder.execute(
            "INSERT INTO progressor.events (slot, namespace, process_id, event_id, task_id,"
            " occurred_at, format_version, payload) VALUES (%s, %s, %s, 1, 1, now(), 1, '')",
            [held.key.slot, held.key.namespace, held.key.process_id],
        )
        waiting = store.settlements.submit(store.entry(held, success(events=1)))
        seconds = await _seconds([store.settlements.submit(store.entry(task)) for task in others])
        holder.rollback()
    async with asyncio.timeout(MANY_SECONDS):
        written = await waiting

    assert isinstance(written, Written)
    assert seconds < SECONDS
    assert "batch not written" not in caplog.messages


@pytest.mark.matrix
@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("table", TABLES)
async def test_what_is_due_is_claimed_but_for_what_is_locked(
    jobs: JobStore, database: str, table: str, *, wait: bool
) -> None:
    store = jobs.store
    for name in ("held", "free"):
        for number in range(NEIGHBOURS if name == "free" else 1):
            init = await store.start(_key(f"{name}-{number}"))
            await store.settled(init, success(SetTimer(after=NO_TIME)), continues=False)
            gated = a_request(
                _key(f"{name}-gated-{number}"), TaskType.INIT, constraints=_through(name, 1)
            )
            await store.admit(gated, run=False)
    with holding(database, table, "held"):
        claimed = await store.claim_due(limit=1000, wait=wait)
    later = await store.claim_due(limit=1000)

    ids = {each.task.key.process_id for each in claimed}
    assert len([each for each in ids if each.startswith("free")]) == 2 * NEIGHBOURS
    assert len(claimed) + len(later) == 2 * NEIGHBOURS + 2


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("table", ["processes", "schedule", "tasks"])
async def test_what_is_locked_takes_no_place_from_what_is_due_behind_it(
    jobs: JobStore, database: str, table: str, *, wait: bool
) -> None:
    store, count = jobs.store, 9
    for number in range(count):
        for name in ("held-timer", "held-call"):
            await due(store, _key(f"{name}-{number}"))
    for number in range(2):
        await due(store, _key(f"free-{number}"))
    with psycopg.connect(database) as holder:
        holder.execute(
            sql.SQL("SELECT FROM progressor.{} WHERE process_id LIKE 'held%' FOR UPDATE").format(
                sql.Identifier(table)
            )
        )
        claimed = [await store.claim_due(limit=1, wait=wait) for _ in range(3)]
    later = await store.claim_due(limit=1000)

    ids = [[each.task.key.process_id for each in round_] for round_ in claimed]
    assert ids == [["free-0"], ["free-1"], []]
    assert len(later) == 2 * count


async def test_a_backlog_waits_for_a_locked_process_once_and_not_at_each_claim(
    jobs: JobStore, database: str
) -> None:
    store = jobs.store
    await due(store, _key("held"))
    for number in range(CLAIMS):
        await due(store, _key(f"free-{number}"))
    with psycopg.connect(database) as holder:
        holder.execute("SELECT FROM progressor.processes WHERE process_id = 'held' FOR UPDATE")
        began = asyncio.get_running_loop().time()
        claimed = [await store.claim_due(limit=1, wait=True) for _ in range(CLAIMS)]
        seconds = asyncio.get_running_loop().time() - began

    assert all(len(each) == 1 for each in claimed)
    assert seconds < CLAIMS * LOCK_TIMEOUT.total_seconds() / 3


async def due(store: Store, key: ProcessKey) -> None:
    """Make a process with a task that is due: a timer, or a call where the name says so."""
    init = await store.start(key)
    if "call" in key.process_id:
        await store.admit(a_request(key), run=False)
        await store.settled(init, continues=False)
    else:
        await store.settled(init, success(SetTimer(after=NO_TIME)), continues=False)
    store.clock.advance(dt.timedelta(milliseconds=1))


@pytest.mark.parametrize("table", ["processes", "schedule", "tasks"])
async def test_timers_are_claimed_by_their_ids_but_for_those_that_are_locked(
    jobs: JobStore, database: str, table: str
) -> None:
    store, wanted = jobs.store, []
    for name in ("held-0", "free-0", "free-1"):
        init = await store.start(_key(name))
        written = await store.settled(init, success(SetTimer(after=NO_TIME)), continues=False)
        assert written.due is not None
        wanted.append(
            Wanted(key=init.key, task_id=written.due.task_id, expires_after=EXPIRES_AFTER)
        )
    with holding(database, table, "held"):
        claimed = await store.claims.claim_tasks(store.pool, wanted)
    later = await store.claim_due()

    assert {each.task.key.process_id for each in claimed} == {"free-0", "free-1"}
    assert [each.task.key.process_id for each in later] == ["held-0"]


@pytest.mark.parametrize("table", ["processes", "gates", "orders"])
async def test_who_waits_for_an_instant_is_promoted_but_for_what_is_locked(
    jobs: JobStore, database: str, table: str
) -> None:
    store, clock = jobs.store, jobs.store.clock
    for name in ("held", "free"):
        through = dataclasses.replace(_through(name, 1), run_at=clock.now() + EXPIRES_AFTER)
        start = a_request(_key(f"{name}-gated"), TaskType.INIT, constraints=through)
        await store.admit(start, run=False)
    clock.advance(2 * EXPIRES_AFTER)
    with holding(database, table, "held"):
        promoted = await store.gates.promote_due([NAMESPACE.name])
    later = await store.gates.promote_due([NAMESPACE.name])

    assert [key.process_id for key, _ in promoted.due] == ["free-gated"]
    # Looking again at once would be a busy loop.
    assert [each.seconds > 0 for each in promoted.later] == [table != "processes"]
    assert [key.process_id for key, _ in later.due] == ["held-gated"]


async def test_tasks_without_gates_continue_while_a_gate_with_many_holders_is_held(
    database: str, observer: psycopg.Connection[Any]
) -> None:
    """As by a change of its capacity that sends the holders back, in one long transaction."""
    create_namespace(database)
    empty(observer)
    commit = Commit(gather=NO_TIME, shard_count=2)
    async with running_stores(database, count=2, clock=ManualClock(), commit=commit) as stores:
        one, other = stores
        through = Constraints(gates={"held": HOLDERS})
        async with asyncio.TaskGroup() as group:
            for number in range(HOLDERS):
                start = a_request(_key(f"held-{number}"), TaskType.INIT, constraints=through)
                group.create_task(one.admit(start, run=False))
        gated = [each.task for each in await one.claim_due(limit=HOLDERS // 4)]
        free = [await other.start(_key(f"free-{number}")) for number in range(NEIGHBOURS)]
        with psycopg.connect(database) as holder:
            holder.execute("SELECT FROM progressor.gates FOR UPDATE")
            waiting = [asyncio.ensure_future(stores[n % 2].settle(t)) for n, t in enumerate(gated)]
            late = a_request(_key("held-late"), TaskType.INIT, constraints=through)
            waiting.append(asyncio.ensure_future(other.admit(late)))  # type: ignore[arg-type]
            seconds = 0.0
            for _ in range(ROUNDS):
                # One step after the other, as processes do that drive themselves.
                seconds = max(seconds, await _seconds([_step(other, task) for task in free]))
                free = [await other.run_task(a_request(task.key)) for task in free]
            assert not any(each.done() for each in waiting)
            holder.rollback()
        async with asyncio.timeout(MANY_SECONDS):
            ended = [await each for each in waiting]

    assert len(gated) == HOLDERS // 4
    assert all(isinstance(each, Written) for each in ended[:-1])
    assert seconds < SECONDS


def _step(store: Store, task: RunningTask) -> asyncio.Future[Any]:
    return asyncio.ensure_future(store.settled(task))


def _submit(jobs: JobStore, crowd: Crowd, *, steps: bool) -> Sequence[asyncio.Future[Any]]:
    if steps:
        return [jobs.store.settlements.submit(entry) for entry in crowd.steps]
    return [jobs.store.admissions.submit(entry) for entry in crowd.requests]


async def _seconds(futures: Sequence[asyncio.Future[Any]]) -> float:
    """Return after how many seconds all have ended well."""
    loop = asyncio.get_running_loop()
    begun_at = loop.time()
    done, pending = await asyncio.wait(futures, timeout=2 * SECONDS)
    assert not pending, f"{len(pending)} of {len(futures)} wait for what they do not need"
    for each in done:
        each.result()
    return loop.time() - begun_at
