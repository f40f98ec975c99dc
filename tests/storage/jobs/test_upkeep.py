"""What no settlement does for a job, and tending does."""

import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor.domain.gates.constraint import Constraints
from progressor.domain.jobs.job import NodeSpec
from progressor.domain.processes.task import NodeState
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.jobs.store import DONE, JobStore, begun
from tests.support.storage.store import (
    NO_TIME,
    fresh_key,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)


async def test_nodes_with_constraints_are_started_by_tending(
    jobs: JobStore, observer: psycopg.Connection[Any]
) -> None:
    leader = await begun(jobs, {"a": (), "b": ()}, constraints=Constraints(gates={"g2": 1}))
    before = await jobs.states(leader)
    jobs.store.reported.clear()

    maintained = await jobs.control.maintain(leader)

    assert before == {"a": "ready", "b": "ready"}
    assert (maintained.started, maintained.is_whole) == (2, True)
    assert len([each for told in jobs.store.reported for each in told.due]) == 1
    assert broken_invariants(observer, now=jobs.store.clock.now()) == {}
    [(name, task)] = (await jobs.claim()).items()
    await jobs.settled(task, DONE)
    assert name == "a"
    assert list(await jobs.claim()) == ["b"]


async def test_a_gated_node_whose_process_is_there_already_fails(jobs: JobStore) -> None:
    leader, taken = fresh_key(), fresh_key()
    await jobs.store.started(taken)
    gated = Constraints(gates={"g3": 1})
    await jobs.submit(leader, (NodeSpec(name="a", process_id=taken.process_id, constraints=gated),))

    await jobs.control.maintain(leader)

    [node] = (await jobs.jobs.read(leader, payloads=False)).nodes
    assert (node.state, node.error and node.error.reason) == (
        NodeState.FAILED, "PROCESS_ALREADY_EXISTS",
    )  # fmt: skip


async def test_what_is_untended_for_long_is_found(jobs: JobStore) -> None:
    leader = await begun(jobs)
    await jobs.control.cancel(leader, "")

    young = await jobs.jobs.find_upkeep_due(age=HOUR, limit=10)
    old = await jobs.jobs.find_upkeep_due(age=NO_TIME, limit=10)
    await jobs.control.maintain(leader)

    assert (young, old) == ((), (leader,))
    assert await jobs.jobs.find_upkeep_due(age=NO_TIME, limit=10) == ()
