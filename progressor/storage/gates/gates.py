"""Gates: what is read and set of them, and their promotions in transactions of their own."""

import asyncio
import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from progressor import errors
from progressor.clock import Clock
from progressor.domain.gates.constraint import GateHold
from progressor.domain.gates.gate import (
    COUNTED_MAX,
    HOLDERS_MAX,
    LINE_MAX,
    Gate,
    GateHolder,
    GateView,
    GateWaiter,
)
from progressor.domain.processes.process import ProcessKey
from progressor.storage.postgres import arrays, statements
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.pools import Pool, connection_of
from progressor.storage.rows import tasks as rows
from progressor.storage.rows.gate_effects import (
    BATCH_MAX,
    PATIENCE,
    Again,
    Later,
    LoweredGate,
    OnPromoted,
    Promoted,
    ignore,
    promoted,
)

_SQL = statements.load("gates/gates")

GIVE_WAY_MAX = 100
"""Holders that one transaction sends back: some 20 ms, for which it keeps their gates locked."""

GIVE_WAY_WINDOW = 500
"""Holders of a gate that it looks at to find them: those that run keep the gate."""

LEFT_ALONE = dt.timedelta(seconds=2)
"""After this long without a transaction of the replica in charge, any other one takes over."""


IDLE_WINDOW = 1000
"""Lines, and orders, that one scan looks at: some 6 ms. The next one goes on behind them."""


@dataclasses.dataclass(frozen=True, slots=True)
class IdleUntil:
    """Up to where lines and orders were looked at, in the order of their keys."""

    line_namespace: str = ""
    line: str = ""
    order_namespace: str = ""
    order_key: str = ""


BEFORE_ALL: Final = IdleUntil()


@dataclasses.dataclass(frozen=True, slots=True)
class GaveWay:
    """How many holders of a gate were sent back; ``is_done``: no other holder has to give way."""

    count: int
    is_done: bool


