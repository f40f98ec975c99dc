"""When the judges take a run for done: no sooner than its last job has ended."""

import psycopg
import pytest

from progressor.domain.gates.constraint import Constraints
from tests.chaos.judges import count_left
from tests.support.models.jobs.graphs import specs
from tests.support.storage.jobs.cases import LEADER
from tests.support.storage.jobs.store import JobStore

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATED = Constraints(gates={"g": 1})


async def test_a_job_with_a_ready_node_that_has_no_task_yet_is_not_done(
    jobs: JobStore, database: str
) -> None:
    await jobs.submit(LEADER, specs({"a": (), "b": ("a",)}, constraints=GATED))
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        left = await count_left(connection)

    assert await jobs.states(LEADER) == {"a": "ready", "b": "waiting"}
    assert (left.running, left.waiting, left.gated) == (0, 0, 0)
    assert left.jobs == 1
    assert left
