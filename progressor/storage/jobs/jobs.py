"""Jobs: reads, and changes other than by settlements.

``priv/functions`` do it under the locks of leader and followers; the rules stand in
``domain/jobs/job.py``.
"""

import builtins
import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, LiteralString, NamedTuple

from progressor import errors, job_errors
from progressor.domain.jobs.job import Job, JobFilter, JobPage, JobState, Node
from progressor.domain.processes import reply
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import NodeOutcome, NodeState, TaskError
from progressor.storage.postgres import statements
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.functions import Function
from progressor.storage.postgres.rows.effects import (
    FAILED_PRECONDITION,
    JOB_HAS_ENDED,
    Effects,
    cancellations,
    cancellations_of,
    gate_effects,
)
from progressor.storage.postgres.rows.records import reader

_SQL = statements.load("jobs/jobs")
_ROUND = "recover_jobs"

PAYLOAD_BYTES_MAX = 32 * 1024 * 1024
"""Args and results that one read of a job returns."""

COUNTED_MAX = 10_000
"""Running jobs that are counted."""

MAINTAINED_MAX = 100
"""Nodes that one transaction starts or stops."""

RECOVER_MAX = 100
"""Jobs that one transaction of a round of recovery looks at."""

RECOVERY_INTERVAL = dt.timedelta(minutes=1)
RECOVERY_AGE = dt.timedelta(minutes=1)
"""How long a job has been quiet before recovery looks at it."""

