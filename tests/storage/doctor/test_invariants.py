"""The invariants: each detects a violation, none in a working engine; cheap ones stay cheap."""

import asyncio
import datetime as dt
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from bench.filling.load import fill
from bench.filling.plan import Plan
from progressor.domain.views.bulk import OPERATIONS
from progressor.storage.doctor.findings import OFFENDERS_MAX, State
from progressor.storage.doctor.invariants.checks import (
    GROUP,
    INVARIANTS,
    LOOKS,
    PAUSE_SECONDS,
    Invariant,
    checks,
)
from progressor.storage.doctor.run import BY_INDEX, Check
from progressor.storage.postgres.migrations import migrate
from tests.storage.doctor.populations import (
    populate,
    populate_audit,
    populate_bulks,
    populate_gates,
    populate_jobs,
)
from tests.storage.doctor.violations import (
    VIOLATIONS,
    VIOLATIONS_OF_AUDIT,
    VIOLATIONS_OF_BULKS,
    VIOLATIONS_OF_GATES,
    VIOLATIONS_OF_JOBS,
    VIOLATIONS_OF_SCHEDULES,
    Violation,
    Violations,
    violations,
)
from tests.support.clock import ManualClock
from tests.support.engine.replica import Env, answering, open_env, running_replica, timer
from tests.support.postgres.cluster import Cluster
from tests.support.storage.doctor.doctor import execute, find, looking
from tests.support.storage.doctor.invariants import Past, broken_invariants
from tests.support.storage.doctor.rows import replica
from tests.support.storage.schedules import MINUTE, schedule_store
from tests.support.storage.store import Store, create_namespace, empty, running_stores

pytestmark = pytest.mark.asyncio(loop_scope="module")

