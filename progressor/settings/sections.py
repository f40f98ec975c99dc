"""The sections of the configuration: every key with its default, its bounds and its meaning."""

import dataclasses
import datetime as dt
import os
import socket
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from progressor import errors
from progressor.settings.addresses import (
    HttpBind,
    check_address,
    check_collector,
    check_dsn,
    http_bind,
    redact_dsn,
)
from progressor.settings.decoding import found_setting, setting

DSN_KEY = "database.dsn"
METRICS_KEY = "telemetry.metrics_bind"
METRICS_OFF = "off"

_MIB = 1024 * 1024
_AGE_MIN = dt.timedelta(seconds=10)
_AGE_WITH_CLIENTS = dt.timedelta(hours=1)

Connections = Annotated[int, Meta(ge=1, le=1000)]
Batch = Annotated[int, Meta(ge=1, le=10_000)]
Seconds = Annotated[dt.timedelta, Meta(ge=0.01, le=3600)]


def default_data_directory() -> Path:
    """Return where this user's embedded PostgreSQL lives, also for a user without a home."""
    data_home = os.environ.get("XDG_DATA_HOME", "")
    if Path(data_home).is_absolute():
        return Path(data_home, "progressor", "postgres")
    try:
        home = Path("~").expanduser()
    except RuntimeError:
        # A container's arbitrary user; not /tmp, which a reboot may empty.
        return Path("/var/tmp", f"progressor-{os.geteuid()}", "postgres")  # noqa: S108
    return home / ".local" / "share" / "progressor" / "postgres"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """PostgreSQL: a server of the user's, or an embedded one."""

    dsn: str = setting(
        "", "the PostgreSQL to use (URL or key=value); empty: an embedded one", secret=True
    )
    data_directory: Path = found_setting(
        default_data_directory,
        "where the embedded PostgreSQL keeps its data",
        shown="$XDG_DATA_HOME/progressor/postgres, else ~/.local/share/progressor/postgres",
    )
    embedded_port: Annotated[int, Meta(ge=0, le=65535)] = setting(
        0, "TCP port of the embedded PostgreSQL on 127.0.0.1; 0: a unix socket only"
    )
    embedded_binaries: Path | None = setting(
        None, "directory of postgres and initdb for the embedded PostgreSQL; empty: searched for"
    )
    front_connections_max: Connections = setting(8, "connections for requests from clients")
    worker_connections_max: Connections = setting(6, "connections for claims and settlements")
    scan_connections_max: Connections = setting(3, "connections for scanners and retention")
    connect_timeout: Seconds = setting(dt.timedelta(seconds=5), "timeout of opening a connection")
    statement_timeout: Seconds = setting(dt.timedelta(seconds=10), "timeout of one statement")

    def __post_init__(self) -> None:
        if self.dsn:
            check_dsn(DSN_KEY, self.dsn)

    @property
    def key(self) -> str:
        """The key that selects the PostgreSQL."""
        return DSN_KEY if self.dsn else "database.data_directory"

    @property
    def description(self) -> str:
        """Which PostgreSQL is used, without a password."""
        if self.dsn:
            return redact_dsn(self.dsn)
        return f"embedded PostgreSQL in {self.data_directory}"

    @property
    def connections_max(self) -> int:
        """Open connections per replica: those of its pools, the heartbeat's and LISTEN's."""
        pools = self.front_connections_max + self.worker_connections_max + self.scan_connections_max
        return pools + 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The gRPC server that clients connect to."""

    bind: Annotated[tuple[str, ...], Meta(min_length=1, max_length=32)] = setting(
        ("127.0.0.1:7420",), "where to listen: host:port or unix:/path, separated by commas"
    )
    insecure: bool = setting(
        default=False,
        meaning="listen at addresses that other machines can reach even if access.enabled is false",
    )
    workers: Annotated[int, Meta(ge=0, le=256)] = setting(
        1,
        "replica processes that share the port, each with the three pools and 2 more connections; "
        "0: one per core",
    )
    drain_timeout: Annotated[dt.timedelta, Meta(ge=0, le=3600)] = setting(
        dt.timedelta(seconds=20), "time for running steps to settle when the engine stops"
    )
    tls_certificate: Path | None = setting(
        None, "PEM file of the certificate chain; empty: no TLS; unix sockets never use it"
    )
    tls_key: Path | None = setting(None, "PEM file of the certificate's private key")
    tls_client_ca: Path | None = setting(
        None,
        "PEM file of the authorities that certify clients; empty: clients need no certificate",
    )
    tls_client_ca_except: Annotated[tuple[str, ...], Meta(min_length=0, max_length=32)] = setting(
        (), "addresses of server.bind whose clients need no certificate, separated by commas"
    )
    connection_age_max: Annotated[dt.timedelta, Meta(ge=0, le=7 * 86_400)] | None = setting(
        None,
        "time after which a client must reconnect, and so present a certificate that is still "
        "valid; 0: never, else at least 10; empty: 3600 with server.tls_client_ca, else never",
    )
    message_bytes_max: Annotated[int, Meta(ge=16 * _MIB + 1, le=1024 * _MIB)] = setting(
        64 * _MIB, "bytes of the largest gRPC message; a payload of 16 MiB must fit"
    )
    streams_max: Annotated[int, Meta(ge=1, le=1_000_000)] = setting(
        10_000, "concurrent requests per connection"
    )
    session_calls_max: Annotated[int, Meta(ge=1, le=1_000_000)] = setting(
        10_000, "calls in flight per session; more are OVERLOADED"
    )

    def __post_init__(self) -> None:
        for address in self.bind:
            check_address("server.bind", address, port_min=0)
            if self.workers != 1 and address.startswith("unix:"):
                raise errors.ConfigError(
                    "server.workers",
                    f"must be 1 with {address!r}, which processes cannot share, got {self.workers}",
                )
        if (self.tls_certificate is None) != (self.tls_key is None):
            missing, present = "server.tls_key", "server.tls_certificate"
            if self.tls_certificate is None:
                missing, present = present, missing
            raise errors.ConfigError(missing, f"must be given if {present} is")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            words = "must be given if server.tls_client_ca is"
            raise errors.ConfigError("server.tls_certificate", words)
        # Clients need a fifth of it to move what is in flight to another connection.
        if self.connection_age_max and self.connection_age_max < _AGE_MIN:
            words = f"must be 0 or at least {_AGE_MIN.total_seconds():g}"
            got = f"got {self.connection_age_max.total_seconds():g}"
            raise errors.ConfigError("server.connection_age_max_seconds", f"{words}, {got}")
        self._check_exceptions()

    @property
    def connection_age(self) -> dt.timedelta | None:
        """The maximum age in force; None: there is none."""
        if self.connection_age_max is None:
            return _AGE_WITH_CLIENTS if self.tls_client_ca is not None else None
        return self.connection_age_max or None

    def _check_exceptions(self) -> None:
        key = "server.tls_client_ca_except"
        if self.tls_client_ca_except and self.tls_client_ca is None:
            raise errors.ConfigError("server.tls_client_ca", f"must be given if {key} is")
        for address in self.tls_client_ca_except:
            if address not in self.bind or address.endswith(":0") or address.startswith("unix:"):
                words = f"must be addresses host:port of server.bind, with a port, got {address!r}"
                raise errors.ConfigError(key, words)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Access control."""

    enabled: bool = setting(
        default=False,
        meaning="check the credentials and rights of every request; false: anyone may do anything",
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """Who has changed what."""

    calls: bool = setting(
        default=False,
        meaning="also record each start, call and notify; what changes something else always is",
    )
    retention_days: Annotated[int, Meta(ge=0, le=36_500)] = setting(
        400, "days after which entries are deleted; 0: never"
    )

    @property
    def retention(self) -> dt.timedelta | None:
        """How long entries are kept; None: for ever."""
        return dt.timedelta(days=self.retention_days) or None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """One replica among the others on its database."""

    name: str = found_setting(
        socket.gethostname, "name of the replica in views and logs", shown="host name"
    )
    heartbeat_interval: Annotated[dt.timedelta, Meta(ge=0.05, le=60)] = setting(
        dt.timedelta(seconds=1), "time between two heartbeats"
    )
    lease_timeout: Annotated[dt.timedelta, Meta(ge=0.2, le=600)] = setting(
        dt.timedelta(seconds=5),
        "time after a replica's last heartbeat until others take its steps; at least 2.5 "
        "heartbeats",
    )
    step_grace: Annotated[dt.timedelta, Meta(ge=0, le=600)] = setting(
        dt.timedelta(seconds=2), "time past its timeout after which a step is a zombie"
    )

    def __post_init__(self) -> None:
        """Check that one or two lost heartbeats do not cost the lease."""
        if self.lease_timeout < 2.5 * self.heartbeat_interval:
            raise errors.ConfigError(
                "replica.lease_timeout_seconds",
                "must be at least 2.5 times replica.heartbeat_interval_seconds, "
                f"{self.heartbeat_interval.total_seconds():g}, got "
                f"{self.lease_timeout.total_seconds():g}",
            )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scanner:
    """Scans for due work, and retention."""

    interval: Seconds = setting(dt.timedelta(seconds=1), "time between two scans")
    overdue: Annotated[dt.timedelta, Meta(ge=0, le=3600)] = setting(
        dt.timedelta(seconds=1),
        "time after which a scan takes what another replica should have taken",
    )
    batch_max: Batch = setting(500, "tasks claimed by one scan")
    zombie_batch_max: Batch = setting(500, "zombies collected by one scan")
    retention_interval: Seconds = setting(
        dt.timedelta(seconds=30), "time between two rounds of retention"
    )
    retention_batch_max: Batch = setting(
        1000, "processes or tasks deleted by one transaction of retention"
    )
    horizon: Seconds = setting(
        dt.timedelta(seconds=5),
        "a timer due within it is kept in memory by the replica that set it",
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Group commit."""

    batch_max: Batch = setting(128, "items per write")
    shard_count: Annotated[int, Meta(ge=1, le=64)] = setting(1, "concurrent writes of one kind")
    gather: Annotated[dt.timedelta, Meta(ge=0, le=1)] = setting(
        dt.timedelta(milliseconds=10),
        "longest time a write is delayed so that concurrent requests share it",
    )
    queue_max: Annotated[int, Meta(ge=1, le=10_000_000)] = setting(
        20_000, "items that may wait for a write; further requests are OVERLOADED"
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """Gates, which tasks with constraints wait for."""

    starvation_timeout: Annotated[dt.timedelta, Meta(ge=0, le=86_400)] = setting(
        dt.timedelta(seconds=60),
        "time after which a task that waits for gates goes first, and keeps those it gets",
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Snapshots:
    """The cache of recent processes."""

    bytes_max: Annotated[int, Meta(ge=0, le=1024 * 1024 * _MIB)] = setting(
        64 * _MIB, "bytes of cached processes and histories; 0: no cache"
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """Metrics and traces."""

    metrics_bind: str = setting(
        "127.0.0.1:9464+",
        "where Prometheus reads /metrics: host:port; with a +, the next free port if that one is "
        "in use; off: no endpoint",
    )
    metrics_tls: bool = setting(
        False,  # noqa: FBT003 - the default of a key
        "serve /metrics over HTTPS with the server's certificate; clients need no certificate",
    )
    metrics_interval: Annotated[dt.timedelta, Meta(ge=0.1, le=3600)] = setting(
        dt.timedelta(seconds=15), "time between two pushes of all metrics by OTLP"
    )
    otlp_endpoint: str = setting("", "OTLP over gRPC, as in http://localhost:4317; empty: off")
    service_name: str = setting("progressor", "service.name of every span and metric")
    sample_ratio: Annotated[float, Meta(ge=0, le=1)] = setting(
        1.0, "share of traces recorded if the caller has not decided"
    )

    def __post_init__(self) -> None:
        self.metrics_at()
        if self.otlp_endpoint:
            check_collector("telemetry.otlp_endpoint", self.otlp_endpoint)

    def metrics_at(self, number: int = 1) -> HttpBind | None:
        """Return where the `number`-th replica process serves its metrics; None: nowhere."""
        if self.metrics_bind == METRICS_OFF:
            return None
        bind = http_bind(METRICS_KEY, self.metrics_bind)
        if not bind.port or number == 1:
            return bind
        following = dataclasses.replace(bind, port=bind.port + number - 1)
        return http_bind(METRICS_KEY, str(following))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """The log, on stderr."""

    level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "the lowest level that is logged"
    )
    format: Literal["auto", "console", "json"] = setting(
        "auto", "auto: console on a terminal, else json"
    )
