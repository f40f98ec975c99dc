"""Serves processors: ProcessorService, health and reflection, with a drain at the end."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Protocol

import grpc
from grpc_health.v1 import health, health_pb2

from progressor.sdk.processor.links import Engine, EngineAddress, ServiceLink, StepLink
from progressor.sdk.processor.streaming import AnswerStep, StepServer
from progressor.sdk.processor.verdicts import failure
from progressor.sdk.transport.connection import MESSAGE_BYTES_MAX, check_address
from progressor.sdk.transport.trust import Context, Guard, ServerTls, Trust
from progressor.v1 import processor_service_pb2 as pb
from progressor.wire.services import add_services
from progressor.wire.tls import server_credentials

try:
    import uvloop
except ImportError:  # pragma: no cover  # optional
    _LOOP_FACTORY: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
else:
    _LOOP_FACTORY = uvloop.new_event_loop

BIND_DEFAULT = "127.0.0.1:7421"

_SERVICE_NAME = pb.DESCRIPTOR.services_by_name["ProcessorService"].full_name

_STREAMS_MAX = 1_000
"""Streams of engines and health watches at once."""

_SERVER_OPTIONS = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # Two processors that share a port by mistake would each receive half of the steps.
    ("grpc.so_reuseport", 0),
    # The engine pings idle channels to detect a lost processor early.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)

_log = logging.getLogger(__name__)


class Servable(Protocol):
    """A processor, as the server needs it. A `Processor` also has ``check`` and ``task_types``."""

    @property
    def name(self) -> str:
        """Its namespace."""

    async def answer(
        self, request: pb.ProcessRequest, threads: Executor, link: StepLink | None = None
    ) -> pb.ProcessResponse:
        """Return the answer to one step; by `link` it reaches the engine while it runs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a server.

    ``steps_max``: steps that run at once. Further steps of a stream are queued; a further single
    call gets RESOURCE_EXHAUSTED, which the engine retries. ``threads_max``: plain handlers that run
    at once; others wait. ``drain_timeout``: how long a drain waits for running steps; the engine
    sends the rest to another processor.
    """

    steps_max: int = 10_000
    threads_max: int = 32
    drain_timeout: dt.timedelta = dt.timedelta(seconds=30)


LIMITS_DEFAULT = Limits()


def serve(
    *processors: Servable,
    bind: str = BIND_DEFAULT,
    limits: Limits = LIMITS_DEFAULT,
    streaming: bool = True,
    engine: str | EngineAddress | None = None,
    tls: ServerTls | None = None,
    trust: Trust | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, wait for the running steps and return.

    Call this in the main thread: it runs its own event loop, uvloop's if that is installed. The
    address and the processors are logged at INFO, or, if that level is not logged, written to
    stderr.

    Args:
        processors: One, for the steps of every namespace, or several, each for its own namespace.
        bind: "host:port" or "unix:/path".
        limits: How much runs at once.
        streaming: Offer ProcessStream, in which a step costs a fraction of a single call. The
            engine detects this.
        engine: The address of the engine, "host:port" or "unix:/path", or an `EngineAddress` with
            TLS or a token. Without streaming, steps need it for `Step.once`, `extend` and
            `keep_alive`.
        tls: None: no TLS.
        trust: Which engines are accepted; None: whoever can connect.
    """
    with asyncio.Runner(loop_factory=_LOOP_FACTORY) as runner:
        runner.run(
            _serve_until_signal(
                running(
                    *processors,
                    bind=bind,
                    limits=limits,
                    streaming=streaming,
                    engine=engine,
                    tls=tls,
                    trust=trust,
                ),
                processors,
            )
        )


@contextlib.asynccontextmanager
async def running(
    *processors: Servable,
    bind: str = BIND_DEFAULT,
    limits: Limits = LIMITS_DEFAULT,
    streaming: bool = True,
    engine: str | EngineAddress | None = None,
    tls: ServerTls | None = None,
    trust: Trust | None = None,
) -> AsyncIterator[str]:
    """Serve inside an ``async with``, which returns the bound address (port 0: any free port).

    At the exit the server accepts no more steps and waits for the running ones.

    Raises:
        RuntimeError: `bind` is in use or is not a valid address.
        ValueError: There is no processor, two have the same name, one has no handlers, `bind` has
            no valid port, or a file cannot be used.
        TypeError: A handler lacks an `await`, or requests a type that the codec cannot read.
    """
    check_address(bind)
    _check_trust(tls, trust)
    certificate = None if tls is None else tls.load()
    guard = None if trust is None else Guard(trust)
    at_address = None if engine is None else Engine(engine)
    threads = ThreadPoolExecutor(limits.threads_max, thread_name_prefix="progressor-handler")
    steps = StepServer(_router(processors, threads), limits.steps_max)
    for processor in processors:
        getattr(processor, "check", lambda: None)()
    # `StepServer` counts steps; gRPC counts calls, with room for the streams besides.
    rpcs_max = limits.steps_max + _STREAMS_MAX
    server = grpc.aio.server(
        options=(
            *_SERVER_OPTIONS,
            # gRPC's default of 1,000 would silently cancel a burst of steps.
            ("grpc.server.max_pending_requests", rpcs_max),
            ("grpc.server.max_pending_requests_hard_limit", rpcs_max),
        ),
        maximum_concurrent_rpcs=rpcs_max,
    )
    handlers = _handlers(steps, at_address, streaming=streaming)
    if guard is not None:
        handlers = {name: _guarded(it, guard) for name, it in handlers.items()}
    service = grpc.method_handlers_generic_handler(_SERVICE_NAME, handlers)
    server.add_generic_rpc_handlers((service,))
    health_servicer = _Health()
    add_services(server, health_servicer, (_SERVICE_NAME,))
    await health_servicer.set(_SERVICE_NAME, health_pb2.HealthCheckResponse.SERVING)
    if certificate is None:
        port = server.add_insecure_port(bind)
    else:
        with_clients = certificate.content.ca is not None
        credentials = server_credentials(certificate, with_clients=with_clients)
        port = server.add_secure_port(bind, credentials)
    await server.start()
    try:
        yield bind if bind.startswith("unix:") else f"{bind.rpartition(':')[0]}:{port}"
    finally:
        steps.leave()
        await health_servicer.leave()
        await server.stop(limits.drain_timeout.total_seconds())
        if at_address is not None:
            await at_address.close()
        threads.shutdown(wait=False, cancel_futures=True)


