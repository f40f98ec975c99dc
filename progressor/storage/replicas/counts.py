"""Counts of processes by namespace and status, and what keeps them exact.

Whatever changes the status of processes inserts what it has changed into ``process_counts``, in the
same transaction. So the sums are exact at any moment, crashes included, and reading them costs the
same however many processes there are. The functions of earlier releases do not do this: while one
of their replicas runs, the counts are estimates, which a scan of the processes corrects from time
to time; another scan follows once it has gone.
"""

import asyncio
import dataclasses
import datetime as dt
from typing import NamedTuple

from psycopg.conninfo import make_conninfo

from progressor.domain.processes.process import ProcessCount, ProcessCounts
from progressor.domain.views.bulk import OPERATIONS
from progressor.domain.views.filter import ProcessFilter
from progressor.storage.postgres import statements
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.pools import BoundedConnection, translated
from progressor.storage.postgres.rows.filters import fields_of, filter_document

_SQL = statements.load("replicas/counts")

ROWS_MAX = 200
"""Rows of ``process_counts`` beyond one per namespace and status that are left as they are."""

SCAN_INTERVAL = dt.timedelta(days=1)
"""From one scan of the processes to the next where the counts are exact: it should find nothing."""

SCAN_TIMEOUT = dt.timedelta(hours=1)
"""For a scan, which reads the whole table of processes."""


class _CountRow(NamedTuple):
    matched: int
    is_estimate: bool


class Compacted(NamedTuple):
    """Both None: another replica is compacting."""

    is_exact: bool | None
    scan_due: bool | None


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """``dsn`` is for the scans, which take longer than a connection of a pool may be lent."""

    context: StorageContext
    dsn: str

    async def read(self, namespace: str = "") -> tuple[ProcessCounts, ...]:
        """Read the counts of a namespace, or of all if it is "", in the order of their names."""
        return await self.context.read(
            ProcessCounts, _SQL["count_processes"], reads_only=True, namespace=namespace
        )

    async def count(self, processes: ProcessFilter, *, exact_max: int) -> ProcessCount:
        """Count what matches a filter; an estimate if more than `exact_max` must be examined.

        With no more than a namespace and statuses in the filter: from the counts.
        """
        if fields_of(processes).keys() <= {"namespace", "statuses", "seen"}:
            found = await self.read(processes.namespace)
            counts = tuple(
                it.of(processes.statuses)
                for it in found
                if processes.namespace or it.namespace != OPERATIONS
                if processes.seen is None or it.namespace in processes.seen
            )
            return ProcessCount(
                count=sum(it.total for it in counts),
                is_estimate=any(it.is_estimate for it in counts),
                namespaces=counts,
            )
        count_matching = self.context.functions.call("count_matching", _CountRow)
        async with self.context.connection(reads_only=True) as connection:
            [row] = await count_matching.rows(
                connection, filter=filter_document(processes), limit=exact_max
            )
        return ProcessCount(count=row.matched, is_estimate=row.is_estimate)

    async def compact(self, *, rows_max: int = ROWS_MAX) -> Compacted:
        """Merge what was inserted, and find out whether the counts are exact."""
        compact = self.context.functions.call("compact_counts", Compacted)
        [compacted] = await self.context.call(compact, rows_max=rows_max)
        return compacted

    async def recount(self, *, interval: dt.timedelta = SCAN_INTERVAL) -> int | None:
        """Scan the processes, and correct the counts; safe to repeat and to cancel.

        Returns the number of counts that were wrong; None: another replica scans.
        """
        recount = self.context.functions.call("recount_processes")
        async with asyncio.timeout(SCAN_TIMEOUT.total_seconds()):
            with translated():
                connection = await BoundedConnection.connect(
                    make_conninfo(self.dsn, application_name="progressor counts"),
                    autocommit=True,
                    prepare_threshold=None,
                )
                async with connection:
                    await connection.execute("SET statement_timeout = 0")
                    [(corrected,)] = await recount.rows(
                        connection, now=self.context.clock.pinned(), interval=interval
                    )
        return None if corrected is None else int(corrected)
