"""The connection to one processor: a channel, its calls, and the stream of most steps.

A step is sent

 * on the stream, which is opened for the first step and again after it has ended;
 * in a call of its own if the processor has no stream (UNIMPLEMENTED). This is remembered for
   REFUSED_SECONDS, or until the connection is lost, since the processor may then be of a newer
   release;
 * in a call of its own for EARLY_END_SECONDS after a stream ended without any response although the
   connection works, so that a broken stream is not opened again for every step.
"""

import asyncio
from collections.abc import Sequence

import grpc
from google.protobuf import message
from grpc import aio

from progressor.processor import failures
from progressor.processor.stream import Stream
from progressor.v1 import processor_service_pb2
from progressor.wire.stream_call import StreamCall

PROCESS_METHOD = "/progressor.v1.ProcessorService/Process"
STREAM_METHOD = "/progressor.v1.ProcessorService/ProcessStream"

DESCRIBE_METHOD = "/progressor.v1.ProcessorService/Describe"

DESCRIBED_SECONDS = 60.0
"""How long the announced limit of a processor is trusted."""

DESCRIBE_TIMEOUT_SECONDS = 5.0

REFUSED_SECONDS = 300.0
EARLY_END_SECONDS = 5.0

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


class Connection:
    """A channel to one target, its stream, and the count of its users."""

    __slots__ = (
        "_begin_stream",
        "_calls_until",
        "_describe",
        "_described_at",
        "_leaving",
        "_loop",
        "_request_bytes_max",
        "_stream",
        "call_count",
        "channel",
        "namespace_count",
        "process",
        "target",
    )

    def __init__(self, target: str) -> None:
        self.target = target
        self.channel = aio.insecure_channel(target, options=_OPTIONS)
        # Bytes in, bytes out: `codec` parses the responses, not gRPC.
        self.process: aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(
            PROCESS_METHOD
        )
        self._begin_stream: aio.StreamStreamMultiCallable[bytes, bytes] = (
            self.channel.stream_stream(STREAM_METHOD)
        )
        self._describe: aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(
            DESCRIBE_METHOD
        )
        self._request_bytes_max: int | None = None
        self._described_at = 0.0
        self.namespace_count = 0
        self.call_count = 0
        self._loop = asyncio.get_running_loop()
        self._stream: Stream | None = None
        # Streams that take no more steps and still have open ones.
        self._leaving: list[Stream] = []
        self._calls_until = 0.0

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
        self._stream = stream = Stream(self.target, lambda: StreamCall(self._begin_stream()))
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
            packed = await self._describe(b"", timeout=min(timeout, DESCRIBE_TIMEOUT_SECONDS))
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
        await self.channel.close()

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
