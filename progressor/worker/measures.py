"""Measures: what is counted of requests and steps; what it means, ``telemetry/names`` says."""

import dataclasses
import datetime as dt
from collections.abc import Mapping

from progressor.domain.admission import Import, Request, Verdict
from progressor.domain.intent import Failed, Outcome, Rejected
from progressor.domain.process import ProcessKey
from progressor.domain.settlement import Break, Fail, Finish, Remove, Retry, Settlement
from progressor.domain.task import TIMER_TYPES, RunningTask, TaskType
from progressor.processor.failures import code_name
from progressor.storage.settlements import Entry
from progressor.telemetry.metrics import Metrics
from progressor.worker.tallies import Tallies

SETTLEMENT_NAMES: Mapping[type[Settlement], str] = {
    Finish: "finish", Fail: "fail", Retry: "retry", Break: "break", Remove: "remove",
}  # fmt: skip
"""Settlements as metrics name them."""

MILLISECONDS = 1_000.0
"""In a second."""

_MILLISECOND = dt.timedelta(milliseconds=1)


@dataclasses.dataclass(frozen=True, slots=True)
class IntakeMeasures:
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
    tallies: Tallies = dataclasses.field(default_factory=Tallies)

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
        self.tallies.answered(namespace, seconds, failed=isinstance(outcome, Failed))
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
        self.tallies.settled(namespace)
        if isinstance(settlement, Remove):
            metrics.process_removing.record(milliseconds, (namespace, task_type))

    def fenced(self, entry: Entry) -> None:
        """Count a settlement that changed nothing."""
        self.metrics.fenced.add(1, (entry.key.namespace, entry.task_type))

    def abandoned(self, task: RunningTask) -> None:
        """Count a step that was given up."""
        self.metrics.abandoned.add(1, (task.key.namespace, task.task_type))
