"""Connections to the engine, asynchronous and blocking: channels, deadlines, retries."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import re
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from types import ModuleType
from typing import Any

import grpc
from google.protobuf.message import Message

from progressor import errors
from progressor.sdk.codec.wire import timedelta_of
from progressor.sdk.transport.exchange import (
    Attempts,
    Exchange,
    Result,
    Subscription,
    Watch,
    parsed,
    rpc_of,
)
from progressor.sdk.transport.failures import error_for, read_status
from progressor.sdk.transport.propagation import trace_metadata
from progressor.sdk.transport.security import OPEN, Authorization, Security
from progressor.sdk.transport.session import NoSessionsError, Sessions
from progressor.wire.tls import TlsMaterial

MESSAGE_BYTES_MAX = 64 * 1024 * 1024

_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # A caller may wait long without a byte on the wire: detect a lost peer within a minute. The
    # engine's server allows such pings; another server may answer too_many_pings.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A restarted replica is back within seconds; gRPC's default of two minutes would outlast
    # every retry below.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


_PORT_MAX = 65_535
_HOST_AND_PORT = re.compile(r"(?:\[[^\[\]]*\]|[^:/\[\]]*):(\d+)", re.ASCII)
_BARE_HOST = re.compile(r"\[[^\[\]]*\]|[^:/\[\]]*")


def check_address(address: str) -> None:
    """Raise ValueError for a wrong port of ``host:port``; other forms are gRPC's.

    gRPC uses a port modulo 65,536, and 443 if there is none. Other forms: unix:/path, dns:///name:1.
    """
    match = _HOST_AND_PORT.fullmatch(address)
    if match is not None and int(match[1][:6]) > _PORT_MAX:
        message = f"{address!r}: the port must be at most {_PORT_MAX}"
        raise ValueError(message)
    if _BARE_HOST.fullmatch(address):
        message = f"{address!r} has no port: must be host:port or unix:/path"
        raise ValueError(message)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of the engine and how requests are sent to it.

    ``jitter`` returns numbers from 0 up to 1. ``session`` False: every request is a call of its
    own. ``repeats`` False: no request is sent twice.
    """

    target: str
    timeout: dt.timedelta
    jitter: Callable[[], float]
    security: Security = OPEN
    session: bool = False
    repeats: bool = True

    def __post_init__(self) -> None:
        """Raise ValueError for a target whose port is missing or out of range."""
        check_address(self.target)

    def channel(
        self, kind: ModuleType, material: TlsMaterial | None, *more: tuple[str, int]
    ) -> Any:  # noqa: ANN401  # of that module
        """Return a new channel of `kind`, grpc or grpc.aio, with more options."""
        return self.security.channel(kind, self.target, (*_CHANNEL_OPTIONS, *more), material)

    def metadata(self) -> tuple[tuple[str, str], ...] | None:
        """Return the metadata of a call: span, baggage, and who calls; None: nothing."""
        trace, authorization = trace_metadata(), self.security.authorization()
        return (*(trace or ()), *authorization) if authorization else trace

    def renewed(self, rpcs: "_Rpcs | None", kind: ModuleType) -> "_Rpcs":
        """Return what a request is sent by: `rpcs`, unless the certificates have changed."""
        if rpcs is None or rpcs.material is not self.security.material:
            return _Rpcs(self, kind)
        return rpcs

    def attempts(self, exchange: Exchange[Any]) -> Attempts:
        """Return the attempts of an exchange; its timeout starts now."""
        timeout = self.timeout if exchange.timeout is None else timedelta_of(exchange.timeout)
        return Attempts(
            repeatable=exchange.repeatable and self.repeats,
            timeout=timeout or self.timeout,
            jitter=self.jitter,
            awaited=exchange.awaited,
        )

    def watch(self, subscription: Subscription[Result]) -> Watch[Result]:
        """Return the watch of a subscription; its timeout starts now."""
        return Watch(subscription, away_max=self.timeout, jitter=self.jitter)

    def pause_after(
        self,
        error: grpc.RpcError,
        tries: Attempts | Watch[Any],
        *,
        is_closed: bool,
        sent: Authorization,
    ) -> float:
        """Return the seconds to wait before the next attempt, or raise the last error.

        ``sent``: by what the failed one has said who calls.
        """
        status = self.security.explained(read_status(error, self.target))
        pause = None
        if not is_closed:
            has_other_token = self.security.authorization() is not sent
            pause = tries.pause_after(status, has_other_token=has_other_token)
        if pause is None:
            if tries.awaited and status.code is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise errors.DeadlineExceededError(None, tries.awaited) from error
            raise error_for(status) from error
        return pause


