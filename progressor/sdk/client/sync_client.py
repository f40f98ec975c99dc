"""The blocking client: the same `Calls`, sent over a channel that any thread may use."""

import random
from collections.abc import Callable
from types import TracebackType
from typing import Self

import grpc

from progressor.sdk.client.calls import Calls
from progressor.sdk.client.client import TIMEOUT_DEFAULT
from progressor.sdk.client.job_calls import JobCalls
from progressor.sdk.client.job_client import SyncJobs
from progressor.sdk.client.schedule_calls import ScheduleCalls
from progressor.sdk.client.schedule_client import SyncSchedules
from progressor.sdk.codec.codecs import JSON, Codec
from progressor.sdk.codec.wire import Seconds, timedelta_of
from progressor.sdk.sending.connection import BlockingConnection, Endpoint
from progressor.sdk.sending.sending import blocking_iterated, blocking_sent


class SyncClient:
    """`Client` for programs without an event loop: same methods, blocking, safe in any thread.

    It has no loop of its own: a plain handler of a processor can call the engine through it. Each
    request is a call of its own: in a session, each would wait for two more threads to wake up.
    """

    def __init__(  # collaborators, keyword-only
        self,
        target: str,
        *,
        namespace: str = "default",
        codec: Codec = JSON,
        timeout: Seconds = TIMEOUT_DEFAULT,
        credentials: grpc.ChannelCredentials | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.calls = Calls(namespace=namespace, codec=codec)
        self.connection = BlockingConnection(
            Endpoint(
                target=target,
                timeout=timedelta_of(timeout),
                credentials=credentials,
                jitter=jitter,
            )
        )
        self.jobs = SyncJobs(JobCalls(namespace=namespace, codec=codec), self.connection)
        self.schedules = SyncSchedules(
            ScheduleCalls(namespace=namespace, codec=codec), self.connection
        )

    start = blocking_sent(Calls.start)
    call = blocking_sent(Calls.call)
    notify = blocking_sent(Calls.notify)
    repair = blocking_sent(Calls.repair)
    simple_repair = blocking_sent(Calls.simple_repair)
    get = blocking_sent(Calls.get)
    put = blocking_sent(Calls.put)
    remove = blocking_sent(Calls.remove)
    trace = blocking_sent(Calls.trace)
    list = blocking_iterated(Calls.list)
    cancel = blocking_sent(Calls.cancel)
    await_task = blocking_sent(Calls.await_task)

    create_namespace = blocking_sent(Calls.create_namespace)
    update_namespace = blocking_sent(Calls.update_namespace)
    get_namespace = blocking_sent(Calls.get_namespace)
    list_namespaces = blocking_iterated(Calls.list_namespaces)
    delete_namespace = blocking_sent(Calls.delete_namespace)

    list_gates = blocking_iterated(Calls.list_gates)
    get_gate = blocking_sent(Calls.get_gate)
    set_gate = blocking_sent(Calls.set_gate)
    delete_gate = blocking_sent(Calls.delete_gate)

    list_replicas = blocking_iterated(Calls.list_replicas)
    activity = blocking_sent(Calls.activity)
    set_log_level = blocking_sent(Calls.set_log_level)

    def close(self) -> None:
        """Close the connection. Safe to repeat."""
        self.connection.close()

    def __enter__(self) -> Self:
        """Return this client."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connection."""
        self.close()
