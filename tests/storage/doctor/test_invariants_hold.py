"""The invariants hold over storage's work; a change of what must not change is noticed.

That a violation of each invariant is found: tests/storage/doctor/test_invariants.py.
"""

from typing import Any

import psycopg
import pytest

from tests.support.storage.doctor.invariants import Past, broken_invariants
from tests.support.storage.population import populate
from tests.support.storage.store import Store

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_all_hold_over_what_storage_writes(
    store: Store, observer: psycopg.Connection[Any]
) -> None:
    await populate(store)

    assert broken_invariants(observer) == {}


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
    store: Store, observer: psycopg.Connection[Any], violation: str
) -> None:
    await populate(store)
    past = Past()
    assert past.look(observer) == []

    with observer.transaction(force_rollback=True):
        observer.execute(violation.encode())
        changed = past.look(observer)

    assert changed != []
