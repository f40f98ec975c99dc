"""Counts requests and steps; ``telemetry/metrics/registry`` describes the metrics."""

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import assert_never

from progressor.domain.jobs.job import JobState
from progressor.domain.processes.admission import Import, Request, Verdict
from progressor.domain.processes.intent import Complete, Failed, Outcome, Rejected
from progressor.domain.processes.process import Part, ProcessKey
from progressor.domain.processes.settlement import Break, Fail, Finish, Remove, Retry, Settlement
from progressor.domain.processes.task import TIMER_TYPES, NodeState, RunningTask, TaskType
from progressor.processor.failures import code_name
from progressor.runtime.core.counters import Counters
from progressor.storage.processes.settlements import Entry
from progressor.telemetry.metrics.registry import Metrics

SETTLEMENT_NAMES: Mapping[type[Settlement], str] = {
    Finish: "finish", Fail: "fail", Retry: "retry", Break: "break", Remove: "remove",
}  # fmt: skip
"""Settlements as metrics name them."""

MILLISECONDS = 1_000.0
"""In a second."""

_MILLISECOND = dt.timedelta(milliseconds=1)


@dataclasses.dataclass(frozen=True, slots=True)
class RequestMeasures:
    """Counts what comes in."""

    metrics: Metrics

    def admitted(self, request: Request, verdict: Verdict, seconds: float) -> None:
        """Count a request that is durable, so long after it came; a duplicate had been before."""
        namespace, task_type = request.key.namespace, request.task_type
        labels = (namespace, task_type)
        self.metrics.request_preparing.record(seconds * MILLISECONDS, labels)
        self.metrics.admitted.add(1, labels)
        if request.args and verdict is Verdict.ACCEPTED:
            self.metrics.bytes_written.add(len(request.args), (namespace, "args"))

    def imported(self, process: Import) -> None:
        """Count what came with a process that was put."""
        namespace, metrics = process.key.namespace, self.metrics
        if process.history:
            metrics.events_written.add(len(process.history), (namespace,))
            size = sum(len(event.payload) for event in process.history)
            metrics.bytes_written.add(size, (namespace, "events"))
        if process.aux_state:
            metrics.bytes_written.add(len(process.aux_state), (namespace, "aux_state"))

    def removed(self, key: ProcessKey, seconds: float) -> None:
        """Count a process that was removed by a request."""
        labels = (key.namespace, TaskType.REMOVE)
        self.metrics.process_removing.record(seconds * MILLISECONDS, labels)


@dataclasses.dataclass(frozen=True, slots=True)
class StepMeasures:
    """Counts steps; labels are made once for each point, since every step passes here."""

    metrics: Metrics
    counters: Counters = dataclasses.field(default_factory=Counters)

    def begun(self, task: RunningTask) -> None:
        """Count how late a timer, or its retry, begins; both instants are PostgreSQL's."""
        if task.task_type not in TIMER_TYPES:
            return
        due_at = task.scheduled_at if task.claim is None else task.claim.due_at
        # Without a claim it follows a step of its process, in the same worker. What that has set
        # for at once has never waited, and would hide those that have; of a retry it is not known
        # when it was due.
        if task.claim is not None or (task.attempt == 1 and due_at < task.started_at):
            late = max(0.0, (task.started_at - due_at) / _MILLISECOND)
            self.metrics.timer_lateness.record(late, (task.key.namespace,))

    def answered(self, task: RunningTask, outcome: Outcome, seconds: float) -> None:
        """Count an attempt at the processor that took so long."""
        namespace, task_type = task.key.namespace, task.task_type
        self.metrics.task_processing.record(seconds * MILLISECONDS, (namespace, task_type))
        self.counters.answered(namespace, seconds, failed=isinstance(outcome, Failed))
        if isinstance(outcome, Failed):
            code = code_name(outcome.code)
            self.metrics.processor_errors.add(1, (namespace, task_type, code, "false"))
        elif isinstance(outcome, Rejected):
            code = code_name(outcome.code)
            self.metrics.processor_errors.add(1, (namespace, task_type, code, "true"))

    def settled(self, entry: Entry, seconds: float) -> None:
        """Count a settlement that is durable, so long after it was decided."""
        metrics, settlement = self.metrics, entry.settlement
        namespace, task_type = entry.key.namespace, entry.task_type
        milliseconds = seconds * MILLISECONDS
        metrics.task_completion.record(milliseconds, (namespace, task_type))
        name = SETTLEMENT_NAMES[type(settlement)]
        metrics.settled.add(1, (namespace, task_type, name))
        self.counters.settled(namespace)
        if isinstance(settlement, Remove):
            metrics.process_removing.record(milliseconds, (namespace, task_type))
        if entry.part is not None:
            count_ends(metrics, entry.key, entry.part, task_type, settlement)

    def fenced(self, entry: Entry) -> None:
        """Count a settlement that changed nothing."""
        self.metrics.fenced.add(1, (entry.key.namespace, entry.task_type))

    def abandoned(self, task: RunningTask) -> None:
        """Count a step that was given up."""
        self.metrics.abandoned.add(1, (task.key.namespace, task.task_type))


def count_ends(
    metrics: Metrics,
    key: ProcessKey,
    part: Part,
    task_type: TaskType,
    settlement: Settlement,
) -> None:
    """Count the node, and the job, that have ended by a settlement which is durable.

    The process's part says it, and no answer of PostgreSQL: so it is right where that was lost, and
    a batch was written again. A job that is removed with its leader has not ended.
    """
    done = _ends_well(settlement)
    if done is None:
        return
    if part.leader is not None:
        state = NodeState.DONE if done else NodeState.FAILED
        metrics.job_nodes_ended.add(1, (part.leader.namespace, state))
    # A process that is to lead a job has none until its init has succeeded.
    leads = part.led_by is not None and task_type is not TaskType.INIT
    if leads and not isinstance(settlement, Remove):
        metrics.jobs_ended.add(1, (key.namespace, JobState.DONE if done else JobState.FAILED))


def _ends_well(settlement: Settlement) -> bool | None:
    """Tell how a process has ended; None: it goes on, or is in error as it was."""
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
