"""Each invariant of jobs detects its own violation; some of them only if it lasts."""

import time
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from progressor.storage.doctor.findings import State
from tests.support.clock import ManualClock
from tests.support.storage.doctor.doctor import execute, find
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.doctor.rows import replica
from tests.support.storage.doctor.violations import Violation
from tests.support.storage.doctor.violations_jobs import VIOLATIONS_OF_JOBS
from tests.support.storage.jobs.rows import populate_jobs
from tests.support.storage.store import Store, create_namespace, empty, running_stores

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(database: str) -> AsyncIterator[Store]:
    create_namespace(database)
    async with running_stores(database, clock=ManualClock()) as (store,):
        yield store


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def populated(store: Store, observer: psycopg.Connection[Any]) -> Store:
    empty(observer)
    await populate_jobs(store)
    return store


async def test_a_healthy_database_breaks_none(
    populated: Store, observer: psycopg.Connection[Any]
) -> None:
    assert broken_invariants(observer, at_rest=True, now=populated.clock.now()) == {}


@pytest.mark.parametrize(
    "violation", VIOLATIONS_OF_JOBS, ids=lambda it: f"{it.invariant}: {it.statement}"
)
async def test_each_catches_its_violation_and_no_other(
    populated: Store, observer: psycopg.Connection[Any], violation: Violation
) -> None:
    with observer.transaction(force_rollback=True):
        observer.execute(violation.statement.encode())
        broken = broken_invariants(observer, at_rest=True, now=populated.clock.now())

    assert broken.keys() == {violation.invariant} | violation.besides
    assert {(namespace, bool(detail)) for namespace, _, detail in broken[violation.invariant]} == {
        ("orders", True)
    }


async def test_a_job_that_stays_untended_is_told_with_what_to_look_for(
    own_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(own_database, UNTENDED, replica())
    monkeypatch.setattr(time, "sleep", lambda _: None)

    found = find(own_database, "jobs_are_tended")

    assert found.state is State.FAILED
    assert found.offenders[0].startswith("orders/p: the job, running, has needed upkeep since")
    assert "job upkeep failed; retrying" in found.advice


async def test_a_job_that_is_tended_meanwhile_breaks_no_law(
    own_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(own_database, UNTENDED, replica())

    def maintain(_: float) -> None:
        execute(own_database, "UPDATE progressor.jobs SET upkeep_due_at = NULL")

    monkeypatch.setattr(time, "sleep", maintain)

    assert find(own_database, "jobs_are_tended").state is State.OK


UNTENDED = (
    "INSERT INTO progressor.jobs (slot, namespace, process_id, state, node_count, created_at,"
    " updated_at, upkeep_due_at) VALUES (1, 'orders', 'p', 'running', 0, now(), now(), now())"
)
