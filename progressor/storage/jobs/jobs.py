"""Jobs: what is read of them, and what is done to them but by settlements.

``priv/functions`` do it under the locks of leader and followers; the rules stand in
``domain/jobs/job.py``.
"""

import asyncio
import builtins
import contextlib
import dataclasses
import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, LiteralString

from progressor import errors, job_errors
from progressor.clock import Clock
from progressor.domain.jobs.job import Job, JobState, Node
from progressor.domain.jobs.view import JobFilter, JobPage
from progressor.domain.processes import reply
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import NodeOutcome, TaskError
from progressor.storage.postgres import arrays, statements
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.pools import Pool, connection_of
from progressor.storage.rows import jobs as job_rows
from progressor.storage.rows import tasks as rows
from progressor.storage.rows.cancelled import cancelled
from progressor.storage.rows.gate_effects import PATIENCE, OnPromoted, ignore, promoted
from progressor.storage.rows.job_effects import (
    OnCancelled,
    OnEnded,
    OnUntended,
    count_none,
    leave_to_the_scan,
    tell_nobody,
)

_SQL = statements.load("jobs/jobs")
_DUTY = "recover_jobs"

PAYLOAD_BYTES_MAX = 32 * 1024 * 1024
"""Args and results that one read of a job returns."""

COUNTED_MAX = 10_000
"""Running jobs that are counted."""

TEND_MAX = 100
"""Nodes that one transaction starts or stops."""

RECOVER_MAX = 100
"""Jobs that one transaction of a round of recovery looks at."""

RECOVERY_INTERVAL = dt.timedelta(minutes=1)
RECOVERY_AGE = dt.timedelta(minutes=1)
"""How long a job has been quiet before recovery looks at it."""

_RETRIES_MAX = 20
_FAILED_PRECONDITION = 9
_BEFORE_ALL = (-1, "", "")
_RETRIED = "a retry of its job begins it again"  # as halt_busy says it


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tended:
    """What was done for a job; ``is_whole``: nothing is left that no settlement does."""

    started: int = 0
    stopped: int = 0
    is_whole: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class RunningJobs:
    """How many jobs of a namespace run, and how many of their nodes are in which state."""

    namespace: str
    jobs: int
    waiting: int
    ready: int
    running: int
    failed: int
    skipped: int


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """What recovery has done for a job: ``kind`` is join, node, start or gated."""

    kind: str
    key: ProcessKey
    node: int | None


