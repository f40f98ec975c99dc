"""Counts requests, steps and scans; ``telemetry/metrics/registry`` describes the metrics."""

import collections
import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never

from progressor.domain.jobs.job import JobState
from progressor.domain.processes.admission import Import, Request, Verdict
from progressor.domain.processes.intent import Complete, Failed, Outcome, Rejected
from progressor.domain.processes.policy import ZombiePolicy
from progressor.domain.processes.process import Part, ProcessKey
from progressor.domain.processes.reply import PROCESS_FINISHED
from progressor.domain.processes.settlement import Break, Fail, Finish, Remove, Retry, Settlement
from progressor.domain.processes.task import TIMER_TYPES, NodeState, RunningTask, TaskType
from progressor.domain.views.replica import StepTally
from progressor.processor.failures import code_name
from progressor.storage.postgres.rows.effects import Cancellation
from progressor.storage.replicas.replicas import Zombie, ZombieCause
from progressor.storage.steps.claims import Claimed
from progressor.storage.steps.settlements import Entry
from progressor.telemetry.metrics.registry import Metrics

SETTLEMENT_NAMES: Mapping[type[Settlement], str] = {
    Finish: "finish", Fail: "fail", Retry: "retry", Break: "break", Remove: "remove",
}  # fmt: skip
"""Settlements as metrics name them."""

MILLISECONDS = 1_000.0
"""In a second."""

_MILLISECOND = dt.timedelta(milliseconds=1)


@dataclasses.dataclass(slots=True)
class _Tally:
    settled: int = 0
    attempts: int = 0
    failed: int = 0
    seconds: float = 0.0


