"""Options that many commands share: cyclopts turns each field of a dataclass into an option."""

import contextlib
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import grpc
from cyclopts import Group, Parameter

from progressor import errors
from progressor.cli.input.inputs import bad_input, check_range, pairs
from progressor.sdk.codec.codecs import BYTES
from progressor.settings.addresses import check_address
from progressor.settings.config import Config, load

if TYPE_CHECKING:  # loaded by the commands that make one
    from progressor.sdk.client.client import Client

TIMEOUT_MIN = 0.001
"""Seconds."""

_ENGINE = Group("Engine", sort_key=10)
_TIMEOUT_MAX = 7 * 86_400

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON document.")]


@Parameter(name="*", group=_ENGINE)
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How to reach an engine."""

    address: Annotated[str, Parameter(env_var="PROGRESSOR_ADDRESS")] = "127.0.0.1:7420"
    """Where the engine listens: host:port or unix:/path."""
    timeout: float = 30.0
    """Seconds to wait for the answer; an accepted task continues after that."""
    tls: Annotated[bool, Parameter(negative="")] = False
    """Use TLS, and trust the system's certificate authorities."""
    tls_authority: Path | None = None
    """Use TLS, and trust the certificate authority in this PEM file."""
    json: Json = False

    def __post_init__(self) -> None:
        try:
            check_address("--address", self.address, port_min=1)
        except errors.ConfigError as error:
            raise bad_input(error.key, error.description) from error
        check_range("--timeout", self.timeout, TIMEOUT_MIN, _TIMEOUT_MAX)

    @property
    def timeout_duration(self) -> dt.timedelta:
        return dt.timedelta(seconds=self.timeout)

    @property
    def credentials(self) -> grpc.ChannelCredentials | None:
        """The credentials for TLS; None without TLS."""
        if self.tls_authority is not None:
            try:
                return grpc.ssl_channel_credentials(self.tls_authority.read_bytes())
            except OSError as error:
                what = f"cannot read {self.tls_authority}: {error.strerror}"
                raise bad_input("--tls-authority", what) from error
        return grpc.ssl_channel_credentials() if self.tls else None


@Parameter(name="*", group=_ENGINE)
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceOptions(EngineOptions):
    """How to reach one namespace of an engine."""

    namespace: Annotated[str, Parameter(alias="-n", env_var="PROGRESSOR_NAMESPACE")] = "default"
    """The namespace of the process, gate, job or schedule."""


@Parameter(name="*", group=_ENGINE)
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scope(EngineOptions):
    """How to reach one namespace of an engine, or all."""

    namespace: Annotated[str | None, Parameter(alias="-n", env_var="PROGRESSOR_NAMESPACE")] = None
    """The namespace of the processes; all namespaces if not given."""


DEFAULT_ENGINE = EngineOptions()
DEFAULT_SCOPE = Scope()
IN_DEFAULT_NAMESPACE = NamespaceOptions()


@contextlib.asynccontextmanager
async def client_of(engine: EngineOptions) -> AsyncIterator["Client"]:
    """Return a client of the given engine with payloads as bytes, closed at the end."""
    from progressor.sdk.client.client import Client  # noqa: PLC0415  # version and config need none

    client = Client(
        engine.address,
        namespace=engine.namespace if isinstance(engine, NamespaceOptions) else "default",
        codec=BYTES,
        timeout=engine.timeout_duration,
        credentials=engine.credentials,
        session=False,
        repeats=False,  # The user wants to know at once that the engine is unreachable.
    )
    async with client:
        yield client


@Parameter(name="*", group=Group("Configuration", sort_key=10))
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The sources of the configuration, besides the environment."""

    config: Path | None = None
    """A TOML file, instead of PROGRESSOR_CONFIG and ./progressor.toml."""
    set: Annotated[tuple[str, ...], Parameter(name="--set", negative="")] = ()
    """A setting, KEY=VALUE, for example server.bind=0.0.0.0:7420; may be repeated."""
    dsn: str | None = None
    """The same as --set database.dsn=…; without a DSN, PostgreSQL is embedded."""
    data_directory: Path | None = None
    """The same as --set database.data_directory=…"""
    bind: str | None = None
    """The same as --set server.bind=…"""
    workers: int | None = None
    """The same as --set server.workers=…; 0 for one per core."""
    log_level: str | None = None
    """The same as --set log.level=…"""
    log_format: str | None = None
    """The same as --set log.format=…"""

    def flags(self) -> dict[str, str]:
        """Return the settings given on the command line, by key."""
        named = {
            "database.dsn": self.dsn,
            "database.data_directory": self.data_directory,
            "server.bind": self.bind,
            "server.workers": self.workers,
            "log.level": self.log_level,
            "log.format": self.log_format,
        }
        given = {key: str(value) for key, value in named.items() if value is not None}
        return pairs("--set", self.set) | given

    def load(self) -> Config:
        """Return the settings from all sources."""
        return load(file=self.config, flags=self.flags())


DEFAULT_SETTINGS = Settings()
