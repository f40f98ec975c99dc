"""The sections of the configuration: every key with its default, its bounds and its meaning."""

# `setting` makes a new dataclasses.field for each key

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
    """PostgreSQL: somebody's, or our own."""

    dsn: str = dataclasses.field(
        default="",
        repr=False,
        metadata={
            "meaning": "the PostgreSQL to use (URL or key=value); empty: our own, embedded",
            "secret": True,
        },
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
        None, "directory of postgres and initdb for the embedded PostgreSQL; empty: look for one"
    )
    front_connections_max: Connections = setting(8, "connections for requests of clients")
    worker_connections_max: Connections = setting(6, "connections for claims and settlements")
    scan_connections_max: Connections = setting(3, "connections for scanners and retention")
    connect_timeout: Seconds = setting(dt.timedelta(seconds=5), "to open a connection")
    statement_timeout: Seconds = setting(dt.timedelta(seconds=10), "for one statement")

    def __post_init__(self) -> None:
        """Check that the connection string can be read."""
        if self.dsn:
            check_dsn(DSN_KEY, self.dsn)

    @property
    def key(self) -> str:
        """The key that says which PostgreSQL it is."""
        return DSN_KEY if self.dsn else "database.data_directory"

    @property
    def description(self) -> str:
        """Which PostgreSQL it is, without a password."""
        if self.dsn:
            return redact_dsn(self.dsn)
        return f"embedded PostgreSQL in {self.data_directory}"

    @property
    def connections_max(self) -> int:
        """How many connections one replica may have open: its pools', the heartbeat's, LISTEN's."""
        pools = self.front_connections_max + self.worker_connections_max + self.scan_connections_max
        return pools + 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What clients connect to."""

    bind: tuple[str, ...] = setting(
        ("127.0.0.1:7420",), "where to listen: host:port or unix:/path, several by commas"
    )
    workers: Annotated[int, Meta(ge=0, le=256)] = setting(
        1,
        "processes that share the port, each a replica with the three pools and 2 connections "
        "more; 0: one for each core",
    )
    drain_timeout: Annotated[dt.timedelta, Meta(ge=0, le=3600)] = setting(
        dt.timedelta(seconds=20), "for steps in hand to settle on a stop"
    )
    tls_certificate: Path | None = setting(None, "PEM file of the certificate chain; empty: no TLS")
    tls_key: Path | None = setting(None, "PEM file of the certificate's private key")
    message_bytes_max: Annotated[int, Meta(gt=16 * _MIB, le=1024 * _MIB)] = setting(
        64 * _MIB, "bytes of the largest gRPC message; the largest payload, 16 MiB, must fit"
    )
    streams_max: Annotated[int, Meta(ge=1, le=1_000_000)] = setting(
        10_000, "requests at once over one connection"
    )
    session_calls_max: Annotated[int, Meta(ge=1, le=1_000_000)] = setting(
        10_000, "calls in flight on one session, over which they are OVERLOADED"
    )

    def __post_init__(self) -> None:
        """Check the addresses, that they can be shared, and that TLS has both its files."""
        if not self.bind:
            raise errors.ConfigError("server.bind", "must name at least one address, not ''")
        for address in self.bind:
            check_address("server.bind", address, port_min=0)
            if self.workers != 1 and address.startswith("unix:"):
                raise errors.ConfigError(
                    "server.workers",
                    f"{self.workers} processes cannot share {address!r}: a unix socket takes 1",
                )
        if (self.tls_certificate is None) != (self.tls_key is None):
            missing, present = "server.tls_key", "server.tls_certificate"
            if self.tls_certificate is None:
                missing, present = present, missing
            raise errors.ConfigError(missing, f"must be given where {present} is")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One engine among the others on its database."""

    name: str = found_setting(socket.gethostname, "its name in views and logs", shown="host name")
    heartbeat_interval: Annotated[dt.timedelta, Meta(ge=0.05, le=60)] = setting(
        dt.timedelta(seconds=1), "between two heartbeats"
    )
    lease_timeout: Annotated[dt.timedelta, Meta(ge=0.2, le=600)] = setting(
        dt.timedelta(seconds=5),
        "after a replica's last heartbeat until its steps go to others; 2.5 heartbeats or more",
    )
    step_grace: Annotated[dt.timedelta, Meta(ge=0, le=600)] = setting(
        dt.timedelta(seconds=2), "beyond its timeout until a step counts as a zombie"
    )

    def __post_init__(self) -> None:
        """Check that a lost heartbeat or two does not cost the lease."""
        if self.lease_timeout < 2.5 * self.heartbeat_interval:
            raise errors.ConfigError(
                "replica.lease_timeout_seconds",
                f"{self.lease_timeout.total_seconds():g} is less than 2.5 times "
                "replica.heartbeat_interval_seconds, "
                f"{self.heartbeat_interval.total_seconds():g}",
            )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scanner:
    """Bringing due work, and what retention deletes."""

    interval: Seconds = setting(dt.timedelta(seconds=1), "between two scans")
    overdue: Annotated[dt.timedelta, Meta(ge=0, le=3600)] = setting(
        dt.timedelta(seconds=1), "after which a scan takes what another replica should have taken"
    )
    batch_max: Batch = setting(500, "tasks that one scan claims")
    zombie_batch_max: Batch = setting(500, "zombies that one scan collects")
    retention_interval: Seconds = setting(
        dt.timedelta(seconds=30), "between two rounds of retention"
    )
    retention_batch_max: Batch = setting(500, "rows that one transaction of retention deletes")
    horizon: Seconds = setting(
        dt.timedelta(seconds=5), "ahead of which a timer is remembered by the replica that set it"
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Group commit."""

    batch_max: Batch = setting(128, "items of one write")
    lane_count: Annotated[int, Meta(ge=1, le=64)] = setting(1, "writes of one kind in flight")
    gather: Annotated[dt.timedelta, Meta(ge=0, le=1)] = setting(
        dt.timedelta(milliseconds=10),
        "by which a write is put off at most so that a crowd shares it",
    )
    queue_max: Annotated[int, Meta(ge=1, le=10_000_000)] = setting(
        20_000, "items that may wait for a write, over which requests are OVERLOADED"
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """What tasks with constraints wait for."""

    patience: Annotated[dt.timedelta, Meta(ge=0, le=86_400)] = setting(
        dt.timedelta(seconds=60),
        "after which a task that waits for gates goes first, and keeps what it can have",
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Snapshots:
    """Recent processes, remembered so that they are not read again."""

    bytes_max: Annotated[int, Meta(ge=0, le=1024 * 1024 * _MIB)] = setting(
        64 * _MIB, "bytes of remembered processes and histories; 0: none"
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """Metrics and traces."""

    metrics_bind: str = setting(
        "127.0.0.1:9464+",
        "where Prometheus reads /metrics: host:port; with a +, the next free port where that one "
        "is taken; off: nowhere",
    )
    metrics_interval: Annotated[dt.timedelta, Meta(ge=0.1, le=3600)] = setting(
        dt.timedelta(seconds=15), "between two pushes of all metrics by OTLP"
    )
    otlp_endpoint: str = setting("", "OTLP over gRPC, as in http://localhost:4317; empty: off")
    service_name: str = setting("progressor", "service.name of every span and metric")
    sample_ratio: Annotated[float, Meta(ge=0, le=1)] = setting(
        1.0, "share of traces that is recorded where the caller has not decided"
    )

    def __post_init__(self) -> None:
        """Check where metrics are served and pushed."""
        self.metrics_at()
        if self.otlp_endpoint:
            check_collector("telemetry.otlp_endpoint", self.otlp_endpoint)

    def metrics_at(self, number: int = 1) -> HttpBind | None:
        """Return where the metrics of so many-th process of an engine are served; None: nowhere.

        Raises:
            ConfigError: There is no such place.
        """
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

    level: Literal["debug", "info", "warning", "error"] = setting("info", "the least that is said")
    format: Literal["auto", "console", "json"] = setting(
        "auto", "auto: console on a terminal, else json"
    )
