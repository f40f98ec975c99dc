"""Each invariant of schedules detects its own violation; some of them only if it lasts."""

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from tests.support.clock import ManualClock
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.doctor.violations import Violation
from tests.support.storage.doctor.violations_schedules import VIOLATIONS_OF_SCHEDULES
from tests.support.storage.schedules import MINUTE, schedule_store
from tests.support.storage.store import Store, create_namespace, running_stores

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def populated(database: str) -> AsyncIterator[Store]:
    """Return a store with a schedule that has run."""
    create_namespace(database)
    async with running_stores(database, clock=ManualClock()) as (store,):
        timetable = schedule_store(store)
        await timetable.create()
        clock = store.clock
        assert isinstance(clock, ManualClock)
        clock.advance(MINUTE)
        assert await timetable.run_due() == ["started"]
        yield store


async def test_a_healthy_database_breaks_none(
    populated: Store, observer: psycopg.Connection[Any]
) -> None:
    assert broken_invariants(observer, at_rest=True, now=populated.clock.now()) == {}


@pytest.mark.parametrize(
    "violation", VIOLATIONS_OF_SCHEDULES, ids=lambda it: f"{it.invariant}: {it.statement}"
)
async def test_each_catches_its_violation_and_no_other(
    populated: Store, observer: psycopg.Connection[Any], violation: Violation
) -> None:
    with observer.transaction(force_rollback=True):
        observer.execute(violation.statement.encode())
        broken = broken_invariants(observer, at_rest=True, now=populated.clock.now())

    assert broken.keys() == {violation.invariant} | violation.besides
    assert {bool(detail) for _, _, detail in broken[violation.invariant]} == {True}
