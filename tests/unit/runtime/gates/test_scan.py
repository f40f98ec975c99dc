"""The scan of gates: some of what waits at a time, and what is found twice is looked at again."""

import datetime as dt
from collections.abc import Sequence
from typing import Any, cast

from progressor.domain.processes.namespace import Namespace
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.runtime.gates.scan import GateScan
from progressor.settings.sections import Scanner
from progressor.storage.gates.gates import BEFORE_ALL, IdleUntil
from progressor.storage.rows.effects import Again, Effects, LoweredGate
from progressor.telemetry.metrics.registry import Metrics
from tests.support.builders import make_namespace
from tests.support.runtime.context import make_context
from tests.support.telemetry.measured import counted

A, B = (Again(namespace="orders", order_key=key) for key in "ab")
LOWERED = LoweredGate("orders", "g")
UNTIL = IdleUntil(order_namespace="orders", order_key="k")


class ScriptedGates:
    """Tells of each scan what it finds, and goes to and fro between two windows."""

    def __init__(self) -> None:
        self.idle: list[set[Again]] = []
        self.lowered: tuple[LoweredGate, ...] = ()
        self.looked_after: list[IdleUntil] = []

    async def promote_due(self, namespaces: Sequence[str], *, overdue: dt.timedelta) -> Effects:
        del namespaces, overdue
        return Effects()

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


class Known:
    """The namespaces in memory."""

    def known(self) -> tuple[Namespace, ...]:
        return (make_namespace(name="orders"),)


class Harness:
    """The scan, and what it has others look at."""

    def __init__(self) -> None:
        self.gates = ScriptedGates()
        self.told: list[Effects] = []
        self.metrics = Metrics()
        self.scan = GateScan(
            gates=self.gates,
            namespaces=Known(),
            effects=cast("EffectDispatcher", self),
            scanner=Scanner(),
            context=make_context(metrics=self.metrics),
        )

    def apply(self, effects: Effects) -> None:
        self.told.append(effects)

    async def scans(self, *idle: set[Again]) -> list[Any]:
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
    harness = Harness()

    assert await harness.scans({A, B}, {A}, {B}) == [set(), {A}, set()]
    assert harness.found_count == 1


async def test_it_stays_for_a_second_look_and_goes_on() -> None:
    harness = Harness()

    await harness.scans(set(), {A}, {A}, set())

    assert harness.gates.looked_after == [BEFORE_ALL, UNTIL, UNTIL, BEFORE_ALL]


async def test_it_stays_once_however_much_is_found_anew() -> None:
    harness = Harness()

    await harness.scans({A}, {B}, {A})

    assert harness.gates.looked_after == [BEFORE_ALL, BEFORE_ALL, UNTIL]


async def test_holders_of_a_lowered_gate_that_nobody_is_at_are_sent_back() -> None:
    harness = Harness()
    harness.gates.lowered = (LOWERED,)

    await harness.scans(set())

    assert [told.lowered for told in harness.told if told.lowered] == [(LOWERED,)]
    assert harness.found_count == 1
