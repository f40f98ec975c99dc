"""Lowered gates: holders give way in turns, with pauses, until none has to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from progressor import errors
from progressor.runtime.effects.gate_queue import GateQueue
from progressor.runtime.gates.lowered_gates import REST, LoweredGates
from progressor.storage.gates.gates import GaveWay
from progressor.storage.rows.effects import NO_EFFECTS, Effects, LoweredGate
from tests.support.runtime.context import make_dispatcher
from tests.support.runtime.virtual_time import in_virtual_time, settled

A, B = LoweredGate("orders", "a"), LoweredGate("orders", "b")
TAKES = 0.02


class ScriptedGates:
    """Gates with so many rounds of holders each; a round takes some time."""

    def __init__(self, **rounds: int) -> None:
        self.rounds = rounds
        self.at: list[tuple[float, str]] = []
        self.fails = 0
        self.locked = 0

    async def evict_holders(self, lowered: LoweredGate) -> tuple[GaveWay, Effects]:
        self.at.append((round(asyncio.get_running_loop().time(), 6), lowered.gate))
        await asyncio.sleep(TAKES)
        if self.fails:
            self.fails -= 1
            raise errors.StorageUnavailableError("away")
        if self.locked:
            self.locked -= 1
            return GaveWay(0, is_done=False), NO_EFFECTS
        self.rounds[lowered.gate] -= 1
        return GaveWay(100, is_done=not self.rounds[lowered.gate]), NO_EFFECTS


@contextlib.asynccontextmanager
async def running(gates: ScriptedGates) -> AsyncIterator[GateQueue]:
    effects = make_dispatcher()
    queue = effects.gate_queue
    lowered_gates = LoweredGates(gates=gates, queue=queue, effects=effects, context=effects.context)
    task = asyncio.create_task(lowered_gates.run())
    await settled()
    try:
        yield queue
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@in_virtual_time
async def test_gates_take_turns_until_nobody_has_to_go() -> None:
    gates = ScriptedGates(a=3, b=1)
    async with running(gates) as queue:
        queue.add(Effects(lowered=(A, B)))
        queue.add(Effects(lowered=(A,)))
        await asyncio.sleep(10)
        assert [gate for _, gate in gates.at] == ["a", "b", "a", "a"]

        gates.rounds["b"] = 1
        queue.add(Effects(lowered=(B,)))
        await asyncio.sleep(1)

    assert gates.at[-1][1] == "b"
    assert len(gates.at) == 5


@in_virtual_time
async def test_it_rests_longer_than_it_works() -> None:
    gates = ScriptedGates(a=3)
    async with running(gates) as queue:
        queue.add(Effects(lowered=(A,)))
        await asyncio.sleep(1)

    first, second, third = [at for at, _ in gates.at]
    assert second - first == pytest.approx((1 + REST) * TAKES)
    assert third - second == pytest.approx((1 + REST) * TAKES)


@pytest.mark.parametrize("what", ["fails", "locked"])
@in_virtual_time
async def test_when_no_task_could_give_way_it_is_tried_again_later(what: str) -> None:
    gates = ScriptedGates(a=1)
    setattr(gates, what, 3)
    async with running(gates) as queue:
        queue.add(Effects(lowered=(A,)))
        await asyncio.sleep(10)

    pauses = [after - at for (at, _), (after, _) in zip(gates.at, gates.at[1:], strict=False)]
    assert len(pauses) == 3
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1]
