"""The gRPC server: bind, health, reflection, drain."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

import grpc

from progressor import errors
from progressor.api.access import AccessServicer
from progressor.api.bulks import BulkServicer
from progressor.api.calls.interceptors import Interceptor
from progressor.api.calls.servicer import Backend, LogLevels, Servicer
from progressor.api.calls.turns import Turns
from progressor.api.gates import GateServicer
from progressor.api.guard.audit import Recorder
from progressor.api.guard.guard import Guard
from progressor.api.jobs import JobServicer
from progressor.api.namespaces import NamespaceServicer
from progressor.api.processes.servicer import ProcessServicer
from progressor.api.replicas import ReplicaServicer
from progressor.api.schedules.servicer import ScheduleServicer
from progressor.api.server.binding import BIND_KEY, bind, check_free
from progressor.api.server.health import Health
from progressor.api.server.places import Places
from progressor.api.server.routing import routed
from progressor.api.server.sessions import Sessions
from progressor.api.steps import StepServicer
from progressor.clock import Clock
from progressor.domain.processes.namespace import PAYLOAD_BYTES_CEILING
from progressor.telemetry.instruments import Labels
from progressor.telemetry.metrics.registry import Metrics
from progressor.telemetry.traces.tracing import SILENT, Tracing
from progressor.wire.services import add_services
from progressor.wire.tls import Reloaded, TlsMaterial, server_credentials

_GRPC_LOG = logging.getLogger("grpc._cython.cygrpc")
_NO_ADDRESS = "must name at least one address, not ''"
_OF_CLIENTS: Labels = ("client",)
_MESSAGE_KEY = "server.message_bytes_max"

# The time to send thousands of callers their status: gRPC ends the remaining calls with a bare
# CANCELLED when it stops, without the advice to retry on another replica.
_NOTIFY_SECONDS = 2.0

# The time to send the last responses after their methods have returned.
_FLUSH_SECONDS = 0.25

_METADATA_BYTES_MAX = 32 * 1024

# Clients may ping often, also without a call, to notice a dead replica; we ping them, so that a
# caller whose machine vanished does not hold its place for gRPC's default of two hours.
_KEEPALIVE_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where the server listens and what it bounds.

    ``bind``: ``host:port`` (port 0: any free one) or ``unix:/path``. ``message_bytes_max`` is of a
    request; a larger one is RESOURCE_EXHAUSTED by gRPC's own words, so the largest payload and what
    goes with it must fit. ``streams_max``: requests at once over one connection, of which a session
    is one. ``session_calls_max``: calls in flight on one session. ``port_shared``: other engines
    may listen on the same port of this machine; without, the second one fails. With authorities in
    ``tls``, clients need a certificate, except at the addresses ``tls_client_ca_except``.
    ``connection_age_max``: after it a client is asked to connect again, and after it once more the
    requests that are still open on the old connection are cancelled.
    """

    bind: tuple[str, ...]
    message_bytes_max: int = 64 * 1024 * 1024
    streams_max: int = 10_000
    session_calls_max: int = 10_000
    port_shared: bool = False
    tls: Reloaded[TlsMaterial] | None = None
    tls_client_ca_except: tuple[str, ...] = ()
    connection_age_max: dt.timedelta | None = None

    def __post_init__(self) -> None:
        if not self.bind:
            raise errors.ConfigError(BIND_KEY, _NO_ADDRESS)
        if self.message_bytes_max <= PAYLOAD_BYTES_CEILING:
            description = f"{self.message_bytes_max} must exceed a payload, {PAYLOAD_BYTES_CEILING}"
            raise errors.ConfigError(_MESSAGE_KEY, description)

    def credentials(self, address: str) -> grpc.ServerCredentials | None:
        """Return the credentials of an address; None: no TLS.

        A unix socket has none: its directory says who may connect, and probes without TLS can use
        it, as those of containers.
        """
        if self.tls is None or address.startswith("unix:"):
            return None
        with_clients = self.tls.content.ca is not None and address not in self.tls_client_ca_except
        return server_credentials(self.tls, with_clients=with_clients)


