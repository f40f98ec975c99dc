"""What a step has to do with jobs, before and after its processor is asked.

The engine itself runs the leader of a submitted job: its init starts the nodes that its args hold,
its join decides how the job ends.
"""

import asyncio
import collections
import dataclasses
from collections.abc import Mapping, Sequence

from progressor import job_errors
from progressor.domain.jobs.graph import GraphError, NodePlan, decode_graph, plan_nodes
from progressor.domain.jobs.job import NODES_MAX, StartNodes
from progressor.domain.processes.intent import (
    Complete,
    Failed,
    Intent,
    Outcome,
    Rejected,
    Succeeded,
)
from progressor.domain.processes.process import NO_PART, Leadership, Part, Process, ProcessKey
from progressor.domain.processes.task import NodeOutcome, NodeState, RunningTask, TaskType
from progressor.processor.failures import INVALID_ANSWER
from progressor.runtime.step.bulk_steps import BulkSteps
from progressor.storage.jobs.jobs import Jobs

OUTCOMES_BYTES_MAX = 32 * 1024 * 1024
"""Results that may go with one task."""

NAMED_MAX = 5
"""Failed nodes that the detail of a job names."""

_QUICK_MAX = 500
"""Nodes that are planned on the event loop: in a millisecond or two."""

_INVALID_ARGUMENT = 3
_RESOURCE_EXHAUSTED = 8
_ABORTED = 10
_UNIMPLEMENTED = 12


class JobSteps:
    def __init__(self, jobs: Jobs, bulk_steps: BulkSteps) -> None:
        self._jobs, self._names = jobs, NodeNames(jobs)
        self.bulk_steps = bulk_steps

    async def handed(self, task: RunningTask, part: Part) -> RunningTask | Outcome:
        """Return a task with the outcomes of other nodes that its processor needs.

        Or the task's outcome, if the engine leads the job itself or these are too large.
        """
        if part.led_by is Leadership.ENGINE:
            return await self._lead(task)
        found: Sequence[NodeOutcome] | None
        if task.task_type is TaskType.JOIN:
            found = await self._jobs.outcomes(task.key, bytes_max=OUTCOMES_BYTES_MAX)
            reason = "JOIN_TOO_LARGE"
        elif task.task_type is TaskType.INIT and part.options.takes_results:
            assert part.leader is not None, "a node has a leader"
            assert part.node is not None, "a node has a number"
            found = await self._jobs.inputs(part.leader, part.node, bytes_max=OUTCOMES_BYTES_MAX)
            reason = "RESULTS_TOO_LARGE"
        else:
            return task
        if found is None:
            return Failed(
                code=_RESOURCE_EXHAUSTED,
                reason=reason,
                message=f"the results of the nodes have more than {OUTCOMES_BYTES_MAX} bytes",
                retryable=False,
            )
        return dataclasses.replace(task, nodes=tuple(found))

    async def plan(
        self, task: RunningTask, outcome: Succeeded, action: StartNodes
    ) -> tuple[Outcome, NodePlan | None]:
        """Return what a step adds to a job, or the step's failure if that is not a valid graph."""
        part = task.process.part or NO_PART
        action = dataclasses.replace(action, caller_context=task.caller_context)
        if part.options.scheduled:
            action = _scheduled(action)
        known: Mapping[str, int] = {}
        if part.led_by is not None and task.task_type is not TaskType.INIT:
            known = await self._names.of(task.process)
        try:
            if len(action.nodes) > _QUICK_MAX:
                plan = await asyncio.to_thread(plan_nodes, task.key, action, known)
            else:
                plan = plan_nodes(task.key, action, known)
            return Succeeded(dataclasses.replace(outcome.intent, action=action)), plan
        except GraphError as error:
            failed = Failed(
                code=_INVALID_ARGUMENT,
                reason=INVALID_ANSWER,
                message=f"start_nodes.{error}",
                retryable=False,
            )
            return failed, None

    async def _lead(self, task: RunningTask) -> Outcome:
        match task.task_type:
            case TaskType.INIT:
                # Milliseconds for a large one.
                action = await asyncio.to_thread(decode_graph, task.args)
                if action.timeout is not None:
                    # It counts from the submission, not from this step.
                    deadline = task.scheduled_at + action.timeout
                    action = dataclasses.replace(action, deadline=deadline, timeout=None)
                return Succeeded(Intent(action=action))
            case TaskType.JOIN:
                return await self._decide(task)
            case _:
                return Rejected(
                    code=_UNIMPLEMENTED,
                    reason=job_errors.LedByEngineError.reason,
                    message=job_errors.LED_BY_ENGINE,
                )

    async def _decide(self, task: RunningTask) -> Outcome:
        try:
            count, missing, failed = await self._jobs.failures(task.key, limit=NAMED_MAX)
        except job_errors.JobNotFoundError as error:
            # Removed since it was claimed, and the lease with it: the settlement will be rejected.
            return Failed(code=_ABORTED, reason=error.reason, message=str(error), retryable=True)
        if not missing:
            return Succeeded(Intent(action=Complete()))
        reasons = "; ".join(_reason(node) for node in failed)
        message = f"{missing} of {count} nodes are not done" + (f": {reasons}" if reasons else "")
        return Failed(code=_ABORTED, reason="JOB_FAILED", message=message, retryable=False)


def _reason(node: NodeOutcome) -> str:
    assert node.state is NodeState.FAILED, "only failed nodes have a reason"
    error = node.error
    why = "" if error is None else f" ({error.reason}: {error.message})"
    return f"{node.name} failed{why}"


def _scheduled(action: StartNodes) -> StartNodes:
    return dataclasses.replace(
        action,
        nodes=tuple(
            dataclasses.replace(spec, options=dataclasses.replace(spec.options, scheduled=True))
            for spec in action.nodes
        ),
    )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Known:
    init_task_id: int
    ordinals: dict[str, int] = dataclasses.field(default_factory=dict)
    """Without gaps, from 1 on."""


class NodeNames:
    """A cache of node names, so that a job extended step by step is not read at each step.

    Nodes are neither renamed nor removed, and the init task distinguishes a leader from a later one
    of the same id. Beyond `names_max` names, the least recently used jobs are forgotten.
    """

    def __init__(self, jobs: Jobs, *, names_max: int = NODES_MAX) -> None:
        self._jobs, self._names_max = jobs, names_max
        self._size = 0
        self._known: collections.OrderedDict[ProcessKey, _Known] = collections.OrderedDict()

    async def of(self, leader: Process) -> Mapping[str, int]:
        """Return the ordinals, 1 .. n, of a job's nodes by their names; none if it leads no job."""
        known = self._known.get(leader.key)
        if known is None or known.init_task_id != leader.init_task_id:
            known = _Known(leader.init_task_id)
        found = await self._jobs.known_nodes(leader.key, after=len(known.ordinals))
        self._forget(leader.key)
        known.ordinals.update(found)
        self._known[leader.key] = known
        self._size += len(known.ordinals)
        while self._size > self._names_max:
            self._forget(next(iter(self._known)))
        return known.ordinals

    def _forget(self, key: ProcessKey) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            self._size -= len(known.ordinals)
