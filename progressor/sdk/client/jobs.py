"""``client.jobs``: the jobs of a namespace.

::

    graph = Graph()
    parts = graph.fan_out("count", ["a.txt", "b.txt"])
    graph.node("sum", after=parts, wants_results=True)
    await client.jobs.submit("words-1", graph, idempotency_key="words-1")
    await client.jobs.wait("words-1", check=True)
    total = (await client.jobs.get("words-1"))["sum"].result
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from typing_extensions import TypeForm

from progressor.sdk.client.resource import (
    RequestOptions,
    Resource,
    blocking,
    blocking_streamed,
    exchange,
    iterated,
    listing,
    sent,
    streamed,
)
from progressor.sdk.codec.codecs import Payload, Typed, for_request
from progressor.sdk.codec.kinds import ANYTHING, Decoded
from progressor.sdk.codec.wire import Seconds, object_to_wire, optional
from progressor.sdk.transport.connection import BlockingConnection, Connection
from progressor.sdk.transport.exchange import Exchange, Listing, Subscription
from progressor.sdk.transport.failures import EngineUnavailableError
from progressor.sdk.values.graph import Deadline, Graph, due_to_wire, nodes_to_wire
from progressor.sdk.values.jobs import (
    Job,
    JobRetried,
    JobState,
    JobView,
    checked,
    read_change,
    read_job,
    read_view,
)
from progressor.sdk.values.processes import Receipt, read_receipt
from progressor.v1 import job_service_pb2 as pb


class Jobs(Resource[Connection]):
    """The requests about jobs.

    Raises:
        JobNotFoundError: The job does not exist.
    """

    @sent
    def submit(  # the wire's own options, keyword-only
        self,
        job_id: str,
        graph: Graph,
        *,
        deadline: Deadline | None = None,
        idempotency_key: str = "",
        context: Mapping[str, str] | None = None,
        metadata: Mapping[str, Payload] | None = None,
        **options: Unpack[RequestOptions],
    ) -> Exchange[Receipt]:
        """Submit a job that the engine leads; return once it is durable.

        The job is done if all its nodes are done, otherwise it fails. For a job with a leader of
        your own, start a process whose processor calls `Step.start_nodes`.

        Args:
            job_id: The id of the leader, which is a process.
            graph: The nodes; the client's codec encodes their args.
            deadline: When the job fails if it has not ended: an aware datetime, or seconds or a
                timedelta from the submission; None: never.
            idempotency_key: Makes the request safe to repeat; without it, it is not repeated.
            context: Passed to every node unchanged.
            metadata: Of the leader, a filter for `Client.list`.
            options: See `RequestOptions`; the namespace is also that of nodes without one.

        Raises:
            ProcessAlreadyExistsError: The id is taken, and not by a request with this key.
            InvalidRequestError: A node is invalid; the error names the field.
            ValueError: The graph is empty, or a node comes after one that is not in the graph.
        """
        if graph.present:
            message = (
                f"the graph has no node {graph.present[0]!r}: only a leader can add nodes to a job"
            )
            raise ValueError(message)
        namespace = options.get("namespace") or self.namespace
        codec = for_request(self.codec, idempotency_key, namespace, job_id)
        request = pb.SubmitJobRequest(
            job_id=job_id,
            nodes=nodes_to_wire(graph, codec),
            idempotency_key=idempotency_key,
            caller_context=context,
            metadata=optional(object_to_wire, metadata),
            **due_to_wire(deadline),
        )
        return exchange(self, request, read_receipt, repeatable=bool(idempotency_key), **options)

    @sent
    def get(
        self,
        job_id: str,
        *,
        payloads: bool = True,
        result_type: TypeForm[Decoded] = ANYTHING,
        **options: Unpack[RequestOptions],
    ) -> Exchange[JobView[Decoded]]:
        """Return a job with all its nodes: states, times and, with `payloads`, args and results."""
        request = pb.GetJobRequest(job_id=job_id, without_payloads=not payloads)
        return exchange(self, request, read_view, kind=result_type, repeatable=True, **options)

    @iterated
    def list(
        self,
        *,
        states: Sequence[JobState] = (),
        schedule_id: str = "",
        page_size: int = 100,
        **options: Unpack[RequestOptions],
    ) -> Listing[Job]:
        """Iterate over the jobs of a namespace, the newest first, page by page.

        With `states`, only jobs in one of them; with `schedule_id`, only jobs of that schedule.
        """
        request = pb.ListJobsRequest(
            states=[it.number for it in states], schedule_id=schedule_id, page_size=page_size
        )
        return listing(self, request, read_job, "jobs", **options)

    @sent
    def cancel(
        self,
        job_id: str,
        *,
        cause: str = "",
        **options: Unpack[RequestOptions],
    ) -> Exchange[Job]:
        """Cancel a job and return it; nodes that have not started are cancelled.

        Steps that are running continue to their end. `cause` is stored with each node that this
        ends.

        Raises:
            JobEndedError: The job has already ended.
        """
        request = pb.CancelJobRequest(job_id=job_id, reason=cause)
        # If the answer to the first was lost, a repeat would end with JobEndedError.
        return exchange(self, request, read_job, field="job", **options)

    @sent
    def retry(
        self,
        job_id: str,
        *,
        deadline: Deadline | None = None,
        **options: Unpack[RequestOptions],
    ) -> Exchange[JobRetried]:
        """Resume a failed job from its failed nodes; nodes that are done stay done.

        `deadline` is the new deadline, as for `submit`; None: none.

        Raises:
            JobNotFailedError: The job has not failed.
        """
        request = pb.RetryJobRequest(job_id=job_id, **due_to_wire(deadline))
        return exchange(self, request, _read_retried, **options)

    @streamed
    def watch(
        self,
        job_id: str,
        *,
        after_revision: int = 0,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Subscription[JobView[Any]]:
        """Iterate over the changes of a job: first all nodes, then those that have changed.

        The iteration ends when the job and all its nodes have ended. Nodes come without args and
        results; a large change comes in several pieces. If the engine cannot be reached, the client
        reconnects for up to its own timeout and misses no change.

        `after_revision`: begin with what has changed since this revision. `timeout` is that
        of the whole iteration; None: no limit.

        Raises:
            DeadlineExceededError: The timeout has passed; the job continues.
        """
        context = Typed(self.codec)
        return Subscription(
            request=lambda revision: pb.WatchJobRequest(
                namespace=namespace or self.namespace, job_id=job_id, after_revision=revision
            ),
            after=after_revision,
            parse=lambda message: read_change(message, context=context),
            revision_of=lambda view: view.job.revision,
            timeout=timeout,
            awaited=f"job {job_id!r}",
        )

    async def wait(
        self,
        job_id: str,
        *,
        check: bool = False,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Job:
        """Wait until a job has ended, and return it; without a timeout there is no limit.

        Raises:
            JobFailedError, JobCancelledError: The job is not done, and `check` is set.
            DeadlineExceededError: The timeout has passed; the job continues.
        """
        watching = self.watch(job_id, timeout=timeout, namespace=namespace)
        async with contextlib.aclosing(watching) as views:
            async for view in views:
                if view.job.state.has_ended:
                    return checked(view.job) if check else view.job
        raise _ended_early(job_id)


class SyncJobs(Resource[BlockingConnection]):
    """`Jobs` for programs without an event loop: blocking, safe in any thread."""

    submit = blocking(Jobs.submit)
    get = blocking(Jobs.get)
    list = blocking(Jobs.list)
    cancel = blocking(Jobs.cancel)
    retry = blocking(Jobs.retry)
    watch = blocking_streamed(Jobs.watch)

    def wait(
        self,
        job_id: str,
        *,
        check: bool = False,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Job:
        """Wait until a job has ended, as `Jobs.wait`."""
        watching = self.watch(job_id, timeout=timeout, namespace=namespace)
        with contextlib.closing(watching) as views:
            for view in views:
                if view.job.state.has_ended:
                    return checked(view.job) if check else view.job
        raise _ended_early(job_id)


def _read_retried(message: pb.RetryJobResponse, _path: str, _context: object) -> JobRetried:
    return JobRetried(job=read_job(message.job), nodes=tuple(message.nodes))


def _ended_early(job_id: str) -> EngineUnavailableError:
    return EngineUnavailableError(f"job {job_id!r}", "the watch ended before the job")
