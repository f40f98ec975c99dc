"""The invariants hold over storage's work; a change of what must not change is noticed.

That a violation of each invariant is found: tests/storage/test_doctor_invariants.py.
"""

from typing import Any

import psycopg
import pytest

from tests.support.invariants import Past, broken_invariants
from tests.support.population import populate
from tests.support.storage import Desk

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_all_hold_over_what_storage_writes(desk: Desk, eye: psycopg.Connection[Any]) -> None:
    await populate(desk)

    assert broken_invariants(eye) == {}


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
    desk: Desk, eye: psycopg.Connection[Any], violation: str
) -> None:
    await populate(desk)
    past = Past()
    assert past.look(eye) == []

    with eye.transaction(force_rollback=True):
        eye.execute(violation.encode())
        changed = past.look(eye)

    assert changed != []