_RETRIES_MAX = 20
_UNFINISHED = frozenset({NodeState.WAITING, NodeState.READY, NodeState.RUNNING})
_COUNTED = frozenset(NodeState) - {NodeState.DONE}
BEFORE_ALL = ProcessKey(-1, "", "")
_RETRIED = "a retry of its job begins it again"  # as halt_busy_processes says it


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Maintained:
    """What one transaction did for a job.

    ``next_after``: the node to go on behind, None at the end; then ``is_whole`` says that nothing
    is left that no settlement does.
    """

    started: int = 0
    stopped: int = 0
    next_after: int | None = None
    is_whole: bool = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """The names of the nodes that begin again, and the followers that lead failed jobs."""

    nodes: tuple[str, ...]
    leaders: tuple[ProcessKey, ...]


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What one transaction of recovery found; ``next_after``: where to go on, None at the end."""

    found: tuple[Found, ...]
    next_after: ProcessKey | None


class _NodeRow(NamedTuple):
    """A node, and what is in the first row: the job, or counts of its nodes.

    ``bytes`` are those of payloads up to this node, or of all together.
    """

    ordinal: int | None
    name: str
    row: builtins.list[Any]
    bytes: int = 0
    job: dict[str, Any] | None = None
    led_by: str = ""
    predecessors: Sequence[int] = ()
    skipped_because_of: int | None = None
    node_count: int = 0
    missing_count: int = 0


class _JobRow(NamedTuple):
    job: dict[str, Any]
    led_by: str


class _NameRow(NamedTuple):
    name: str
    ordinal: int


class _Row(NamedTuple):
    """What a function did for jobs; each has some of the columns."""

    effects: builtins.list[Any] | None
    """On gates."""
    verdict: str = ""
    ordinal: int = 0
    started: int = 0
    stopped: int = 0
    has_more: bool = False
    cancelled: builtins.list[Any] | None = None
    upkeep: tuple[ProcessKey, ...] = ()
    failed: tuple[ProcessKey, ...] = ()
    node_names: tuple[str, ...] = ()
    failed_leaders: tuple[ProcessKey, ...] = ()
    finds: builtins.list[Any] | None = None
    last: ProcessKey | None = None

    def all_effects(self, error: TaskError = JOB_HAS_ENDED) -> Effects:
        """Return those on gates, and the tasks that were cancelled with an error."""
        ended = cancellations_of(self.cancelled, error)
        return gate_effects(self.effects) | Effects(cancelled=ended)


class Jobs:
    def __init__(self, context: StorageContext) -> None:
        functions = context.functions
        self._context = context
        self._cancel_job = functions.call("cancel_job", _Row)
        self._retry_job = functions.call("retry_job", _Row)
        self._maintain_job = functions.call("maintain_job", _Row)
        self._stop_orphans = functions.call("stop_orphans", _Row)
        self._fail_overdue_jobs = functions.call("fail_overdue_jobs", _Row)
        self._recover_jobs = functions.call("recover_jobs", _Row)

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
        """
        columns, rows = await self._nodes(
            "read_job", key, after=-1, bytes_max=bytes_max if payloads else -1
        )
        job, names = _job(key, rows), {row.ordinal: row.name for row in rows}
        left_out = payloads and bool(rows) and rows[-1].bytes > bytes_max
        return JobPage(job=job, nodes=_made(columns, rows, names), payloads_left_out=left_out)

    async def counts(self, key: ProcessKey) -> Job:
        """Read a job without its nodes.

        Raises:
            JobNotFoundError: There is none.
        """
        found = await self._context.read(_JobRow, _SQL["read_counts"], key)
        if not found:
            raise job_errors.JobNotFoundError(key.namespace, key.process_id)
        return _job_of(*found[0])

    async def changes(self, key: ProcessKey, after_revision: int) -> tuple[Job, tuple[Node, ...]]:
        """Read a job, and its nodes that have changed after a revision, without payloads.

        Costs little where nothing has changed.

        Raises:
            JobNotFoundError: There is none.
        """
        columns, rows = await self._nodes("read_job", key, after=after_revision, bytes_max=-1)
        job, names = _job(key, rows), {row.ordinal: row.name for row in rows}
        missing = {it for row in rows for it in row.predecessors}
        missing |= {row.skipped_because_of for row in rows if row.skipped_because_of}
        if missing := missing - names.keys():
            for row in await self._context.read(
                _NameRow, _SQL["known_nodes"], key, after=0, ordinals=list(missing)
            ):
                names[row.ordinal] = row.name
        return job, _made(columns, rows, names)

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
        """
        before_at, before_id = after or (None, None)
        found = await self._context.read(
            _JobRow,
            _SQL["list_jobs"],
            namespace=namespace,
            states=f"{{{','.join(wanted.states)}}}" if wanted.states else None,
            schedule_id=wanted.schedule_id,
            before_at=before_at,
            before_id=before_id,
            limit=limit,
        )
        return tuple(_job_of(*row) for row in found)

    async def count_running(self) -> tuple[RunningJobs, ...]:
        """Count jobs that run, over all replicas; of more than COUNTED_MAX, that many."""
        return await self._context.read(RunningJobs, _SQL["count_running"], counted_max=COUNTED_MAX)

    async def known_nodes(self, key: ProcessKey, *, after: int = 0) -> Mapping[str, int]:
        """Read the names of a job's nodes above an ordinal, with their ordinals; none: no job."""
        found = await self._context.read(
            _NameRow, _SQL["known_nodes"], key, after=after, ordinals=None
        )
        return dict(found)

    async def outcomes(self, key: ProcessKey, bytes_max: int) -> tuple[NodeOutcome, ...] | None:
        """Read how the nodes of a job have ended, by their ordinals.

        Returns:
            Those that have; None: names, results and messages are more than `bytes_max` together.
        """
        return await self._outcomes(key, None, bytes_max)

    async def inputs(
        self, leader: ProcessKey, node: int, bytes_max: int
    ) -> tuple[NodeOutcome, ...] | None:
        """Read the same of the predecessors of one node."""
        return await self._outcomes(leader, node, bytes_max)

    async def failures(
        self, key: ProcessKey, *, limit: int
    ) -> tuple[int, int, tuple[NodeOutcome, ...]]:
        """Read how many nodes a job has, how many are not done, and the first that have failed.

        Raises:
            JobNotFoundError: There is none.
        """
        columns, rows = await self._nodes("read_failures", key, limit=limit)
        if not rows:
            raise job_errors.JobNotFoundError(key.namespace, key.process_id)
        return rows[0].node_count, rows[0].missing_count, _ended(columns, rows)

    async def cancel(self, key: ProcessKey, reason: str) -> Effects:
        """End a job: its leader is finished, and nodes that were not started never will be.

        Followers that were started are stopped by `maintain`, or by the settlement of the step that
        they run. If this is cancelled, whether the job was is unknown.

        Raises:
            JobNotFoundError: There is none.
            JobEndedError: It has ended.
        """
        found = await self._call(self._cancel_job, key, reason=reason)
        if found.verdict == "job_not_found":
            raise job_errors.JobNotFoundError(key.namespace, key.process_id)
        if found.verdict == "job_ended":
            raise job_errors.JobEndedError(key.namespace, key.process_id)
        error = TaskError(code=FAILED_PRECONDITION, reason=reply.PROCESS_FINISHED, message="")
        ended = cancellations(key.namespace, found.cancelled, error=error)
        return gate_effects(found.effects) | Effects(cancelled=ended, upkeep=(key,))

    async def retry(
        self, key: ProcessKey, *, deadline: dt.datetime | None, timeout: dt.timedelta | None
    ) -> tuple[Retried, Effects]:
        """Go on with a failed job from its failed nodes, in one transaction.

        Followers that lead failed jobs themselves have to be retried after it, each in its own
        transaction; the node of one that is not fails again (`recover`). At most one of
        ``deadline`` and ``timeout`` is given; without either, the job loses its deadline.

        Raises:
            JobNotFoundError: There is none.
            JobNotFailedError: It has not failed.
            StorageLockedError: It kept changing, or another transaction keeps it locked.
        """
        for _ in range(_RETRIES_MAX):
            found = await self._call(
                self._retry_job,
                key,
                deadline=deadline,
                timeout=None if timeout is None else timeout.total_seconds(),
            )
            if found.verdict != "again":
                break
        else:
            raise errors.StorageLockedError("the job keeps changing")
        if found.verdict == "job_not_found":
            raise job_errors.JobNotFoundError(key.namespace, key.process_id)
        if found.verdict == "job_not_failed":
            raise job_errors.JobNotFailedError(key.namespace, key.process_id)
        error = TaskError(code=FAILED_PRECONDITION, reason=reply.PROCESS_FAILED, message=_RETRIED)
        retried = Retried(nodes=found.node_names, leaders=found.failed_leaders)
        return retried, found.all_effects(error) | Effects(upkeep=(key,))

    async def maintain(self, key: ProcessKey, *, after: int = 0) -> tuple[Maintained, Effects]:
        """Start a job's ready nodes that have constraints; or, if it has ended, stop its followers.

        A job that has failed as a whole fails the job in which its leader follows. One transaction
        looks at some nodes behind `after`; safe to repeat, to cancel, and to do from many replicas.

        Raises:
            StorageLockedError: Another transaction keeps one of the processes locked.
        """
        row = await self._call(self._maintain_job, key, after=after, limit=MAINTAINED_MAX)
        effects = row.all_effects() | Effects(
            ended=tuple((each, JobState.FAILED) for each in row.failed),
            upkeep=(*row.failed, *row.upkeep),
        )
        maintained = Maintained(
            started=row.started,
            stopped=row.stopped,
            next_after=row.ordinal if row.verdict == "more" else None,
            is_whole=row.verdict == "done",
        )
        return maintained, effects

    async def find_upkeep_due(self, *, age: dt.timedelta, limit: int) -> tuple[ProcessKey, ...]:
        """Find at most `limit` jobs that have waited for `maintain` for longer than `age`."""
        return await self._context.read(ProcessKey, _SQL["find_upkeep_due"], age=age, limit=limit)

    async def stop_orphans(
        self, *, after: ProcessKey = BEFORE_ALL
    ) -> tuple[tuple[int, ProcessKey | None], Effects]:
        """Stop followers whose leader was removed: a page after `after`, in one transaction.

        Returns:
            How many were stopped, and where to go on, None at the end.

        Raises:
            StorageLockedError: Another transaction keeps one of the processes locked.
        """
        row = await self._call(self._stop_orphans, after, limit=MAINTAINED_MAX)
        effects = row.all_effects() | Effects(upkeep=row.upkeep)
        return (row.stopped, row.last if row.has_more else None), effects

    async def fail_overdue(self, *, limit: int) -> tuple[tuple[ProcessKey, ...], Effects]:
        """Fail at most `limit` jobs whose deadline has passed; return their leaders.

        Raises:
            StorageLockedError: Another transaction keeps one of the processes locked.
        """
        row = await self._call(self._fail_overdue_jobs, limit=limit)
        return row.failed, row.all_effects() | Effects(upkeep=row.failed)

    async def begin_recovery(
        self, *, interval: dt.timedelta = RECOVERY_INTERVAL
    ) -> dt.datetime | None:
        """Take the round of recovery that is due; one replica has it at a time, each `interval`.

        Returns:
            When it was taken, for `recover`; None: no round is due, or another replica has it.
        """
        taken = await self._context.read(
            dt.datetime, _SQL["take_upkeep_round"], kind=_ROUND, interval=interval
        )
        return taken[0] if taken else None

    async def recover(
        self,
        taken_at: dt.datetime,
        *,
        after: ProcessKey = BEFORE_ALL,
        interval: dt.timedelta = RECOVERY_INTERVAL,
        age: dt.timedelta = RECOVERY_AGE,
    ) -> tuple[Recovered, Effects]:
        """Recover jobs behind `after` that have not moved for `age`, some in one transaction.

        Raises:
            StorageLockedError: Another transaction keeps one of the processes locked.
        """
        row = await self._call(
            self._recover_jobs,
            after,
            taken_at=taken_at,
            interval=interval,
            age=age,
            limit=RECOVER_MAX,
        )
        found = tuple(Found(kind, ProcessKey(*key), node) for kind, *key, node in row.finds or ())
        gated = tuple(each.key for each in found if each.kind == "gated")
        recovered = Recovered(found=found, next_after=row.last if row.verdict == "more" else None)
        return recovered, gate_effects(row.effects) | Effects(upkeep=gated)

    async def _nodes(
        self, name: LiteralString, key: ProcessKey, **named: object
    ) -> tuple[tuple[str, ...], Sequence[_NodeRow]]:
        async with self._context.connection() as connection:
            columns, found = await self._context.fetch_on(connection, _SQL[name], key, **named)
        return columns, list(map(reader(_NodeRow, columns), found))

    async def _outcomes(
        self, key: ProcessKey, successor: int | None, bytes_max: int
    ) -> tuple[NodeOutcome, ...] | None:
        columns, rows = await self._nodes(
            "read_outcomes", key, successor=successor, bytes_max=bytes_max
        )
        return None if rows and rows[0].bytes > bytes_max else _ended(columns, rows)

    async def _call(self, function: Function[_Row], *keys: object, **named: object) -> _Row:
        [row] = await self._context.call(function, *keys, **named)
        return row


