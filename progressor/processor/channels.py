"""Connections to the processors: one per target and credentials, shared by the namespaces.

A step is sent

 * on the stream, which is opened for the first step and again after it has ended;
 * in a call of its own if the processor has no stream (UNIMPLEMENTED). This is remembered for
   REFUSED_SECONDS, or until the connection is lost, since the processor may then be of a newer
   release;
 * in a call of its own for EARLY_END_SECONDS after a stream ended without any response although the
   connection works, so that a broken stream is not opened again for every step.
"""

import asyncio
import contextlib
import dataclasses
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import grpc
from google.protobuf import message
from grpc import aio

from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.task import RunningTask
from progressor.processor import failures
from progressor.processor.credentials import PLAIN, Credentials, CredentialsError
from progressor.processor.step_calls import CallDeadline, StepCalls
from progressor.processor.stream import STREAM_KEY, Stream
from progressor.v1 import processor_service_pb2
from progressor.wire.stream_call import StreamCall
from progressor.wire.tls import Reloaded, explained

_SERVICE = "/progressor.v1.ProcessorService"

DESCRIBED_SECONDS = 60.0
"""How long the announced limit of a processor is trusted."""

DESCRIBE_TIMEOUT_SECONDS = 5.0

CONNECT_SECONDS = 5.0
"""How long a step waits for a channel that is about to connect."""

LOSS_SECONDS = 0.1
"""How long a channel is given to learn of a connection that a call has lost."""

REFUSED_SECONDS = 300.0
EARLY_END_SECONDS = 5.0

_log = logging.getLogger(__name__)

_FAILING = frozenset(
    {grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN}
)

_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_send_message_length", failures.MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", failures.MESSAGE_BYTES_MAX),
    # A processor that comes back is found within two seconds, also at another address.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.dns_min_time_between_resolutions_ms", 2_000),
    # How long one attempt to connect may take, whatever the name says.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Servers disconnect clients that ping more often than every five minutes (too_many_pings), in
    # the middle of a long step. The timeout is also TCP_USER_TIMEOUT: a host that does not
    # acknowledge a request within it is given up, so that rare pings suffice.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # One channel is one connection; without this, channels of several engines in one operating
    # system process (as in tests) would share theirs, and each other's backoff.
    ("grpc.use_local_subchannel_pool", 1),
)


_Key: TypeAlias = tuple[str, Credentials]
_Call: TypeAlias = aio.UnaryUnaryMultiCallable[bytes, bytes]


