"""Replica status: what each replica knows about its namespaces, written by it and read by all.

A replica writes its status with each heartbeat, in one column of its row. Replicas read all rows
when a caller asks why a task waits or what the replicas do, at most once a second, so a Get needs
no additional statement.

The status of a namespace is a list: busy workers, all workers, the seconds for which its processor
has been unreachable, and its tally (settled, attempts, failed, the seconds that they took). A later
release appends to the list: older releases ignore the additional elements, and write shorter lists.
"""

import asyncio
import dataclasses
import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from progressor.domain.views.replica import Facts, NamespaceLoad, ReplicaView
from progressor.storage.postgres import statements
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.rows.records import reader

_SQL = statements.load("replicas/replicas")

AGE_MAX = dt.timedelta(seconds=1)
REPLICAS_MAX = 1000
"""Rows that are read, those with the latest heartbeats."""

_DECIMALS = 3
_SIZED = 3
_LOAD = (
    "busy_count", "size", "unreachable_for", "tally_settled_count", "tally_attempt_count",
    "tally_failed_count", "tally_processor_time", "largest_step",
)  # fmt: skip
_read_load = reader(NamespaceLoad, _LOAD, is_json=True)


class _FactsRow(NamedTuple):
    now: dt.datetime
    replica: ReplicaView | None


class Watch:
    """The facts of all replicas, as of at most ``age_max`` ago.

    ``lease_timeout`` is for replicas that do not tell their own, ``collecting`` how long a lost
    lease may wait for a scan of this replica.
    """

    def __init__(
        self,
        context: StorageContext,
        *,
        lease_timeout: dt.timedelta,
        collecting: dt.timedelta,
        age_max: dt.timedelta = AGE_MAX,
    ) -> None:
        self._context = context
        self._lease_timeout = lease_timeout
        self._collecting = collecting
        self._age_max = age_max.total_seconds()
        self._known: Facts | None = None
        self._asked_at = float("-inf")
        self._reading = asyncio.Lock()

    async def facts(self) -> Facts:
        """Return the status of the replicas; concurrent callers share one statement.

        Raises:
            StorageUnavailableError: It is too old, and PostgreSQL is unreachable.
        """
        known = self._fresh()
        if known is not None:
            return known
        async with self._reading:
            known = self._fresh()
            if known is None:
                asked_at = self._context.clock.monotonic()
                self._known = known = await self._read()
                self._asked_at = asked_at
        return known

    def _fresh(self) -> Facts | None:
        is_fresh = self._context.clock.monotonic() - self._asked_at < self._age_max
        return self._known if is_fresh else None

    async def _read(self) -> Facts:
        found = await self._context.read(
            _FactsRow,
            _SQL["read_facts"],
            reads_only=True,
            lease_timeout=self._lease_timeout,
            limit=REPLICAS_MAX,
        )
        replicas = (_with_loads(row.replica) for row in found if row.replica is not None)
        return Facts(
            read_at=found[0].now,
            replicas={it.replica_id: it for it in replicas},
            collecting=self._collecting,
        )


def encode_loads(loads: Mapping[str, NamespaceLoad]) -> str:
    return msgspec.json.encode({name: _columns(load) for name, load in loads.items()}).decode()


def _columns(load: NamespaceLoad) -> Sequence[object]:
    places = (load.busy_count, load.size, _seconds(load.unreachable_for))
    tally, step = load.tally, load.largest_step
    if tally is None:
        return places
    spent = _seconds(tally.processor_time)
    columns = (*places, tally.settled_count, tally.attempt_count, tally.failed_count, spent)
    # The doctor reads the last by its place.
    return (
        columns
        if step is None
        else (*columns, (step.process_id, step.size_bytes, step.limit_bytes))
    )


def _with_loads(replica: ReplicaView) -> ReplicaView:
    loads: Any = replica.loads
    return replica if loads is None else dataclasses.replace(replica, loads=_Loads(loads))


class _Loads(Mapping[str, NamespaceLoad]):
    """The loads of a replica, each read when it is asked for: why a task waits takes one of them.

    To read them all takes 5 us each (2026-11), on the event loop, and there may be 200,000.
    """

    def __init__(self, rows: Mapping[str, Sequence[Any]]) -> None:
        self._rows = rows

    def __getitem__(self, name: str) -> NamespaceLoad:
        return _load(self._rows[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def _load(values: Sequence[Any]) -> NamespaceLoad:
    columns = [*values[: len(_LOAD)], *[None] * (len(_LOAD) - len(values))]
    step = columns[-1]
    if not isinstance(step, list) or len(step) != _SIZED:
        columns[-1] = None
    return _read_load(columns)


def _seconds(duration: dt.timedelta | None) -> float | None:
    return None if duration is None else round(duration.total_seconds(), _DECIMALS)
