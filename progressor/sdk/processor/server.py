"""Processors on a socket: ProcessorService, health and reflection, and a drain on the way out."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import functools
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Protocol, runtime_checkable

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from progressor.sdk.processor.streaming import Ask, Context, Hands, Streams
from progressor.sdk.processor.verdicts import failure
from progressor.sdk.transport.addresses import check_address
from progressor.sdk.transport.connection import MESSAGE_BYTES_MAX
from progressor.v1 import processor_service_pb2 as pb

try:
    import uvloop
except ImportError:  # pragma: no cover  # asyncio's own loop does as well
    _LOOP_FACTORY: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
else:
    _LOOP_FACTORY = uvloop.new_event_loop

BIND_DEFAULT = "127.0.0.1:7421"

_SERVICE_NAME = pb.DESCRIPTOR.services_by_name["ProcessorService"].full_name

_STREAMS_MAX = 1_000
"""Streams of engines, and health watches, at once."""

_SERVER_OPTIONS = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # Two processors that share a port by mistake would each get half of the steps.
    ("grpc.so_reuseport", 0),
    # The engine pings idle channels, to learn early that a processor is gone.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)

_log = logging.getLogger(__name__)


class Answering(Protocol):
    """What is served: a processor."""

    @property
    def name(self) -> str:
        """The namespace that it answers for."""

    async def answer(self, request: pb.ProcessRequest, threads: Executor) -> pb.ProcessResponse:
        """Return the answer to one step."""


@runtime_checkable
class Checked(Protocol):
    """What knows before its first step that it cannot answer one."""

    def check(self) -> None:
        """Raise ValueError or TypeError where that is so."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a server takes on at once, and how long it takes to leave.

    Over ``steps_max`` steps, those of a stream wait for their turn, and a call of its own is
    answered RESOURCE_EXHAUSTED, which the engine retries;
    ``threads_max`` plain handlers run at once, others wait; steps that outlast ``drain_timeout``
    are cut off, and asked again elsewhere.
    """

    steps_max: int = 10_000
    threads_max: int = 32
    drain_timeout: dt.timedelta = dt.timedelta(seconds=30)


LIMITS_DEFAULT = Limits()


def serve(
    *processors: Answering,
    bind: str = BIND_DEFAULT,
    limits: Limits = LIMITS_DEFAULT,
    streaming: bool = True,
) -> None:
    """Serve until SIGTERM or SIGINT, then end the steps in hand and return.

    For the main thread of a program: it runs an event loop of its own, uvloop where installed. It
    says where it listens and what it serves in the log at info, or, where that is not shown, on
    stderr.

    Args:
        processors: One, which answers for every namespace, or several, each for its name.
        bind: "host:port" or "unix:/path". Clients are not authenticated: keep to trusted networks.
        limits: What is taken on at once.
        streaming: Whether steps may come in frames (ProcessStream), which costs a fraction of a
            call each. The engine finds out by itself.
    """
    with asyncio.Runner(loop_factory=_LOOP_FACTORY) as runner:
        runner.run(_serve_until_signal(processors, bind, limits, streaming=streaming))


async def serve_async(
    *processors: Answering,
    bind: str = BIND_DEFAULT,
    limits: Limits = LIMITS_DEFAULT,
    streaming: bool = True,
) -> None:
    """Serve in the running event loop until cancelled, then end the steps in hand."""
    async with running(*processors, bind=bind, limits=limits, streaming=streaming):
        await asyncio.get_running_loop().create_future()


@contextlib.asynccontextmanager
async def running(
    *processors: Answering,
    bind: str = BIND_DEFAULT,
    limits: Limits = LIMITS_DEFAULT,
    streaming: bool = True,
) -> AsyncIterator[str]:
    """Serve inside an ``async with``, which gives the bound address (port 0: any free one).

    On the way out no step is accepted any more, and those in hand are ended.

    Raises:
        RuntimeError: `bind` is taken, or no address.
        ValueError: Two processors have the same name, or there is none; or one has no handlers; or
            `bind` has no port, or one that does not exist.
        TypeError: A handler drops a coroutine that it must await, or asks for a type that can never
            be read.
    """
    check_address(bind)
    ask = _router(processors)
    for processor in processors:
        if isinstance(processor, Checked):
            processor.check()
    # Steps are counted by `hands`: what gRPC counts has room for the streams that bring them.
    rpcs_max = limits.steps_max + _STREAMS_MAX
    server = grpc.aio.server(
        options=(
            *_SERVER_OPTIONS,
            # Over gRPC's own bound of 1,000 a burst of steps would be cancelled without a word.
            ("grpc.server.max_pending_requests", rpcs_max),
            ("grpc.server.max_pending_requests_hard_limit", rpcs_max),
        ),
        maximum_concurrent_rpcs=rpcs_max,
    )
    threads = ThreadPoolExecutor(limits.threads_max, thread_name_prefix="progressor-handler")
    hands = Hands(limits.steps_max)
    streams = Streams(ask, threads, hands) if streaming else None
    server.add_generic_rpc_handlers((_handler(_Servicer(ask, threads, hands), streams),))
    health_servicer = _Health()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    await health_servicer.set(_SERVICE_NAME, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection(
        (_SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server
    )
    port = server.add_insecure_port(bind)
    await server.start()
    try:
        yield bind if bind.startswith("unix:") else f"{bind.rpartition(':')[0]}:{port}"
    finally:
        if streams is not None:
            streams.leave()
        await health_servicer.leave()
        await server.stop(limits.drain_timeout.total_seconds())
        threads.shutdown(wait=False, cancel_futures=True)


class _Servicer:
    """The hot path: one look-up and one await between the socket and the handler."""

    def __init__(self, ask: Ask, threads: Executor, hands: Hands) -> None:
        self._ask, self._threads, self._hands = ask, threads, hands

    async def process(
        self,
        request: pb.ProcessRequest,
        context: grpc.aio.ServicerContext[pb.ProcessRequest, pb.ProcessResponse],
    ) -> pb.ProcessResponse:
        """Answer Process."""
        if not self._hands.take():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many steps in hand")
        try:
            return await self._ask(request, self._threads)
        finally:
            self._hands.let_go()


async def _describe(
    _request: pb.DescribeRequest,
    _context: grpc.aio.ServicerContext[pb.DescribeRequest, pb.DescribeResponse],
) -> pb.DescribeResponse:
    return pb.DescribeResponse(request_bytes_max=MESSAGE_BYTES_MAX)


async def _serve_stream(streams: Streams, _frames: object, context: Context) -> None:
    await streams.serve(context)


def _handler(servicer: _Servicer, streams: Streams | None) -> grpc.GenericRpcHandler:
    """Return the handler of ProcessorService; without streams, ProcessStream is UNIMPLEMENTED."""
    methods: dict[str, Any] = {
        "Process": grpc.unary_unary_rpc_method_handler(
            servicer.process,
            request_deserializer=pb.ProcessRequest.FromString,
            response_serializer=pb.ProcessResponse.SerializeToString,
        ),
        "Describe": grpc.unary_unary_rpc_method_handler(
            _describe,
            request_deserializer=pb.DescribeRequest.FromString,
            response_serializer=pb.DescribeResponse.SerializeToString,
        ),
    }
    if streams is not None:
        # Bytes in, bytes out: frames are opened and built by their twins.
        methods["ProcessStream"] = grpc.stream_stream_rpc_method_handler(
            functools.partial(_serve_stream, streams)
        )
    return grpc.method_handlers_generic_handler(_SERVICE_NAME, methods)


class _Health(health.aio.HealthServicer):
    """gRPC health whose watchers are let go on leaving: they would hold up the drain."""

    def __init__(self) -> None:
        super().__init__()
        self._watches: set[asyncio.Timeout] = set()

    async def Watch(  # noqa: N802  # the RPC's name
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.aio.ServicerContext[
            health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
        ],
    ) -> None:
        # A timeout that is due on leaving ends the stream with OK; of a cancelled task gRPC would
        # tell its watcher nothing.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as watch:
                self._watches.add(watch)
                try:
                    await super().Watch(request, context)
                finally:
                    self._watches.discard(watch)

    async def leave(self) -> None:
        """Say NOT_SERVING from now on, and end the watches."""
        await self.enter_graceful_shutdown()
        now = asyncio.get_running_loop().time()
        for watch in self._watches:
            watch.reschedule(now)


async def _serve_until_signal(
    processors: tuple[Answering, ...], bind: str, limits: Limits, *, streaming: bool
) -> None:
    leaving = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leaving.set)
    async with running(*processors, bind=bind, limits=limits, streaming=streaming) as address:
        _announce(processors, address)
        await leaving.wait()
        _log.info("processor drains", extra={"address": address})


def _announce(processors: tuple[Answering, ...], address: str) -> None:
    """Say where a program listens, and what it serves: in its log, or where that is silent."""
    text = f"serving {', '.join(map(_described, processors))} on {address}"
    if _log.isEnabledFor(logging.INFO) and _log.hasHandlers():
        _log.info(text, extra={"address": address, "processors": [it.name for it in processors]})
    else:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def _described(processor: Answering) -> str:
    # Whatever answers can be served; a `Processor` also knows which types of task it answers.
    task_types: tuple[str, ...] = getattr(processor, "task_types", ())
    return f"{processor.name!r} ({', '.join(task_types)})" if task_types else repr(processor.name)


def _router(processors: tuple[Answering, ...]) -> Ask:
    by_name = {processor.name: processor for processor in processors}
    if not processors or len(by_name) < len(processors):
        names = ", ".join(repr(processor.name) for processor in processors)
        message = f"processors to serve need different names, one at least; given: {names or '-'}"
        raise ValueError(message)
    if len(processors) == 1:
        return processors[0].answer

    async def ask(request: pb.ProcessRequest, threads: Executor) -> pb.ProcessResponse:
        processor = by_name.get(request.process.namespace)
        if processor is not None:
            return await processor.answer(request, threads)
        message = f"no processor for namespace {request.process.namespace!r}: only {list(by_name)}"
        return failure(grpc.StatusCode.UNIMPLEMENTED, message, "NO_PROCESSOR")

    return ask