class Connection:
    """A channel to one target, its stream, and the count of its users."""

    def __init__(
        self,
        target: str,
        on_ready: Callable[[], None] = lambda: None,
        step_calls: StepCalls | None = None,
        credentials: Credentials = PLAIN,
    ) -> None:
        """Connect with the first call, or with `watch`; then `on_ready` is called each time."""
        self.target, self.credentials = target, credentials
        self.authorization = credentials.authorization
        """The metadata of each call."""
        self.is_ready = False
        """Whether the channel was connected when its state last changed."""
        self.channel = credentials.channel(target, _OPTIONS)
        # Bytes in, bytes out: `codec` parses the responses, not gRPC.
        self.process: _Call = self.channel.unary_unary(f"{_SERVICE}/Process")
        self._describe: _Call = self.channel.unary_unary(f"{_SERVICE}/Describe")
        self._begin_stream: aio.StreamStreamMultiCallable[bytes, bytes] = (
            self.channel.stream_stream(f"{_SERVICE}/ProcessStream")
        )
        self._request_bytes_max: int | None = None
        self._described_at = 0.0
        self.namespace_count = 0
        self.call_count = 0
        self.losses = 0
        """The number of times that the channel lost its connection."""
        self._loop = asyncio.get_running_loop()
        self._stream: Stream | None = None
        # Streams that take no more steps and still have open ones.
        self._leaving: list[Stream] = []
        self._calls_until = 0.0
        self._on_ready = on_ready
        self._step_calls = step_calls
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    def watch(self, group: asyncio.TaskGroup) -> None:
        """Keep connecting, in a task of the group, until `close`."""
        self._watching = group.create_task(self._watch(), name=f"connection to {self.target}")

    @property
    def is_connected(self) -> bool:
        """Whether the channel is connected at this moment."""
        return self.channel.get_state() is grpc.ChannelConnectivity.READY

    async def has_lost(self, losses: int) -> bool:
        """Return whether the connection has been lost since ``losses`` was read.

        A call that is cut off may learn of it before the channel does, so that one which still
        seems connected is given a moment. By then it may also be connected again.
        """
        if self.losses == losses and self.is_connected:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOSS_SECONDS):
                    await self._changed.wait()
        return self.losses > losses or not self.is_connected

    async def connect(self, seconds: float) -> str | None:
        """Wait until the channel is connected; return why it is not, None: it is."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    changed = self._changed
                    state = self.channel.get_state(try_to_connect=True)
                    if state is grpc.ChannelConnectivity.READY:
                        return None
                    if state in _FAILING:
                        return await self._failure()
                    if self._watching is None:
                        await self.channel.wait_for_state_change(state)
                    else:
                        await changed.wait()
        except TimeoutError:
            return f"no connection within {seconds:.1f} s"

    async def _failure(self) -> str | None:
        """Return why the channel fails, which only a call tells; None: it has connected."""
        try:
            await self._describe(b"", metadata=self.authorization)
        except aio.AioRpcError as error:
            if self.is_connected:
                return None
            return explained(error.details() or "no connection", self.credentials.tls)
        except (aio.UsageError, asyncio.CancelledError):
            current = asyncio.current_task()
            if current is None or current.cancelling() > 0:
                raise
            return "the channel was closed before the call"
        return None

    async def _watch(self) -> None:
        with contextlib.suppress(aio.UsageError, aio.InternalError):  # closed
            while True:
                state = self.channel.get_state(try_to_connect=True)
                was_ready, self.is_ready = self.is_ready, state is grpc.ChannelConnectivity.READY
                changed, self._changed = self._changed, asyncio.Event()
                changed.set()
                if was_ready and not self.is_ready:
                    # It may come back as a newer release, with a stream.
                    self._calls_until = 0.0
                if self.is_ready and not was_ready:
                    self._on_ready()
                await self.channel.wait_for_state_change(state)
                self.losses += self.is_ready

    @property
    def is_idle(self) -> bool:
        """Whether no namespace uses the connection and no call is in flight."""
        return self.namespace_count == 0 and self.call_count == 0

    @property
    def stream_count(self) -> int:
        """Open streams: the one that takes steps, and those with steps that are still open."""
        streams = (self._stream, *self._leaving)
        return sum(stream is not None and not stream.has_ended for stream in streams)

    def stream(self, group: asyncio.TaskGroup) -> Stream | None:
        """Return the stream that takes steps, opened in `group` if need be; None: call."""
        stream = self._stream
        if stream is not None:
            if stream.is_open:
                return stream
            self._part_with(stream)
        if self._calls_until > self._loop.time():
            return None
        name = secrets.token_hex(8)
        self._stream = stream = Stream(
            self.target,
            lambda: StreamCall(
                self._begin_stream(metadata=((STREAM_KEY, name), *self.authorization))
            ),
            self._step_calls,
            name,
        )
        stream.open(group)
        return stream

    async def request_bytes_max(self, size: int, *, timeout: float) -> int:
        """Return how large a request the processor accepts; asks it, unless that is known.

        Args:
            size: Of the request at hand. If it is too large the processor is asked again: the limit
                may have been raised.
            timeout: Seconds.
        """
        known, age = self._request_bytes_max, self._loop.time() - self._described_at
        if known is not None and size <= known and age < DESCRIBED_SECONDS:
            return known
        try:
            packed = await self._describe(
                b"",
                timeout=min(timeout, DESCRIBE_TIMEOUT_SECONDS),
                metadata=self.authorization,
            )
        except aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                # The call of the step will report the cause.
                return failures.MESSAGE_BYTES_MAX if known is None else max(known, size)
            packed = b""
        self._request_bytes_max = _announced(packed)
        self._described_at = self._loop.time()
        return self._request_bytes_max

    def note_unavailable(self) -> None:
        """Record a call that found the processor unavailable."""
        if self.channel.get_state() is not grpc.ChannelConnectivity.READY:
            self._calls_until = 0.0

    async def close(self) -> None:
        """Close stream and channel; steps in flight end as if the processor was unavailable."""
        streams, self._stream = (self._stream, *self._leaving), None
        self._leaving = []
        for stream in streams:
            if stream is not None:
                stream.close()
        self.is_ready = False
        if self._watching is not None:
            self._watching.cancel()
        await self.channel.close()
        self._changed.set()

    def _part_with(self, stream: Stream) -> None:
        self._stream = None
        self._leaving = [each for each in (*self._leaving, stream) if not each.has_ended]
        now = self._loop.time()
        if stream.was_refused:
            self._calls_until = now + REFUSED_SECONDS
        elif stream.ended_early:
            self._calls_until = now + EARLY_END_SECONDS


def _announced(packed: bytes) -> int:
    """Return how large a request the processor accepts, by its DescribeResponse."""
    try:
        described = processor_service_pb2.DescribeResponse.FromString(packed)
    except message.DecodeError:
        return failures.REQUEST_BYTES_ASSUMED
    announced = described.request_bytes_max
    if announced <= 0:
        return failures.REQUEST_BYTES_ASSUMED
    return min(announced, failures.MESSAGE_BYTES_MAX)


@dataclasses.dataclass(slots=True)
class _Round:
    """The targets of one namespace, and whose turn it is; no connections: ``fault`` says why."""

    targets: tuple[str, ...]
    credentials: Credentials | None
    connections: tuple[Connection, ...]
    fault: str
    turn: int = 0


class Channels:
    """Opens channels when they are first needed, and closes those that no namespace names.

    A channel with calls in flight is closed after the last of them, since closing it would cancel
    them. Not safe for use by several threads or event loops.
    """

    def __init__(
        self,
        step_calls: StepCalls | None = None,
        credentials: Mapping[str, Reloaded[Credentials]] = MappingProxyType({}),
    ) -> None:
        self._step_calls, self._credentials = step_calls, credentials
        self._connections: dict[_Key, Connection] = {}
        self._rounds: dict[str, _Round] = {}
        self._closed = False
        self._closing = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self.on_connected: Callable[[str], None] = lambda _: None
        """Called with the name of a namespace when one of its targets is connected."""

    async def run(self) -> None:
        """Run the streams until `close`; before and after that there are only calls.

        If it is cancelled, steps on the streams end as if their processors were unavailable.
        """
        try:
            async with asyncio.TaskGroup() as self._group:
                for connection in self._connections.values():
                    connection.watch(self._group)
                await self._closing.wait()
        finally:
            self._group = None

    @property
    def stream_count(self) -> int:
        """Streams open to all processors; from any thread."""
        return sum(each.stream_count for each in tuple(self._connections.values()))

    def stream_of(self, connection: Connection) -> Stream | None:
        """Return the stream of a connection that takes steps now; None: use calls."""
        return None if self._group is None else connection.stream(self._group)

    @property
    def keep_deadlines(self) -> bool:
        """Whether `keep_deadline` can be used; otherwise gRPC's own deadline has to do."""
        return self._step_calls is not None and self._group is not None

    def keep_deadline(self, call: aio.Call, task: RunningTask, deadline: float) -> CallDeadline:
        """Cancel a step's call at its deadline, which the step may move."""
        assert self._step_calls is not None, "nothing moves the deadline"
        assert self._group is not None, "only while the streams run"
        kept = CallDeadline(call, task, self._step_calls, self._group)
        kept.start(deadline)
        return kept

    async def take(self, namespace: Namespace) -> Connection:
        """Return the next connection in turn for a call; `give_back` it after the call.

        One that is connected is preferred. New targets and credentials of the namespace count
        from this call on.

        Raises:
            CredentialsError: Its credentials cannot be used.
        """
        assert not self._closed, "a processor was asked after the channels were closed"
        current, outdated = self._rounds.get(namespace.name), None
        credentials = self._credentials_of(namespace)
        if (
            current is None
            or current.targets != namespace.processor_targets
            or current.credentials is not credentials
        ):
            current, outdated = self._renew(namespace, credentials), current
        if current.fault:
            if outdated is not None:
                await self._release(outdated)
            raise CredentialsError(current.fault)
        connection = _next_in_turn(current)
        connection.call_count += 1
        if outdated is not None:
            # Only after the call is counted: a concurrent change of targets closes idle
            # connections, and must not close the one that was just chosen.
            try:
                await self._release(outdated)
            except asyncio.CancelledError:
                connection.call_count -= 1
                raise
        return connection

    def is_connected(self, namespace_name: str) -> bool | None:
        """Return whether any of a namespace's targets is connected; else try to connect.

        None: no step of this namespace was sent since it was last forgotten.
        """
        current = self._rounds.get(namespace_name)
        if current is None:
            return None
        states = [it.channel.get_state(try_to_connect=True) for it in current.connections]
        return grpc.ChannelConnectivity.READY in states

    async def give_back(self, connection: Connection) -> None:
        """End the call for which the connection was taken."""
        connection.call_count -= 1
        if connection.is_idle:
            await self._close_connection(connection)

    def forget(self, namespace_name: str) -> None:
        """Release the targets of a deleted namespace; an unknown namespace is ignored.

        `run` soon closes channels that no namespace uses. If `run` is not running,
        `close` does.
        """
        # Also forget those of nodes that are bound to one of its targets.
        bound = [name for name in self._rounds if name.startswith(f"{namespace_name}@")]
        for name in (namespace_name, *bound):
            forgotten = self._rounds.pop(name, None)
            if forgotten is None:
                continue
            if self._group is None:
                _uncount(forgotten)
                continue
            self._group.create_task(self._release(forgotten), name=f"forget {name}")

    async def close(self) -> None:
        """Close all channels; calls in flight end as if their processors were unavailable."""
        self._closed = True
        self._group = None
        self._rounds.clear()
        while self._connections:
            _, connection = self._connections.popitem()
            await connection.close()
        self._closing.set()

    def _credentials_of(self, namespace: Namespace) -> Credentials | None:
        if not namespace.processor_credentials:
            return PLAIN
        found = self._credentials.get(namespace.processor_credentials)
        return None if found is None else found.content

    def _renew(self, namespace: Namespace, credentials: Credentials | None) -> _Round:
        targets = namespace.processor_targets
        assert targets, f"namespace {namespace.name!r} has no targets"
        fault = (
            f"this replica has no processor_credentials.{namespace.processor_credentials}"
            if credentials is None
            else credentials.fault(targets)
        )
        connections: tuple[Connection, ...] = ()
        if credentials is not None and not fault:
            connections = tuple(self._connect(it, credentials) for it in targets)
        else:
            facts = {"namespace": namespace.name, "why": fault}
            _log.warning("processor credentials cannot be used", extra=facts)
        renewed = _Round(targets, credentials, connections, fault)
        self._rounds[namespace.name] = renewed
        return renewed

    def _connect(self, target: str, credentials: Credentials) -> Connection:
        key = target, credentials
        connection = self._connections.get(key)
        if connection is None:
            connection = Connection(
                target, lambda: self._note_ready(key), self._step_calls, credentials
            )
            self._connections[key] = connection
            if self._group is not None:
                connection.watch(self._group)
        connection.namespace_count += 1
        return connection

    def _note_ready(self, key: _Key) -> None:
        connection = self._connections.get(key)
        for name, current in tuple(self._rounds.items()):
            if connection in current.connections:
                self.on_connected(name)

    async def _release(self, old: _Round) -> None:
        _uncount(old)
        # A target may be named twice, so idleness is looked at after all are counted.
        for connection in old.connections:
            if connection.is_idle:
                await self._close_connection(connection)

    async def _close_connection(self, connection: Connection) -> None:
        key = connection.target, connection.credentials
        if self._connections.get(key) is connection:
            del self._connections[key]
            await connection.close()


def _uncount(old: _Round) -> None:
    for connection in old.connections:
        connection.namespace_count -= 1


def _next_in_turn(current: _Round) -> Connection:
    connections, first = current.connections, current.turn
    count = len(connections)
    if count == 1:
        return connections[0]
    order = [(first + step) % count for step in range(count)]
    index = next((it for it in order if connections[it].is_ready), None)
    if index is None:
        states = {it: connections[it].channel.get_state() for it in order}
        index = next((it for it in order if states[it] not in _FAILING), None)
    if index is not None:
        current.turn = (index + 1) % count
        return connections[index]
    # All of them fail: the call fails at once, and each keeps trying to connect by itself.
    current.turn = (first + 1) % count
    return connections[first]