class _Rpcs:
    """The RPCs of a channel, each created when it is first used."""

    def __init__(self, endpoint: Endpoint, kind: ModuleType) -> None:
        self.material = endpoint.security.material
        self.channel: Any = endpoint.channel(kind, self.material)
        self.user_count = 0
        self._rpcs: dict[type[Message], Any] = {}

    def of(self, request: Message, *, is_stream: bool = False) -> Any:  # noqa: ANN401  # a callable of grpc
        """Return what sends `request`."""
        kind = type(request)
        if kind not in self._rpcs:
            rpc = rpc_of(request)
            create = self.channel.unary_stream if is_stream else self.channel.unary_unary
            self._rpcs[kind] = create(
                rpc.path,
                request_serializer=kind.SerializeToString,
                response_deserializer=rpc.response.FromString,
            )
        return self._rpcs[kind]


class Connection:
    """Sends exchanges from one event loop. The first exchange opens the channels."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._rpcs: _Rpcs | None = None
        self._closings = 0
        self._sessions = (
            Sessions(self._session_channel, endpoint.security) if endpoint.session else None
        )

    async def send(self, exchange: Exchange[Result]) -> Result:
        """Return the result of an exchange, sent again where that is safe, or raise its error.

        Cancelled, it stops waiting; a request that the engine accepted continues.
        """
        attempts, closings = self._endpoint.attempts(exchange), self._closings
        while True:  # ends with the exchange's timeout at the latest
            sent = self._endpoint.security.authorization()
            try:
                message = await self._ask(exchange.request, attempts)
            except grpc.aio.AioRpcError as error:
                is_closed = closings != self._closings
                pause = self._endpoint.pause_after(error, attempts, is_closed=is_closed, sent=sent)
                await asyncio.sleep(pause)
            else:
                return parsed(exchange.parse, message)

    async def stream(self, subscription: Subscription[Result]) -> AsyncGenerator[Result]:
        """Yield the values of a subscription until its end or error; reopen a broken stream.

        Closing the generator ends the stream.
        """
        watch, closings = self._endpoint.watch(subscription), self._closings
        while True:  # ends with the stream, or with the subscription's timeout if it has one
            request, sent = watch.request(), self._endpoint.security.authorization()
            async with self._using() as rpcs:
                rpc, metadata = rpcs.of(request, is_stream=True), self._endpoint.metadata()
                call = rpc(request, timeout=watch.remaining(), metadata=metadata)
                try:
                    async for message in call:
                        yield watch.take(message)
                except grpc.aio.AioRpcError as error:
                    is_closed = closings != self._closings
                    pause = self._endpoint.pause_after(error, watch, is_closed=is_closed, sent=sent)
                else:
                    return
                finally:
                    call.cancel()
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """Close the channels; requests in flight end with an error. Safe to repeat."""
        self._closings += 1
        if self._sessions is not None:
            await self._sessions.close()
        rpcs, self._rpcs = self._rpcs, None
        if rpcs is not None:
            await rpcs.channel.close()

    async def _ask(self, request: Message, attempts: Attempts) -> Any:  # noqa: ANN401  # of the RPC
        """Return the response to one attempt, through the session or as a call of its own."""
        session = None if self._sessions is None else self._sessions.session_for(request)
        if session is not None:
            try:
                return await session.ask(
                    request, timeout=attempts.remaining(), trace=trace_metadata()
                )
            except NoSessionsError:
                assert self._sessions is not None, "a session is one of them"
                self._sessions.forget()
        async with self._using() as rpcs:
            rpc, metadata = rpcs.of(request), self._endpoint.metadata()
            return await rpc(request, timeout=attempts.remaining(), metadata=metadata)

    @contextlib.asynccontextmanager
    async def _using(self) -> AsyncGenerator[_Rpcs]:
        """Return the RPCs for a request: of another channel once the certificates have changed.

        A channel cannot change its own; the earlier one is closed after its last request.
        """
        earlier = self._rpcs
        rpcs = self._rpcs = self._endpoint.renewed(earlier, grpc.aio)
        rpcs.user_count += 1
        try:
            if earlier is not None and earlier is not rpcs and not earlier.user_count:
                await earlier.channel.close()
            yield rpcs
        finally:
            rpcs.user_count -= 1
            if rpcs is not self._rpcs and not rpcs.user_count:
                await rpcs.channel.close()

    def _session_channel(self, material: TlsMaterial | None) -> grpc.aio.Channel:
        # Channels of one process share connections; a session needs a connection of its own.
        channel: grpc.aio.Channel = self._endpoint.channel(
            grpc.aio, material, ("grpc.use_local_subchannel_pool", 1)
        )
        return channel


class BlockingConnection:
    """Sends exchanges from any thread. The first exchange opens the channel."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._rpcs: _Rpcs | None = None
        self._closings = 0

    def send(self, exchange: Exchange[Result]) -> Result:
        """Return the result of an exchange, as `Connection.send`."""
        attempts, closings = self._endpoint.attempts(exchange), self._closings
        while True:  # ends with the exchange's timeout at the latest
            sent = self._endpoint.security.authorization()
            timeout, metadata = attempts.remaining(), self._endpoint.metadata()
            try:
                with self._using() as rpcs:
                    rpc = rpcs.of(exchange.request)
                    message = rpc(exchange.request, timeout=timeout, metadata=metadata)
            except grpc.RpcError as error:
                is_closed = closings != self._closings
                pause = self._endpoint.pause_after(error, attempts, is_closed=is_closed, sent=sent)
                time.sleep(pause)
            else:
                return parsed(exchange.parse, message)

    def stream(self, subscription: Subscription[Result]) -> Generator[Result]:
        """Yield the values of a subscription, as `Connection.stream`."""
        watch, closings = self._endpoint.watch(subscription), self._closings
        while True:  # ends with the stream, or with the subscription's timeout if it has one
            request, sent = watch.request(), self._endpoint.security.authorization()
            with self._using() as rpcs:
                rpc, metadata = rpcs.of(request, is_stream=True), self._endpoint.metadata()
                call = rpc(request, timeout=watch.remaining(), metadata=metadata)
                try:
                    for message in call:
                        yield watch.take(message)
                except grpc.RpcError as error:
                    is_closed = closings != self._closings
                    pause = self._endpoint.pause_after(error, watch, is_closed=is_closed, sent=sent)
                else:
                    return
                finally:
                    call.cancel()
            time.sleep(pause)

    def close(self) -> None:
        """Close the channel; requests in flight end with an error. Safe to repeat."""
        with self._lock:
            self._closings += 1
            rpcs, self._rpcs = self._rpcs, None
        if rpcs is not None:
            rpcs.channel.close()

    @contextlib.contextmanager
    def _using(self) -> Generator[_Rpcs]:
        """Return the RPCs for a request, as `Connection._using`."""
        with self._lock:
            earlier = self._rpcs
            rpcs = self._rpcs = self._endpoint.renewed(earlier, grpc)
            rpcs.user_count += 1
            is_left = earlier is not None and earlier is not rpcs and not earlier.user_count
        if is_left and earlier is not None:
            earlier.channel.close()
        try:
            yield rpcs
        finally:
            with self._lock:
                rpcs.user_count -= 1
                is_left = rpcs is not self._rpcs and not rpcs.user_count
            if is_left:
                rpcs.channel.close()
