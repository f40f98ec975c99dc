"""Turns while their settlement is cut off, and while their replica is killed in the middle of it.

Whatever was settled is a prefix of the calls: each is answered once, in order, on the state that
the one before left. A handler may run again only if its turn was not settled.
"""

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from progressor.sdk import Client, NamespaceConfig, Processor, Step
from tests.support.engine.points import PATIENCE_SECONDS, eventually
from tests.support.engine.process import ReplicaProcess, running_process
from tests.support.engine.replica import NOW_AND_THEN, Replica
from tests.support.faults.faults import Fault, cut_after, cut_before, stalled_after, stalled_before
from tests.support.postgres.proxy import Proxy

pytestmark = pytest.mark.asyncio(loop_scope="module")

TURN, LAST = '"settle_turns"(', '"settle_tasks"('
WORDS = tuple(f"w{n}" for n in range(20))


_numbers = itertools.count(1)


@dataclasses.dataclass
class Crowd:
    """Calls of a process, accepted in order, which run in the victim once it is released."""

    client: Client
    task_ids: list[int]
    asked: list[str]
    released: asyncio.Event

    async def is_answered_in_order(self) -> None:
        answers = [await self.client.await_task("p", task_id=each) for each in self.task_ids]
        assert [it.response for it in answers] == list(range(1, len(WORDS) + 2))
        found = await self.client.get("p")
        assert [event.payload for event in found.history] == ["first", *WORDS]
        assert found.process.state == len(WORDS) + 1


@contextlib.asynccontextmanager
async def crowd(replica: Replica, victim: ReplicaProcess) -> AsyncIterator[Crowd]:
    released, asked, name = asyncio.Event(), list[str](), f"turns-{next(_numbers)}"
    processor: Processor[Any] = Processor(name)

    @processor.init
    async def init(step: Step[Any]) -> None:
        step.state = 0

    @processor.call
    async def call(step: Step[Any]) -> int:
        asked.append(step.args)
        if step.args == "first":
            await released.wait()
        step.state += 1
        step.emit(step.args)
        return int(step.state)

    async with (
        processor.running("127.0.0.1:0") as address,
        Client(victim.address, namespace=name) as there,
        Client(replica.address, namespace=name, timeout=PATIENCE_SECONDS) as client,
    ):
        await client.namespaces.create(
            NamespaceConfig(
                name=name, processor_targets=(address,), retry_policy=NOW_AND_THEN, turn_max=8
            )
        )
        await client.start("p")
        first = await there.call("p", "first", accept_only=True)
        await eventually(lambda: asked)
        others = [await client.call("p", word, accept_only=True) for word in WORDS]
        task_ids = [it.task_id for it in (first, *others)]
        yield Crowd(client, task_ids, asked, released)


@pytest.mark.parametrize("fault", [stalled_before, stalled_after], ids=["before", "after"])
async def test_a_replica_killed_while_it_settles_a_turn_leaves_a_prefix_settled(
    second_replica: Replica, proxy: Proxy, tmp_path: Path, fault: Callable[[str], Fault]
) -> None:
    async with (
        running_process(proxy.conninfo, tmp_path) as victim,
        crowd(second_replica, victim) as calls,
    ):
        struck = proxy.arm(fault(TURN))
        calls.released.set()
        await struck.struck()
        victim.kill()
        await victim.left()
        proxy.restore()

        await calls.is_answered_in_order()


@pytest.mark.parametrize("statement", [TURN, LAST], ids=["turn", "last"])
@pytest.mark.parametrize("fault", [cut_before, cut_after], ids=["before", "after"])
async def test_a_turn_whose_settlement_is_cut_off_is_not_run_again(
    second_replica: Replica,
    proxy: Proxy,
    tmp_path: Path,
    fault: Callable[[str], Fault],
    statement: str,
) -> None:
    async with (
        running_process(proxy.conninfo, tmp_path) as victim,
        crowd(second_replica, victim) as calls,
    ):
        struck = proxy.arm(fault(statement))
        calls.released.set()
        await struck.struck()

        await calls.is_answered_in_order()
    assert calls.asked == ["first", *WORDS]
