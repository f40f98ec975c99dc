"""Gates: wake-ups, holders that give way, and the scan that finds what was missed."""

import asyncio
import contextlib
import datetime as dt
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest

from progressor import errors
from progressor.domain.processes.process import process_key
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.runtime.effects.queues import GateQueue
from progressor.runtime.gates import REST, GateScan, GateWakeUps, LoweredGates
from progressor.storage.gates.gates import BEFORE_ALL, Evicted, IdleUntil
from progressor.storage.postgres.rows.effects import NO_EFFECTS, Again, Effects, Later, LoweredGate
from progressor.telemetry.metrics.registry import Metrics
from tests.support.runtime.harness import (
    make_context,
    make_dispatcher,
    running,
)
from tests.support.runtime.memory import MemoryNamespaces
from tests.support.telemetry.measured import counted


class LockableGates:
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


def wake_ups(gates: LockableGates, effects: EffectDispatcher) -> GateWakeUps:
    return GateWakeUps(gates=cast("Any", gates), effects=effects, context=effects.context)


def again(*gates: str, namespace: str = "orders") -> Effects:
    return Effects(
        again=tuple(
            Again(namespace=namespace, gate=gate, queue=None, order_key=None) for gate in gates
        )
    )


async def test_what_is_not_locked_is_looked_at_whatever_else_is() -> None:
    gates, effects = LockableGates("c"), make_dispatcher()
    async with running(wake_ups(gates, effects).run):
        effects.apply(again("a", "b", "c", "d"))
        effects.apply(again("e", namespace="other"))
        await asyncio.sleep(0.1)
        first = sorted(map(str, gates.looked))
        effects.apply(again("f", "c"))
        await asyncio.sleep(2)
        asked_count = gates.asked_count
        gates.locked.clear()
        await asyncio.sleep(2)

    assert first == ["a", "b", "d", "e"]
    assert gates.looked[4:] == ["f", "c"]
    # It is tried again and again, but not in circles.
    assert asked_count < 30


async def test_a_locked_namespace_keeps_no_other_from_being_promoted() -> None:
    gates, effects = LockableGates("orders"), make_dispatcher()
    later = [Later(process_key(name, "p"), n, 0.0) for n, name in enumerate(("orders", "other"))]
    effects.apply(Effects(later=tuple(later)))
    effects.apply(again("a"))
    await asyncio.sleep(1)
    async with running(wake_ups(gates, effects).run):
        await asyncio.sleep(0.05)

    assert gates.promoted == ["other"]
    assert gates.looked == ["a"]


A, B = LoweredGate("orders", "a"), LoweredGate("orders", "b")
TAKES = 0.02


class RoundsOfGates:
    """Gates with so many rounds of holders each; a round takes some time."""

    def __init__(self, **rounds: int) -> None:
        self.rounds = rounds
        self.at: list[tuple[float, str]] = []
        self.fails = 0
        self.locked = 0

    async def evict_holders(self, lowered: LoweredGate) -> tuple[Evicted, Effects]:
        self.at.append((round(asyncio.get_running_loop().time(), 6), lowered.gate))
        await asyncio.sleep(TAKES)
        if self.fails:
            self.fails -= 1
            raise errors.StorageUnavailableError("away")
        if self.locked:
            self.locked -= 1
            return Evicted(0, is_done=False), NO_EFFECTS
        self.rounds[lowered.gate] -= 1
        return Evicted(100, is_done=not self.rounds[lowered.gate]), NO_EFFECTS


@contextlib.asynccontextmanager
async def lowering(gates: RoundsOfGates) -> AsyncIterator[GateQueue]:
    effects = make_dispatcher()
    lowered = LoweredGates(gates=cast("Any", gates), effects=effects, context=effects.context)
    async with running(lowered.run):
        yield effects.gate_queue


async def test_gates_take_turns_until_nobody_has_to_go() -> None:
    gates = RoundsOfGates(a=3, b=1)
    async with lowering(gates) as queue:
        queue.add(Effects(lowered=(A, B)))
        queue.add(Effects(lowered=(A,)))
        await asyncio.sleep(10)
        assert [gate for _, gate in gates.at] == ["a", "b", "a", "a"]
        # It rests longer than it works.
        pauses = [after - at for (at, _), (after, _) in itertools.pairwise(gates.at)]
        assert pauses == pytest.approx([(1 + REST) * TAKES] * 3)

        gates.rounds["b"] = 1
        queue.add(Effects(lowered=(B,)))
        await asyncio.sleep(1)

    assert [gate for _, gate in gates.at[4:]] == ["b"]


@pytest.mark.parametrize("what", ["fails", "locked"])
async def test_when_no_task_could_give_way_it_is_tried_again_later(what: str) -> None:
    gates = RoundsOfGates(a=1)
    setattr(gates, what, 3)
    async with lowering(gates) as queue:
        queue.add(Effects(lowered=(A,)))
        await asyncio.sleep(10)

    pauses = [after - at for (at, _), (after, _) in itertools.pairwise(gates.at)]
    assert len(pauses) == 3
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1]


