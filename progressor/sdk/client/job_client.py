"""``client.jobs``: the requests about jobs, sent by an asynchronous client or a blocking one.

::

    graph = Graph()
    parts = graph.fan_out("count", ["a.txt", "b.txt"])
    graph.node("sum", after=parts, wants_results=True)
    await client.jobs.submit("words-1", graph, idempotency_key="words-1")
    await client.jobs.wait("words-1", check=True)
    total = (await client.jobs.get("words-1"))["sum"].result
"""

import contextlib

from progressor.sdk.client.job_calls import JobCalls
from progressor.sdk.codec.wire import Seconds
from progressor.sdk.sending.connection import BlockingConnection, Connection
from progressor.sdk.sending.failures import EngineUnavailableError
from progressor.sdk.sending.sending import (
    blocking_iterated,
    blocking_sent,
    blocking_streamed,
    iterated,
    sent,
    streamed,
)
from progressor.sdk.values.jobs import Job, checked


class Jobs:
    """What a program asks of its jobs; each method's arguments are explained in `JobCalls`."""

    def __init__(self, calls: JobCalls, connection: Connection) -> None:
        self.calls, self.connection = calls, connection

    submit = sent(JobCalls.submit)
    get = sent(JobCalls.get)
    list = iterated(JobCalls.list)
    cancel = sent(JobCalls.cancel)
    retry = sent(JobCalls.retry)
    watch = streamed(JobCalls.watch)

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


class SyncJobs:
    """`Jobs` for programs without an event loop: same methods, blocking, safe in any thread."""

    def __init__(self, calls: JobCalls, connection: BlockingConnection) -> None:
        self.calls, self.connection = calls, connection

    submit = blocking_sent(JobCalls.submit)
    get = blocking_sent(JobCalls.get)
    list = blocking_iterated(JobCalls.list)
    cancel = blocking_sent(JobCalls.cancel)
    retry = blocking_sent(JobCalls.retry)
    watch = blocking_streamed(JobCalls.watch)

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