FILLING = Plan(process_count=4000, timer_count=1000, namespace="orders")
WHOLE = {"processes", "tasks", "events", "job_nodes"}
EMPTY_QUEUE = (
    "INSERT INTO progressor.gate_queues VALUES ('orders', '{a}', '{a}', NULL, 3, 1, now(), 1)"
)
UPKEEP_DUE = (
    "INSERT INTO progressor.jobs (slot, namespace, process_id, state, node_count, created_at,"
    " updated_at, upkeep_due_at) VALUES (1, 'orders', 'p', 'running', 0, now(), now(), now())"
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(database: str) -> AsyncIterator[Store]:
    create_namespace(database)
    async with running_stores(database, clock=ManualClock()) as (store,):
        yield store


@pytest.fixture
def emptied(store: Store, observer: psycopg.Connection[Any]) -> Store:
    empty(observer)
    return store


async def populate_schedules(store: Store) -> None:
    """Have a schedule run."""
    timetable = schedule_store(store)
    await timetable.create()
    assert await timetable.after(MINUTE) == ["started"]


POPULATIONS: Mapping[str, tuple[Callable[[Store], Awaitable[None]], Violations]] = {
    "processes": (populate, VIOLATIONS),
    "gates": (populate_gates, VIOLATIONS_OF_GATES),
    "jobs": (populate_jobs, VIOLATIONS_OF_JOBS),
    "schedules": (populate_schedules, VIOLATIONS_OF_SCHEDULES),
    "bulks": (populate_bulks, VIOLATIONS_OF_BULKS),
    "audit": (populate_audit, VIOLATIONS_OF_AUDIT),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def populated(
    request: pytest.FixtureRequest, store: Store, observer: psycopg.Connection[Any]
) -> Callable[[], dict[str, list[Any]]]:
    """Return what tells the invariants that a population breaks; only the first is at work."""
    empty(observer)
    await POPULATIONS[request.param][0](store)
    if request.param == "processes":
        return lambda: broken_invariants(observer)
    return lambda: broken_invariants(observer, at_rest=True, now=store.clock.now())


@pytest.mark.parametrize("populated", POPULATIONS, indirect=True)
async def test_a_healthy_database_breaks_none(
    populated: Callable[[], dict[str, list[Any]]],
) -> None:
    assert populated() == {}


@pytest.mark.parametrize(
    ("populated", "violation"),
    [
        pytest.param(kind, violation, id=f"{violation.invariant}: {violation.statement}")
        for kind, (_, known) in POPULATIONS.items()
        for violation in violations(known)
    ],
    indirect=["populated"],
)
async def test_each_catches_its_violation_and_no_other(
    populated: Callable[[], dict[str, list[Any]]],
    observer: psycopg.Connection[Any],
    violation: Violation,
) -> None:
    with observer.transaction(force_rollback=True):
        if violation.invariant != "counts_equal_processes":
            # Most of them are of processes, which nothing has counted.
            observer.execute("UPDATE progressor.process_count_state SET is_exact = false")
        observer.execute(violation.statement.encode())
        broken = populated()

    assert broken.keys() == {violation.invariant} | violation.besides
    offenders = broken[violation.invariant]
    assert all(
        namespace in {"", "orders", "nowhere", OPERATIONS} and why
        for namespace, _, why in offenders
    )


async def test_each_has_a_violation() -> None:
    violated = {invariant for _, known in POPULATIONS.values() for invariant in known}

    assert violated == {invariant.name for invariant in INVARIANTS}


async def test_an_offender_is_told_in_words(
    emptied: Store, observer: psycopg.Connection[Any]
) -> None:
    await populate(emptied)

    with observer.transaction(force_rollback=True):
        observer.execute("UPDATE progressor.running SET token = 0")
        [(_, process_id, detail)] = broken_invariants(observer)["leases_match_their_tasks"]

    assert process_id.startswith("p")
    assert "(call, attempt 1, token 0) is leased, its record says call, running" in detail


@pytest.mark.parametrize(
    "violation",
    [
        "UPDATE progressor.tasks SET response = 'other' WHERE status = 'finished'",
        "UPDATE progressor.tasks SET status = 'waiting', finished_at = NULL",
        "UPDATE progressor.events SET payload = 'other'",
        "DELETE FROM progressor.events",
    ],
)
async def test_the_past_does_not_change(
    emptied: Store, observer: psycopg.Connection[Any], violation: str
) -> None:
    await populate(emptied)
    past = Past()
    assert past.look(observer) == []

    with observer.transaction(force_rollback=True):
        observer.execute(violation.encode())
        changed = past.look(observer)

    assert changed != []


async def test_what_is_broken_for_a_moment_breaks_no_invariant(
    own_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(own_database, EMPTY_QUEUE)
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        execute(own_database, "DELETE FROM progressor.gate_queues")

    monkeypatch.setattr(time, "sleep", pause)
    found = find(own_database, "gate_queues_wait_for_full_gates")

    assert found.state is State.OK
    assert pauses == [PAUSE_SECONDS]


async def test_what_is_broken_by_others_each_time_breaks_no_invariant(
    own_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(own_database, EMPTY_QUEUE)

    def pause(_: float) -> None:
        execute(own_database, "UPDATE progressor.gate_queues SET head_task_id = head_task_id + 1")

    monkeypatch.setattr(time, "sleep", pause)

    assert find(own_database, "gate_queues_wait_for_full_gates").state is State.OK


async def test_what_stays_broken_breaks_the_invariant_where_a_replica_serves(
    own_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(own_database, EMPTY_QUEUE, replica())
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)

    found = find(own_database, "gate_queues_wait_for_full_gates")

    assert found.state is State.FAILED
    assert found.words == "1 row violates the invariant: a gate queue waits for a gate that is full"
    assert found.offenders == ("orders: queue {a} waits for nothing; next is task 1",)
    assert "gates not promoted; retrying" in found.advice
    assert len(pauses) == LOOKS


async def test_what_stays_broken_waits_for_a_replica_where_none_serves(
    own_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(own_database, EMPTY_QUEUE)
    monkeypatch.setattr(time, "sleep", lambda _: None)

    found = find(own_database, "gate_queues_wait_for_full_gates")

    assert found.state is State.NOT_DONE
    assert found.words.startswith("1 row waiting for upkeep, and no replica is serving")
    assert found.advice == "Start a replica, and ask again."


async def test_a_job_that_stays_untended_is_told_with_what_to_look_for(
    own_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(own_database, UPKEEP_DUE, replica())
    monkeypatch.setattr(time, "sleep", lambda _: None)

    found = find(own_database, "job_upkeep_is_done_in_time")

    assert found.state is State.FAILED
    assert found.offenders[0].startswith("orders/p: the job, running, has needed upkeep since")
    assert "job upkeep failed; retrying" in found.advice


async def test_a_job_that_is_tended_meanwhile_breaks_no_invariant(
    own_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(own_database, UPKEEP_DUE, replica())

    def maintain(_: float) -> None:
        execute(own_database, "UPDATE progressor.jobs SET upkeep_due_at = NULL")

    monkeypatch.setattr(time, "sleep", maintain)

    assert find(own_database, "job_upkeep_is_done_in_time").state is State.OK


async def test_ten_offenders_are_named_and_all_are_counted(own_database: str) -> None:
    execute(
        own_database,
        """
        INSERT INTO progressor.schedule
            (slot, namespace, process_id, task_id, task_type, status, due_at, replica_id)
        SELECT 1, 'orders', 'p' || n, 1, 'call', 'waiting', now(), 1
        FROM generate_series(1, 1025) n""",
    )

    found = find(own_database, "scheduled_tasks_match_their_records")

    assert found.state is State.FAILED
    assert found.words.startswith("1,025 rows violate the invariant")
    assert len(found.offenders) == OFFENDERS_MAX
    assert "has no record" in found.offenders[0]


async def test_an_empty_database_keeps_all(own_database: str) -> None:
    with looking(own_database) as doctor_run:
        found = [check.find(doctor_run) for check in checks(deep=True)]

    assert {each.state for each in found} == {State.OK}
    assert [each.words for each in found] == [invariant.says for invariant in INVARIANTS]


async def test_the_deep_ones_are_asked_only_when_wanted() -> None:
    cheap = {check.name for check in checks(deep=False)}

    assert cheap == {invariant.name for invariant in INVARIANTS if not invariant.deep}
    assert len(checks(deep=True)) == len(INVARIANTS)


async def test_a_invariant_that_takes_too_long_is_not_done_and_the_next_one_is(
    own_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = "SELECT '' AS namespace, '' AS process_id, '' AS detail FROM pg_sleep(60)"
    monkeypatch.setattr(Invariant, "query", property(lambda _law: slow))
    with looking(own_database, timeout=dt.timedelta(milliseconds=50)) as doctor_run:
        first = checks(deep=False)[0].find(doctor_run)
        monkeypatch.undo()
        second = checks(deep=False)[1].find(doctor_run)

    assert first.state is State.NOT_DONE
    assert "within 0.05 s" in first.words
    assert "--timeout" in first.advice
    assert second.state is State.OK


async def test_a_check_that_may_not_read_is_not_done(own_database: str) -> None:
    execute(own_database, "DROP ROLE IF EXISTS doctor_blind", "CREATE ROLE doctor_blind")
    with looking(own_database) as doctor_run:
        doctor_run.rows("SELECT set_config('role', 'doctor_blind', false)")
        found = Check(group=GROUP, name="any", examine=INVARIANTS[0].examine).find(doctor_run)
    execute(own_database, "DROP ROLE doctor_blind")

    assert found.state is State.NOT_DONE
    assert "permission denied" in found.words


@pytest.fixture(scope="module")
def filled(cluster: Cluster) -> str:
    conninfo = cluster.create_database()
    migrate(conninfo)
    fill(conninfo, FILLING)
    return conninfo


@pytest.mark.parametrize(
    "invariant",
    [invariant for invariant in INVARIANTS if not invariant.deep],
    ids=lambda invariant: invariant.name,
)
async def test_a_cheap_one_reads_no_whole_table(filled: str, invariant: Invariant) -> None:
    with psycopg.connect(filled) as connection:
        connection.execute(BY_INDEX)
        explained = connection.execute(
            b"EXPLAIN (FORMAT JSON) " + invariant.query.encode()
        ).fetchall()

    wholes = {
        node["Relation Name"]
        for node in _nodes(explained[0][0][0]["Plan"])
        if "Index Cond" not in node
        and node.get("Index Name") not in {"processes_in_error", "processes_by_failure"}
        and node.get("Relation Name") in WHOLE
    }
    assert wholes == set()


async def test_hold_at_any_moment_of_a_busy_engine(own_database: str) -> None:
    ended = threading.Event()
    async with running_replica(own_database) as replica, open_env(replica) as env:
        watch = asyncio.create_task(asyncio.to_thread(_watch, own_database, ended))
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(40):
                    group.create_task(_live(env, f"p{number}"), name=f"p{number}")
        finally:
            ended.set()
        rounds, broken = await watch

    assert broken == {}
    assert rounds > 3


async def _live(env: Env, process_id: str) -> None:
    """Lead a process through steps, timers, lines of calls and, every third, its removal."""
    steps = [answering(b"e", set_timer=timer(0.01)), answering(), answering(b"e", b"f")]
    env.processor.on_process(process_id, *steps * 5)
    for lap in range(6):
        if lap == 0 or process_id.endswith("3"):
            await env.client.start(process_id)
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(_call(env, process_id), name="call")
        if process_id.endswith("3"):
            await env.client.remove(process_id)


async def _call(env: Env, process_id: str) -> None:
    await env.client.call(process_id, b"args")


def _watch(conninfo: str, ended: threading.Event) -> tuple[int, dict[str, list[Any]]]:
    rounds = 0
    with psycopg.connect(conninfo, autocommit=True) as connection:
        while not ended.is_set():
            if broken := broken_invariants(connection):
                return rounds, broken
            rounds += 1
    return rounds, {}


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for inner in node.get("Plans", ()):
        yield from _nodes(inner)
