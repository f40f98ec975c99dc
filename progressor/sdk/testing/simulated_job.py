"""A job in memory: the engine's rules for the end of a node, a step of the leader, and requests.

A node whose process starts nodes leads a job within this one. The outcome of a step of such a
process is applied to both jobs before either continues.

===================  ==========================================================================
inner job            its node in the outer job
===================  ==========================================================================
is done, or fails    is done, or fails: both have one process
is cancelled         fails (JOB_CANCELLED); the inner job has failed and can be retried
passes its deadline  fails (DEADLINE_EXCEEDED)
is resumed           runs again; so do outer jobs that failed because of it
has failed           is cancelled, if the outer job ended first
is retried as well   starts again, if the outer job is retried
===================  ==========================================================================
"""

import dataclasses
import datetime as dt
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from progressor import errors, job_errors
from progressor.sdk.codec.codecs import Codec, Payload
from progressor.sdk.codec.wire import duration_from_wire, instant_from_wire
from progressor.sdk.processor.processor import Processor
from progressor.sdk.testing.graph_state import GraphNode, GraphState
from progressor.sdk.testing.rehearsal import STARTS_AT, TIMERS_MAX, Rehearsal
from progressor.sdk.testing.simulated_process import Observer
from progressor.sdk.values.jobs import JobState, NodeOutcome, NodeState
from progressor.sdk.values.namespaces import NamespaceConfig, policy_from_wire
from progressor.sdk.values.processes import ProcessStatus, TaskError, TaskType
from progressor.v1 import nodes_pb2

DEPTH_MAX = 20
"""How many jobs a job can be within, each within the next."""

STEPS_MAX = 1_000_000
"""Nodes that one call of `SimulatedJob.run_nodes` runs."""

Choice = Callable[[Sequence[str]], str]
"""Chooses the next of the running nodes, for example `random.Random(7).choice`."""

DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
_CANCELLED = "JOB_CANCELLED"
_FAILED_CODE = 9
_ABORTED_CODE = 10
_REMOVED = TaskError(code=_FAILED_CODE, reason="PROCESS_REMOVED", message="its process was removed")
_NAMED_MAX = 5
_ACTIVE = frozenset({ProcessStatus.INIT, ProcessStatus.RUNNING})
_RESUMED = frozenset({ProcessStatus.RUNNING, ProcessStatus.FINISHED})
_BROKEN = frozenset({NodeState.FAILED, NodeState.CANCELLED})


def first(names: Sequence[str]) -> str:
    """Return the first name."""
    return names[0]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Processors and configurations by namespace, for a job and the jobs within it."""

    processors: Mapping[str, Processor[Any]]
    configs: Mapping[str, NamespaceConfig]

    def leader(
        self, processor: Processor[Any], process_id: str, observer: Observer
    ) -> Rehearsal[Any]:
        """Return the process of a leader, not started yet."""
        config = self._config_of(processor.name)
        return Rehearsal(processor, process_id, config=config, observer=observer)

    def follower(
        self, spec: nodes_pb2.NodeSpec, namespace: str, process_id: str, observer: Observer
    ) -> Rehearsal[Any]:
        """Return the process of a node, not started yet; the node's own retry policy applies."""
        processor = self.processors.get(namespace)
        if processor is None:
            message = f"no processor for node {spec.name!r}: use `complete` or `fail`"
            raise ValueError(message)
        config = self._config_of(namespace)
        if spec.HasField("retry_policy"):
            policy = policy_from_wire(spec.retry_policy)
            config = dataclasses.replace(config, retry_policy=policy, retry_policies={})
        return Rehearsal(processor, process_id, config=config, observer=observer)

    def _config_of(self, namespace: str) -> NamespaceConfig:
        return self.configs.get(namespace) or NamespaceConfig(name=namespace, processor_targets=())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """The outer job of a job, and the node whose process leads the inner one."""

    job: "SimulatedJob"
    node: str


