"""``client.jobs``: the jobs of a namespace, for either client.

::

    graph = Graph()
    parts = graph.fan_out("count", ["a.txt", "b.txt"])
    graph.node("sum", after=parts, wants_results=True)
    await client.jobs.submit("words-1", graph, idempotency_key="words-1")
    await client.jobs.wait("words-1", check=True)
    total = (await client.jobs.get("words-1"))["sum"].result
"""

import contextlib
import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from typing_extensions import TypeForm

from progressor.sdk.codec.codecs import Codec, Payload
from progressor.sdk.codec.kinds import ANYTHING, Asked
from progressor.sdk.codec.wire import Seconds, duration_to_wire, instant_to_wire, optional_timedelta
from progressor.sdk.sending.exchange import Exchange, Listing, Page, Service, Subscription
from progressor.sdk.sending.failures import EngineUnavailableError
from progressor.sdk.sending.sending import (
    BlockingResource,
    Resource,
    blocking_iterated,
    blocking_sent,
    blocking_streamed,
    iterated,
    sent,
    streamed,
)
from progressor.sdk.values.graph import Graph, nodes_to_wire
from progressor.sdk.values.jobs import (
    Job,
    JobRetried,
    JobState,
    JobSubmitted,
    JobView,
    checked,
    read_job,
    read_view,
)
from progressor.sdk.values.requests import metadata_to_wire
from progressor.v1 import job_service_pb2 as pb

Deadline = dt.datetime | Seconds
"""When a job fails that has not ended: an aware datetime, or seconds or a timedelta from now on."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobRequests:
    """Builds requests; `namespace` "" is the client's.

    `timeout` is how long the request may take, in seconds or as a timedelta; None: the client's.
    """

    namespace: str
    codec: Codec

    def submit(  # noqa: PLR0913  # the wire's own options, keyword-only
        self,
        job_id: str,
        graph: Graph,
        *,
        deadline: Deadline | None = None,
        idempotency_key: str = "",
        context: Mapping[str, str] | None = None,
        metadata: Mapping[str, Payload] | None = None,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[JobSubmitted]:
        """Start a job that the engine leads, and return once it is durable.

        It is done if all its nodes are, and fails otherwise. For a leader of one's own, start a
        process whose processor answers with `Step.start_nodes`.

        Args:
            job_id: Of the leader, a process.
            graph: The nodes; their args are encoded by the client's codec.
            deadline: When the job fails if it has not ended: an aware datetime, or seconds or a
                timedelta from the submission on; None: never.
            idempotency_key: Makes the request safe to repeat, and so it is; "": it is not.
            context: Pairs handed to every node as they are.
            metadata: Of the leader, by which `Client.list` can filter.
            timeout: Of the request, not of the job.
            namespace: Of the leader, and of the nodes that name none.

        Raises:
            ProcessAlreadyExistsError: The id is taken, by a request without this key.
            InvalidRequestError: A node cannot be as it is; the field is named.
            ValueError: The graph is empty, or comes after nodes that it has not.
        """
        if graph.present:
            message = f"the job has no node {graph.present[0]!r}: only a leader can add to a job"
            raise ValueError(message)
        return Exchange(
            rpc="SubmitJob",
            request=pb.SubmitJobRequest(
                namespace=namespace or self.namespace,
                job_id=job_id,
                nodes=nodes_to_wire(graph, self.codec),
                idempotency_key=idempotency_key,
                caller_context=context,
                metadata=metadata_to_wire(metadata),
                **due_to_wire(deadline),
            ),
            parse=lambda message: JobSubmitted(
                task_id=message.task_id, deduplicated=message.deduplicated
            ),
            repeatable=bool(idempotency_key),
            timeout=optional_timedelta(timeout),
            service=Service.JOBS,
        )

    def get(
        self,
        job_id: str,
        *,
        payloads: bool = True,
        result_type: TypeForm[Asked] = ANYTHING,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[JobView[Asked]]:
        """Return a job with all its nodes: states, times and, with `payloads`, args and results.

        Raises:
            JobNotFoundError: There is none of this id.
        """
        return Exchange(
            rpc="GetJob",
            request=pb.GetJobRequest(
                namespace=namespace or self.namespace, job_id=job_id, without_payloads=not payloads
            ),
            parse=lambda message: read_view(message, self.codec, result_type),
            repeatable=True,
            timeout=optional_timedelta(timeout),
            service=Service.JOBS,
        )

    def list(
        self,
        *,
        states: Sequence[JobState] = (),
        schedule_id: str = "",
        page_size: int = 100,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Listing[Job]:
        """Go through the jobs of a namespace, the youngest first, page after page.

        Without `states` in any state; with `schedule_id` only those of a schedule. `timeout` is for
        one page.
        """

        def page(token: str) -> Exchange[Page[Job]]:
            return Exchange(
                rpc="ListJobs",
                request=pb.ListJobsRequest(
                    namespace=namespace or self.namespace,
                    states=[pb.JobState.ValueType(it.number) for it in states],
                    schedule_id=schedule_id,
                    page_size=page_size,
                    page_token=token,
                ),
                parse=lambda message: Page(
                    items=tuple(map(read_job, message.jobs)),
                    next_page_token=message.next_page_token,
                ),
                repeatable=True,
                timeout=optional_timedelta(timeout),
                service=Service.JOBS,
            )

        return Listing(page=page)

    def cancel(
        self,
        job_id: str,
        *,
        cause: str = "",
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[Job]:
        """End a job and return it: what has not begun is cancelled, steps in hand go to their end.

        `cause` is kept with the nodes that it ends.

        Raises:
            JobNotFoundError: There is none of this id.
            JobEndedError: It has ended already.
        """
        return Exchange(
            rpc="CancelJob",
            request=pb.CancelJobRequest(
                namespace=namespace or self.namespace, job_id=job_id, reason=cause
            ),
            parse=lambda message: read_job(message.job),
            # One that took effect, and whose answer was lost, would be told that it had ended.
            repeatable=False,
            timeout=optional_timedelta(timeout),
            service=Service.JOBS,
        )

    def retry(
        self,
        job_id: str,
        *,
        deadline: Deadline | None = None,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[JobRetried]:
        """Go on with a failed job from its failed nodes; what is done stays done.

        `deadline` is its new one, as for `submit`; None: it has none from now on.

        Raises:
            JobNotFoundError: There is none of this id.
            JobNotFailedError: It has not failed.
        """
        return Exchange(
            rpc="RetryJob",
            request=pb.RetryJobRequest(
                namespace=namespace or self.namespace, job_id=job_id, **due_to_wire(deadline)
            ),
            parse=lambda message: JobRetried(job=read_job(message.job), nodes=tuple(message.nodes)),
            repeatable=False,
            timeout=optional_timedelta(timeout),
            service=Service.JOBS,
        )

    def watch(
        self,
        job_id: str,
        *,
        after_revision: int = 0,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Subscription[JobView[Any]]:
        """Go through a job's changes: first all of it, then the nodes that have changed.

        It goes on until the job has ended, and so have its nodes. They come without args and
        results, many of them in several pieces. With `after_revision` it begins with what has
        changed since. An engine that goes away is asked again, for as long as the client's timeout;
        nothing is missed. `timeout` None: however long the job takes.

        Raises:
            JobNotFoundError: There is none of this id.
            DeadlineExceededError: `timeout` is over; the job goes on.
        """

        def request(revision: int) -> pb.WatchJobRequest:
            return pb.WatchJobRequest(
                namespace=namespace or self.namespace, job_id=job_id, after_revision=revision
            )

        return Subscription(
            rpc="WatchJob",
            request=request,
            after=after_revision,
            parse=lambda message: read_view(message, self.codec),
            revision_of=lambda view: view.job.revision,
            timeout=optional_timedelta(timeout),
            service=Service.JOBS,
        )


class _Due(TypedDict, total=False):
    """One of a deadline's two fields on the wire, or neither."""

    deadline: Timestamp
    timeout: Duration


