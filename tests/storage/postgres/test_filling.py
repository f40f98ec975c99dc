"""The bench's fillings: rows as the engine would have written them."""

import datetime as dt
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from bench.filling.load import Loaded, fill
from bench.filling.plan import Plan, default_timer_count
from bench.filling.sizes import read_sizes
from progressor.domain.processes.process import ProcessStatus, process_key
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.postgres.functions import Functions
from tests.support.clock import ManualClock
from tests.support.postgres import schema
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.store import (
    NO_TIME,
    Store,
    a_request,
    connect,
    lent,
    running_stores,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

PLAN = Plan(
    process_count=400, timer_count=60, due_count=20, long_event_count=50, namespace="orders"
)
MORE = Plan(process_count=100, timer_count=0, namespace="orders", prefix="more")


@pytest.fixture(scope="module")
def loaded(database: str) -> Loaded:
    """Fill the database twice: empty, and with rows in it."""
    first = fill(database, PLAN)
    fill(database, MORE)
    return first


@pytest.fixture(scope="module")
def observer(database: str, loaded: Loaded) -> Iterator[psycopg.Connection[Any]]:
    assert loaded.rows > 0
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(database: str, observer: psycopg.Connection[Any]) -> Any:
    # After all that was filled in; the database's own clock set its times.
    [now] = observer.execute("SELECT now()").fetchone() or [None]
    clock = ManualClock()
    clock.advance(now - clock.now())
    async with running_stores(database, count=1, clock=clock) as stores:
        yield stores[0]


async def test_they_hold_all_invariants(observer: psycopg.Connection[Any]) -> None:
    assert broken_invariants(observer) == {}


async def test_they_leave_the_schema_as_it_was(observer: psycopg.Connection[Any]) -> None:
    assert schema.schema_of(observer) == schema.FILE.read_text("utf-8")


async def test_they_hold_as_much_as_was_planned(
    observer: psycopg.Connection[Any], loaded: Loaded
) -> None:
    counts = observer.execute(
        """
        SELECT (SELECT count(*) FROM progressor.processes),
            (SELECT count(*) FROM progressor.tasks),
            (SELECT count(*) FROM progressor.events),
            (SELECT count(*) FROM progressor.schedule)"""
    ).fetchone()

    assert counts == (501, 1550, 1550, 80)
    assert loaded.rows == 401 + 1250 + 1250 + 80
    assert loaded.callable_count == 340


async def test_their_processes_take_calls(store: Store) -> None:
    for number in (0, PLAN.first_timed, PLAN.callable_count - 1):
        key = process_key("orders", f"filled-{number}")
        task = await store.run_task(a_request(key))
        written = await store.settled(task)
        assert written.process is not None
        assert written.process.last_event_id == 3


async def test_their_due_timers_are_due(store: Store) -> None:
    claimed = await store.claim_due()

    names = {each.task.key.process_id for each in claimed}
    assert names == {f"filled-{number}" for number in range(340, 360)}


async def test_their_names_say_how_they_are(store: Store) -> None:
    numbers = {340: "running", 360: "finished", 379: "finished", 380: "error", 399: "error"}

    for number, status in numbers.items():
        snapshot = await store.processes.get(process_key("orders", f"filled-{number}"))
        assert snapshot.process.status is ProcessStatus(status)


async def test_a_start_is_known_by_its_key(store: Store) -> None:
    task = await store.results.await_task(process_key("orders", "filled-7"), "start-7")

    assert not isinstance(task, int)


async def test_the_one_that_has_grown_old_has_a_task_for_each_event(store: Store) -> None:
    traced = await store.processes.trace(process_key("orders", "filled-long"), after=0, limit=100)

    assert [[event.event_id for event in task.events] for task in traced] == [
        [event_id] for event_id in range(1, 51)
    ]


async def test_their_namespace_is_one(database: str, loaded: Loaded) -> None:
    assert loaded.seconds > 0
    async with await connect(database) as connection:
        namespace = await Namespaces(pool=lent(connection), functions=Functions()).get("orders")

    assert namespace.processor_targets == ("127.0.0.1:1",)


async def test_sizes_are_told_per_process(observer: psycopg.Connection[Any]) -> None:
    sizes = read_sizes(observer).as_json()

    assert sizes["processes"] == 501
    assert 700 < sizes["payload_bytes_per_process"] < 1500
    assert sizes["bytes_per_process"] == pytest.approx(
        sum(sizes["bytes_per_process_of"].values()), rel=0.01
    )
    assert "tasks_pkey" in sizes["bytes_per_process_of"]


async def test_no_plan_has_more_timers_than_processes_that_run() -> None:
    with pytest.raises(ValueError, match="do not fit 90 running processes of 100"):
        Plan(process_count=100, timer_count=91)


async def test_a_tenth_of_the_processes_has_a_timer_unless_said_otherwise() -> None:
    assert default_timer_count(1000) == 100
    assert dt.timedelta() == NO_TIME == PLAN.due_after
