"""The safety net of gates: finds what no replica has looked at, and what has to be looked at soon.

What only this scan finds is counted as ``gates_scan_found``; in a healthy engine it stays at zero.
It also remembers tasks whose instants were too far ahead, or whose replica is gone.
"""

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Protocol

from progressor.domain.processes.namespace import Namespace
from progressor.runtime.core.context import Context
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.settings.sections import Scanner
from progressor.storage.gates.gates import BEFORE_ALL, IdleUntil
from progressor.storage.rows.effects import Again, Effects, LoweredGate


class Gates(Protocol):
    """What a scan needs of storage's gates."""

    async def promote_due(self, namespaces: Sequence[str], *, overdue: dt.timedelta) -> Effects:
        """Look at tasks whose instant has come, at least `overdue` ago."""

    async def find_upcoming(
        self, namespaces: Sequence[str], *, horizon: dt.timedelta, limit: int
    ) -> Effects:
        """Find tasks whose instant comes within `horizon`."""

    async def find_idle(
        self, namespaces: Sequence[str], after: IdleUntil
    ) -> tuple[tuple[Again, ...], IdleUntil]:
        """Find some of what should have been looked at and was not."""

    async def find_lowered(self, namespaces: Sequence[str]) -> tuple[LoweredGate, ...]:
        """Find gates with surplus holders that no replica is sending back."""


class Namespaces(Protocol):
    """What a scan needs of storage's namespaces."""

    def known(self) -> tuple[Namespace, ...]:
        """Return the namespaces in memory."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateScan:
    """One scan over the gates, by their indexes."""

    gates: Gates
    namespaces: Namespaces
    effects: EffectDispatcher
    scanner: Scanner
    context: Context
    _suspects: set[Again] = dataclasses.field(default_factory=set)
    """Found once: another replica may be working on them. The next scan checks them again."""

    _after: list[IdleUntil] = dataclasses.field(default_factory=lambda: [BEFORE_ALL])
    """Where the next scan starts."""

    async def scan(self) -> None:
        """Look ahead, and report what should have been looked at."""
        names = [namespace.name for namespace in self.namespaces.known()]
        if not names:
            return
        upcoming = await self.gates.find_upcoming(
            names, horizon=self.scanner.horizon, limit=self.scanner.batch_max
        )
        self.effects.apply(upcoming)
        late = await self.gates.promote_due(names, overdue=self.scanner.overdue)
        self.effects.apply(late)
        for key, task_id in late.due:
            self._report(key.namespace, task_id=task_id)
        found = await self._find_idle(names)
        lowered = await self.gates.find_lowered(names)
        self.effects.apply(Effects(again=tuple(found), lowered=lowered))
        for gate in lowered:
            self._report(gate.namespace, what=gate)
        for again in found:
            self._report(again.namespace, what=again)

    async def _find_idle(self, names: Sequence[str]) -> set[Again]:
        [after] = self._after
        found, until = await self.gates.find_idle(names, after)
        idle = set(found)
        if self._suspects or not idle:
            # They were checked for the second time, or there are none.
            confirmed = idle & self._suspects
            self._suspects.clear()
            self._after[:] = [until]
            return confirmed
        self._suspects.update(idle)
        return set()

    def _report(self, namespace: str, **facts: object) -> None:
        self.context.metrics.gates_scan_found.add(1, (namespace,))
        self.context.observers.tell("gates_scan_found", namespace=namespace, **facts)
