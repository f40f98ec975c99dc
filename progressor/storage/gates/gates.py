"""Gates: what is read and set of them, and their promotions in transactions of their own."""

import builtins
import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeVar

from progressor import errors
from progressor.domain.gates.gate import (
    COUNTED_MAX,
    HOLDERS_MAX,
    LINE_MAX,
    Gate,
    GateHolder,
    GateView,
    GateWaiter,
)
from progressor.storage.postgres import statements
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.rows.effects import (
    BATCH_MAX,
    Again,
    Effects,
    Later,
    LoweredGate,
    gate_effects,
)

R = TypeVar("R")

_SQL = statements.load("gates/gates")

EVICTED_MAX = 25
"""Holders that one transaction sends back: 4 to 25 ms, for which it keeps their gates locked."""

EVICTION_WINDOW = 500
"""Holders of a gate that it looks at to find them: those that run keep the gate."""

LEFT_ALONE = dt.timedelta(seconds=2)
"""After this long without a transaction of the replica in charge, any other one takes over."""


IDLE_WINDOW = 1000
"""Queues, and orders, that one scan looks at: some 6 ms. The next one goes on behind them."""


@dataclasses.dataclass(frozen=True, slots=True)
class IdleUntil:
    """The last keys up to which queues and orders were checked, in order."""

    queue_namespace: str = ""
    queue: str = ""
    order_namespace: str = ""
    order_key: str = ""


BEFORE_ALL: Final = IdleUntil()


@dataclasses.dataclass(frozen=True, slots=True)
class Evicted:
    """How many holders of a gate were sent back; ``is_done``: no other holder has to be evicted."""

    count: int
    is_done: bool


class _SetRow(NamedTuple):
    verdict: str
    revision: int
    is_lowered: bool
    effects: builtins.list[Any] | None


class _EvictedRow(NamedTuple):
    sent_count: int
    is_done: bool
    effects: builtins.list[Any] | None


class _IdleRow(NamedTuple):
    """What was found, and how far the search has come."""

    effects: list[Any] | None
    until: IdleUntil


