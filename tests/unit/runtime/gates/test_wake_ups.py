"""GateWakeUps: how the effects of statements on gates are handled."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from progressor import errors
from progressor.domain.processes.process import process_key
from progressor.runtime.gates.wake_ups import Gates, GateWakeUps
from progressor.storage.rows.effects import Again, Effects, Later
from tests.support.builders import seconds
from tests.support.clock import ManualClock
from tests.support.runtime.context import make_context, make_dispatcher
from tests.support.runtime.virtual_time import in_virtual_time


class NoGates:
    """Gates that receive no requests."""

    async def look_again(self, namespace: str, again: Sequence[Again]) -> Effects:
        raise NotImplementedError

    async def promote_due(self, namespaces: Sequence[str]) -> Effects:
        raise NotImplementedError


class Harness:
    """GateWakeUps, and the queues that effects go into."""

    def __init__(self, gates: Gates | None = None) -> None:
        self.clock = ManualClock()
        context = make_context(clock=self.clock)
        self.effects = make_dispatcher(context=context)
        self.wake_ups = GateWakeUps(
            gates=gates or NoGates(),
            queue=self.effects.gate_queue,
            effects=self.effects,
            context=context,
        )


class LockableGates(NoGates):
    """Gates and namespaces, some of them locked by another session."""

    def __init__(self, *locked: str) -> None:
        self.locked = set(locked)
        self.looked: list[str | None] = []
        self.promoted: list[str] = []
        self.asked_count = 0

    async def look_again(self, namespace: str, again: Sequence[Again]) -> Effects:
        self.asked_count += 1
        assert {each.namespace for each in again} == {namespace}
        if any(each.gate in self.locked for each in again):
            raise errors.StorageLockedError("locked")
        self.looked += [each.gate for each in again]
        return Effects()

    async def promote_due(self, namespaces: Sequence[str]) -> Effects:
        if self.locked.intersection(namespaces):
            raise errors.StorageLockedError("locked")
        self.promoted += namespaces
        return Effects()


@contextlib.asynccontextmanager
async def running(harness: Harness) -> AsyncIterator[None]:
    task = asyncio.ensure_future(harness.wake_ups.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


def again(*gates: str, namespace: str = "orders") -> Effects:
    return Effects(
        again=tuple(
            Again(namespace=namespace, gate=gate, queue=None, order_key=None) for gate in gates
        )
    )


@in_virtual_time
async def test_what_is_not_locked_is_looked_at_whatever_else_is() -> None:
    gates = LockableGates("c")
    harness = Harness(gates)
    async with running(harness):
        harness.effects.apply(again("a", "b", "c", "d"))
        harness.effects.apply(again("e", namespace="other"))
        await asyncio.sleep(0.1)
        first = sorted(map(str, gates.looked))
        harness.effects.apply(again("f", "c"))
        await asyncio.sleep(2)
        asked_count = gates.asked_count
        gates.locked.clear()
        await asyncio.sleep(2)

    assert first == ["a", "b", "d", "e"]
    assert gates.looked[4:] == ["f", "c"]
    # It is tried again and again, but not in circles.
    assert asked_count < 30


@in_virtual_time
async def test_a_locked_namespace_keeps_no_other_from_being_promoted() -> None:
    gates = LockableGates("orders")
    harness = Harness(gates)
    later = [Later(process_key(name, "p"), n, 0.0) for n, name in enumerate(("orders", "other"))]
    harness.effects.apply(Effects(later=tuple(later)))
    harness.effects.apply(again("a"))
    harness.clock.advance(seconds(1))
    async with running(harness):
        await asyncio.sleep(0.1)

    assert gates.promoted == ["other"]
    assert gates.looked == ["a"]
