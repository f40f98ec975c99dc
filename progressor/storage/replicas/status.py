"""Watch: what the replicas know of their namespaces, told by each and read by all.

A replica tells with its heartbeats, in one column of its row. Every replica reads the rows of all
when a caller asks why a task waits, or what goes on, and at most once a second: a Get costs no
statement more.

Of each namespace it tells a list: places taken, places, the seconds for which its processor has
been out of reach, and its tally (settled, attempts, failed, the seconds that they took). What a
later release tells goes behind that: those before leave it unread, and their own lists end sooner.
"""

import asyncio
import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from progressor.clock import Clock
from progressor.domain.views.replica import Facts, NamespaceLoad, ReplicaFacts, StepSize, StepTally
from progressor.storage.postgres import statements
from progressor.storage.postgres.context import fetch_named
from progressor.storage.postgres.pools import Pool, connection_of
from progressor.storage.rows import tasks as rows

_SQL = statements.load("replicas/replicas")

AGE_MAX = dt.timedelta(seconds=1)
REPLICAS_MAX = 1000
"""Rows that are read, those with the latest heartbeats."""

_DECIMALS = 3
_SIZED = 3
_TALLIED = 7


class _FactsRow(NamedTuple):
    """PostgreSQL's instant and a replica, if there is one."""

    now: dt.datetime
    replica_id: int | None
    heartbeat_at: dt.datetime
    lease_timeout: dt.timedelta
    draining: bool
    facts: dict[str, rows.Row] | None
    name: str
    version: str
    step_count: int | None
    caller_count: int | None


class Watch:
    """The facts of all replicas, as of at most a second ago."""

    def __init__(
        self,
        *,
        pool: Pool,
        clock: Clock,
        lease_timeout: dt.timedelta,
        collecting: dt.timedelta,
        statement_timeout: dt.timedelta,
        age_max: dt.timedelta = AGE_MAX,
    ) -> None:
        """Open nothing.

        Args:
            pool: Where the rows are read.
            clock: For the age of what was read.
            lease_timeout: For replicas that do not tell their own.
            collecting: How long a lost lease may wait for a scan of this replica.
            statement_timeout: For reading them.
            age_max: The age that an answer may have.
        """
        self._pool = pool
        self._clock = clock
        self._lease_timeout = lease_timeout
        self._collecting = collecting
        self._statement_timeout = statement_timeout.total_seconds()
        self._age_max = age_max.total_seconds()
        self._known: Facts | None = None
        self._asked_at = float("-inf")
        self._reading = asyncio.Lock()

    async def facts(self) -> Facts:
        """Return what the replicas told; those who ask at once share one statement.

        Raises:
            StorageUnavailableError: It is too old, and PostgreSQL is unreachable.
        """
        known = self._fresh()
        if known is not None:
            return known
        async with self._reading:
            known = self._fresh()
            if known is None:
                asked_at = self._clock.monotonic()
                self._known = known = await self._read()
                self._asked_at = asked_at
        return known

    def _fresh(self) -> Facts | None:
        is_fresh = self._clock.monotonic() - self._asked_at < self._age_max
        return self._known if is_fresh else None

    async def _read(self) -> Facts:
        parameters: dict[str, Any] = {
            "now": self._clock.pinned(),
            "lease_timeout": self._lease_timeout,
            "limit": REPLICAS_MAX,
        }
        async with (
            connection_of(self._pool, reads_only=True) as connection,
            asyncio.timeout(self._statement_timeout),
        ):
            cursor = await connection.execute(_SQL["read_facts"], parameters)
            found = await fetch_named(cursor, _FactsRow)
        return Facts(
            read_at=found[0].now,
            replicas={row.replica_id: _replica(row) for row in found if row.replica_id is not None},
            collecting=self._collecting,
        )


def told(loads: Mapping[str, NamespaceLoad]) -> str:
    """Return what a replica knows, for its row."""
    return msgspec.json.encode({name: _columns(load) for name, load in loads.items()}).decode()


def _columns(load: NamespaceLoad) -> rows.Row:
    places = (load.busy_count, load.size, _seconds(load.unreachable_for))
    tally = load.tally
    if tally is None:
        return places
    spent = _seconds(tally.processor_time)
    told = (*places, tally.settled_count, tally.attempt_count, tally.failed_count, spent)
    step = load.largest_step
    if step is None:
        return told
    # The doctor reads it by its place.
    return (*told, (step.process_id, step.size_bytes, step.limit_bytes))


def _replica(row: _FactsRow) -> ReplicaFacts:
    assert row.replica_id is not None, "the row is of a replica"
    return ReplicaFacts(
        replica_id=row.replica_id,
        heartbeat_at=row.heartbeat_at,
        lease_timeout=row.lease_timeout,
        draining=row.draining,
        loads=None if row.facts is None else _Loads(row.facts),
        name=row.name,
        version=row.version,
        step_count=row.step_count,
        caller_count=row.caller_count,
    )


class _Loads(Mapping[str, NamespaceLoad]):
    """The loads of a replica, each read when it is asked for: why a task waits takes one of them.

    To read them all takes 5 us each (2026-11), on the event loop, and there may be 200,000.
    """

    def __init__(self, told: Mapping[str, rows.Row]) -> None:
        self._told = told

    def __getitem__(self, name: str) -> NamespaceLoad:
        return _load(self._told[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._told)

    def __len__(self) -> int:
        return len(self._told)


def _load(columns: rows.Row) -> NamespaceLoad:
    busy_count, size, unreachable_seconds = columns[:3]
    return NamespaceLoad(
        busy_count=busy_count,
        size=size,
        unreachable_for=rows.seconds(unreachable_seconds),
        tally=_tally(columns[3:_TALLIED]) if len(columns) >= _TALLIED else None,
        largest_step=_step_size(columns[_TALLIED]) if len(columns) > _TALLIED else None,
    )


def _step_size(columns: Any) -> StepSize | None:  # noqa: ANN401  # of any release
    if not isinstance(columns, list) or len(columns) != _SIZED:
        return None
    process_id, size_bytes, limit_bytes = columns
    return StepSize(process_id=process_id, size_bytes=size_bytes, limit_bytes=limit_bytes)


def _tally(columns: rows.Row) -> StepTally:
    settled_count, attempt_count, failed_count, spent_seconds = columns
    return StepTally(
        settled_count=settled_count,
        attempt_count=attempt_count,
        failed_count=failed_count,
        processor_time=dt.timedelta(seconds=spent_seconds),
    )


def _seconds(duration: dt.timedelta | None) -> float | None:
    return None if duration is None else round(duration.total_seconds(), _DECIMALS)