class Gates:
    def __init__(self, context: StorageContext) -> None:
        functions = context.functions
        self._context = context
        self._promote_again = functions.call("promote_again", list)
        self._promote_due = functions.call("promote_due", list)
        self._find_idle_gates = functions.call("find_idle_gates", _IdleRow)
        self._evict_holders = functions.call("evict_holders", _EvictedRow)
        self._set_gate = functions.call("set_gate", _SetRow)
        self._delete_gate = functions.call("delete_gate", str)

    async def list(self, namespace: str, *, after: str, limit: int) -> tuple[Gate, ...]:
        """Read at most `limit` gates of a namespace with keys above `after`, in their order."""
        return await self._read(
            Gate, "list_gates", namespace, None, after=after, limit=limit, counted_max=COUNTED_MAX
        )

    async def read(self, namespace: str, gate: str) -> Gate:
        """Read a gate.

        Raises:
            GateNotFoundError: There is none.
        """
        found = await self._read(
            Gate, "list_gates", namespace, gate, after="", limit=1, counted_max=COUNTED_MAX
        )
        if not found:
            raise errors.GateNotFoundError(namespace, gate)
        return found[0]

    async def get(self, namespace: str, gate: str) -> GateView:
        """Read a gate with its holders and its queue; raises what `read` raises."""
        return GateView(
            gate=await self.read(namespace, gate),
            holders=await self._read(
                GateHolder, "gate_holders", namespace, gate, limit=HOLDERS_MAX
            ),
            line=await self._read(GateWaiter, "read_gate_queue", namespace, gate, limit=LINE_MAX),
        )

    async def _read(
        self,
        row: type[R],
        statement: str,
        namespace: str,
        gate: str | None,
        **named: Any,  # noqa: ANN401  of any type
    ) -> tuple[R, ...]:
        return await self._context.read(
            row, _SQL[statement], namespace=namespace, gate=gate, **named
        )

    async def set(
        self, namespace: str, gate: str, *, capacity: int, expected_revision: int
    ) -> Effects:
        """Set the capacity of a gate, creating it if there is none.

        It takes effect at once. Surplus holders that do not run yet are evicted afterwards
        (`evict_holders`).

        Raises:
            GateNotFoundError: There is none, and a revision was expected.
            GateChangedError: It is at another revision.
        """
        [found] = await self._context.call(
            self._set_gate,
            limit=BATCH_MAX,
            namespace=namespace,
            gate=gate,
            capacity=capacity,
            revision=expected_revision,
        )
        if found.verdict == "not_found":
            raise errors.GateNotFoundError(namespace, gate)
        if found.verdict == "revision_changed":
            raise errors.GateChangedError(gate, expected_revision, found.revision)
        lowered = (LoweredGate(namespace, gate),) if found.is_lowered else ()
        return gate_effects(found.effects) | Effects(lowered=lowered)

    async def delete(self, namespace: str, gate: str) -> None:
        """Delete a gate that has no holders and that no task names.

        Raises:
            GateNotFoundError: There is none.
            GateInUseError: It is held, or named.
        """
        [verdict] = await self._context.call(self._delete_gate, namespace=namespace, gate=gate)
        if verdict == "not_found":
            raise errors.GateNotFoundError(namespace, gate)
        if verdict == "in_use":
            raise errors.GateInUseError(namespace, gate)

    async def look_again(self, namespace: str, again: Sequence[Again]) -> Effects:
        """Promote what gates, queues and orders of one namespace have places for.

        Raises:
            StorageLockedError: Another transaction keeps one of the processes locked.
        """
        [effects] = await self._context.call(
            self._promote_again,
            limit=BATCH_MAX,
            namespace=namespace,
            gate=[it.gate for it in again if it.gate is not None],
            queue=[it.queue for it in again if it.queue is not None],
            order_key=[it.order_key for it in again if it.order_key is not None],
        )
        return gate_effects(effects)

    async def evict_holders(self, lowered: LoweredGate) -> tuple[Evicted, Effects]:
        """Send back some surplus holders of a gate that do not run yet.

        Safe to repeat, to cancel, and to do from several replicas at once.

        Raises:
            StorageLockedError: Another transaction keeps one of their gates locked.
        """
        [found] = await self._context.call(
            self._evict_holders,
            limit=BATCH_MAX,
            count=EVICTED_MAX,
            window=EVICTION_WINDOW,
            namespace=lowered.namespace,
            gate=lowered.gate,
        )
        return Evicted(found.sent_count, found.is_done), gate_effects(found.effects)

    async def find_lowered(self, namespaces: Sequence[str]) -> tuple[LoweredGate, ...]:
        """Find gates with holders that have to give way, and that no replica is at."""
        return await self._context.read(
            LoweredGate, _SQL["find_lowered"], age=LEFT_ALONE, namespace=namespaces, limit=BATCH_MAX
        )

    async def promote_due(
        self, namespaces: Sequence[str], *, overdue: dt.timedelta = dt.timedelta()
    ) -> Effects:
        [effects] = await self._context.call(
            self._promote_due,
            limit=BATCH_MAX,
            overdue=overdue.total_seconds(),
            namespace=namespaces,
        )
        return gate_effects(effects)

    async def find_upcoming(
        self, namespaces: Sequence[str], *, horizon: dt.timedelta, limit: int
    ) -> Effects:
        """Find tasks whose instant comes within `horizon`, at most `limit` of each namespace."""
        later = await self._context.read(
            Later, _SQL["find_upcoming"], horizon=horizon, limit=limit, namespace=namespaces
        )
        return Effects(later=later)

    async def find_idle(
        self, namespaces: Sequence[str], after: IdleUntil = BEFORE_ALL
    ) -> tuple[tuple[Again, ...], IdleUntil]:
        """Find what should have been looked at, and was not: nothing in a healthy engine.

        It looks at IDLE_WINDOW queues and orders behind `after`, and returns up to where.
        """
        [found] = await self._context.call(
            self._find_idle_gates,
            after,
            limit=BATCH_MAX,
            window=IDLE_WINDOW,
            namespace=namespaces,
        )
        return gate_effects(found.effects).again, found.until
