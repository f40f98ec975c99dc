"""A job whose leader is locked by another session delays no other job."""

import asyncio

import psycopg
import pytest

from tests.support.models.jobs.graphs import specs
from tests.support.storage.jobs.store import JobStore
from tests.support.storage.store import fresh_key

pytestmark = pytest.mark.asyncio(loop_scope="module")

_HOLD = "SELECT FROM progressor.processes WHERE process_id = %s FOR UPDATE"


async def test_a_held_leader_keeps_the_nodes_of_no_other_job(jobs: JobStore, database: str) -> None:
    held, free = fresh_key(), fresh_key()
    await jobs.submit(held, specs({"a": ()}))
    await jobs.submit(free, specs({"b": ()}))
    tasks = await jobs.claim()
    with psycopg.connect(database) as holder:
        holder.execute(_HOLD, [held.process_id])
        async with asyncio.TaskGroup() as group:
            # In one batch; what is held comes into the way of the other once, and never again.
            waiting = group.create_task(jobs.settled(tasks["a"]))
            await jobs.settled(tasks["b"])
            assert await jobs.states(free) == {"b": "done"}
            assert not waiting.done()
            holder.rollback()

    assert await jobs.states(held) == {"a": "done"}


async def test_a_held_node_keeps_none_of_its_own_job(jobs: JobStore, database: str) -> None:
    leader = fresh_key()
    await jobs.submit(leader, specs({"a": (), "b": (), "c": ("b",)}))
    tasks = await jobs.claim()
    with psycopg.connect(database) as holder:
        holder.execute(_HOLD, [tasks["a"].key.process_id])
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(jobs.settled(tasks["a"]))
            await jobs.settled(tasks["b"])
            assert await jobs.states(leader) == {"a": "running", "b": "done", "c": "running"}
            assert not waiting.done()
            holder.rollback()

    assert await jobs.states(leader) == {"a": "done", "b": "done", "c": "running"}