class Measures:
    """Counts in the metrics, and steps also per namespace, for heartbeats to publish.

    The number of label sets of a metric is bounded: with hundreds of namespaces, some would be
    counted under "other". Counting a step per namespace as well costs 0.3 µs.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._tallies: dict[str, _Tally] = collections.defaultdict(_Tally)

    def tally_of(self, namespace: str) -> StepTally:
        """Return what was done in a namespace since it was last forgotten; thread-safe."""
        tally = self._tallies.get(namespace) or _Tally()
        return StepTally(
            settled_count=tally.settled,
            attempt_count=tally.attempts,
            failed_count=tally.failed,
            processor_time=dt.timedelta(seconds=tally.seconds),
        )

    def forget(self, namespace: str) -> None:
        """Drop the tally of a deleted namespace; a new one of that name starts at zero."""
        self._tallies.pop(namespace, None)

    def admitted(self, request: Request, verdict: Verdict, seconds: float) -> None:
        """Count a request that became durable, or was a duplicate, `seconds` after it arrived."""
        namespace, task_type = request.key.namespace, request.task_type
        labels = (namespace, task_type)
        self._metrics.request_preparing.record(seconds * MILLISECONDS, labels)
        self._metrics.admitted.add(1, labels)
        if request.args and verdict is Verdict.ACCEPTED:
            self._metrics.bytes_written.add(len(request.args), (namespace, "args"))

    def imported(self, process: Import) -> None:
        namespace, metrics = process.key.namespace, self._metrics
        if process.history:
            metrics.events_written.add(len(process.history), (namespace,))
            size = sum(len(event.payload) for event in process.history)
            metrics.bytes_written.add(size, (namespace, "events"))
        if process.aux_state:
            metrics.bytes_written.add(len(process.aux_state), (namespace, "aux_state"))

    def removed(self, key: ProcessKey, seconds: float) -> None:
        labels = (key.namespace, TaskType.REMOVE)
        self._metrics.process_removing.record(seconds * MILLISECONDS, labels)

    def begun(self, task: RunningTask) -> None:
        """Count how late a timer, or its retry, begins; both instants are PostgreSQL's."""
        if task.task_type not in TIMER_TYPES:
            return
        due_at = task.scheduled_at if task.claim is None else task.claim.due_at
        # Without a claim it follows a step of its process in the same worker. A timer that this
        # step set to run at once has not waited, and would hide those that have. When a retry was
        # due is not known.
        if task.claim is not None or (task.attempt == 1 and due_at < task.started_at):
            late = max(0.0, (task.started_at - due_at) / _MILLISECOND)
            self._metrics.timer_lateness.record(late, (task.key.namespace,))

    def answered(self, task: RunningTask, outcome: Outcome, seconds: float) -> None:
        namespace, task_type = task.key.namespace, task.task_type
        self._metrics.task_processing.record(seconds * MILLISECONDS, (namespace, task_type))
        tally = self._tallies[namespace]
        tally.attempts += 1
        tally.seconds += seconds
        if isinstance(outcome, (Failed, Rejected)):
            rejected = isinstance(outcome, Rejected)
            tally.failed += not rejected
            labels = (namespace, task_type, code_name(outcome.code), str(rejected).lower())
            self._metrics.processor_errors.add(1, labels)

    def revoked(self, cancellation: Cancellation) -> None:
        """Count a task that was ended from outside while it ran."""
        error = cancellation.error
        if cancellation.removed:
            cause = "removed"
        elif error is None:
            cause = "cancelled"
        else:
            cause = "terminated" if error.reason == PROCESS_FINISHED else "stopped"
        self._metrics.revoked.add(1, (cancellation.namespace, cancellation.task.task_type, cause))

    def settled(self, entry: Entry, seconds: float) -> None:
        """Count a settlement that became durable `seconds` after it was decided."""
        metrics, settlement = self._metrics, entry.settlement
        namespace, task_type = entry.key.namespace, entry.task_type
        milliseconds = seconds * MILLISECONDS
        metrics.task_completion.record(milliseconds, (namespace, task_type))
        metrics.settled.add(1, (namespace, task_type, SETTLEMENT_NAMES[type(settlement)]))
        self._tallies[namespace].settled += 1
        if isinstance(settlement, Remove):
            metrics.process_removing.record(milliseconds, (namespace, task_type))
        if entry.part is not None:
            count_ends(metrics, entry.key, entry.part, task_type, settlement)

    def claimed(self, claimed: Sequence[Claimed], seconds: float) -> None:
        """Count a claim that took so long, once for each namespace and type in it."""
        for labels in {(each.task.key.namespace, each.task.task_type) for each in claimed}:
            timers = labels[1] in TIMER_TYPES
            metrics = self._metrics
            histogram = metrics.timers_scanning if timers else metrics.calls_scanning
            histogram.record(seconds * MILLISECONDS, labels)

    def found_nothing(self, namespaces: Iterable[str], seconds: float) -> None:
        milliseconds = seconds * MILLISECONDS
        for name in namespaces:
            self._metrics.calls_scanning.record(milliseconds, (name, TaskType.CALL))
            self._metrics.timers_scanning.record(milliseconds, (name, TaskType.TIMEOUT))

    def collected(
        self, zombie: Zombie, settlement: Settlement, seconds: float, *, policy: ZombiePolicy
    ) -> None:
        """Count a lost lease that was settled `seconds` after it was found."""
        namespace, task_type = zombie.key.namespace, zombie.task_type
        name = SETTLEMENT_NAMES[type(settlement)]
        metrics = self._metrics
        metrics.zombie_collection.record(seconds * MILLISECONDS, (namespace, task_type))
        metrics.zombies_collected.add(1, (namespace, zombie.cause, policy, name))
        if zombie.cause is not ZombieCause.UNKNOWN:
            # No worker knew of that lease, so that no step ran.
            metrics.revoked.add(1, (namespace, task_type, "lease_lost"))
        metrics.settled.add(1, (namespace, task_type, name))
        if zombie.part is not None:
            count_ends(metrics, zombie.key, zombie.part, task_type, settlement)


def count_ends(
    metrics: Metrics, key: ProcessKey, part: Part, task_type: TaskType, settlement: Settlement
) -> None:
    """Count the node, and the job, that a durable settlement ended.

    This follows from the process's part in jobs, not from PostgreSQL's answer, which may be lost. A
    job that is removed with its leader has not ended.
    """
    done = _ends_well(settlement)
    if done is None:
        return
    if part.leader is not None:
        state = NodeState.DONE if done else NodeState.FAILED
        metrics.job_nodes_ended.add(1, (part.leader.namespace, state))
    # A leader has no job before its init has succeeded.
    leads = part.led_by is not None and task_type is not TaskType.INIT
    if leads and not isinstance(settlement, Remove):
        metrics.jobs_ended.add(1, (key.namespace, JobState.DONE if done else JobState.FAILED))


def _ends_well(settlement: Settlement) -> bool | None:
    """Return whether a process has ended well; None: it goes on, or was in error before."""
    match settlement:
        case Finish(intent):
            return True if isinstance(intent.action, Complete) else None
        case Remove():
            return settlement.error is None
        case Break():
            return False
        case Fail() | Retry():
            return None
        case _:
            assert_never(settlement)