class SimulatedJob:
    """A job: its graph, its leader unless the engine leads it, and the processes of its nodes."""

    def __init__(
        self,
        *,
        job_id: str,
        namespace: str,
        codec: Codec,
        registry: Registry,
        parent: Parent | None = None,
    ) -> None:
        self.job_id, self.namespace, self.codec = job_id, namespace, codec
        self.registry = registry
        self.graph = GraphState()
        self.state = JobState.RUNNING
        self.detail = ""
        self.deadline: dt.datetime | None = None
        self.retry_count = 0
        self.leader: Rehearsal[Any] | None = None
        self.followers: dict[str, Rehearsal[Any]] = {}
        self.inner: dict[str, SimulatedJob] = {}
        self._parent = parent
        self.depth: int = 0 if parent is None else parent.job.depth + 1
        self._has_expired = False

    def add(self, started: nodes_pb2.StartNodes) -> None:
        """Add nodes; their deadline, if there is one, replaces the job's."""
        self.graph.add(started.nodes)
        self._set_deadline(started)

    def namespace_of(self, name: str) -> str:
        """Return the namespace of a node."""
        return self.graph[name].spec.namespace or self.namespace

    def outcome(self, node: GraphNode) -> NodeOutcome:
        """Return the outcome of a node, as handlers receive it."""
        return NodeOutcome(
            name=node.name,
            state=node.state,
            result=self.codec.decode(node.result),
            error=node.error,
            skipped_because_of=node.skipped_because_of,
        )

    def inputs(self, name: str) -> tuple[NodeOutcome, ...]:
        """Return the outcomes of a node's predecessors, if it has ``wants_results``."""
        spec = self.graph[name].spec
        if not spec.wants_results:
            return ()
        return tuple(self.outcome(self.graph[it]) for it in spec.predecessors)

    async def begin(self, name: str) -> None:
        """Start the process of a node, and apply the outcome of its first step."""
        spec = self.graph[name].spec

        async def settled(started: nodes_pb2.StartNodes | None) -> None:
            await self._node_settled(name, started)

        namespace = self.namespace_of(name)
        process_id = spec.process_id or f"{self.job_id}/{name}"
        follower = self.registry.follower(spec, namespace, process_id, settled)
        self.followers[name] = follower
        args = self.registry.processors[namespace].codec.decode(spec.args)
        try:
            await follower.start(args, nodes=self.inputs(name))
        except (errors.RejectedError, errors.ProcessFailedError):
            # The observer has already ended the node.
            return

    async def leader_settled(self, started: nodes_pb2.StartNodes | None) -> None:
        """Apply a settled step of the leader, and continue."""
        if self.update_from_leader(started):
            await self.advance()

    def update_from_leader(self, started: nodes_pb2.StartNodes | None) -> bool:
        """Update the job from its leader; return whether it can continue."""
        assert self.leader is not None, "the job has no leader of its own"
        if self.state not in {JobState.RUNNING, JobState.FAILED}:
            return False
        if started is not None:
            self.add(started)
        match self.state, self.leader.status:
            case JobState.RUNNING, ProcessStatus.FINISHED:
                self.stop(JobState.DONE)
            case JobState.RUNNING, ProcessStatus.ERROR:
                self.stop(JobState.FAILED, self.leader.detail)
            case _, ProcessStatus.UNSPECIFIED:
                self.stop(JobState.CANCELLED, "its leader was removed")
            case JobState.FAILED, ProcessStatus.FINISHED:
                # A repair has completed it.
                self.state, self.detail = JobState.DONE, ""
            case JobState.FAILED, ProcessStatus.RUNNING:
                self._resume()
                return True
            case _:
                return started is not None
        return False

    async def run_node(self, name: str, *, order: Choice) -> None:
        """Run a node until it ends, or has neither a timer nor nodes that can run."""
        self._expect_running_node(name)
        if name not in self.followers:
            await self.begin(name)
        node, follower = self.graph[name], self.followers[name]
        for _ in range(TIMERS_MAX):
            inner = self.inner.get(name)
            if inner is not None and node.state is NodeState.RUNNING:
                await inner.run_nodes(order=order)
            if follower.timer is None or node.state is not NodeState.RUNNING:
                return
            await follower.run_timer()
        message = f"{TIMERS_MAX} timers of node {name!r} have run, and another is due"
        raise RuntimeError(message)

    async def run_nodes(
        self,
        *,
        order: Choice,
        failing: frozenset[str] = frozenset(),
        results: Mapping[str, Payload] = types.MappingProxyType({}),
    ) -> None:
        """Run nodes until the job has ended, or every running node waits for a request.

        Nodes in `results` and nodes without a processor are completed; nodes in `failing` fail.
        """
        stuck: set[str] = set()
        for _ in range(STEPS_MAX):
            candidates = [it for it in self.graph.named(NodeState.RUNNING) if it not in stuck]
            if self.state is not JobState.RUNNING or not candidates:
                return
            name = order(candidates)
            if name in failing:
                await self.fail_node(name, "failed by the test", "FAILED_PRECONDITION")
            elif name in results or self.namespace_of(name) not in self.registry.processors:
                await self.complete_node(name, results.get(name))
            else:
                await self.run_node(name, order=order)
                if self.graph[name].state is NodeState.RUNNING:
                    stuck.add(name)

    async def complete_node(self, name: str, result: Payload) -> None:
        """End a running node as done."""
        self._expect_own_end(name)
        await self.end(name, NodeState.DONE, result=self.codec.encode(result))

    async def fail_node(self, name: str, message: str, reason: str) -> None:
        """End a running node as failed, as `complete_node`."""
        self._expect_own_end(name)
        error = TaskError(code=_FAILED_CODE, reason=reason, message=message)
        await self.end(name, NodeState.FAILED, error=error)

    async def end(
        self, name: str, state: NodeState, *, result: bytes = b"", error: TaskError | None = None
    ) -> None:
        """End a running node, and continue."""
        self.graph.end(name, state, result=result, error=error)
        await self.advance()

    async def advance(self) -> None:
        """Start ready nodes; if all have ended, run the leader's join, or decide for the engine."""
        if self.state is not JobState.RUNNING:
            return
        self.graph.start()
        if not self.graph.is_whole:
            return
        if self.leader is None:
            self.stop(*_decision(self.graph))
        else:
            await self.leader.join(map(self.outcome, self.graph))

    def stop(self, state: JobState, detail: str = "") -> None:
        """End the job and its unfinished nodes."""
        self.state, self.detail = state, detail
        self.graph.cancel_unstarted()
        # The detail of an inner job already has the prefix.
        cause = detail.removeprefix(f"{_CANCELLED}: ") or "the job has ended"
        why = f"{_CANCELLED}: {cause}"
        error = TaskError(code=_ABORTED_CODE, reason=_CANCELLED, message=cause)
        for name in self.graph.named(NodeState.RUNNING):
            self.graph.end(name, NodeState.CANCELLED, error=error)
            follower, inner = self.followers.get(name), self.inner.get(name)
            if follower is not None and follower.status in _ACTIVE:
                follower.simulated.break_from_outside(why)
            if inner is not None and inner.state is JobState.RUNNING:
                inner.stop(JobState.FAILED, why)

    async def cancel(self, cause: str) -> None:
        """Cancel the job: its leader finishes, or breaks if the job is within another one."""
        self._expect_running()
        if self._parent is not None:
            why = cause or "the job was cancelled"
            await self._break(f"{_CANCELLED}: {why}", reason=_CANCELLED, message=why)
            return
        self.stop(JobState.CANCELLED, cause)
        if self.leader is not None:
            self.leader.simulated.finish()

    async def expire(self) -> None:
        """Let the deadline pass: the job fails, and its leader breaks."""
        if self.deadline is None:
            message = f"job {self.job_id!r} has no deadline"
            raise ValueError(message)
        self._expect_running()
        self._has_expired = True
        await self._break(
            DEADLINE_EXCEEDED,
            reason=DEADLINE_EXCEEDED,
            message="the deadline of its job has passed",
        )

    async def retry(self, due: nodes_pb2.StartNodes) -> tuple[str, ...]:
        """Retry a failed job, with the deadline in `due`; return the nodes that had failed."""
        if self.state is not JobState.FAILED:
            raise job_errors.JobNotFailedError(self.namespace, self.job_id)
        self.state, self.detail = JobState.RUNNING, ""
        self.retry_count += 1
        self.deadline, self._has_expired = None, False
        if self.leader is not None and self.leader.status is ProcessStatus.ERROR:
            self.leader.simulated.resume(with_timer=True)
        self._set_deadline(due)
        failed, broken = self.graph.named(NodeState.FAILED), self.graph.named(*_BROKEN)
        self.graph.retry()
        living = [it for it in broken if self._resume_process(it)]
        if self._parent is not None:
            await self._parent.job.reopen(self._parent.node)
        await self.advance()
        for name in living:
            follower, inner = self.followers[name], self.inner.get(name)
            if inner is not None and inner.state is JobState.FAILED:
                await inner.retry(nodes_pb2.StartNodes())
            else:
                await follower.simulated.restart()
        return failed

    async def reopen(self, name: str) -> None:
        """Set a broken node running again, and continue."""
        if self._reopen(name):
            await self.advance()

    async def _node_settled(self, name: str, started: nodes_pb2.StartNodes | None) -> None:
        """Apply a settled step of a node's process to the node, and to the job that it leads."""
        inner = self.inner.get(name)
        if inner is None and started is not None:
            inner = self.inner[name] = self._job_within(name)
        inner_goes_on = inner is not None and inner.update_from_leader(started)
        if self._update_node(name):
            await self.advance()
        if inner is not None and inner_goes_on:
            await inner.advance()

    def _job_within(self, name: str) -> "SimulatedJob":
        if self.depth == DEPTH_MAX:
            message = f"node {name!r} cannot lead a job: it is within {DEPTH_MAX} others"
            raise RuntimeError(message)
        follower, namespace = self.followers[name], self.namespace_of(name)
        job = SimulatedJob(
            job_id=follower.process_id,
            namespace=namespace,
            codec=self.registry.processors[namespace].codec,
            registry=self.registry,
            parent=Parent(job=self, node=name),
        )
        job.leader = follower
        return job

    def _update_node(self, name: str) -> bool:
        """Update a node from its process; return whether the job can continue."""
        node, follower = self.graph[name], self.followers[name]
        status = follower.status
        if node.state in _BROKEN and status in _RESUMED:
            self._reopen(name)
        if node.state is not NodeState.RUNNING:
            return False
        step = follower.steps[-1] if follower.steps else None
        error = None if step is None else step.error
        if follower.removed_by_request:
            self.graph.end(name, NodeState.FAILED, error=_REMOVED)
        elif status is ProcessStatus.RUNNING:
            node.has_settled = True
        elif status is ProcessStatus.FINISHED:
            result = self.codec.encode(follower.result)
            self.graph.end(name, NodeState.DONE, result=result)
        elif status is ProcessStatus.UNSPECIFIED and error is None:
            # It has removed itself, so its last response is the result.
            response = None if step is None else step.response
            self.graph.end(name, NodeState.DONE, result=self.codec.encode(response))
        else:
            self.graph.end(name, NodeState.FAILED, error=error)
        return True

    def _reopen(self, name: str) -> bool:
        """Set a broken node running again, unless the job is done or cancelled."""
        is_open = self.state in {JobState.RUNNING, JobState.FAILED}
        if not is_open or self.graph[name].state not in _BROKEN:
            return False
        self.graph.reopen(name)
        if self.state is JobState.FAILED:
            self._resume()
            if self.leader is not None and self.leader.status is ProcessStatus.ERROR:
                self.leader.simulated.resume(with_timer=False)
            if self._parent is not None:
                self._parent.job._reopen(self._parent.node)  # noqa: SLF001  # of this class
        return True

    def _resume(self) -> None:
        """Resume a failed job, without a deadline that has passed."""
        self.state, self.detail = JobState.RUNNING, ""
        if self._has_expired:
            self.deadline, self._has_expired = None, False

    def _resume_process(self, name: str) -> bool:
        """Return whether the process of a broken node is resumed, not started again."""
        follower = self.followers.get(name)
        if follower is None:
            return False
        has_begun = any(it.type is TaskType.INIT and it.error is None for it in follower.steps)
        if not has_begun or follower.status is ProcessStatus.UNSPECIFIED:
            del self.followers[name]
            self.inner.pop(name, None)
            return False
        self.graph[name].reset(NodeState.RUNNING)
        return True

    async def _break(self, detail: str, *, reason: str, message: str) -> None:
        """Fail the job, its leader, and its node in the outer job."""
        self.stop(JobState.FAILED, detail)
        if self.leader is not None:
            self.leader.simulated.break_from_outside(detail)
        parent = self._parent
        if parent is not None and parent.job.graph[parent.node].state is NodeState.RUNNING:
            error = TaskError(code=_FAILED_CODE, reason=reason, message=message)
            await parent.job.end(parent.node, NodeState.FAILED, error=error)

    def _set_deadline(self, due: nodes_pb2.StartNodes) -> None:
        match due.WhichOneof("due"):
            case "deadline":
                self.deadline = instant_from_wire(due.deadline)
            case "timeout":
                now = STARTS_AT if self.leader is None else self.leader.now
                self.deadline = now + duration_from_wire(due.timeout)
            case _:
                pass

    def _expect_own_end(self, name: str) -> None:
        self._expect_running_node(name)
        if name in self.inner:
            message = f"node {name!r} leads a job and ends with it: use `inner`"
            raise ValueError(message)

    def _expect_running_node(self, name: str) -> None:
        state = self.graph[name].state
        if state is not NodeState.RUNNING:
            message = f"node {name!r} is {state}, not running"
            raise ValueError(message)

    def _expect_running(self) -> None:
        if self.state.has_ended:
            raise job_errors.JobEndedError(self.namespace, self.job_id)


def _decision(graph: GraphState) -> tuple[JobState, str]:
    """Return the end of a job that the engine leads: its state and its detail."""
    undone = [it for it in graph if it.state is not NodeState.DONE]
    if not undone:
        return JobState.DONE, ""
    failed = [it for it in undone if it.state is NodeState.FAILED][:_NAMED_MAX]
    text = f"{len(undone)} of {len(graph)} nodes are not done"
    causes = "; ".join(map(_cause, failed))
    return JobState.FAILED, f"{text}: {causes}" if causes else text


def _cause(node: GraphNode) -> str:
    error = node.error
    return f"{node.name} failed" + ("" if error is None else f" ({error.reason}: {error.message})")