X, Y = (Again(namespace="orders", order_key=key) for key in "xy")
LOWERED = LoweredGate("orders", "g")
UNTIL = IdleUntil(order_namespace="orders", order_key="k")


class ScriptedGates:
    """Tells of each scan what it finds, and goes to and fro between two windows."""

    def __init__(self) -> None:
        self.idle: list[set[Again]] = []
        self.lowered: tuple[LoweredGate, ...] = ()
        self.late = Effects()
        self.looked_after: list[IdleUntil] = []

    async def promote_due(self, namespaces: Sequence[str], *, overdue: dt.timedelta) -> Effects:
        del namespaces, overdue
        return self.late

    async def find_upcoming(
        self, namespaces: Sequence[str], *, horizon: dt.timedelta, limit: int
    ) -> Effects:
        del namespaces, horizon, limit
        return Effects()

    async def find_idle(
        self, namespaces: Sequence[str], after: IdleUntil
    ) -> tuple[tuple[Again, ...], IdleUntil]:
        assert namespaces == ["orders"]
        self.looked_after.append(after)
        return tuple(self.idle.pop(0)), UNTIL if after == BEFORE_ALL else BEFORE_ALL

    async def find_lowered(self, namespaces: Sequence[str]) -> tuple[LoweredGate, ...]:
        assert namespaces == ["orders"]
        return self.lowered


class Scans:
    """The scan, and what it has others look at."""

    def __init__(self) -> None:
        self.gates = ScriptedGates()
        self.told: list[Effects] = []
        self.metrics = Metrics()
        self.gate_queue = make_dispatcher().gate_queue
        self.scan = GateScan(
            gates=cast("Any", self.gates),
            namespaces=cast("Any", MemoryNamespaces()),
            effects=cast("EffectDispatcher", self),
            context=make_context(metrics=self.metrics),
        )

    def apply(self, effects: Effects) -> None:
        self.told.append(effects)

    async def over(self, *idle: set[Again]) -> list[Any]:
        """Scan as often as something is given to find; return what was to be looked at again."""
        self.gates.idle = list(idle)
        found = []
        for _ in idle:
            self.told.clear()
            await self.scan.scan()
            found.append({each for told in self.told for each in told.again})
        return found

    @property
    def found_count(self) -> float:
        return sum(counted(self.metrics.gates_scan_found).values())


async def test_what_is_found_twice_in_a_row_is_looked_at_again() -> None:
    scans = Scans()

    assert await scans.over({X, Y}, {X}, {Y}) == [set(), {X}, set()]
    assert scans.found_count == 1


@pytest.mark.parametrize("state", ["queued", "taken", "locked"])
async def test_what_this_replica_has_a_wake_up_for_is_not_found(state: str) -> None:
    """It may be starved of CPU, or wait for a lock, for several scans."""
    scans = Scans()
    queue = scans.gate_queue
    if state == "locked":
        queue.locked[X] = None
    else:
        queue.add(Effects(again=(X,)))
        if state == "taken":
            queue.take_again()

    assert await scans.over({X, Y}, {X, Y}) == [set(), {Y}]
    assert scans.found_count == 1


@pytest.mark.parametrize(("state", "count"), [("unknown", 1), ("queued", 0), ("taken", 0)])
async def test_a_late_instant_is_found_if_this_replica_does_not_know_it(
    state: str, count: int
) -> None:
    scans = Scans()
    key = process_key("orders", "p")
    scans.gates.late = Effects(due=((key, 7),))
    if state != "unknown":
        scans.gate_queue.add(Effects(later=(Later(key, 7, 0.0),)))
        await asyncio.sleep(1)
    if state == "taken":
        assert scans.gate_queue.take_due() == ["orders"]

    await scans.over(set())

    assert scans.found_count == count


@pytest.mark.parametrize(
    ("found", "looked_after"),
    [
        ([set(), {X}, {X}, set()], [BEFORE_ALL, UNTIL, UNTIL, BEFORE_ALL]),
        # Once, however much is found anew.
        ([{X}, {Y}, {X}], [BEFORE_ALL, BEFORE_ALL, UNTIL]),
    ],
)
async def test_it_stays_for_a_second_look_and_goes_on(
    found: list[set[Again]], looked_after: list[IdleUntil]
) -> None:
    scans = Scans()

    await scans.over(*found)

    assert scans.gates.looked_after == looked_after


async def test_holders_of_a_lowered_gate_that_nobody_is_at_are_sent_back() -> None:
    scans = Scans()
    scans.gates.lowered = (LOWERED,)

    await scans.over(set())

    assert [told.lowered for told in scans.told if told.lowered] == [(LOWERED,)]
    assert scans.found_count == 1