class Gates:
    """The gates of all namespaces."""

    def __init__(  # noqa: PLR0913  what it reads by, and how
        self,
        *,
        pool: Pool,
        functions: Functions,
        clock: Clock,
        replica_id: Callable[[], int],
        statement_timeout: dt.timedelta,
        patience: dt.timedelta = PATIENCE,
        on_promoted: OnPromoted = ignore,
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._replica_id = replica_id
        self._patience = patience
        self._on_promoted = on_promoted
        self._statement_timeout = statement_timeout.total_seconds()
        self._promote_again = functions.call("promote_again").statement
        self._promote_due = functions.call("promote_due").statement
        self._find_idle = functions.call("find_idle_gates").statement
        self._give_way = functions.call("give_way").statement
        self._set_gate = functions.call("set_gate").statement
        self._delete_gate = functions.call("delete_gate").statement

    async def list(self, namespace: str, *, after: str, limit: int) -> tuple[Gate, ...]:
        """Read at most `limit` gates of a namespace with keys above `after`, in their order."""
        found = await self._read(
            "list_gates",
            {"namespace": namespace, "after": after, "limit": limit, "counted_max": COUNTED_MAX},
        )
        return tuple(_gate(namespace, row) for row in found)

    async def get(self, namespace: str, gate: str) -> GateView:
        """Read a gate with who holds it and who waits for it.

        Raises:
            GateNotFoundError: There is none.
            StorageUnavailableError: PostgreSQL is away.
        """
        named = {"namespace": namespace, "gate": gate}
        found = await self._read("get_gate", named | {"counted_max": COUNTED_MAX})
        if not found:
            raise errors.GateNotFoundError(namespace, gate)
        holders = await self._read("gate_holders", named | {"limit": HOLDERS_MAX})
        line = await self._read(
            "gate_line",
            named | {"limit": LINE_MAX, "now": self._clock.pinned(), "patience": self._patience},
        )
        return GateView(
            gate=_gate(namespace, found[0]),
            holders=tuple(
                GateHolder(
                    process_id=row[0],
                    task_id=row[1],
                    held_at=row[2],
                    hold=GateHold(row[3]),
                    is_reserved=row[4],
                )
                for row in holders
            ),
            line=tuple(
                GateWaiter(
                    process_id=row[0],
                    task_id=row[1],
                    priority=row[2],
                    since=row[3],
                    gates=tuple(row[4]),
                    is_aged=row[5],
                )
                for row in line
            ),
        )

    async def set(
        self, namespace: str, gate: str, *, capacity: int, expected_revision: int
    ) -> Gate:
        """Set the capacity of a gate, which is made where it is not there.

        It takes effect at once. Surplus holders that do not run yet give way afterwards
        (`give_way`); ``on_promoted`` gets the gate.

        Raises:
            GateNotFoundError: There is none, and a revision was expected.
            GateChangedError: It is at another revision.
            StorageUnavailableError: PostgreSQL is away.
        """
        first, *told = await self._rows(
            self._set_gate,
            self._clock.pinned(),
            self._replica_id(),
            self._patience.total_seconds(),
            BATCH_MAX,
            namespace,
            gate,
            capacity,
            expected_revision,
        )
        if first[0] == "not_found":
            raise errors.GateNotFoundError(namespace, gate)
        if first[0] == "revision_changed":
            raise errors.GateChangedError(gate, expected_revision, first[3])
        if first[6]:
            self._on_promoted(Promoted(lowered=(LoweredGate(namespace, gate),)))
        self._on_promoted(promoted((namespace, *it[8:15]) for it in told))
        found = await self._read(
            "get_gate", {"namespace": namespace, "gate": gate, "counted_max": COUNTED_MAX}
        )
        if not found:
            raise errors.GateNotFoundError(namespace, gate)
        return _gate(namespace, found[0])

    async def delete(self, namespace: str, gate: str) -> None:
        """Delete a gate that has no holders and that no task names.

        Raises:
            GateNotFoundError: There is none.
            GateInUseError: It is held, or named.
            StorageUnavailableError: PostgreSQL is away.
        """
        [(verdict,)] = await self._rows(self._delete_gate, namespace, gate)
        if verdict == "not_found":
            raise errors.GateNotFoundError(namespace, gate)
        if verdict == "in_use":
            raise errors.GateInUseError(namespace, gate)

    async def look_again(self, namespace: str, again: Sequence[Again]) -> Promoted:
        """Promote what gates, lines and orders of one namespace have places for.

        Raises:
            StorageLockedError: Another transaction keeps one of the processes locked.
            StorageUnavailableError: PostgreSQL is away.
        """
        found = await self._rows(
            self._promote_again,
            self._clock.pinned(),
            self._replica_id(),
            self._patience.total_seconds(),
            BATCH_MAX,
            namespace,
            arrays.TextColumn([it.gate for it in again if it.gate is not None]),
            arrays.TextColumn([it.line for it in again if it.line is not None]),
            arrays.TextColumn([it.order_key for it in again if it.order_key is not None]),
        )
        return promoted(row[1:] for row in found)

    async def give_way(self, lowered: LoweredGate) -> GaveWay:
        """Send back some surplus holders of a gate that do not run yet.

        Safe to repeat, to cancel, and to do from several replicas at once.

        Raises:
            StorageLockedError: Another transaction keeps one of their gates locked.
            StorageUnavailableError: PostgreSQL is away.
        """
        first, *told = await self._rows(
            self._give_way,
            self._clock.pinned(),
            self._replica_id(),
            self._patience.total_seconds(),
            BATCH_MAX,
            GIVE_WAY_MAX,
            GIVE_WAY_WINDOW,
            lowered.namespace,
            lowered.gate,
        )
        self._on_promoted(promoted((lowered.namespace, *row[3:10]) for row in told))
        return GaveWay(first[0], first[1])

    async def find_lowered(self, namespaces: Sequence[str]) -> tuple[LoweredGate, ...]:
        """Find gates with holders that have to give way, and that no replica is at.

        Raises:
            StorageUnavailableError: PostgreSQL is away.
        """
        named = {
            "now": self._clock.pinned(),
            "age": LEFT_ALONE,
            "namespace": arrays.TextColumn(namespaces),
            "limit": BATCH_MAX,
        }
        return tuple(LoweredGate(*row) for row in await self._read("find_lowered", named))

    async def promote_due(
        self, namespaces: Sequence[str], *, overdue: dt.timedelta = dt.timedelta()
    ) -> Promoted:
        """Look at tasks whose instant has come, at least `overdue` ago.

        Raises:
            StorageUnavailableError: PostgreSQL is away.
        """
        found = await self._rows(
            self._promote_due,
            self._clock.pinned(),
            self._replica_id(),
            self._patience.total_seconds(),
            BATCH_MAX,
            overdue.total_seconds(),
            arrays.TextColumn(namespaces),
        )
        return promoted(row[1:] for row in found)

    async def find_upcoming(
        self, namespaces: Sequence[str], *, horizon: dt.timedelta, limit: int
    ) -> Promoted:
        """Find tasks whose instant comes within `horizon`, at most `limit` of each namespace."""
        found = await self._read(
            "find_upcoming",
            {
                "now": self._clock.pinned(),
                "horizon": horizon,
                "limit": limit,
                "namespace": arrays.TextColumn(namespaces),
            },
        )
        return Promoted(
            later=tuple(Later(ProcessKey(*row[:3]), row[3], max(0.0, row[4])) for row in found)
        )

    async def find_idle(
        self, namespaces: Sequence[str], after: IdleUntil = BEFORE_ALL
    ) -> tuple[tuple[Again, ...], IdleUntil]:
        """Find what should have been looked at, and was not: nothing in a healthy engine.

        It looks at IDLE_WINDOW lines and orders behind `after`, and returns up to where.

        Raises:
            StorageUnavailableError: PostgreSQL is away.
        """
        *found, last = await self._rows(
            self._find_idle,
            BATCH_MAX,
            IDLE_WINDOW,
            arrays.TextColumn(namespaces),
            *dataclasses.astuple(after),
        )
        idle = tuple(
            Again(namespace=row[0], gate=row[1], line=row[2], order_key=row[3]) for row in found
        )
        return idle, IdleUntil(*(text or "" for text in last[4:8]))

    async def _rows(self, statement: bytes, *arguments: object) -> Sequence[rows.Row]:
        async with (
            connection_of(self._pool) as connection,
            asyncio.timeout(self._statement_timeout),
        ):
            cursor = await connection.execute(statement, arguments, binary=True)
            return await cursor.fetchall()

    async def _read(self, name: str, named: Mapping[str, Any]) -> Sequence[rows.Row]:
        async with (
            connection_of(self._pool) as connection,
            asyncio.timeout(self._statement_timeout),
        ):
            cursor = await connection.execute(_SQL[name], named, binary=True)
            return await cursor.fetchall()


def _gate(namespace: str, row: rows.Row) -> Gate:
    return Gate(
        namespace=namespace,
        gate=row[0],
        capacity=row[1],
        held=row[2],
        waiting_count=row[3],
        revision=row[4],
        created_at=row[5],
        updated_at=row[6],
    )
