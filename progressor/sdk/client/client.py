"""The asynchronous client: `Calls`, sent in a session or one by one from one event loop."""

import datetime as dt
import random
from collections.abc import Callable
from types import TracebackType
from typing import Self

import grpc

from progressor.sdk.client.calls import Calls
from progressor.sdk.client.job_calls import JobCalls
from progressor.sdk.client.job_client import Jobs
from progressor.sdk.client.schedule_calls import ScheduleCalls
from progressor.sdk.client.schedule_client import Schedules
from progressor.sdk.codec.codecs import JSON, Codec
from progressor.sdk.codec.wire import Seconds, timedelta_of
from progressor.sdk.sending.connection import Connection, Endpoint
from progressor.sdk.sending.sending import iterated, sent

TIMEOUT_DEFAULT = dt.timedelta(seconds=60)


class Client:
    """What a program asks of the engine; each method's arguments are explained in `Calls`.

    ``client.jobs`` and ``client.schedules`` have the requests about those.

    ::

        async with Client("127.0.0.1:7420", namespace="orders") as client:
            answer = await client.start("order-1", {"item": "tea"}, idempotency_key="o1")

    Requests that only read, and those with an idempotency key, are repeated within their timeout
    while the engine cannot be reached. All errors are classes of `progressor.sdk`.
    """

    def __init__(  # noqa: PLR0913 - settings, keyword-only
        self,
        target: str,
        *,
        namespace: str = "default",
        codec: Codec = JSON,
        timeout: Seconds = TIMEOUT_DEFAULT,
        credentials: grpc.ChannelCredentials | None = None,
        session: bool = True,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Open nothing yet: the first request does.

        Args:
            target: "host:port", or "unix:/path".
            namespace: For requests that name none.
            codec: For all payloads.
            timeout: For requests that give none; more than 0.
            credentials: None: no TLS.
            session: Send start, call, notify, repair and get many to a frame, which costs a
                busy client and its engine much less; by itself it falls back to single calls
                where the engine has no sessions. False: always single calls.
            jitter: Numbers from 0 up to 1, by which the pauses between repeats differ.
        """
        self.calls = Calls(namespace=namespace, codec=codec)
        self.connection = Connection(
            Endpoint(
                target=target,
                timeout=timedelta_of(timeout),
                credentials=credentials,
                jitter=jitter,
                session=session,
            )
        )
        self.jobs = Jobs(JobCalls(namespace=namespace, codec=codec), self.connection)
        self.schedules = Schedules(ScheduleCalls(namespace=namespace, codec=codec), self.connection)

    start = sent(Calls.start)
    call = sent(Calls.call)
    notify = sent(Calls.notify)
    repair = sent(Calls.repair)
    simple_repair = sent(Calls.simple_repair)
    get = sent(Calls.get)
    put = sent(Calls.put)
    remove = sent(Calls.remove)
    trace = sent(Calls.trace)
    list = iterated(Calls.list)
    cancel = sent(Calls.cancel)
    await_task = sent(Calls.await_task)

    create_namespace = sent(Calls.create_namespace)
    update_namespace = sent(Calls.update_namespace)
    get_namespace = sent(Calls.get_namespace)
    list_namespaces = iterated(Calls.list_namespaces)
    delete_namespace = sent(Calls.delete_namespace)

    list_gates = iterated(Calls.list_gates)
    get_gate = sent(Calls.get_gate)
    set_gate = sent(Calls.set_gate)
    delete_gate = sent(Calls.delete_gate)

    list_replicas = iterated(Calls.list_replicas)
    activity = sent(Calls.activity)
    set_log_level = sent(Calls.set_log_level)

    async def close(self) -> None:
        """Close the connection. Safe to repeat."""
        await self.connection.close()

    async def __aenter__(self) -> Self:
        """Return this client."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connection."""
        await self.close()