class ApiServer:
    """The services of progressor on a gRPC server; start it once, drain it once."""

    def __init__(  # noqa: PLR0913  all but one keyword-only
        self,
        places: Places,
        *,
        log_levels: LogLevels,
        replica_name: str,
        clock: Clock,
        listening: Listening,
        guard: Guard | None = None,
        recorder: Recorder | None = None,
        metrics: Metrics | None = None,
        tracing: Tracing = SILENT,
    ) -> None:
        """Build the services.

        ``places`` provides what they call. Without a ``guard`` there is no access control.
        """
        self._turns = Turns()

        def servicers_of(backend: Callable[[], Backend], cell: str = "") -> tuple[Servicer, ...]:
            return (
                ProcessServicer(backend, turns=self._turns),
                NamespaceServicer(backend, cell=cell),
                GateServicer(backend),
                JobServicer(backend, clock=clock),
                ScheduleServicer(backend, clock=clock),
                StepServicer(backend),
                BulkServicer(backend),
                AccessServicer(backend, is_controlled=guard is not None),
                ReplicaServicer(backend, log_levels=log_levels, name=replica_name, cell=cell),
            )

        self._servicers = routed(places, servicers_of)
        self._names = [it.service.full_name for it in self._servicers]
        self._listening = listening
        metrics = metrics or Metrics()
        self._interceptor = Interceptor(
            clock=clock,
            metrics=metrics,
            tracing=tracing,
            guard=guard,
            recorder=recorder,
        )
        self._sessions = Sessions(
            self._servicers[0],
            interceptor=self._interceptor,
            clock=clock,
            calls_max=listening.session_calls_max,
            age_max=listening.connection_age_max,
        )
        metrics.stream_sessions.read_from(lambda: [(_OF_CLIENTS, self._sessions.open_count)])
        self._health = Health(["", *self._names], cells=places.names)
        self._server: grpc.aio.Server | None = None

    async def start(self) -> list[str]:
        """Listen, NOT_SERVING until `set_serving`, and return the bound addresses with their ports.

        Requests are served at once; only health keeps load balancers away. A failed start may be
        repeated.

        Raises:
            ConfigError: An address cannot be bound.
        """
        assert self._server is None, "a server starts once"
        _GRPC_LOG.addFilter(_is_wanted)
        server = grpc.aio.server(options=self._options())
        server.add_generic_rpc_handlers(
            tuple(self._interceptor.handler(it, self._sessions) for it in self._servicers)
        )
        add_services(server, self._health, self._names)
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(server.stop, None)
            addresses = []
            for address in self._listening.bind:
                if not self._listening.port_shared:
                    await check_free(address)
                addresses.append(bind(server, address, self._listening.credentials(address)))
            await server.start()
            undo.pop_all()
        self._server = server
        return addresses

    def interrupt(
        self, error: errors.ProgressorError, calls: Iterable[asyncio.Task[object]] | None = None
    ) -> None:
        """End calls in flight with an error, None: all of them; further ones are served."""
        if calls is None:
            self._interceptor.interrupt(error)
        else:
            for call in calls:
                self._interceptor.cut_short(call, error)

    def set_serving(self, *, serving: bool, cells: Mapping[str, bool] | None = None) -> None:
        """Set the health of all services, and of each cell; without effect once draining."""
        self._health.set_serving(serving=serving, cells=cells)

    async def drain(
        self, grace: dt.timedelta, *, steps_done: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Turn new work away, wait up to `grace` for what is in flight, then stop.

        Health goes to NOT_SERVING first, and sessions are notified. Reads, and what running steps
        ask for, are served until the work and `steps_done` are. Those still waiting after `grace`
        get REPLICA_STOPPED; their requests are durable, or about to be, and continue on another
        replica. Cancelled, it leaves the server listening and refusing work; drain again.
        """
        assert self._server is not None, "a server that has started"
        self._health.leave()
        self._interceptor.refuse_work()
        self._sessions.notify_draining()
        try:
            async with asyncio.timeout(grace.total_seconds()):
                await self._interceptor.work_done()
                if steps_done is not None:
                    await steps_done()
                self._interceptor.refuse_all()
                self._turns.close()
                await self._interceptor.all_done()
        except TimeoutError:
            self._interceptor.refuse_all()
            self._turns.close()
            self._interceptor.cut_off()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_NOTIFY_SECONDS):
                    await self._interceptor.all_done()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * _FLUSH_SECONDS):
                await self._sessions.end(_FLUSH_SECONDS)
        # Watchers of health never end by themselves.
        await self._server.stop(_FLUSH_SECONDS)

    def _options(self) -> list[tuple[str, int]]:
        return [
            ("grpc.so_reuseport", int(self._listening.port_shared)),
            ("grpc.max_receive_message_length", self._listening.message_bytes_max),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_concurrent_streams", self._listening.streams_max),
            # gRPC's own bound is 8 KiB; an identity token that names many groups may be larger.
            ("grpc.max_metadata_size", _METADATA_BYTES_MAX),
            ("grpc.absolute_max_metadata_size", 2 * _METADATA_BYTES_MAX),
            # gRPC's own bound on requests that Python has not taken up yet is 1,000, over which it
            # cancels them without a word, those after a burst too.
            ("grpc.server.max_pending_requests", self._listening.streams_max),
            ("grpc.server.max_pending_requests_hard_limit", self._listening.streams_max),
            *_KEEPALIVE_OPTIONS,
            *_age_options(self._listening.connection_age_max),
        ]


def _age_options(age_max: dt.timedelta | None) -> tuple[tuple[str, int], ...]:
    if not age_max:
        return ()
    milliseconds = int(age_max.total_seconds() * 1000)
    return (
        ("grpc.max_connection_age_ms", milliseconds),
        ("grpc.max_connection_age_grace_ms", milliseconds),
    )


def _is_wanted(record: logging.LogRecord) -> bool:
    """Drop what gRPC logs if a client disconnects during a response, or sends metadata amiss.

    The latter would show the metadata, and with it a token.
    """
    if record.exc_info is not None and isinstance(
        record.exc_info[1], grpc.aio.InternalError | UnicodeDecodeError
    ):
        return False
    return "Invalid encoding on" not in record.getMessage()