async def _describe(
    _request: pb.DescribeRequest,
    _context: grpc.aio.ServicerContext[pb.DescribeRequest, pb.DescribeResponse],
) -> pb.DescribeResponse:
    return pb.DescribeResponse(request_bytes_max=MESSAGE_BYTES_MAX)


def _check_trust(tls: ServerTls | None, trust: Trust | None) -> None:
    """Raise ValueError for identities without certificates that could have them."""
    if trust is not None and trust.identities and (tls is None or tls.client_ca is None):
        message = "Trust.identities needs tls=ServerTls(…, client_ca=…), which certifies engines"
        raise ValueError(message)


def _guarded(handler: Any, guard: Guard) -> Any:  # noqa: ANN401  # of gRPC, untyped
    """Return a method's handler that serves only engines which are trusted."""
    field = "stream_stream" if handler.stream_stream else "unary_unary"
    serve = getattr(handler, field)

    async def serve_trusted(request: object, context: Context) -> object:
        await guard.check(context)
        return await serve(request, context)

    return handler._replace(**{field: serve_trusted})


def _handlers(steps: StepServer, engine: Engine | None, *, streaming: bool) -> dict[str, Any]:
    """Return the methods; without streaming, ProcessStream is UNIMPLEMENTED."""

    async def process(
        request: pb.ProcessRequest,
        context: grpc.aio.ServicerContext[pb.ProcessRequest, pb.ProcessResponse],
    ) -> pb.ProcessResponse:
        if not steps.take():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many running steps")
        link: StepLink | None = None
        try:
            if engine is not None:
                link = ServiceLink(engine, request)
            elif streaming:
                link = steps.guest_link(context)
            return await steps.answer(request, link)
        finally:
            steps.release()
            if link is not None:
                link.close()

    methods: dict[str, Any] = {
        "Process": grpc.unary_unary_rpc_method_handler(
            process,
            request_deserializer=pb.ProcessRequest.FromString,
            response_serializer=pb.ProcessResponse.SerializeToString,
        ),
        "Describe": grpc.unary_unary_rpc_method_handler(
            _describe,
            request_deserializer=pb.DescribeRequest.FromString,
            response_serializer=pb.DescribeResponse.SerializeToString,
        ),
    }
    if streaming:
        # Bytes in, bytes out: `StepServer` parses and builds the frames.
        methods["ProcessStream"] = grpc.stream_stream_rpc_method_handler(steps.serve_stream)
    return methods


class _Health(health.aio.HealthServicer):
    """gRPC health that ends its watches at the drain, which would wait for them."""

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
        # A timeout at the drain ends the stream with OK. If the task were cancelled, gRPC would not
        # end the stream for the watcher.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as watch:
                self._watches.add(watch)
                try:
                    await super().Watch(request, context)
                finally:
                    self._watches.discard(watch)

    async def leave(self) -> None:
        """Report NOT_SERVING from now on, and end the watches."""
        await self.enter_graceful_shutdown()
        now = asyncio.get_running_loop().time()
        for watch in self._watches:
            watch.reschedule(now)


async def _serve_until_signal(
    served: contextlib.AbstractAsyncContextManager[str], processors: tuple[Servable, ...]
) -> None:
    leaving = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leaving.set)
    async with served as address:
        _announce(processors, address)
        await leaving.wait()
        _log.info("processor draining", extra={"address": address})


def _announce(processors: tuple[Servable, ...], address: str) -> None:
    """Log the address and the processors, or write them to stderr if INFO is not logged."""
    text = f"serving {', '.join(map(_described, processors))} on {address}"
    if _log.isEnabledFor(logging.INFO) and _log.hasHandlers():
        _log.info(text, extra={"address": address, "processors": [it.name for it in processors]})
    else:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def _described(processor: Servable) -> str:
    task_types: tuple[str, ...] = getattr(processor, "task_types", ())
    return f"{processor.name!r} ({', '.join(task_types)})" if task_types else repr(processor.name)


def _router(processors: tuple[Servable, ...], threads: Executor) -> AnswerStep:
    by_name = {processor.name: processor for processor in processors}
    if not processors or len(by_name) < len(processors):
        names = ", ".join(repr(processor.name) for processor in processors)
        message = f"must serve at least one processor, each of another name; got: {names or 'none'}"
        raise ValueError(message)
    if len(processors) == 1:
        answer = processors[0].answer
        return lambda request, link: answer(request, threads, link)

    async def answer_step(request: pb.ProcessRequest, link: StepLink | None) -> pb.ProcessResponse:
        processor = by_name.get(request.process.namespace)
        if processor is not None:
            return await processor.answer(request, threads, link)
        message = f"no processor for namespace {request.process.namespace!r}, only {list(by_name)}"
        return failure(grpc.StatusCode.UNIMPLEMENTED, message, "NO_PROCESSOR")

    return answer_step
