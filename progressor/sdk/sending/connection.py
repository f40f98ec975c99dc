"""The way to the engine, asynchronous and blocking: channels, deadlines, safe repeats."""

import asyncio
import dataclasses
import datetime as dt
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, TypeAlias

import grpc

from progressor.sdk.sending.addresses import check_address
from progressor.sdk.sending.exchange import (
    Attempts,
    Exchange,
    Result,
    Service,
    Subscription,
    Watching,
    value_of,
)
from progressor.sdk.sending.failures import error_for, read_status
from progressor.sdk.sending.propagation import trace_metadata
from progressor.sdk.sending.session import NoSessionsError
from progressor.sdk.sending.sessions import Sessions
from progressor.v1.gate_service_pb2_grpc import GateServiceStub
from progressor.v1.job_service_pb2_grpc import JobServiceStub
from progressor.v1.namespace_service_pb2_grpc import NamespaceServiceStub
from progressor.v1.process_service_pb2_grpc import ProcessServiceStub
from progressor.v1.replica_service_pb2_grpc import ReplicaServiceStub
from progressor.v1.schedule_service_pb2_grpc import ScheduleServiceStub

MESSAGE_BYTES_MAX = 64 * 1024 * 1024

_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # A caller may wait long without a byte on the wire: find out within a minute that the peer
    # is gone. The engine's server allows such pings; another one may answer too_many_pings.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A replica that restarts is back within seconds; gRPC's own two minutes would outlast every
    # repeat below.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)

