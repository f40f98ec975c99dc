"""The invariants of gates detect violations; those allowed for a moment, only if they last."""

import time
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from progressor.storage.doctor.findings import State
from progressor.storage.doctor.invariants import checks as invariants
from tests.support.clock import ManualClock
from tests.support.storage.doctor.doctor import execute, find
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.doctor.rows import replica
from tests.support.storage.doctor.violations import Violation
from tests.support.storage.doctor.violations_gates import VIOLATIONS_OF_GATES
from tests.support.storage.gated_population import populate_gates
from tests.support.storage.store import Store, create_namespace, empty, running_stores

pytestmark = pytest.mark.asyncio(loop_scope="module")

LINE_OF_NOBODY = (
    "INSERT INTO progressor.gate_queues VALUES ('orders', '{a}', '{a}', NULL, 3, 1, now(), 1)"
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(database: str) -> AsyncIterator[Store]:
    create_namespace(database)
    async with running_stores(database, clock=ManualClock()) as (store,):
        yield store


@pytest.mark.parametrize(
    "violation", VIOLATIONS_OF_GATES, ids=lambda it: f"{it.invariant}: {it.statement}"
)
async def test_each_catches_its_violation_and_no_other(
    store: Store, observer: psycopg.Connection[Any], violation: Violation
) -> None:
    empty(observer)
    await populate_gates(store)

    with observer.transaction(force_rollback=True):
        observer.execute(violation.statement.encode())
        broken = broken_invariants(observer, at_rest=True, now=store.clock.now())

    assert broken.keys() == {violation.invariant} | violation.besides
    assert {(namespace, bool(detail)) for namespace, _, detail in broken[violation.invariant]} == {
        ("orders", True)
    }
    assert broken_invariants(observer, at_rest=True, now=store.clock.now()) == {}


async def test_what_is_broken_for_a_moment_breaks_no_law(
    own_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(own_database, LINE_OF_NOBODY)
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        execute(own_database, "DELETE FROM progressor.gate_queues")

    monkeypatch.setattr(time, "sleep", pause)
    found = find(own_database, "gate_queues_wait_for_full_gates")

    assert found.state is State.OK
    assert pauses == [invariants.PAUSE_SECONDS]


async def test_what_is_broken_by_others_each_time_breaks_no_law(
    own_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(own_database, LINE_OF_NOBODY)

    def pause(_: float) -> None:
        execute(own_database, "UPDATE progressor.gate_queues SET head_task_id = head_task_id + 1")

    monkeypatch.setattr(time, "sleep", pause)

    assert find(own_database, "gate_queues_wait_for_full_gates").state is State.OK


async def test_what_stays_broken_breaks_the_invariant_where_a_replica_serves(
    own_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(own_database, LINE_OF_NOBODY, replica())
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)

    found = find(own_database, "gate_queues_wait_for_full_gates")

    assert found.state is State.FAILED
    assert found.words == "1 row violate the invariant: a line waits for a gate that is full"
    assert found.offenders == ("orders: queue {a} waits for nothing; next is task 1",)
    assert "gates not promoted; retrying" in found.advice
    assert len(pauses) == invariants.LOOKS


async def test_what_stays_broken_waits_for_a_replica_where_none_serves(
    own_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(own_database, LINE_OF_NOBODY)
    monkeypatch.setattr(time, "sleep", lambda _: None)

    found = find(own_database, "gate_queues_wait_for_full_gates")

    assert found.state is State.NOT_DONE
    assert found.words.startswith("1 row to be seen to by a replica, and none is serving")
    assert found.advice == "Start a replica, and ask again."
