"""A job in memory: the test chooses the order in which its nodes end, and their outcomes.

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

import contextlib
import dataclasses
import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from typing_extensions import TypeForm

from progressor import errors, job_errors
from progressor.domain.jobs.roles import NodeCounts
from progressor.sdk.codec.codecs import JSON, Codec, Payload, decoded
from progressor.sdk.codec.kinds import ANYTHING, Decoded
from progressor.sdk.codec.wire import duration_from_wire, instant_from_wire
from progressor.sdk.processor.processor import Processor
from progressor.sdk.testing.graph_state import GraphNode, GraphState
from progressor.sdk.testing.rehearsal import STARTS_AT, TIMERS_MAX, Rehearsal
from progressor.sdk.values.graph import (
    Deadline,
    Graph,
    NewNode,
    due_to_wire,
    graph_from_wire,
    nodes_to_wire,
)
from progressor.sdk.values.jobs import JobState, NodeOutcome, NodeState
from progressor.sdk.values.namespaces import NamespaceConfig, policy_from_wire
from progressor.sdk.values.processes import ProcessStatus, TaskType
from progressor.sdk.values.replies import TaskError
from progressor.v1 import nodes_pb2

DEPTH_MAX = 20
"""How many jobs a job can be within, each within the next."""

STEPS_MAX = 1_000_000
"""Nodes that one call of `JobRehearsal.run_all` runs."""

Choice = Callable[[Sequence[str]], str]
"""Chooses the next of the running nodes, for example `random.Random(7).choice`."""

DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
_CANCELLED = "JOB_CANCELLED"
_FAILED_CODE = 9
_ABORTED_CODE = 10
_REMOVED = TaskError(code=_FAILED_CODE, reason="PROCESS_REMOVED", message="its process was removed")
_TERMINATED = TaskError(code=_FAILED_CODE, reason="PROCESS_TERMINATED", message="")
_NAMED_MAX = 5
_ACTIVE = frozenset({ProcessStatus.INIT, ProcessStatus.RUNNING})
_RESUMED = frozenset({ProcessStatus.RUNNING, ProcessStatus.FINISHED})
_OPEN = frozenset({JobState.RUNNING, JobState.FAILED})
_BROKEN = frozenset({NodeState.FAILED, NodeState.CANCELLED})


def first(names: Sequence[str]) -> str:
    """Return the first name."""
    return names[0]


class JobRehearsal:
    """A job that runs without an engine, by the engine's rules.

    The test ends a node (`complete`, `fail`), or lets the processor of its namespace run it
    (`run`). A job that the engine leads, ``JobRehearsal(graph)``, is done if all its nodes are
    done. The handlers of your own leader, ``await JobRehearsal.led_by(...)``, start nodes and
    decide the outcome of the job. A node whose process starts nodes leads a job within this one
    (`inner`), and ends with it.

    The retry policy of a node applies to its process. Its other options can be read (`node`) but
    have no effect: constraints are satisfied at once, targets are reachable, and no replica is
    lost. Each process has a clock of its own; the deadline of the job passes when the test calls
    `expire`.
    """

    def __init__(  # noqa: PLR0913  # options, keyword-only
        self,
        graph: Graph | None,
        *,
        processors: Iterable[Processor[Any]] = (),
        configs: Iterable[NamespaceConfig] = (),
        job_id: str = "job-1",
        namespace: str = "",
        codec: Codec = JSON,
        deadline: Deadline | None = None,
    ) -> None:
        """Submit a graph and start its first nodes.

        Args:
            graph: As for `Jobs.submit`; None: for `led_by`.
            processors: For the nodes in their namespaces.
            configs: Policies, history and step timeout of namespaces, which otherwise have the
                defaults.
            job_id: The id of the leader.
            namespace: Of the leader and of nodes without a namespace; "": the first processor's.
            codec: For args and results.
            deadline: As for `Jobs.submit`.

        Raises:
            ValueError: The graph is empty, or a node comes after one that is not in the graph.
        """
        self._processors = {it.name: it for it in processors}
        self._configs = {it.name: it for it in configs}
        self._namespace = namespace or next(iter(self._processors), "jobs")
        self._job_id, self._codec = job_id, codec
        self._graph = GraphState()
        self._state, self._detail = JobState.RUNNING, ""
        self._deadline: dt.datetime | None = None
        self._has_expired = False
        self._retry_count = 0
        # None: the engine leads the job.
        self._leader: Rehearsal[Any] | None = None
        self._followers: dict[str, Rehearsal[Any]] = {}
        self._inner: dict[str, JobRehearsal] = {}
        # The outer job, and the node whose process leads this one.
        self._parent: tuple[JobRehearsal, str] | None = None
        self._depth = 0
        if graph is not None:
            nodes = nodes_to_wire(graph, codec)
            self._add(nodes_pb2.StartNodes(nodes=nodes, **due_to_wire(deadline)))
            self._graph.start()

    @classmethod
    async def led_by(
        cls,
        processor: Processor[Any],
        args: Payload = None,
        *,
        processors: Iterable[Processor[Any]] = (),
        configs: Iterable[NamespaceConfig] = (),
        job_id: str = "job-1",
    ) -> Self:
        """Start a process whose handlers lead the job, and return the job.

        Nodes can be in the namespaces of `processor` and `processors`.

        Raises:
            RejectedError, ProcessFailedError: The first step of the leader was rejected or failed.
        """
        job = cls(
            None,
            processors=(processor, *processors),
            configs=configs,
            job_id=job_id,
            namespace=processor.name,
            codec=processor.codec,
        )
        job._leader = Rehearsal(
            processor,
            job_id,
            config=job._config_of(processor.name),
            observer=job._leader_settled,
        )
        await job._leader.start(args)
        return job

    @property
    def job_id(self) -> str:
        """The id of the job, and of the process that leads it."""
        return self._job_id

    @property
    def state(self) -> JobState:
        """The state of the job."""
        return self._state

    @property
    def detail(self) -> str:
        """Why the job failed or was cancelled; "" otherwise."""
        return self._detail

    @property
    def deadline(self) -> dt.datetime | None:
        """When the job fails if it has not ended; None: never."""
        return self._deadline

    @property
    def result(self) -> Payload:
        """The result of the leader; None: none, or the engine leads the job."""
        return self.result_as(ANYTHING)

    def result_as(self, kind: TypeForm[Decoded]) -> Decoded:
        """Return `result` as a `kind`.

        Raises:
            ValueError: The result is not a `kind`, or there is none and `kind` does not admit None.
        """
        if self._leader is None:
            return decoded(self._codec, b"", kind)
        return self._leader.result_as(kind)

    @property
    def retry_count(self) -> int:
        """The number of retries of the job."""
        return self._retry_count

    @property
    def counts(self) -> NodeCounts:
        """The number of nodes in each state."""
        return self._graph.counts

    @property
    def states(self) -> dict[str, NodeState]:
        """The state of each node, in the order in which they were added."""
        return {it.name: it.state for it in self._graph}

    @property
    def running(self) -> tuple[str, ...]:
        """The names of the running nodes."""
        return self._graph.named(NodeState.RUNNING)

    @property
    def attempts(self) -> dict[str, int]:
        """The attempt of each node: 1, plus 1 for each retry and repair."""
        return {it.name: it.attempt for it in self._graph}

    @property
    def outcomes(self) -> dict[str, NodeOutcome]:
        """The outcome of each node, as in a join; unfinished nodes have only a state."""
        return {it.name: self._outcome(it) for it in self._graph}

    @property
    def leader(self) -> Rehearsal[Any]:
        """The process of the leader.

        Raises:
            ValueError: The engine leads the job.
        """
        if self._leader is None:
            message = f"the engine leads job {self._job_id!r}, not a process"
            raise ValueError(message)
        return self._leader

    def node(self, name: str) -> NewNode:
        """Return a node as it was added, as in ``job.node("deploy").options["target"]``.

        Options that were not given are absent.

        Raises:
            KeyError: The job has no such node; all methods that take a name raise it.
        """
        return graph_from_wire([self._graph[name].spec], self._codec)[name]

    def args(self, name: str, kind: TypeForm[Decoded] = ANYTHING) -> Decoded:
        """Return the args of a node as a `kind`.

        Raises:
            ValueError: The args are not a `kind`.
        """
        return decoded(self._codec, self._graph[name].spec.args, kind)

    def inputs(self, name: str) -> tuple[NodeOutcome, ...]:
        """Return the outcomes of a node's predecessors, if it has ``wants_results``."""
        spec = self._graph[name].spec
        if not spec.wants_results:
            return ()
        return tuple(self._outcome(self._graph[it]) for it in spec.predecessors)

    async def process(self, name: str) -> Rehearsal[Any]:
        """Return the process of a node, to call it, repair it and so on; start it if necessary.

        Raises:
            ValueError: The node is not running, or its namespace has no processor.
        """
        node = self._graph[name]
        if name not in self._followers:
            if node.state is not NodeState.RUNNING:
                message = f"node {name!r} has no process, since it is {node.state}"
                raise ValueError(message)
            await self._begin(name)
        return self._followers[name]

    async def inner(self, name: str) -> "JobRehearsal":
        """Return the job that the process of a node leads; start the process if necessary.

        It has the same processors. `run` and `run_all` run the nodes of both jobs, and the end or
        the retry of one affects the other as in the engine.

        Raises:
            ValueError: As for `process`, or the process has started no nodes.
        """
        await self.process(name)
        if name not in self._inner:
            message = f"node {name!r} leads no job"
            raise ValueError(message)
        return self._inner[name]

    async def complete(self, name: str, result: Payload = None) -> tuple[str, ...]:
        """End a running node as done; return the names of the nodes that this starts.

        Raises:
            ValueError: The node is not running, or leads a job.
        """
        before = frozenset(self.running)
        self._expect_own_end(name)
        await self._end(name, NodeState.DONE, result=self._codec.encode(result))
        return tuple(it for it in self.running if it not in before)

    async def fail(
        self, name: str, message: str = "failed by the test", *, reason: str = "FAILED_PRECONDITION"
    ) -> tuple[str, ...]:
        """End a running node as failed; return the names of the nodes that are skipped for it.

        Raises:
            ValueError: The node is not running, or leads a job.
        """
        self._expect_own_end(name)
        error = TaskError(code=_FAILED_CODE, reason=reason, message=message)
        await self._end(name, NodeState.FAILED, error=error)
        return tuple(it.name for it in self._graph if it.skipped_because_of == name)

    async def run(self, name: str, *, order: Choice = first) -> NodeState:
        """Run a running node by its processor until it ends or waits for a request.

        If it leads a job, the nodes of that job run before its timers, as by `run_all`, in the
        given `order`.

        Returns:
            The state of the node: running if it has no timer and waits for a request.

        Raises:
            ValueError: The node is not running, or its namespace has no processor.
            RuntimeError: 10,000 timers of the node have run, and another is due.
        """
        self._expect_running_node(name)
        if name not in self._followers:
            await self._begin(name)
        node, follower = self._graph[name], self._followers[name]
        for _ in range(TIMERS_MAX):
            inner = self._inner.get(name)
            if inner is not None and node.state is NodeState.RUNNING:
                await inner.run_all(order=order)
            if follower.timer is None or node.state is not NodeState.RUNNING:
                return node.state
            await follower.run_timer()
        message = f"{TIMERS_MAX} timers of node {name!r} have run, and another is due"
        raise RuntimeError(message)

    async def run_all(
        self,
        *,
        order: Choice = first,
        failing: Iterable[str] = (),
        results: Mapping[str, Payload] | None = None,
    ) -> JobState:
        """Run nodes one at a time until the job ends, or every running node waits for a request.

        Args:
            order: Chooses the next of the running nodes by name, also in jobs within this one.
            failing: The nodes of this job that fail, even if they have a processor.
            results: The results with which nodes of this job are completed, even if they have a
                processor. Other nodes without a processor are completed without a result.

        Returns:
            The state of the job.
        """
        failing, results = frozenset(failing), results or {}
        stuck: set[str] = set()
        for _ in range(STEPS_MAX):
            candidates = [it for it in self.running if it not in stuck]
            if self._state is not JobState.RUNNING or not candidates:
                break
            name = order(candidates)
            if name in failing:
                await self.fail(name)
            elif name in results or self._namespace_of(name) not in self._processors:
                await self.complete(name, results.get(name))
            elif await self.run(name, order=order) is NodeState.RUNNING:
                stuck.add(name)
        return self._state

    async def repair(self, name: str, args: Payload = None) -> tuple[str, ...]:
        """Repair the process of a failed node; return the skipped nodes that wait for it again.

        Raises:
            RepairFailedError, RejectedError: The repair failed.
            ValueError: The node has no process in error.
        """
        follower = self._followers.get(name)
        is_broken = self._graph[name].state in _BROKEN
        if not is_broken or follower is None or follower.status is not ProcessStatus.ERROR:
            message = f"node {name!r} has no process in error to repair"
            raise ValueError(message)
        skipped = self._graph.named(NodeState.SKIPPED)
        await follower.repair(args)
        return tuple(it for it in skipped if self.states[it] is not NodeState.SKIPPED)

    async def retry(self, *, deadline: Deadline | None = None) -> tuple[str, ...]:
        """Retry a failed job; return the names of the nodes that had failed.

        These nodes start again, and those that were cancelled when the job ended. Failed jobs
        within this one are retried. If this job is within another one, its node runs again.

        Args:
            deadline: The new deadline; None: none.

        Raises:
            JobNotFailedError: The job has not failed.
        """
        if self._state is not JobState.FAILED:
            raise job_errors.JobNotFailedError(self._namespace, self._job_id)
        self._state, self._detail = JobState.RUNNING, ""
        self._retry_count += 1
        self._deadline, self._has_expired = None, False
        if self._leader is not None and self._leader.status is ProcessStatus.ERROR:
            self._leader._resume(with_timer=True)
        self._set_deadline(nodes_pb2.StartNodes(**due_to_wire(deadline)))
        failed, broken = self._graph.named(NodeState.FAILED), self._graph.named(*_BROKEN)
        self._graph.retry()
        living = [it for it in broken if self._resume_process(it)]
        if self._parent is not None:
            outer, node = self._parent
            if outer._reopen(node):
                await outer._advance()
        await self._advance()
        for name in living:
            inner = self._inner.get(name)
            if inner is not None and inner.state is JobState.FAILED:
                await inner.retry()
            else:
                await self._followers[name]._restart()
        return failed

    async def cancel(self, cause: str = "") -> None:
        """Cancel the job: its unfinished nodes are cancelled, and jobs within this one fail.

        A job that is within another one fails, and so do its leader and its node.

        Raises:
            JobEndedError: The job has already ended.
        """
        self._expect_running()
        if self._parent is not None:
            why = cause or "the job was cancelled"
            await self._break(f"{_CANCELLED}: {why}", reason=_CANCELLED, message=why)
            return
        self._stop(JobState.CANCELLED, cause)
        if self._leader is not None:
            self._leader._finish(detail=f"{_CANCELLED}: {cause or 'the job was cancelled'}")

    async def expire(self) -> None:
        """Let the deadline pass: the job fails with DEADLINE_EXCEEDED, and its nodes are cancelled.

        Its leader breaks; if the job is within another one, its node fails. It can be retried.

        Raises:
            ValueError: The job has no deadline.
            JobEndedError: The job has already ended.
        """
        if self._deadline is None:
            message = f"job {self._job_id!r} has no deadline"
            raise ValueError(message)
        self._expect_running()
        self._has_expired = True
        await self._break(
            DEADLINE_EXCEEDED,
            reason=DEADLINE_EXCEEDED,
            message="the deadline of its job has passed",
        )

    def _add(self, started: nodes_pb2.StartNodes) -> None:
        """Add nodes; their deadline, if there is one, replaces the job's."""
        self._graph.add(started.nodes)
        self._set_deadline(started)

    def _config_of(self, namespace: str) -> NamespaceConfig:
        return self._configs.get(namespace) or NamespaceConfig(name=namespace, processor_targets=())

    def _namespace_of(self, name: str) -> str:
        """Return the namespace of a node."""
        return self._graph[name].spec.namespace or self._namespace

    def _outcome(self, node: GraphNode) -> NodeOutcome:
        """Return the outcome of a node, as handlers receive it."""
        return NodeOutcome(
            name=node.name,
            state=node.state,
            result=self._codec.decode(node.result),
            error=node.error,
            skipped_because_of=node.skipped_because_of,
        )

    async def _begin(self, name: str) -> None:
        """Start the process of a node, and apply the outcome of its first step."""
        spec, namespace = self._graph[name].spec, self._namespace_of(name)
        processor = self._processors.get(namespace)
        if processor is None:
            message = f"no processor for node {name!r}: use `complete` or `fail`"
            raise ValueError(message)
        config = self._config_of(namespace)
        if spec.HasField("retry_policy"):
            policy = policy_from_wire(spec.retry_policy)
            config = dataclasses.replace(config, retry_policy=policy, retry_policies={})

        async def settled(started: nodes_pb2.StartNodes | None) -> None:
            await self._node_settled(name, started)

        process_id = spec.process_id or f"{self._job_id}/{name}"
        follower = Rehearsal(processor, process_id, config=config, observer=settled)
        self._followers[name] = follower
        with contextlib.suppress(errors.RejectedError, errors.ProcessFailedError):
            # The observer has already ended the node.
            await follower.start(processor.codec.decode(spec.args), nodes=self.inputs(name))

    async def _leader_settled(self, started: nodes_pb2.StartNodes | None) -> None:
        """Apply a settled step of the leader, and continue."""
        if self._update_from_leader(started):
            await self._advance()

    def _update_from_leader(self, started: nodes_pb2.StartNodes | None) -> bool:
        """Update the job from its leader; return whether it can continue."""
        assert self._leader is not None, "the job has no leader of its own"
        if self._state not in _OPEN or self._ends_with(self._leader):
            return False
        if started is not None:
            self._add(started)
        match self._state, self._leader.status:
            case JobState.RUNNING, ProcessStatus.FINISHED:
                self._stop(JobState.DONE)
            case JobState.RUNNING, ProcessStatus.ERROR:
                self._stop(JobState.FAILED, self._leader.detail)
            case _, ProcessStatus.UNSPECIFIED:
                self._stop(JobState.CANCELLED, "its leader was removed")
            case JobState.FAILED, ProcessStatus.FINISHED:
                # A repair has completed it.
                self._state, self._detail = JobState.DONE, ""
            case JobState.FAILED, ProcessStatus.RUNNING:
                self._resume()
                return True
            case _:
                return started is not None
        return False

    def _ends_with(self, leader: Rehearsal[Any]) -> bool:
        """End the job if its leader was terminated; one that has failed cannot be retried then."""
        if leader.status is not ProcessStatus.FINISHED or not leader.detail:
            return False
        self._stop(JobState.CANCELLED, leader.detail)
        return True

    async def _end(
        self, name: str, state: NodeState, *, result: bytes = b"", error: TaskError | None = None
    ) -> None:
        """End a running node, and continue."""
        self._graph.end(name, state, result=result, error=error)
        await self._advance()

    async def _advance(self) -> None:
        """Start ready nodes; if all have ended, run the leader's join, or decide for the engine."""
        if self._state is not JobState.RUNNING:
            return
        self._graph.start()
        if not self._graph.is_whole:
            return
        if self._leader is None:
            self._stop(*_decision(self._graph))
        else:
            await self._leader.join(map(self._outcome, self._graph))

    def _stop(self, state: JobState, detail: str = "") -> None:
        """End the job and its unfinished nodes."""
        self._state, self._detail = state, detail
        self._graph.cancel_unstarted()
        # The detail of an inner job already has the prefix.
        cause = detail.removeprefix(f"{_CANCELLED}: ") or "the job has ended"
        why = f"{_CANCELLED}: {cause}"
        error = TaskError(code=_ABORTED_CODE, reason=_CANCELLED, message=cause)
        for name in self._graph.named(NodeState.RUNNING):
            self._graph.end(name, NodeState.CANCELLED, error=error)
            follower, inner = self._followers.get(name), self._inner.get(name)
            if follower is not None and follower.status in _ACTIVE:
                follower._break_from_outside(why)
            if inner is not None and inner.state is JobState.RUNNING:
                inner._stop(JobState.FAILED, why)

    async def _node_settled(self, name: str, started: nodes_pb2.StartNodes | None) -> None:
        """Apply a settled step of a node's process to the node, and to the job that it leads."""
        inner = self._inner.get(name)
        if inner is None and started is not None:
            inner = self._inner[name] = self._job_within(name)
        inner_goes_on = inner is not None and inner._update_from_leader(started)
        if self._update_node(name):
            await self._advance()
        if inner is not None and inner_goes_on:
            await inner._advance()

    def _job_within(self, name: str) -> "JobRehearsal":
        if self._depth == DEPTH_MAX:
            message = f"node {name!r} cannot lead a job: it is within {DEPTH_MAX} others"
            raise RuntimeError(message)
        follower, namespace = self._followers[name], self._namespace_of(name)
        job = JobRehearsal(
            None,
            processors=self._processors.values(),
            configs=self._configs.values(),
            job_id=follower.process_id,
            namespace=namespace,
            codec=self._processors[namespace].codec,
        )
        job._leader, job._parent, job._depth = follower, (self, name), self._depth + 1
        return job

    def _update_node(self, name: str) -> bool:
        """Update a node from its process; return whether the job can continue."""
        node, follower = self._graph[name], self._followers[name]
        status = follower.status
        if node.state in _BROKEN and status in _RESUMED:
            self._reopen(name)
        if node.state is not NodeState.RUNNING:
            return False
        step = follower.steps[-1] if follower.steps else None
        error = None if step is None else step.error
        if follower.removed_by_request:
            self._graph.end(name, NodeState.FAILED, error=_REMOVED)
        elif status is ProcessStatus.RUNNING:
            node.has_settled = True
        elif status is ProcessStatus.FINISHED and follower.detail:
            self._end_terminated(name)
        elif status is ProcessStatus.FINISHED:
            result = self._codec.encode(follower.result)
            self._graph.end(name, NodeState.DONE, result=result)
        elif status is ProcessStatus.UNSPECIFIED and error is None:
            # It has removed itself, so its last response is the result.
            response = None if step is None else step.response
            self._graph.end(name, NodeState.DONE, result=self._codec.encode(response))
        else:
            self._graph.end(name, NodeState.FAILED, error=error)
        return True

    def _end_terminated(self, name: str) -> None:
        error = dataclasses.replace(_TERMINATED, message=self._followers[name].detail)
        self._graph.end(name, NodeState.FAILED, error=error)

    def _reopen(self, name: str) -> bool:
        """Set a broken node running again, unless the job is done or cancelled."""
        if self._state not in _OPEN or self._graph[name].state not in _BROKEN:
            return False
        self._graph.reopen(name)
        if self._state is JobState.FAILED:
            self._resume()
            if self._leader is not None and self._leader.status is ProcessStatus.ERROR:
                self._leader._resume(with_timer=False)
            if self._parent is not None:
                outer, node = self._parent
                outer._reopen(node)
        return True

    def _resume(self) -> None:
        """Resume a failed job, without a deadline that has passed."""
        self._state, self._detail = JobState.RUNNING, ""
        if self._has_expired:
            self._deadline, self._has_expired = None, False

    def _resume_process(self, name: str) -> bool:
        """Return whether the process of a broken node is resumed, not started again."""
        follower = self._followers.get(name)
        if follower is None:
            return False
        if follower.status is ProcessStatus.FINISHED:
            # It was terminated, and fails its node again.
            self._graph[name].reset(NodeState.RUNNING)
            self._end_terminated(name)
            return False
        has_begun = any(it.type is TaskType.INIT and it.error is None for it in follower.steps)
        if not has_begun or follower.status is ProcessStatus.UNSPECIFIED:
            del self._followers[name]
            self._inner.pop(name, None)
            return False
        self._graph[name].reset(NodeState.RUNNING)
        return True

    async def _break(self, detail: str, *, reason: str, message: str) -> None:
        """Fail the job, its leader, and its node in the outer job."""
        self._stop(JobState.FAILED, detail)
        if self._leader is not None:
            self._leader._break_from_outside(detail)
        if self._parent is None:
            return
        outer, node = self._parent
        if outer.states[node] is NodeState.RUNNING:
            error = TaskError(code=_FAILED_CODE, reason=reason, message=message)
            await outer._end(node, NodeState.FAILED, error=error)

    def _set_deadline(self, due: nodes_pb2.StartNodes) -> None:
        match due.WhichOneof("due"):
            case "deadline":
                self._deadline = instant_from_wire(due.deadline)
            case "timeout":
                now = STARTS_AT if self._leader is None else self._leader.now
                self._deadline = now + duration_from_wire(due.timeout)
            case _:
                pass

    def _expect_own_end(self, name: str) -> None:
        self._expect_running_node(name)
        if name in self._inner:
            message = f"node {name!r} leads a job and ends with it: use `inner`"
            raise ValueError(message)

    def _expect_running_node(self, name: str) -> None:
        state = self._graph[name].state
        if state is not NodeState.RUNNING:
            message = f"node {name!r} is {state}, not running"
            raise ValueError(message)

    def _expect_running(self) -> None:
        if self._state.has_ended:
            raise job_errors.JobEndedError(self._namespace, self._job_id)


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
