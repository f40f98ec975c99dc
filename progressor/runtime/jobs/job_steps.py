"""Graphs: what a step has to do with jobs, before and after its processor is asked.

The leader of a submitted job is carried by the engine itself: its init starts the nodes that its
args hold, its join decides how the job ends.
"""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

from progressor import job_errors
from progressor.domain.jobs.graph import GraphError, NodePlan, decode_graph, plan_nodes
from progressor.domain.jobs.job import StartNodes
from progressor.domain.processes.intent import (
    Complete,
    Failed,
    Intent,
    Outcome,
    Rejected,
    Succeeded,
)
from progressor.domain.processes.process import Leadership, Part, ProcessKey
from progressor.domain.processes.task import NodeOutcome, NodeState, RunningTask, TaskType
from progressor.runtime.jobs.node_names import KnownNodes, NodeNames

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
_NO_PART = Part()


class Jobs(KnownNodes, Protocol):
    """What a step needs of storage's jobs."""

    async def outcomes(self, key: ProcessKey, *, bytes_max: int) -> tuple[NodeOutcome, ...] | None:
        """Return how all nodes of a job have ended; None if that is more than so many bytes."""

    async def inputs(
        self, leader: ProcessKey, node: int, *, bytes_max: int
    ) -> tuple[NodeOutcome, ...] | None:
        """Return how the predecessors of a node have ended, in the same way."""

    async def failures(
        self, key: ProcessKey, *, limit: int
    ) -> tuple[int, int, tuple[NodeOutcome, ...]]:
        """Return how many nodes a job has, how many are not done, and the first that failed."""


class JobSteps:
    """Reads what a step has to know of a job, and plans what it adds to one."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs, self._names = jobs, NodeNames(jobs)

    async def handed(self, task: RunningTask, part: Part) -> RunningTask | Outcome:
        """Return a task with what its processor is to know of other nodes.

        Or what came of it at once: the engine leads the job itself, or that is too much to tell.
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
        part = task.process.part or _NO_PART
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
                reason="INVALID_ANSWER",
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
                    # From the submission on, not from this step.
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
            # Removed since it was claimed, and the lease with it: nothing of this will be written.
            return Failed(code=_ABORTED, reason=error.reason, message=str(error), retryable=True)
        if not missing:
            return Succeeded(Intent(action=Complete()))
        told = "; ".join(_told(node) for node in failed)
        message = f"{missing} of {count} nodes are not done" + (f": {told}" if told else "")
        return Failed(code=_ABORTED, reason="JOB_FAILED", message=message, retryable=False)


def _told(node: NodeOutcome) -> str:
    assert node.state is NodeState.FAILED, "what did not fail has no reason"
    error = node.error
    why = "" if error is None else f" ({error.reason}: {error.message})"
    return f"{node.name} failed{why}"


def _scheduled(action: StartNodes) -> StartNodes:
    """Return an action whose nodes know that a schedule started their job."""
    return dataclasses.replace(
        action,
        nodes=tuple(
            dataclasses.replace(spec, options=dataclasses.replace(spec.options, scheduled=True))
            for spec in action.nodes
        ),
    )
