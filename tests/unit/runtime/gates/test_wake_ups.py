"""GateWakeUps: how the effects of statements on gates are handled."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from progressor import errors
from progressor.domain.processes.process import process_key
from progressor.runtime.core.due_queue import DueQueue
from progressor.runtime.gates.lowered_gates import LoweredGates
from progressor.runtime.gates.wake_ups import Gates, GateWakeUps
from progressor.storage.gates.gates import GaveWay
from progressor.storage.rows.gate_effects import Again, Later, LoweredGate, Promoted
from tests.support.builders import seconds
from tests.support.clock import ManualClock
from tests.support.runtime.virtual_time import in_virtual_time

KEY = process_key("orders", "p1")


class NoGates:
    """Gates that receive no requests."""

    async def look_again(self, namespace: str, again: Sequence[Again]) -> Promoted:
        raise NotImplementedError

    async def promote_due(self, namespaces: Sequence[str]) -> Promoted:
        raise NotImplementedError

    async def give_way(self, lowered: LoweredGate) -> GaveWay:
        raise NotImplementedError


class Harness:
    """GateWakeUps, and the due queue that they write into."""

    def __init__(self, gates: Gates | None = None) -> None:
        self.clock = ManualClock()
        self.due_queue = DueQueue(clock=self.clock, horizon=seconds(60), size_max=10)
        self.wake_ups = GateWakeUps(
            gates=gates or NoGates(),
            due_queue=self.due_queue,
            clock=self.clock,
            horizon_seconds=60,
            lowered_gates=LoweredGates(gates=NoGates(), clock=self.clock),
        )

    def taken_after(self, pause: float) -> list[int]:
        self.clock.advance(seconds(pause))
        return [due.task_id for due in self.due_queue.take_due(10)]


def test_a_task_that_passed_its_gates_is_claimed_at_once() -> None:
    harness = Harness()

    harness.wake_ups.heard(Promoted(due=((KEY, 1),)))

    assert harness.taken_after(0.001) == [1]


def test_a_task_that_is_due_later_is_claimed_then_and_not_before() -> None:
    harness = Harness()

    harness.wake_ups.heard(Promoted(upcoming=(Later(KEY, 1, 2.0),)))

    assert (harness.taken_after(1.9), harness.taken_after(0.2)) == ([], [1])


class LockableGates(NoGates):
    """Gates and namespaces, some of them locked by another session."""

    def __init__(self, *locked: str) -> None:
        self.locked = set(locked)
        self.looked: list[str | None] = []
        self.promoted: list[str] = []
        self.asked_count = 0

    async def look_again(self, namespace: str, again: Sequence[Again]) -> Promoted:
        self.asked_count += 1
        assert {each.namespace for each in again} == {namespace}
        if any(each.gate in self.locked for each in again):
            raise errors.StorageLockedError("locked")
        self.looked += [each.gate for each in again]
        return Promoted()

    async def promote_due(self, namespaces: Sequence[str]) -> Promoted:
        if self.locked.intersection(namespaces):
            raise errors.StorageLockedError("locked")
        self.promoted += namespaces
        return Promoted()


@contextlib.asynccontextmanager
async def running(harness: Harness) -> AsyncIterator[None]:
    task = asyncio.ensure_future(harness.wake_ups.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


def again(*gates: str, namespace: str = "orders") -> Promoted:
    return Promoted(
        again=tuple(
            Again(namespace=namespace, gate=gate, line=None, order_key=None) for gate in gates
        )
    )


@in_virtual_time
async def test_what_is_not_locked_is_looked_at_whatever_else_is() -> None:
    gates = LockableGates("c")
    harness = Harness(gates)
    async with running(harness):
        harness.wake_ups.heard(again("a", "b", "c", "d"))
        harness.wake_ups.heard(again("e", namespace="other"))
        await asyncio.sleep(0.1)
        first = sorted(map(str, gates.looked))
        harness.wake_ups.heard(again("f", "c"))
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
    harness.wake_ups.heard(Promoted(later=tuple(later)))
    harness.wake_ups.heard(again("a"))
    harness.clock.advance(seconds(1))
    async with running(harness):
        await asyncio.sleep(0.1)

    assert gates.promoted == ["other"]
    assert gates.looked == ["a"]
