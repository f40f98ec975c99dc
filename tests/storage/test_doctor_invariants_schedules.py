"""Each invariant of schedules detects its own violation; some of them only if it lasts."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from tests.support.clock import ManualClock
from tests.support.invariants import broken_invariants
from tests.support.schedules import MINUTE, schedule_desk
from tests.support.storage import Desk, create_namespace, running_desks
from tests.support.violations import Violation
from tests.support.violations_schedules import VIOLATIONS_OF_SCHEDULES

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def eye(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def populated(database: str) -> AsyncIterator[Desk]:
    """Return a desk with a schedule that has fired."""
    create_namespace(database)
    async with running_desks(database, clock=ManualClock()) as (desk,):
        timetable = schedule_desk(desk)
        await timetable.create()
        clock = desk.clock
        assert isinstance(clock, ManualClock)
        clock.advance(MINUTE)
        assert await timetable.fire_due() == ["started"]
        yield desk


async def test_a_healthy_database_breaks_none(
    populated: Desk, eye: psycopg.Connection[Any]
) -> None:
    assert broken_invariants(eye, at_rest=True, now=populated.clock.now()) == {}


@pytest.mark.parametrize(
    "violation", VIOLATIONS_OF_SCHEDULES, ids=lambda it: f"{it.invariant}: {it.statement}"
)
async def test_each_catches_its_violation_and_no_other(
    populated: Desk, eye: psycopg.Connection[Any], violation: Violation
) -> None:
    with eye.transaction(force_rollback=True):
        eye.execute(violation.statement.encode())
        broken = broken_invariants(eye, at_rest=True, now=populated.clock.now())

    assert broken.keys() == {violation.invariant} | violation.besides
    assert {bool(detail) for _, _, detail in broken[violation.invariant]} == {True}
