"""A job in memory: its nodes end in the order, and in the way, that the test chooses."""

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any, Self

from typing_extensions import TypeForm

from progressor.sdk.codec.codecs import JSON, Codec, Payload, decoded
from progressor.sdk.codec.kinds import ANYTHING, Asked
from progressor.sdk.processor.processor import Processor
from progressor.sdk.testing.carried_job import CarriedJob
from progressor.sdk.testing.cast import Cast
from progressor.sdk.testing.rehearsal import Rehearsal
from progressor.sdk.testing.running import (
    Choice,
    complete_node,
    expect_running,
    fail_node,
    first,
    run_node,
    run_nodes,
)
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
    """A graph that runs without an engine, by its rules; the test says which node ends when.

    A node is ended by hand (`complete`, `fail`), or carried out by the processor of its namespace
    (`run`), where the rehearsal has one. Led by the engine, ``JobRehearsal(graph)``, the job is
    done if all its nodes are; led by a processor of one's own, ``await JobRehearsal.led_by(...)``,
    it is what the handlers decide, which start nodes and hear of their end. A node whose process
    starts nodes leads a job within this one (`inner`), and ends as that does.

    A node's retry policy governs the attempts of its process. Its other options are shown (`node`)
    and change nothing: its constraints are granted at once, its target is there, and no replica is
    lost. The deadline passes when the test says so (`expire`), whatever the clocks of the processes
    say: each has its own.
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
        """Start the nodes of a graph that nothing keeps; None: for `led_by`.

        Args:
            graph: As it would be submitted.
            processors: Who can carry out nodes, by their names, which are namespaces.
            configs: Whose policies, history and step timeout apply, by their names; other
                namespaces have the defaults.
            job_id: The id of the leader.
            namespace: Its namespace, and that of nodes which name none; "": the first processor's.
            codec: Of args and results.
            deadline: As it would be submitted: an aware datetime, or seconds or a timedelta from
                the submission on; None: none.

        Raises:
            ValueError: The graph is empty, or its nodes come after some that are not there.
        """
        cast = Cast(
            processors={it.name: it for it in processors}, configs={it.name: it for it in configs}
        )
        namespace = namespace or next(iter(cast.processors), "jobs")
        self._job = CarriedJob(job_id=job_id, namespace=namespace, codec=codec, cast=cast)
        if graph is not None:
            nodes = nodes_to_wire(graph, codec)
            self._job.add(nodes_pb2.StartNodes(nodes=nodes, **due_to_wire(deadline)))
            self._job.standing.start()

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
        """Start a process whose handlers lead the job, and return the job with what they started.

        The `processor` carries out nodes too, as those of `processors` do.

        Raises:
            RejectedError, ProcessFailedError: Its first step was refused, or has failed.
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
        job.leader = job.cast.leader(processor, job_id, job.leader_settled)
        await job.leader.start(args)
        return rehearsal

    @property
    def job_id(self) -> str:
        """The id of the job, and of the process that leads it."""
        return self._job.job_id

    @property
    def state(self) -> JobState:
        """Where the job is."""
        return self._job.state

    @property
    def detail(self) -> str:
        """Why it has failed, or was cancelled; "" otherwise."""
        return self._job.detail

    @property
    def deadline(self) -> dt.datetime | None:
        """When it fails if it has not ended by then; None: never."""
        return self._job.deadline

    @property
    def result(self) -> Payload:
        """What a leader of one's own has completed with; None: nothing, or the engine leads."""
        return self.result_as(ANYTHING)

    def result_as(self, kind: TypeForm[Asked]) -> Asked:
        """Return `result`, checked to be a `kind`.

        Raises:
            ValueError: It is not, or there is none, and `kind` does not admit None.
        """
        leader = self._job.leader
        if leader is None:
            return decoded(self._job.codec, b"", kind)
        return leader.result_as(kind)

    @property
    def retry_count(self) -> int:
        """How often it was retried."""
        return self._job.retry_count

    @property
    def counts(self) -> NodeCounts:
        """How many nodes are in which state."""
        return self._job.standing.counts

    @property
    def states(self) -> dict[str, NodeState]:
        """The state of each node, as they were added."""
        return {it.name: it.state for it in self._job.standing}

    @property
    def running(self) -> tuple[str, ...]:
        """The nodes that have been started and have not ended."""
        return self._job.standing.named(NodeState.RUNNING)

    @property
    def attempts(self) -> dict[str, int]:
        """How often each node has begun: once, and once more for each retry and repair."""
        return {it.name: it.attempt for it in self._job.standing}

    @property
    def outcomes(self) -> dict[str, NodeOutcome]:
        """How each node stands: for those that have ended, what a join hears of them."""
        return {it.name: self._job.outcome(it) for it in self._job.standing}

    @property
    def leader(self) -> Rehearsal[Any]:
        """The process of a leader of one's own.

        Raises:
            ValueError: The engine leads the job.
        """
        if self._job.leader is None:
            message = f"job {self._job.job_id!r} is led by the engine"
            raise ValueError(message)
        return self._job.leader

    def node(self, name: str) -> NewNode:
        """Return a node as it was added, with its args, what it comes after, and its options.

        ``job.node("deploy").options["target"]``; an option that was left out is not there.

        Raises:
            KeyError: There is none, as for all that takes a name.
        """
        return graph_from_wire([self._job.standing[name].spec], self._job.codec)[name]

    def args(self, name: str, kind: TypeForm[Asked] = ANYTHING) -> Asked:
        """Return the args of a node, as a `kind`.

        Raises:
            ValueError: They are not.
        """
        return decoded(self._job.codec, self._job.standing[name].spec.args, kind)

    def inputs(self, name: str) -> tuple[NodeOutcome, ...]:
        """Return the outcomes of a node's predecessors, if it asked for them."""
        return self._job.inputs(name)

    async def process(self, name: str) -> Rehearsal[Any]:
        """Return the process of a node, started if it was not, to be called, repaired and so on.

        Raises:
            ValueError: The node has not been started, or its namespace has no processor.
        """
        node = self._job.standing[name]
        if name not in self._job.followers:
            if node.state is not NodeState.RUNNING:
                message = f"node {name!r} is {node.state}, and has no process"
                raise ValueError(message)
            await self._job.begin(name)
        return self._job.followers[name]

    async def inner(self, name: str) -> "JobRehearsal":
        """Return the job that the process of a node leads, started if it was not.

        It is of the same processors, and goes on with this one: `run` and `run_all` carry out both,
        and what ends or retries one of them does to the other what the engine does.

        Raises:
            ValueError: As for `process`; or that process has started no nodes.
        """
        await self.process(name)
        if name not in self._job.inner:
            message = f"node {name!r} leads no job"
            raise ValueError(message)
        return self._of(self._job.inner[name])

    async def complete(self, name: str, result: Payload = None) -> tuple[str, ...]:
        """End a running node as done; return the names of those that are started by it.

        Raises:
            ValueError: It is not running, or leads a job, as which it ends.
        """
        before = frozenset(self.running)
        await complete_node(self._job, name, result)
        return tuple(it for it in self.running if it not in before)

    async def fail(
        self, name: str, message: str = "told to fail", *, reason: str = "FAILED_PRECONDITION"
    ) -> tuple[str, ...]:
        """End a running node as failed; return the names of those that are skipped because of it.

        Raises:
            ValueError: It is not running, or leads a job, as which it ends.
        """
        await fail_node(self._job, name, message, reason)
        return tuple(it.name for it in self._job.standing if it.skipped_because_of == name)

    async def run(self, name: str, *, order: Choice = first) -> NodeState:
        """Have a running node carried out until it ends, or waits for a request.

        If it leads a job, the nodes of that are carried out before its timers, as by `run_all`, in
        the `order` that is given.

        Returns:
            Its state: running only where it has no timer, and waits to be called.

        Raises:
            ValueError: It is not running, or its namespace has no processor.
            RuntimeError: Its timers follow each other without an end.
        """
        expect_running(self._job, name)
        await run_node(self._job, name, order=order)
        return self._job.standing[name].state

    async def run_all(
        self,
        *,
        order: Choice = first,
        failing: Iterable[str] = (),
        results: Mapping[str, Payload] | None = None,
    ) -> JobState:
        """End nodes one after the other until the job has, or all that runs waits to be called.

        Args:
            order: Chooses the next among the names of those that run, in jobs within this one too.
            failing: The nodes of this job that fail, even if they have a processor.
            results: Nodes of this job that are completed with these, even if they have a processor.
                Other nodes without a processor are completed without a result.

        Returns:
            The state of the job.
        """
        await run_nodes(self._job, order=order, failing=frozenset(failing), results=results)
        return self._job.state

    async def repair(self, name: str, args: Payload = None) -> tuple[str, ...]:
        """Repair the process of a failed node, which runs again; return who waits for it again.

        Raises:
            RepairFailedError, RejectedError: It is in error as it was.
            ValueError: The node has not failed in a process of a processor here.
        """
        follower = self._job.followers.get(name)
        is_broken = self._job.standing[name].state in _BROKEN
        if not is_broken or follower is None or follower.status is not ProcessStatus.ERROR:
            message = f"node {name!r} has no broken process to repair"
            raise ValueError(message)
        skipped = self._job.standing.named(NodeState.SKIPPED)
        await follower.repair(args)
        return tuple(it for it in skipped if self.states[it] is not NodeState.SKIPPED)

    async def retry(self, *, deadline: Deadline | None = None) -> tuple[str, ...]:
        """Go on with a failed job; return the names of the nodes that had failed.

        They begin again, and so does what was stopped or cancelled when the job ended; failed jobs
        within this one are retried. If it is within another one, its node runs again there.

        Args:
            deadline: The new one, from now on; None: there is none any more.

        Raises:
            JobNotFailedError: It has not failed.
        """
        return await self._job.retry(nodes_pb2.StartNodes(**due_to_wire(deadline)))

    async def cancel(self, cause: str = "") -> None:
        """End the job: what has not ended is cancelled, jobs within this one have failed.

        A job that is within another one has failed as well, with its leader and its node.

        Raises:
            JobEndedError: It has ended already.
        """
        await self._job.cancel(cause)

    async def expire(self) -> None:
        """Have the deadline pass: the job fails (DEADLINE_EXCEEDED), what has not ended is stopped.

        The leader breaks, and so does its node, if the job is within another one. A retry brings
        all of it back.

        Raises:
            ValueError: The job has no deadline.
            JobEndedError: It has ended already.
        """
        await self._job.expire()

    @classmethod
    def _of(cls, job: CarriedJob) -> "JobRehearsal":
        rehearsal = JobRehearsal.__new__(JobRehearsal)
        rehearsal._job = job  # noqa: SLF001  # of this class
        return rehearsal