def due_to_wire(deadline: Deadline | None) -> _Due:
    """Return a deadline as the field of a message that says it.

    Raises:
        ValueError: It is a datetime without a time zone.
    """
    if deadline is None:
        return {}
    if isinstance(deadline, dt.datetime):
        return {"deadline": instant_to_wire(deadline)}
    return {"timeout": duration_to_wire(deadline)}


class Jobs(Resource[JobRequests]):
    """What a program asks of jobs; `JobRequests` explains each method's arguments."""

    submit = sent(JobRequests.submit)
    get = sent(JobRequests.get)
    list = iterated(JobRequests.list)
    cancel = sent(JobRequests.cancel)
    retry = sent(JobRequests.retry)
    watch = streamed(JobRequests.watch)

    async def wait(
        self,
        job_id: str,
        *,
        check: bool = False,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Job:
        """Return a job once it has ended, however it did; `timeout` None: however long it takes.

        Raises:
            JobFailedError, JobCancelledError: With `check`, it is not done.
            JobNotFoundError: There is none of this id.
            DeadlineExceededError: `timeout` is over; the job goes on.
        """
        watching = self.watch(job_id, timeout=timeout, namespace=namespace)
        async with contextlib.aclosing(watching) as views:
            async for view in views:
                if view.job.state.has_ended:
                    return checked(view.job) if check else view.job
        raise _cut_off(job_id)


class SyncJobs(BlockingResource[JobRequests]):
    """`Jobs` for programs without an event loop: blocking, and safe in any thread."""

    submit = blocking_sent(JobRequests.submit)
    get = blocking_sent(JobRequests.get)
    list = blocking_iterated(JobRequests.list)
    cancel = blocking_sent(JobRequests.cancel)
    retry = blocking_sent(JobRequests.retry)
    watch = blocking_streamed(JobRequests.watch)

    def wait(
        self,
        job_id: str,
        *,
        check: bool = False,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Job:
        """Return a job once it has ended; as `Jobs.wait`."""
        watching = self.watch(job_id, timeout=timeout, namespace=namespace)
        with contextlib.closing(watching) as views:
            for view in views:
                if view.job.state.has_ended:
                    return checked(view.job) if check else view.job
        raise _cut_off(job_id)


def _cut_off(job_id: str) -> EngineUnavailableError:
    return EngineUnavailableError(f"job {job_id!r}", "it was watched no further than while it ran")