class Jobs:
    """The jobs of all namespaces."""

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
        on_cancelled: OnCancelled = tell_nobody,
        on_untended: OnUntended = leave_to_the_scan,
        on_ended: OnEnded = count_none,
    ) -> None:
        """Open nothing.

        ``on_promoted`` hears what the writes tell of gates and of tasks that are due,
        ``on_cancelled`` of tasks that will never run, ``on_untended`` of jobs for `tend`,
        ``on_ended`` of jobs that `cancel` or `tend` has ended.
        """
        self._pool = pool
        self._clock = clock
        self._replica_id = replica_id
        self._statement_timeout = statement_timeout.total_seconds()
        self._patience = patience.total_seconds()
        self._on_promoted = on_promoted
        self._on_cancelled = on_cancelled
        self._on_untended = on_untended
        self._on_ended = on_ended
        self._cancel_job = functions.call("cancel_job").statement
        self._retry_job = functions.call("retry_job").statement
        self._tend_job = functions.call("tend_job").statement
        self._stop_orphans = functions.call("stop_orphans").statement
        self._fail_overdue_jobs = functions.call("fail_overdue_jobs").statement
        self._recover_jobs = functions.call("recover_jobs").statement

    async def read(
        self, key: ProcessKey, *, payloads: bool, bytes_max: int = PAYLOAD_BYTES_MAX
    ) -> JobPage:
        """Read a job with its nodes, as of one instant.

        Args:
            key: Of its leader.
            payloads: With args and results.
            bytes_max: Of these at most; from the node on whose would be more, they are empty.

        Raises:
            JobNotFoundError: There is none.
            StorageUnavailableError: PostgreSQL is away.
        """
        found = await self._read("read_job", key, bytes_max=bytes_max if payloads else -1)
        job, nodes = _job(key, found)
        names = {row[3]: row[4] for row in nodes}
        return JobPage(
            job=job,
            nodes=tuple(job_rows.node(row, names) for row in nodes),
            payloads_left_out=payloads and bool(nodes) and nodes[-1][0] > bytes_max,
        )

    async def counts(self, key: ProcessKey) -> Job:
        """Read a job without its nodes.

        Raises:
            JobNotFoundError: There is none.
            StorageUnavailableError: PostgreSQL is away.
        """
        found = await self._read("read_counts", key)
        if not found:
            raise job_errors.JobNotFoundError(key.namespace, key.process_id)
        return job_rows.job(*found[0])

    async def changes(self, key: ProcessKey, after_revision: int) -> tuple[Job, tuple[Node, ...]]:
        """Read a job, and its nodes that have changed after a revision, without payloads.

        Costs little where nothing has changed.

        Raises:
            JobNotFoundError: There is none.
            StorageUnavailableError: PostgreSQL is away.
        """
        found = await self._read("read_changes", key, after=after_revision)
        job, nodes = _job(key, found)
        names = await self._names(key, nodes)
        return job, tuple(job_rows.node(row, names) for row in nodes)

    async def list(
        self,
        namespace: str,
        wanted: JobFilter,
        *,
        after: tuple[dt.datetime, str] | None,
        limit: int,
    ) -> tuple[Job, ...]:
        """Read at most `limit` jobs of a namespace, the youngest first.

        ``after``: the (created_at, process_id) of the last one seen.

        Raises:
            StorageUnavailableError: PostgreSQL is away.
        """
        before_at, before_id = after or (None, None)
        found = await self._rows_of(
            "list_jobs",
            {
                "namespace": namespace,
                "states": f"{{{','.join(wanted.states)}}}" if wanted.states else None,
                "schedule_id": wanted.schedule_id,
                "before_at": before_at,
                "before_id": before_id,
                "limit": limit,
            },
        )
        return tuple(job_rows.job(*row) for row in found)

    async def count_running(self) -> tuple[RunningJobs, ...]:
        """Count jobs that run, over all replicas; of more than COUNTED_MAX, that many.

        Raises:
            StorageUnavailableError: PostgreSQL is away.
        """
        found = await self._rows_of("count_running", {"counted_max": COUNTED_MAX})
        return tuple(RunningJobs(*row) for row in found)

    async def known_nodes(self, key: ProcessKey, *, after: int = 0) -> Mapping[str, int]:
        """Read the names of a job's nodes above an ordinal, with their ordinals; none: no job."""
        found = await self._read("known_nodes", key, after=after)
        return {row[0]: row[1] for row in found}

    async def outcomes(self, key: ProcessKey, bytes_max: int) -> tuple[NodeOutcome, ...] | None:
        """Read how the nodes of a job have ended, by their ordinals.

        Returns:
            Those that have; None: names, results and messages are more than `bytes_max` together.
        """
        return _outcomes(await self._read("read_outcomes", key, bytes_max=bytes_max), bytes_max)

    async def inputs(
        self, leader: ProcessKey, node: int, bytes_max: int
    ) -> tuple[NodeOutcome, ...] | None:
        """Read the same of the predecessors of one node."""
        found = await self._read("read_inputs", leader, node=node, bytes_max=bytes_max)
        return _outcomes(found, bytes_max)

    async def failures(
        self, key: ProcessKey, *, limit: int
    ) -> tuple[int, int, tuple[NodeOutcome, ...]]:
        """Read how many nodes a job has, how many are not done, and the first that have failed.

        Raises:
            JobNotFoundError: There is none.
            StorageUnavailableError: PostgreSQL is away.
        """
        found = await self._read("read_failures", key, limit=limit)
        if not found:
            raise job_errors.JobNotFoundError(key.namespace, key.process_id)
        count, missing = found[0][:2]
        failed = [row[2:] for row in found if row[3] is not None]
        return count, missing, _outcomes(failed, 0) or ()

    async def cancel(self, key: ProcessKey, reason: str) -> Job:
        """End a job: its leader is finished, what was not started of it never will be.

        Followers that were are stopped by `tend`, or by the settlement of the step that they have
        in hand. If it is cancelled, whether the job was is unknown.

        Raises:
            JobNotFoundError: There is none.
            JobEndedError: It has ended.
            StorageUnavailableError: PostgreSQL is away.
        """
        [(verdict, *_), *told] = await self._call(self._cancel_job, *_columns(key), reason)
        if verdict == "job_not_found":
            raise job_errors.JobNotFoundError(key.namespace, key.process_id)
        if verdict == "job_ended":
            raise job_errors.JobEndedError(key.namespace, key.process_id)
        error = TaskError(code=_FAILED_PRECONDITION, reason=reply.PROCESS_FINISHED, message="")
        for _, *halted in told:
            self._heard(halted, error)
        self._on_untended(key)
        job = await self.counts(key)
        # One that is a node of another has failed, and may have been brought back by now.
        is_cancelled = job.state is JobState.CANCELLED
        self._on_ended(key, JobState.CANCELLED if is_cancelled else JobState.FAILED)
        return job

    async def retry(
        self, key: ProcessKey, *, deadline: dt.datetime | None, timeout: dt.timedelta | None
    ) -> tuple[Job, tuple[str, ...]]:
        """Go on with a failed job from its failed nodes, in one transaction.

        Followers that lead failed jobs themselves are brought back after it, each in its own; one
        that is not, since this is cancelled, fails its node again (`recover`). At most one of
        ``deadline`` and ``timeout`` is given; none: the job has none any more.

        Returns:
            The job, and the names of the nodes that begin again, by their ordinals.

        Raises:
            JobNotFoundError: There is none.
            JobNotFailedError: It has not failed.
            StorageLockedError: It kept changing, or another transaction keeps it locked.
            StorageUnavailableError: PostgreSQL is away.
        """
        names, leading = await self._retry(key, deadline, timeout)
        while leading:
            below = leading.pop()
            # Another transaction may have been faster.
            with contextlib.suppress(job_errors.JobNotFoundError, job_errors.JobNotFailedError):
                leading += (await self._retry(below, None, None))[1]
        return await self.counts(key), names

    async def _retry(
        self, key: ProcessKey, deadline: dt.datetime | None, timeout: dt.timedelta | None
    ) -> tuple[tuple[str, ...], builtins.list[ProcessKey]]:
        seconds = None if timeout is None else timeout.total_seconds()
        verdict, found, left = "again", builtins.list[rows.Row](), _RETRIES_MAX
        while verdict == "again" and left:
            [(verdict, *_), *found] = await self._call(
                self._retry_job, *_columns(key), deadline, seconds
            )
            left -= 1
        if verdict == "job_not_found":
            raise job_errors.JobNotFoundError(key.namespace, key.process_id)
        if verdict == "job_not_failed":
            raise job_errors.JobNotFailedError(key.namespace, key.process_id)
        if verdict == "again":
            raise errors.StorageLockedError("the job keeps moving")
        error = TaskError(code=_FAILED_PRECONDITION, reason=reply.PROCESS_FAILED, message=_RETRIED)
        leading = []
        for _, _, *halted, told, tasks in found:
            self._heard((*halted, tasks, told), error)
            if halted[0] is not None and tasks is None:
                leading.append(ProcessKey(*halted))
        self._on_untended(key)
        return tuple(row[1] for row in found if row[1] is not None), leading

    async def tend(self, key: ProcessKey) -> Tended:
        """Start a job's ready nodes that have constraints; or, if it has ended, stop its followers.

        One that has failed as a whole fails the job in which its leader follows.

        In batches, each a transaction; safe to repeat, to cancel, and to do from many replicas.

        Raises:
            StorageLockedError: Another transaction keeps one of the processes locked.
            StorageUnavailableError: PostgreSQL is away.
        """
        started = stopped = after = 0
        while True:
            *told, row = await self._call(self._tend_job, *_columns(key), after, TEND_MAX)
            for other in told:
                if other[0] == "failed":
                    self._on_ended(ProcessKey(*other[4:7]), JobState.FAILED)
                self._stopped(other[4:9], below=True)
            started, stopped = started + row[2], stopped + row[3]
            self._on_promoted(promoted(row[8]))
            if row[0] != "more":
                return Tended(started=started, stopped=stopped, is_whole=row[0] == "tended")
            after = row[1]

    async def find_untended(self, *, age: dt.timedelta, limit: int) -> tuple[ProcessKey, ...]:
        """Find at most `limit` jobs that have waited for `tend` for longer than `age`."""
        named = {"now": self._clock.pinned(), "age": age, "limit": limit}
        found = await self._rows_of("find_untended", named)
        return tuple(ProcessKey(*row) for row in found)

    async def stop_orphans(self) -> int:
        """Stop followers whose leader was removed; return how many.

        Raises:
            StorageLockedError: Another transaction keeps one of the processes locked.
            StorageUnavailableError: PostgreSQL is away.
        """
        count = 0
        after: Sequence[Any] = _BEFORE_ALL
        while True:
            [*told, last] = await self._call(self._stop_orphans, TEND_MAX, *after)
            for row in told:
                self._stopped(row[2:7], below=True)
            count += int(last[0])
            if not last[1]:
                return count
            after = last[2:5]

    async def fail_overdue(self, *, limit: int) -> tuple[ProcessKey, ...]:
        """Fail at most `limit` jobs whose deadline has passed; return them.

        Raises:
            StorageLockedError: Another transaction keeps one of the processes locked.
            StorageUnavailableError: PostgreSQL is away.
        """
        failed: dict[ProcessKey, None] = {}
        for row in await self._call(self._fail_overdue_jobs, limit):
            self._stopped(row)
            if row[0] is not None:
                failed[ProcessKey(*row[:3])] = None
        for key in failed:
            self._on_untended(key)
        return tuple(failed)

    async def recover(
        self, *, interval: dt.timedelta = RECOVERY_INTERVAL, age: dt.timedelta = RECOVERY_AGE
    ) -> tuple[Found, ...] | None:
        """Do a round of recovery, if one is due: one replica at a time, each `interval`.

        Returns:
            What was found, nothing in a healthy engine; None: no round is due, or another replica
            has it.

        Raises:
            StorageLockedError: Another transaction keeps one of the processes locked.
            StorageUnavailableError: PostgreSQL is away.
        """
        now = self._clock.pinned()
        taken = await self._rows_of(
            "take_duty",
            {"now": now, "duty": _DUTY, "replica_id": self._replica_id(), "interval": interval},
        )
        if not taken:
            return None
        found: builtins.list[Found] = []
        after: Sequence[Any] = _BEFORE_ALL
        while True:
            [first, *rows_] = await self._call_plain(
                self._recover_jobs, taken[0][0], interval, age, RECOVER_MAX, *after
            )
            for row in rows_:
                found.append(Found(row[0], ProcessKey(*row[1:4]), row[4]))
                self._on_promoted(promoted(row[5]))
                if row[0] == "gated":
                    self._on_untended(found[-1].key)
            if first[0] != "more":
                return tuple(found)
            after = first[1:4]

    def _stopped(self, halted: Sequence[Any], *, below: bool = False) -> None:
        """Tell of followers that were stopped; those with a key alone lead a job to be tended."""
        if below and halted[0] is not None and halted[3] is halted[4] is None:
            self._on_untended(ProcessKey(*halted[:3]))
            return
        error = TaskError(
            code=_FAILED_PRECONDITION, reason=reply.PROCESS_FAILED, message="its job has ended"
        )
        self._heard(halted, error)

    def _heard(self, halted: Sequence[Any], error: TaskError) -> None:
        """Tell on the columns slot, namespace, process, cancelled and told of halt_processes."""
        slot, namespace, process_id, tasks, told = halted
        for task in cancelled(tasks):
            self._on_cancelled(ProcessKey(slot, namespace, process_id), task, error)
        self._on_promoted(promoted(told))

    async def _names(self, key: ProcessKey, found: Sequence[rows.Row]) -> Mapping[int, str]:
        names = {row[3]: row[4] for row in found}
        missing = {each for row in found for each in job_rows.ordinals(row)} - names.keys()
        if missing:
            others = await self._read("read_names", key, ordinals=arrays.Int4Column(missing))
            names.update((row[0], row[1]) for row in others)
        return names

    async def _read(
        self, name: LiteralString, key: ProcessKey, **named: object
    ) -> Sequence[rows.Row]:
        which = {"slot": key.slot, "namespace": key.namespace, "process_id": key.process_id}
        return await self._rows_of(name, which | named)

    async def _rows_of(self, name: str, named: Mapping[str, Any]) -> Sequence[rows.Row]:
        async with (
            connection_of(self._pool) as connection,
            asyncio.timeout(self._statement_timeout),
        ):
            cursor = await connection.execute(_SQL[name], named, binary=True)
            return await cursor.fetchall()

    async def _call(self, statement: bytes, *arguments: object) -> Sequence[rows.Row]:
        return await self._call_plain(statement, self._patience, *arguments)

    async def _call_plain(self, statement: bytes, *arguments: object) -> Sequence[rows.Row]:
        own = (self._clock.pinned(), self._replica_id())
        async with (
            connection_of(self._pool) as connection,
            asyncio.timeout(self._statement_timeout),
        ):
            cursor = await connection.execute(statement, (*own, *arguments), binary=True)
            return await cursor.fetchall()


def _columns(key: ProcessKey) -> tuple[int, str, str]:
    return key.slot, key.namespace, key.process_id


def _job(key: ProcessKey, found: Sequence[rows.Row]) -> tuple[Job, Sequence[rows.Row]]:
    """Return the job of the first row, and the rows that have nodes."""
    if not found:
        raise job_errors.JobNotFoundError(key.namespace, key.process_id)
    return job_rows.job(found[0][1], found[0][2]), [row for row in found if row[3] is not None]


def _outcomes(found: Iterable[rows.Row], bytes_max: int) -> tuple[NodeOutcome, ...] | None:
    found = tuple(found)
    if found and found[0][0] > bytes_max:
        return None
    names = {row[1]: row[2] for row in found}
    outcomes = (job_rows.outcome(row, names) for row in found)
    return tuple(each for each in outcomes if each is not None)