def _job(key: ProcessKey, rows: Sequence[_NodeRow]) -> Job:
    if not rows or rows[0].job is None:
        raise job_errors.JobNotFoundError(key.namespace, key.process_id)
    return _job_of(rows[0].job, rows[0].led_by)


def _job_of(column: Mapping[str, Any], led_by: str) -> Job:
    done = column["node_count"] - sum(column[state] for state in _COUNTED)
    named = {**column, "done": done, "led_by": led_by}
    return reader(Job, tuple(named), is_json=True)(tuple(named.values()))


def _made(
    columns: tuple[str, ...], rows: Sequence[_NodeRow], names: Mapping[int | None, str]
) -> tuple[Node, ...]:
    """Return the nodes of rows; a job without nodes is a row without one."""
    make = reader(Node, columns, "predecessors", "skipped_because_of")
    return tuple(
        make(
            row.row,
            tuple(names[it] for it in row.predecessors),
            row.skipped_because_of and names[row.skipped_because_of],
        )
        for row in rows
        if row.ordinal
    )


def _ended(columns: tuple[str, ...], rows: Sequence[_NodeRow]) -> tuple[NodeOutcome, ...]:
    """Return how the nodes of rows have ended, for those that have."""
    make = reader(NodeOutcome, columns, "skipped_because_of")
    names = {row.ordinal: row.name for row in rows}
    outcomes = [make(it.row, names.get(it.skipped_because_of)) for it in rows if it.ordinal]
    return tuple(it for it in outcomes if it.state not in _UNFINISHED)