Stubs: TypeAlias = dict[
    Service,
    ProcessServiceStub
    | NamespaceServiceStub
    | ReplicaServiceStub
    | GateServiceStub
    | JobServiceStub
    | ScheduleServiceStub,
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where the engine is and how patiently it is asked.

    ``jitter`` gives numbers from 0 up to 1; ``credentials`` None: no TLS; ``session`` False: every
    request is a call of its own; ``repeats`` False: nothing is sent twice.
    """

    target: str
    timeout: dt.timedelta
    credentials: grpc.ChannelCredentials | None
    jitter: Callable[[], float]
    session: bool = False
    repeats: bool = True

    def __post_init__(self) -> None:
        """Check the target.

        Raises:
            ValueError: It has no port, or one that does not exist.
        """
        check_address(self.target)

    def attempts(self, exchange: Exchange[Any]) -> Attempts:
        """Return the attempts that `exchange` has, its clock running."""
        if not self.repeats:
            exchange = dataclasses.replace(exchange, repeatable=False)
        return Attempts(exchange, timeout=self.timeout, jitter=self.jitter)

    def watching(self, subscription: Subscription[Result]) -> Watching[Result]:
        """Return `subscription` at its beginning, its clock running."""
        return Watching(subscription, patience=self.timeout, jitter=self.jitter)


class Connection:
    """Sends exchanges from one event loop; opens its channels with the first of them."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._channel: grpc.aio.Channel | None = None
        self._closings = 0
        self._stubs: Stubs = {}
        self._sessions = Sessions(self._session_channel) if endpoint.session else None

    async def send(self, exchange: Exchange[Result]) -> Result:
        """Return what `exchange` brings, repeating it where that is safe.

        Cancelled, it stops waiting; what was accepted goes on.

        Raises:
            ProgressorError: The class of `progressor.errors` that the engine's answer stands for.
        """
        attempts, closings = self._endpoint.attempts(exchange), self._closings
        while True:  # ends with the exchange's timeout at the latest
            try:
                message = await self._ask(exchange, attempts)
            except grpc.aio.AioRpcError as error:
                status = read_status(error, self._endpoint.target)
                pause = attempts.pause_after(status)
                if pause is None or closings != self._closings:
                    raise error_for(status) from error
                await asyncio.sleep(pause)
            else:
                return value_of(exchange.parse, message)

    async def stream(self, subscription: Subscription[Result]) -> AsyncGenerator[Result]:
        """Yield what `subscription` brings until its end, taking it up again where it breaks.

        Closed, it ends the stream.

        Raises:
            ProgressorError: The class of `progressor.errors` that the engine's answer stands for.
        """
        watching, closings = self._endpoint.watching(subscription), self._closings
        while True:  # ends with the stream, or with the subscription's timeout if it has one
            rpc = getattr(self._opened()[subscription.service], subscription.rpc)
            call = rpc(watching.request(), timeout=watching.remaining(), metadata=trace_metadata())
            try:
                async for message in call:
                    yield watching.take(message)
            except grpc.aio.AioRpcError as error:
                status = read_status(error, self._endpoint.target)
                pause = watching.pause_after(status)
                if pause is None or closings != self._closings:
                    raise error_for(status) from error
                await asyncio.sleep(pause)
            else:
                return
            finally:
                call.cancel()

    async def close(self) -> None:
        """Close the channels; requests in flight end with an error. Safe to repeat."""
        self._closings += 1
        if self._sessions is not None:
            await self._sessions.close()
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _ask(self, exchange: Exchange[Any], attempts: Attempts) -> Any:  # noqa: ANN401 - of the RPC
        """Return the response to one attempt: by the session, else by a call of its own."""
        if self._sessions is not None and exchange.service is Service.PROCESSES:
            data = exchange.request.SerializeToString()
            session = self._sessions.session_for(exchange.rpc, len(data))
            if session is not None:
                try:
                    return await session.ask(
                        exchange.rpc,
                        data,
                        timeout=attempts.remaining(),
                        trace=trace_metadata(),
                    )
                except NoSessionsError:
                    self._sessions.forget()
        rpc = getattr(self._opened()[exchange.service], exchange.rpc)
        return await rpc(exchange.request, timeout=attempts.remaining(), metadata=trace_metadata())

    def _opened(self) -> Stubs:
        if self._channel is None:
            self._channel = self._new_channel()
            self._stubs = _stubs(self._channel)
        return self._stubs

    def _session_channel(self) -> grpc.aio.Channel:
        # Channels of one process share connections, and this one is to have its own.
        return self._new_channel(("grpc.use_local_subchannel_pool", 1))

    def _new_channel(self, *more: tuple[str, int]) -> grpc.aio.Channel:
        endpoint, options = self._endpoint, (*_CHANNEL_OPTIONS, *more)
        if endpoint.credentials is None:
            return grpc.aio.insecure_channel(endpoint.target, options=options)
        return grpc.aio.secure_channel(endpoint.target, endpoint.credentials, options=options)


class BlockingConnection:
    """Sends exchanges from any thread; opens its channel with the first of them."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._closings = 0
        self._stubs: Stubs = {}

    def send(self, exchange: Exchange[Result]) -> Result:
        """Return what `exchange` brings, repeating it where that is safe; as `Connection.send`."""
        rpc = getattr(self._opened()[exchange.service], exchange.rpc)
        attempts, closings = self._endpoint.attempts(exchange), self._closings
        while True:  # ends with the exchange's timeout at the latest
            try:
                message = rpc(
                    exchange.request, timeout=attempts.remaining(), metadata=trace_metadata()
                )
            except grpc.RpcError as error:
                status = read_status(error, self._endpoint.target)
                pause = attempts.pause_after(status)
                if pause is None or closings != self._closings:
                    raise error_for(status) from error
                time.sleep(pause)
            else:
                return value_of(exchange.parse, message)

    def stream(self, subscription: Subscription[Result]) -> Generator[Result]:
        """Yield what `subscription` brings; as `Connection.stream`."""
        watching, closings = self._endpoint.watching(subscription), self._closings
        while True:  # ends with the stream, or with the subscription's timeout if it has one
            rpc = getattr(self._opened()[subscription.service], subscription.rpc)
            call = rpc(watching.request(), timeout=watching.remaining(), metadata=trace_metadata())
            try:
                for message in call:
                    yield watching.take(message)
            except grpc.RpcError as error:
                status = read_status(error, self._endpoint.target)
                pause = watching.pause_after(status)
                if pause is None or closings != self._closings:
                    raise error_for(status) from error
                time.sleep(pause)
            else:
                return
            finally:
                call.cancel()

    def close(self) -> None:
        """Close the channel; requests in flight end with an error. Safe to repeat."""
        with self._lock:
            self._closings += 1
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _opened(self) -> Stubs:
        with self._lock:
            if self._channel is None:
                endpoint = self._endpoint
                if endpoint.credentials is None:
                    channel = grpc.insecure_channel(endpoint.target, options=_CHANNEL_OPTIONS)
                else:
                    channel = grpc.secure_channel(
                        endpoint.target, endpoint.credentials, options=_CHANNEL_OPTIONS
                    )
                self._channel = channel
                self._stubs = _stubs(channel)
            return self._stubs


def _stubs(channel: grpc.aio.Channel | grpc.Channel) -> Stubs:
    return {
        Service.PROCESSES: ProcessServiceStub(channel),
        Service.NAMESPACES: NamespaceServiceStub(channel),
        Service.REPLICAS: ReplicaServiceStub(channel),
        Service.GATES: GateServiceStub(channel),
        Service.JOBS: JobServiceStub(channel),
        Service.SCHEDULES: ScheduleServiceStub(channel),
    }
