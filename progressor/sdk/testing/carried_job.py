"""A job as an engine would carry it: what the end of a node, a step of the leader, a request do.

Jobs may be within jobs: a node whose process starts nodes leads one itself. What a step of such a
process comes to is taken for both jobs, and only then either goes on.

===================  ==========================================================================
the inner one        its node in the outer one
===================  ==========================================================================
is done, or fails    is done, or fails: they have one process
is cancelled         fails (JOB_CANCELLED); the inner one has failed, so that it can be retried
passes its deadline  fails (DEADLINE_EXCEEDED)
is brought back      runs again, and so do outer jobs that have failed because of it
has failed           is cancelled, where it is the outer one that ends
is retried as well   begins again, where it is the outer one that is retried
===================  ==========================================================================
"""

import dataclasses
import datetime as dt
from typing import Any

from progressor import errors, job_errors
from progressor.sdk.codec.codecs import Codec
from progressor.sdk.codec.wire import duration_from_wire, instant_from_wire
from progressor.sdk.testing.cast import Cast
from progressor.sdk.testing.rehearsal import STARTS_AT, Rehearsal
from progressor.sdk.testing.standing import Standing, StandingNode
from progressor.sdk.values.jobs import JobState, NodeOutcome, NodeState
from progressor.sdk.values.processes import ProcessStatus, TaskError, TaskType
from progressor.v1 import nodes_pb2

DEPTH_MAX = 20
"""Jobs, each within the one before, that have another one within them."""

DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
_CANCELLED = "JOB_CANCELLED"
_FAILED_CODE = 9
_ABORTED_CODE = 10
_REMOVED = TaskError(code=_FAILED_CODE, reason="PROCESS_REMOVED", message="its process was removed")
_NAMED_MAX = 5
_AT_WORK = frozenset({ProcessStatus.INIT, ProcessStatus.RUNNING})
_BROUGHT_BACK = frozenset({ProcessStatus.RUNNING, ProcessStatus.FINISHED})
_BROKEN = frozenset({NodeState.FAILED, NodeState.CANCELLED})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a job is within another one: the job, and the node whose process leads it."""

    job: "CarriedJob"
    node: str


class CarriedJob:
    """One job: its graph, its leader unless the engine leads it, and the processes of its nodes."""

    def __init__(
        self, *, job_id: str, namespace: str, codec: Codec, cast: Cast, place: Place | None = None
    ) -> None:
        self.job_id, self.namespace, self.codec = job_id, namespace, codec
        self.cast = cast
        self.standing = Standing()
        self.state = JobState.RUNNING
        self.detail = ""
        self.deadline: dt.datetime | None = None
        self.retry_count = 0
        self.leader: Rehearsal[Any] | None = None
        self.followers: dict[str, Rehearsal[Any]] = {}
        self.inner: dict[str, CarriedJob] = {}
        self._place = place
        self.depth: int = 0 if place is None else place.job.depth + 1
        self._has_expired = False

    def add(self, started: nodes_pb2.StartNodes) -> None:
        """Add nodes; a deadline that comes with them replaces an earlier one.

        Raises:
            ValueError: A name is taken, or is not there.
        """
        self.standing.add(started.nodes)
        self._set_deadline(started)

    def namespace_of(self, name: str) -> str:
        """Return whose processor carries out a node."""
        return self.standing[name].spec.namespace or self.namespace

    def outcome(self, node: StandingNode) -> NodeOutcome:
        """Return how a node stands, as others hear of it."""
        return NodeOutcome(
            name=node.name,
            state=node.state,
            result=self.codec.decode(node.result),
            error=node.error,
            skipped_because_of=node.skipped_because_of,
        )

    def inputs(self, name: str) -> tuple[NodeOutcome, ...]:
        """Return the outcomes of a node's predecessors, if it asked for them."""
        spec = self.standing[name].spec
        if not spec.wants_results:
            return ()
        return tuple(self.outcome(self.standing[it]) for it in spec.predecessors)

    async def begin(self, name: str) -> None:
        """Start the process of a node; what its first step comes to is the node's.

        Raises:
            ValueError: Its namespace has no processor.
        """
        spec = self.standing[name].spec

        async def settled(started: nodes_pb2.StartNodes | None) -> None:
            await self._node_settled(name, started)

        namespace = self.namespace_of(name)
        process_id = spec.process_id or f"{self.job_id}/{name}"
        follower = self.cast.follower(spec, namespace, process_id, settled)
        self.followers[name] = follower
        args = self.cast.processors[namespace].codec.decode(spec.args)
        try:
            await follower.start(args, nodes=self.inputs(name))
        except (errors.RejectedError, errors.ProcessFailedError):
            # That is the end of the node, and known to it.
            return

    async def leader_settled(self, started: nodes_pb2.StartNodes | None) -> None:
        """Take what a step of the leader came to as the job's, and go on."""
        if self.take_leader(started):
            await self.go_on()

    def take_leader(self, started: nodes_pb2.StartNodes | None) -> bool:
        """Have the job stand as its leader does; tell whether there may be something to do."""
        assert self.leader is not None, "a job whose leader was settled is led by it"
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
                # A repair that completes it.
                self.state, self.detail = JobState.DONE, ""
            case JobState.FAILED, ProcessStatus.RUNNING:
                self._resume()
                return True
            case _:
                return started is not None
        return False

    async def end(
        self, name: str, state: NodeState, *, result: bytes = b"", error: TaskError | None = None
    ) -> None:
        """End a node that runs, and go on."""
        self.standing.end(name, state, result=result, error=error)
        await self.go_on()

    async def go_on(self) -> None:
        """Start what is ready; if nothing is left, tell the leader, or decide in its place."""
        if self.state is not JobState.RUNNING:
            return
        self.standing.start()
        if not self.standing.is_whole:
            return
        if self.leader is None:
            self.stop(*_decision(self.standing))
        else:
            await self.leader.join(map(self.outcome, self.standing))

    def stop(self, state: JobState, detail: str = "") -> None:
        """End the job, and whatever of it has not ended."""
        self.state, self.detail = state, detail
        self.standing.cancel_unstarted()
        # Of a job whose leader was stopped itself the detail says so already.
        cause = detail.removeprefix(f"{_CANCELLED}: ") or "the job has ended"
        why = f"{_CANCELLED}: {cause}"
        error = TaskError(code=_ABORTED_CODE, reason=_CANCELLED, message=cause)
        for name in self.standing.named(NodeState.RUNNING):
            self.standing.end(name, NodeState.CANCELLED, error=error)
            follower, inner = self.followers.get(name), self.inner.get(name)
            if follower is not None and follower.status in _AT_WORK:
                follower.break_by(why)
            if inner is not None and inner.state is JobState.RUNNING:
                inner.stop(JobState.FAILED, why)

    async def cancel(self, cause: str) -> None:
        """End the job: its leader is finished, or breaks where it is within another one.

        Raises:
            JobEndedError: It has ended already.
        """
        self._expect_unended()
        if self._place is not None:
            why = cause or "the job was cancelled"
            await self._break(f"{_CANCELLED}: {why}", reason=_CANCELLED, message=why)
            return
        self.stop(JobState.CANCELLED, cause)
        if self.leader is not None:
            self.leader.finish()

    async def expire(self) -> None:
        """Have the deadline pass: the job fails, and its leader breaks.

        Raises:
            ValueError: There is none.
            JobEndedError: The job has ended already.
        """
        if self.deadline is None:
            message = f"job {self.job_id!r} has no deadline"
            raise ValueError(message)
        self._expect_unended()
        self._has_expired = True
        await self._break(
            DEADLINE_EXCEEDED,
            reason=DEADLINE_EXCEEDED,
            message="the deadline of its job has passed",
        )

    async def retry(self, due: nodes_pb2.StartNodes) -> tuple[str, ...]:
        """Go on with a failed job, `due` its new deadline; return the names of what had failed.

        Raises:
            JobNotFailedError: It has not failed.
        """
        if self.state is not JobState.FAILED:
            raise job_errors.JobNotFailedError(self.namespace, self.job_id)
        self.state, self.detail = JobState.RUNNING, ""
        self.retry_count += 1
        self.deadline, self._has_expired = None, False
        if self.leader is not None and self.leader.status is ProcessStatus.ERROR:
            self.leader.resume(with_timer=True)
        self._set_deadline(due)
        failed, broken = self.standing.named(NodeState.FAILED), self.standing.named(*_BROKEN)
        self.standing.retry()
        living = [it for it in broken if self._bring_back(it)]
        if self._place is not None:
            await self._place.job.reopen(self._place.node)
        await self.go_on()
        for name in living:
            follower, inner = self.followers[name], self.inner.get(name)
            if inner is not None and inner.state is JobState.FAILED:
                await inner.retry(nodes_pb2.StartNodes())
            else:
                await follower.begin_again()
        return failed

    async def reopen(self, name: str) -> None:
        """Take a broken node for one that runs again, and go on."""
        if self._reopen(name):
            await self.go_on()

    async def _node_settled(self, name: str, started: nodes_pb2.StartNodes | None) -> None:
        """Take what a step of a node's process came to as the node's, and as its own job's."""
        inner = self.inner.get(name)
        if inner is None and started is not None:
            inner = self.inner[name] = self._job_within(name)
        inner_goes_on = inner is not None and inner.take_leader(started)
        if self._take_follower(name):
            await self.go_on()
        if inner is not None and inner_goes_on:
            await inner.go_on()

    def _job_within(self, name: str) -> "CarriedJob":
        if self.depth == DEPTH_MAX:
            message = f"node {name!r} leads a job, and {DEPTH_MAX} jobs are around that one already"
            raise RuntimeError(message)
        follower, namespace = self.followers[name], self.namespace_of(name)
        job = CarriedJob(
            job_id=follower.process_id,
            namespace=namespace,
            codec=self.cast.processors[namespace].codec,
            cast=self.cast,
            place=Place(job=self, node=name),
        )
        job.leader = follower
        return job

    def _take_follower(self, name: str) -> bool:
        """Have a node stand as its process does; tell whether there may be something to do."""
        node, follower = self.standing[name], self.followers[name]
        status = follower.status
        if node.state in _BROKEN and status in _BROUGHT_BACK:
            self._reopen(name)
        if node.state is not NodeState.RUNNING:
            return False
        step = follower.steps[-1] if follower.steps else None
        error = None if step is None else step.error
        if follower.removed_by_request:
            self.standing.end(name, NodeState.FAILED, error=_REMOVED)
        elif status is ProcessStatus.RUNNING:
            node.begun = True
        elif status is ProcessStatus.FINISHED:
            result = self.codec.encode(follower.result)
            self.standing.end(name, NodeState.DONE, result=result)
        elif status is ProcessStatus.UNSPECIFIED and error is None:
            # It has removed itself: what it told its caller is all that is left.
            response = None if step is None else step.response
            self.standing.end(name, NodeState.DONE, result=self.codec.encode(response))
        else:
            self.standing.end(name, NodeState.FAILED, error=error)
        return True

    def _reopen(self, name: str) -> bool:
        """Take a broken node for one that runs again, unless its job was done, or cancelled."""
        is_open = self.state in {JobState.RUNNING, JobState.FAILED}
        if not is_open or self.standing[name].state not in _BROKEN:
            return False
        self.standing.reopen(name)
        if self.state is JobState.FAILED:
            self._resume()
            if self.leader is not None and self.leader.status is ProcessStatus.ERROR:
                self.leader.resume(with_timer=False)
            if self._place is not None:
                self._place.job._reopen(self._place.node)  # noqa: SLF001  # of this class
        return True

    def _resume(self) -> None:
        """Go on with a failed job; a deadline that has passed is none any more."""
        self.state, self.detail = JobState.RUNNING, ""
        if self._has_expired:
            self.deadline, self._has_expired = None, False

    def _bring_back(self, name: str) -> bool:
        """Tell whether the process of a broken node runs on; otherwise it begins anew."""
        follower = self.followers.get(name)
        if follower is None:
            return False
        has_begun = any(it.type is TaskType.INIT and it.error is None for it in follower.steps)
        if not has_begun or follower.status is ProcessStatus.UNSPECIFIED:
            del self.followers[name]
            self.inner.pop(name, None)
            return False
        self.standing[name].begin_again(NodeState.RUNNING)
        return True

    async def _break(self, detail: str, *, reason: str, message: str) -> None:
        """Fail the job from outside, its leader with it, and the node that this is."""
        self.stop(JobState.FAILED, detail)
        if self.leader is not None:
            self.leader.break_by(detail)
        place = self._place
        if place is not None and place.job.standing[place.node].state is NodeState.RUNNING:
            error = TaskError(code=_FAILED_CODE, reason=reason, message=message)
            await place.job.end(place.node, NodeState.FAILED, error=error)

    def _set_deadline(self, due: nodes_pb2.StartNodes) -> None:
        match due.WhichOneof("due"):
            case "deadline":
                self.deadline = instant_from_wire(due.deadline)
            case "timeout":
                now = STARTS_AT if self.leader is None else self.leader.now
                self.deadline = now + duration_from_wire(due.timeout)
            case _:
                pass

    def _expect_unended(self) -> None:
        if self.state.has_ended:
            raise job_errors.JobEndedError(self.namespace, self.job_id)


def _decision(standing: Standing) -> tuple[JobState, str]:
    """Return how a job ends that the engine leads, and why it fails."""
    undone = [it for it in standing if it.state is not NodeState.DONE]
    if not undone:
        return JobState.DONE, ""
    failed = [it for it in undone if it.state is NodeState.FAILED][:_NAMED_MAX]
    words = f"{len(undone)} of {len(standing)} nodes are not done"
    told = "; ".join(map(_told, failed))
    return JobState.FAILED, f"{words}: {told}" if told else words


def _told(node: StandingNode) -> str:
    error = node.error
    return f"{node.name} failed" + ("" if error is None else f" ({error.reason}: {error.message})")
