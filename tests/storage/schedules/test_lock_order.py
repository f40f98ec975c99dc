"""Run schedules and writing to the same processes concurrently causes no deadlock."""

import contextlib
import itertools
from collections.abc import AsyncIterator

import psycopg
import pytest
import pytest_asyncio
from psycopg.conninfo import make_conninfo

from progressor import errors, job_errors
from progressor.domain.processes.task import TaskType
from progressor.domain.schedules.schedule import (
    CallTarget,
    OverlapPolicy,
    ScheduleKey,
    ScheduleRunCause,
    StartTarget,
    Upcoming,
    schedule_key,
)
from progressor.storage.schedules.runs import FIRST, DeletedTo, Item, schedule_target
from tests.storage.postgres.test_lock_order import (
    CONNECTIONS_EACH,
    HOUR,
    KEYS,
    Party,
    Writer,
    admit_requests,
    admit_starts,
    claim_due,
    delete_finished,
    put_process,
    remove_process,
    settle_tasks,
    simple_repair,
    write_at_once,
)
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.schedules import MINUTE, ScheduleStore, a_spec, schedule_store
from tests.support.storage.store import connect, create_namespace

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALLS = [schedule_key("orders", f"calls {key.process_id}") for key in KEYS]
STARTS = [schedule_key("orders", f"starts {number}") for number in range(6)]


def timetable_of(party: Party) -> ScheduleStore:
    """Return the schedules of a party, a moment later than before."""
    clock = party.store.clock
    clock.advance(MINUTE)
    return schedule_store(party.store)


async def run(party: Party, keys: list[ScheduleKey]) -> None:
    """Trigger several schedules in one batch, in no order, at an instant that may be taken."""
    timetable = timetable_of(party)
    now = party.store.clock.now()
    items = []
    for key in party.random.sample(keys, party.random.randint(2, len(keys))):
        schedule = await timetable.schedules.get(key)
        items.append(
            Item(
                schedule=schedule_target(schedule),
                what=Upcoming(now, now),
                cause=ScheduleRunCause.TRIGGER,
                policy=party.random.choice(list(OverlapPolicy)),
            )
        )
    await timetable.runs.run(items)


async def run_calls(party: Party) -> None:
    await run(party, CALLS)


async def run_starts(party: Party) -> None:
    await run(party, STARTS)


async def start_queued(party: Party) -> None:
    timetable = timetable_of(party)
    found = await timetable.runs.find_queued(after=FIRST, limit=10)
    items = [
        Item(
            schedule=it.schedule,
            what=it.upcoming,
            cause=it.cause,
            policy=it.overlap_policy,
            was_queued=True,
        )
        for it in party.random.sample(found, len(found))
        if it.schedule.kind == "request"
    ]
    if items:
        await timetable.runs.run(items)


async def change(party: Party) -> None:
    timetable = timetable_of(party)
    key = party.random.choice(CALLS)
    schedule = await timetable.schedules.get(key)
    now = party.store.clock.now()
    with contextlib.suppress(job_errors.ScheduleChangedError, errors.InvalidRequestError):
        instants = [Upcoming(now - n * HOUR, now) for n in range(3)]
        await timetable.schedules.backfill(schedule, instants, OverlapPolicy.QUEUE_ONE)


async def forget(party: Party) -> None:
    timetable = timetable_of(party)
    for key in party.random.sample(CALLS, 3):
        await timetable.runs.delete_old(key.slot, DeletedTo(), kept=2, age=HOUR, limit=1000)


RUN: tuple[Writer, ...] = (run_calls, run_starts, start_queued, change, forget)
OTHERS: tuple[Writer, ...] = (
    admit_starts, admit_requests, settle_tasks, claim_due, remove_process, put_process,
    simple_repair, delete_finished,
)  # fmt: skip
PAIRS = [
    *itertools.combinations_with_replacement(RUN, 2),
    *itertools.product((run_calls, start_queued), OTHERS),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parties(database: str) -> AsyncIterator[list[Party]]:
    """Return connections that notice a deadlock within 20 ms, and make the schedules."""
    create_namespace(database)
    options = "-c deadlock_timeout=20ms -c synchronous_commit=off"
    impatient = make_conninfo(database, options=options)
    connections = [await connect(impatient) for _ in range(2 * CONNECTIONS_EACH + 1)]
    found = [Party(each, number) for number, each in enumerate(connections, start=1)]
    timetable = schedule_store(found[0].store)
    for schedule, process in zip(CALLS, KEYS, strict=True):
        target = CallTarget(task_type=TaskType.NOTIFY, process_id=process.process_id)
        await timetable.schedules.create(schedule, a_spec(target), paused=True, note="")
    for schedule in STARTS:
        await timetable.schedules.create(schedule, a_spec(StartTarget()), paused=True, note="")
    yield found
    for each in connections:
        await each.close()


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("one", "other"), PAIRS, ids=[f"{a.__name__}-{b.__name__}" for a, b in PAIRS]
)
async def test_two_writers_never_lock_each_other_out(
    parties: list[Party], database: str, one: Writer, other: Writer
) -> None:
    await write_at_once(parties, one, other, (admit_starts, run_calls, claim_due))

    with psycopg.connect(database, autocommit=True) as observer:
        assert broken_invariants(observer) == {}
        counted = observer.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert counted == (0,)
