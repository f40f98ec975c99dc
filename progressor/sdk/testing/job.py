"""A job in memory: its nodes end in the order, and in the way, that the test chooses."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from progressor import errors, job_errors
from progressor.sdk.codecs import JSON, Codec, Payload
from progressor.sdk.graph import Graph, nodes_to_wire
from progressor.sdk.jobs import JobState, NodeCounts, NodeOutcome, NodeState
from progressor.sdk.processor import Processor
from progressor.sdk.testing.rehearsal import Rehearsal
from progressor.sdk.testing.standing import Standing, StandingNode
from progressor.sdk.values import ProcessStatus, TaskError, TaskType
from progressor.v1 import nodes_pb2

STEPS_MAX = 1_000_000
"""Steps of nodes that one call of `JobRehearsal.run_all` takes."""

_BROUGHT_BACK = frozenset({ProcessStatus.RUNNING, ProcessStatus.FINISHED})
_FAILED_CODE = 9
_ABORTED_CODE = 10
_NAMED_MAX = 5

Choice = Callable[[Sequence[str]], str]
"""Which of the running nodes goes on: `random.Random(7).choice`, say."""


def first(names: Sequence[str]) -> str:
    """Return the first of some names."""
    return names[0]


class JobRehearsal:
    """A graph that runs without an engine, by its rules; the test says which node ends when.

    A node is ended by hand (`complete`, `fail`), or carried out by the processor of its namespace
    (`run`), where the rehearsal has one. Led by the engine, ``JobRehearsal(graph)``, the job is
    done if all its nodes are; led by a processor of one's own, ``await JobRehearsal.led_by(...)``,
    it is what the handlers decide, which start nodes and hear of their end.

    Constraints, targets and policies of single nodes are left out of it; a deadline is not met.
    """

    def __init__(
        self,
        graph: Graph | None,
        *,
        processors: Iterable[Processor[Any]] = (),
        job_id: str = "job-1",
        namespace: str = "",
        codec: Codec = JSON,
    ) -> None:
        """Start the nodes of a graph that nothing keeps; None: for `led_by`.

        Args:
            graph: As it would be submitted.
            processors: Who can carry out nodes, by their names, which are namespaces.
            job_id: The id of the leader.
            namespace: Its namespace, and that of nodes which name none; "": the first processor's.
            codec: Of args and results.
        """
        self._job_id, self._codec = job_id, codec
        self._processors = {it.name: it for it in processors}
        self._namespace = namespace or next(iter(self._processors), "jobs")
        self._followers: dict[str, Rehearsal[Any]] = {}
        self._leader: Rehearsal[Any] | None = None
        self._standing = Standing()
        self._state = JobState.RUNNING
        self._detail = ""
        self._retry_count = 0
        if graph is not None:
            self._standing.add(nodes_to_wire(graph, codec))
            self._standing.start()

    @classmethod
    async def led_by(
        cls,
        processor: Processor[Any],
        args: Payload = None,
        *,
        processors: Iterable[Processor[Any]] = (),
        job_id: str = "job-1",
    ) -> Self:
        """Start a process whose handlers lead the job, and return the job with what they started.

        The `processor` carries out nodes too, as those of `processors` do.

        Raises:
            RejectedError, ProcessFailedError: Its first step was refused, or has failed.
        """
        job = cls(
            None,
            processors=(processor, *processors),
            job_id=job_id,
            namespace=processor.name,
            codec=processor.codec,
        )
        job._leader = Rehearsal(processor, job_id, observer=job._leader_settled)
        await job._leader.start(args)
        return job

    @property
    def state(self) -> JobState:
        """Where the job is."""
        return self._state

    @property
    def detail(self) -> str:
        """Why it has failed; "" otherwise."""
        return self._detail

    @property
    def result(self) -> Payload:
        """What a leader of one's own has completed with."""
        return None if self._leader is None else self._leader.result

    @property
    def retry_count(self) -> int:
        """How often it was retried."""
        return self._retry_count

    @property
    def counts(self) -> NodeCounts:
        """How many nodes are in which state."""
        return self._standing.counts

    @property
    def states(self) -> dict[str, NodeState]:
        """The state of each node, as they were added."""
        return {it.name: it.state for it in self._standing}

    @property
    def running(self) -> tuple[str, ...]:
        """The nodes that have been started and have not ended."""
        return self._standing.named(NodeState.RUNNING)

    @property
    def outcomes(self) -> dict[str, NodeOutcome]:
        """How each node stands: for those that have ended, what a join hears of them."""
        return {it.name: self._outcome(it) for it in self._standing}

    @property
    def leader(self) -> Rehearsal[Any]:
        """The process of a leader of one's own.

        Raises:
            ValueError: The engine leads the job.
        """
        if self._leader is None:
            message = f"job {self._job_id!r} is led by the engine"
            raise ValueError(message)
        return self._leader

    def args(self, name: str, kind: Payload = Any) -> Payload:
        """Return the args of a node, as a `kind`."""
        return self._codec.decode(self._standing[name].spec.args, kind)

    def inputs(self, name: str) -> tuple[NodeOutcome, ...]:
        """Return what a node is told of those that it comes after; nothing where it did not ask."""
        spec = self._standing[name].spec
        if not spec.wants_results:
            return ()
        return tuple(self._outcome(self._standing[it]) for it in spec.predecessors)

    async def process(self, name: str) -> Rehearsal[Any]:
        """Return the process of a node, started if it was not, to be called, repaired and so on.

        Raises:
            ValueError: The node has not been started, or nobody carries out its namespace.
        """
        node = self._expect_started(name)
        if name not in self._followers:
            processor = self._processors.get(node.spec.namespace or self._namespace)
            if processor is None:
                message = f"no processor for node {name!r}: `complete` it, or `fail` it"
                raise ValueError(message)
            await self._begin(node, processor)
        return self._followers[name]

    async def complete(self, name: str, result: Payload = None) -> tuple[str, ...]:
        """End a running node as done; return the names of those that are started by it.

        Raises:
            ValueError: It is not running.
        """
        self._expect_running(name)
        before = frozenset(self.running)
        await self._end(name, NodeState.DONE, result=self._codec.encode(result))
        return tuple(it for it in self.running if it not in before)

    async def fail(
        self, name: str, message: str = "told to fail", *, reason: str = "FAILED_PRECONDITION"
    ) -> tuple[str, ...]:
        """End a running node as failed; return the names of those that are skipped because of it.

        Raises:
            ValueError: It is not running.
        """
        self._expect_running(name)
        error = TaskError(code=_FAILED_CODE, reason=reason, message=message)
        await self._end(name, NodeState.FAILED, error=error)
        return tuple(it.name for it in self._standing if it.skipped_because_of == name)

    async def run(self, name: str) -> NodeState:
        """Have a running node carried out until it ends, or waits for a request.

        Returns:
            Its state: running only where it has no timer, and waits to be called.

        Raises:
            ValueError: It is not running, or nobody carries out its namespace.
        """
        self._expect_running(name)
        follower = await self.process(name)
        while follower.timer is not None and self._is_running(name):  # ends as `advance` does
            await follower.run_timer()
        return self._standing[name].state

    async def run_all(
        self,
        *,
        order: Choice = first,
        failing: Iterable[str] = (),
        results: Mapping[str, Payload] | None = None,
    ) -> JobState:
        """End nodes one after the other until the job has, or all that runs waits to be called.

        Args:
            order: Chooses the next among the names of those that run.
            failing: Those that fail, whoever carries them out.
            results: Of those that are completed with these, whoever carries them out. Where there
                is no processor, others are completed without a result.

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
            namespace = self._standing[name].spec.namespace or self._namespace
            if name in failing:
                await self.fail(name)
            elif name in results or namespace not in self._processors:
                await self.complete(name, results.get(name))
            elif await self.run(name) is NodeState.RUNNING:
                stuck.add(name)
        return self._state

    async def repair(self, name: str, args: Payload = None) -> tuple[str, ...]:
        """Repair the process of a failed node, which runs again; return who waits for it again.

        Raises:
            RepairFailedError, RejectedError: It is in error as it was.
            ValueError: The node has not failed in a process of a processor here.
        """
        if self._standing[name].state is not NodeState.FAILED or name not in self._followers:
            message = f"node {name!r} has no broken process to repair"
            raise ValueError(message)
        skipped = self._standing.named(NodeState.SKIPPED)
        await self._followers[name].repair(args)
        return tuple(it for it in skipped if self.states[it] is not NodeState.SKIPPED)

    async def retry(self) -> tuple[str, ...]:
        """Go on with a failed job; return the names of the nodes that begin again.

        Raises:
            JobNotFailedError: It has not failed.
        """
        if self._state is not JobState.FAILED:
            raise job_errors.JobNotFailedError(self._namespace, self._job_id)
        self._state, self._detail = JobState.RUNNING, ""
        self._retry_count += 1
        if self._leader is not None:
            self._leader.resume(with_timer=True)
        again = self._standing.retry()
        for name in again:
            await self._bring_back(name)
        await self._go_on()
        return again

    async def cancel(self, cause: str = "") -> None:
        """End the job: what has not ended is cancelled.

        Raises:
            JobEndedError: It has ended already.
        """
        if self._state.has_ended:
            raise job_errors.JobEndedError(self._namespace, self._job_id)
        self._stop(JobState.CANCELLED, cause)
        if self._leader is not None:
            self._leader.finish()

    async def _begin(self, node: StandingNode, processor: Processor[Any]) -> None:
        """Start the process of a node; what its first step comes to is the node's."""
        name = node.name

        async def settled(started: nodes_pb2.StartNodes | None) -> None:
            if started is not None:
                message = f"node {name!r} leads a job itself: rehearse that by itself"
                raise NotImplementedError(message)
            await self._follower_settled(name)

        process_id = node.spec.process_id or f"{self._job_id}/{name}"
        follower: Rehearsal[Any] = Rehearsal(processor, process_id, observer=settled)
        self._followers[name] = follower
        try:
            await follower.start(processor.codec.decode(node.spec.args), nodes=self.inputs(name))
        except (errors.RejectedError, errors.ProcessFailedError):
            # That is the end of the node, and known to it.
            return

    async def _follower_settled(self, name: str) -> None:
        """Take what a step of a node's process came to as the node's."""
        node, follower = self._standing[name], self._followers[name]
        status = follower.status
        if node.state is NodeState.FAILED and status in _BROUGHT_BACK:
            self._standing.reopen(name)
            self._reopened()
        if node.state is not NodeState.RUNNING:
            return
        step = follower.steps[-1] if follower.steps else None
        error = None if step is None else step.error
        if status is ProcessStatus.RUNNING:
            node.begun = True
            await self._go_on()
        elif status is ProcessStatus.FINISHED:
            result = self._codec.encode(follower.result)
            await self._end(name, NodeState.DONE, result=result)
        elif status is ProcessStatus.UNSPECIFIED and error is None:
            # It has removed itself: what it told its caller is all that is left.
            response = None if step is None else step.response
            await self._end(name, NodeState.DONE, result=self._codec.encode(response))
        else:
            await self._end(name, NodeState.FAILED, error=error)

    def _reopened(self) -> None:
        """Go on with a failed job, one of whose nodes was brought back."""
        if self._state is JobState.FAILED:
            self._state, self._detail = JobState.RUNNING, ""
            if self._leader is not None:
                self._leader.resume(with_timer=False)

    async def _bring_back(self, name: str) -> None:
        """Have the process of a node begin again: anew, unless its first step had succeeded."""
        follower = self._followers.get(name)
        if follower is None:
            return
        has_begun = any(it.type is TaskType.INIT and it.error is None for it in follower.steps)
        if not has_begun or follower.status is not ProcessStatus.ERROR:
            del self._followers[name]
            return
        self._standing[name].begin_again(NodeState.RUNNING)
        await follower.simple_repair()

    async def _leader_settled(self, started: nodes_pb2.StartNodes | None) -> None:
        """Take what a step of the leader came to as the job's."""
        leader = self.leader
        if self._state is not JobState.RUNNING:
            return
        if started is not None:
            self._standing.add(started.nodes)
        match leader.status:
            case ProcessStatus.FINISHED:
                self._stop(JobState.DONE)
            case ProcessStatus.ERROR:
                self._stop(JobState.FAILED, leader.detail)
            case _ if started is not None:
                await self._go_on()
            case _:
                pass

    async def _end(
        self, name: str, state: NodeState, *, result: bytes = b"", error: TaskError | None = None
    ) -> None:
        self._standing.end(name, state, result=result, error=error)
        await self._go_on()

    async def _go_on(self) -> None:
        """Start what is ready, and tell the leader if nothing is left."""
        if self._state is not JobState.RUNNING:
            return
        self._standing.start()
        if self._standing.is_whole:
            await self._join()

    async def _join(self) -> None:
        if self._leader is not None:
            await self._leader.join(self.outcomes.values())
            return
        undone = [it for it in self._standing if it.state is not NodeState.DONE]
        if not undone:
            self._stop(JobState.DONE)
            return
        failed = [it for it in undone if it.state is NodeState.FAILED][:_NAMED_MAX]
        words = f"{len(undone)} of {len(self._standing)} nodes are not done"
        told = "; ".join(map(_told, failed))
        self._stop(JobState.FAILED, f"{words}: {told}" if told else words)

    def _stop(self, state: JobState, detail: str = "") -> None:
        """End the job, and whatever of it has not ended."""
        self._state, self._detail = state, detail if state is JobState.FAILED else ""
        self._standing.cancel_unstarted()
        why = f"JOB_CANCELLED: {detail or 'the job has ended'}"
        for name in self.running:
            error = TaskError(code=_ABORTED_CODE, reason="JOB_CANCELLED", message=why)
            self._standing.end(name, NodeState.CANCELLED, error=error)
            if name in self._followers:
                self._followers[name].break_by(why)

    def _outcome(self, node: StandingNode) -> NodeOutcome:
        return NodeOutcome(
            name=node.name,
            state=node.state,
            result=self._codec.decode(node.result),
            error=node.error,
            skipped_because_of=node.skipped_because_of,
        )

    def _is_running(self, name: str) -> bool:
        return self._standing[name].state is NodeState.RUNNING

    def _expect_running(self, name: str) -> None:
        if not self._is_running(name):
            message = f"node {name!r} is {self._standing[name].state}, not running"
            raise ValueError(message)

    def _expect_started(self, name: str) -> StandingNode:
        node = self._standing[name]
        if node.state is not NodeState.RUNNING and name not in self._followers:
            message = f"node {name!r} is {node.state}, and has no process"
            raise ValueError(message)
        return node


def _told(node: StandingNode) -> str:
    error = node.error
    return f"{node.name} failed" + ("" if error is None else f" ({error.reason}: {error.message})")
