"""A job in memory: the test chooses the order in which its nodes end, and their outcomes."""

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any, Self

from typing_extensions import TypeForm

from progressor.sdk.codec.codecs import JSON, Codec, Payload, decoded
from progressor.sdk.codec.kinds import ANYTHING, Decoded
from progressor.sdk.processor.processor import Processor
from progressor.sdk.testing.rehearsal import Rehearsal
from progressor.sdk.testing.simulated_job import Choice, Registry, SimulatedJob, first
from progressor.sdk.values.graph import (
    Deadline,
    Graph,
    NewNode,
    due_to_wire,
    graph_from_wire,
    nodes_to_wire,
)
from progressor.sdk.values.jobs import JobState, NodeCounts, NodeOutcome, NodeState
from progressor.sdk.values.namespaces import NamespaceConfig
from progressor.sdk.values.processes import ProcessStatus
from progressor.v1 import nodes_pb2

_BROKEN = frozenset({NodeState.FAILED, NodeState.CANCELLED})


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
        registry = Registry(
            processors={it.name: it for it in processors}, configs={it.name: it for it in configs}
        )
        namespace = namespace or next(iter(registry.processors), "jobs")
        self._job = SimulatedJob(job_id=job_id, namespace=namespace, codec=codec, registry=registry)
        if graph is not None:
            nodes = nodes_to_wire(graph, codec)
            self._job.add(nodes_pb2.StartNodes(nodes=nodes, **due_to_wire(deadline)))
            self._job.graph.start()

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
        rehearsal = cls(
            None,
            processors=(processor, *processors),
            configs=configs,
            job_id=job_id,
            namespace=processor.name,
            codec=processor.codec,
        )
        job = rehearsal._job
        job.leader = job.registry.leader(processor, job_id, job.leader_settled)
        await job.leader.start(args)
        return rehearsal

    @property
    def job_id(self) -> str:
        """The id of the job, and of the process that leads it."""
        return self._job.job_id

    @property
    def state(self) -> JobState:
        """The state of the job."""
        return self._job.state

    @property
    def detail(self) -> str:
        """Why the job failed or was cancelled; "" otherwise."""
        return self._job.detail

    @property
    def deadline(self) -> dt.datetime | None:
        """When the job fails if it has not ended; None: never."""
        return self._job.deadline

    @property
    def result(self) -> Payload:
        """The result of the leader; None: none, or the engine leads the job."""
        return self.result_as(ANYTHING)

    def result_as(self, kind: TypeForm[Decoded]) -> Decoded:
        """Return `result` as a `kind`.

        Raises:
            ValueError: The result is not a `kind`, or there is none and `kind` does not admit None.
        """
        leader = self._job.leader
        if leader is None:
            return decoded(self._job.codec, b"", kind)
        return leader.result_as(kind)

    @property
    def retry_count(self) -> int:
        """The number of retries of the job."""
        return self._job.retry_count

    @property
    def counts(self) -> NodeCounts:
        """The number of nodes in each state."""
        return self._job.graph.counts

    @property
    def states(self) -> dict[str, NodeState]:
        """The state of each node, in the order in which they were added."""
        return {it.name: it.state for it in self._job.graph}

    @property
    def running(self) -> tuple[str, ...]:
        """The names of the running nodes."""
        return self._job.graph.named(NodeState.RUNNING)

    @property
    def attempts(self) -> dict[str, int]:
        """The attempt of each node: 1, plus 1 for each retry and repair."""
        return {it.name: it.attempt for it in self._job.graph}

    @property
    def outcomes(self) -> dict[str, NodeOutcome]:
        """The outcome of each node, as in a join; unfinished nodes have only a state."""
        return {it.name: self._job.outcome(it) for it in self._job.graph}

    @property
    def leader(self) -> Rehearsal[Any]:
        """The process of the leader.

        Raises:
            ValueError: The engine leads the job.
        """
        if self._job.leader is None:
            message = f"the engine leads job {self._job.job_id!r}, not a process"
            raise ValueError(message)
        return self._job.leader

    def node(self, name: str) -> NewNode:
        """Return a node as it was added, as in ``job.node("deploy").options["target"]``.

        Options that were not given are absent.

        Raises:
            KeyError: The job has no such node; all methods that take a name raise it.
        """
        return graph_from_wire([self._job.graph[name].spec], self._job.codec)[name]

    def args(self, name: str, kind: TypeForm[Decoded] = ANYTHING) -> Decoded:
        """Return the args of a node as a `kind`.

        Raises:
            ValueError: The args are not a `kind`.
        """
        return decoded(self._job.codec, self._job.graph[name].spec.args, kind)

    def inputs(self, name: str) -> tuple[NodeOutcome, ...]:
        """Return the outcomes of a node's predecessors, if it has ``wants_results``."""
        return self._job.inputs(name)

    async def process(self, name: str) -> Rehearsal[Any]:
        """Return the process of a node, to call it, repair it and so on; start it if necessary.

        Raises:
            ValueError: The node is not running, or its namespace has no processor.
        """
        node = self._job.graph[name]
        if name not in self._job.followers:
            if node.state is not NodeState.RUNNING:
                message = f"node {name!r} has no process, since it is {node.state}"
                raise ValueError(message)
            await self._job.begin(name)
        return self._job.followers[name]

    async def inner(self, name: str) -> "JobRehearsal":
        """Return the job that the process of a node leads; start the process if necessary.

        It has the same processors. `run` and `run_all` run the nodes of both jobs, and the end or
        the retry of one affects the other as in the engine.

        Raises:
            ValueError: As for `process`, or the process has started no nodes.
        """
        await self.process(name)
        if name not in self._job.inner:
            message = f"node {name!r} leads no job"
            raise ValueError(message)
        return self._of(self._job.inner[name])

    async def complete(self, name: str, result: Payload = None) -> tuple[str, ...]:
        """End a running node as done; return the names of the nodes that this starts.

        Raises:
            ValueError: The node is not running, or leads a job.
        """
        before = frozenset(self.running)
        await self._job.complete_node(name, result)
        return tuple(it for it in self.running if it not in before)

    async def fail(
        self, name: str, message: str = "failed by the test", *, reason: str = "FAILED_PRECONDITION"
    ) -> tuple[str, ...]:
        """End a running node as failed; return the names of the nodes that are skipped for it.

        Raises:
            ValueError: The node is not running, or leads a job.
        """
        await self._job.fail_node(name, message, reason)
        return tuple(it.name for it in self._job.graph if it.skipped_because_of == name)

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
        await self._job.run_node(name, order=order)
        return self._job.graph[name].state

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
        await self._job.run_nodes(order=order, failing=frozenset(failing), results=results or {})
        return self._job.state

    async def repair(self, name: str, args: Payload = None) -> tuple[str, ...]:
        """Repair the process of a failed node; return the skipped nodes that wait for it again.

        Raises:
            RepairFailedError, RejectedError: The repair failed.
            ValueError: The node has no process in error.
        """
        follower = self._job.followers.get(name)
        is_broken = self._job.graph[name].state in _BROKEN
        if not is_broken or follower is None or follower.status is not ProcessStatus.ERROR:
            message = f"node {name!r} has no process in error to repair"
            raise ValueError(message)
        skipped = self._job.graph.named(NodeState.SKIPPED)
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
        return await self._job.retry(nodes_pb2.StartNodes(**due_to_wire(deadline)))

    async def cancel(self, cause: str = "") -> None:
        """Cancel the job: its unfinished nodes are cancelled, and jobs within this one fail.

        A job that is within another one fails, and so do its leader and its node.

        Raises:
            JobEndedError: The job has already ended.
        """
        await self._job.cancel(cause)

    async def expire(self) -> None:
        """Let the deadline pass: the job fails with DEADLINE_EXCEEDED, and its nodes are cancelled.

        Its leader breaks; if the job is within another one, its node fails. It can be retried.

        Raises:
            ValueError: The job has no deadline.
            JobEndedError: The job has already ended.
        """
        await self._job.expire()

    @classmethod
    def _of(cls, job: SimulatedJob) -> "JobRehearsal":
        rehearsal = JobRehearsal.__new__(JobRehearsal)
        rehearsal._job = job  # noqa: SLF001  # of this class
        return rehearsal
