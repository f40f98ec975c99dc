"""The bench's fillings: rows as the engine would have written them."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from bench.filling.load import Loaded, fill
from bench.filling.plan import Plan
from progressor.domain.views.failure import FailureQuery
from progressor.storage.steps.failures import Failures
from tests.support.clock import ManualClock
from tests.support.postgres import schema
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.store import (
    Store,
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


async def test_each_reason_is_a_group_of_failures(store: Store) -> None:
    groups = await Failures(store.context).list(FailureQuery())

    assert {(it.reason, it.failure_count, it.broken_count) for it in groups} == {
        ("PAYMENT_FAILED", 9, 9),
        ("OUT_OF_STOCK", 7, 7),
        ("CARRIER_UNAVAILABLE", 9, 9),
    }
