"""Options that many commands share, each group a dataclass that cyclopts spreads."""

import dataclasses
import datetime as dt
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from progressor import errors
from progressor.cli.input.inputs import TIMEOUT_MIN, bad_input, check_range, pairs
from progressor.settings.addresses import check_address
from progressor.settings.config import Config, load

_ENGINE = Group("Engine", sort_key=10)
_TIMEOUT_MAX = 7 * 86_400

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON document.")]


@Parameter(name="*", group=_ENGINE)
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How to reach the engine."""

    address: Annotated[str, Parameter(env_var="PROGRESSOR_ADDRESS")] = "127.0.0.1:7420"
    """Where the engine listens: host:port or unix:/path."""
    timeout: float = 30.0
    """Seconds to wait for the answer; the task goes on after that."""
    tls: Annotated[bool, Parameter(negative="")] = False
    """Use TLS, trusting the system's authorities."""
    tls_authority: Path | None = None
    """Use TLS, trusting the authority of this PEM file."""
    json: Json = False

    def __post_init__(self) -> None:
        """Check the address and the timeout."""
        try:
            check_address("--address", self.address, port_min=1)
        except errors.ConfigError as error:
            raise bad_input(error.key, error.description) from error
        check_range("--timeout", self.timeout, TIMEOUT_MIN, _TIMEOUT_MAX)

    @property
    def patience(self) -> dt.timedelta:
        """The timeout as a duration."""
        return dt.timedelta(seconds=self.timeout)


@Parameter(name="*", group=_ENGINE)
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Target(Engine):
    """How to reach the processes of one namespace."""

    namespace: Annotated[str, Parameter(alias="-n", env_var="PROGRESSOR_NAMESPACE")] = "default"
    """The namespace of the process."""


@Parameter(name="*", group=_ENGINE)
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scope(Engine):
    """How to reach the processes of one namespace, or of all."""

    namespace: Annotated[str | None, Parameter(alias="-n", env_var="PROGRESSOR_NAMESPACE")] = None
    """The namespace of the processes; otherwise all of them."""


DEFAULT_ENGINE = Engine()
DEFAULT_SCOPE = Scope()
DEFAULT_TARGET = Target()


@Parameter(name="*", group=Group("Configuration", sort_key=10))
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The sources of a replica's settings, besides the environment."""

    config: Path | None = None
    """A TOML file, instead of PROGRESSOR_CONFIG and ./progressor.toml."""
    set: Annotated[tuple[str, ...], Parameter(name="--set", negative="")] = ()
    """A setting as KEY=VALUE, as in server.bind=0.0.0.0:7420; may be repeated."""
    dsn: str | None = None
    """The same as --set database.dsn=…; without one PostgreSQL is embedded."""
    data_directory: Path | None = None
    """The same as --set database.data_directory=…"""
    bind: str | None = None
    """The same as --set server.bind=…"""
    workers: int | None = None
    """The same as --set server.workers=…; 0: one per core."""
    log_level: str | None = None
    """The same as --set log.level=…"""
    log_format: str | None = None
    """The same as --set log.format=…"""

    def flags(self) -> dict[str, str]:
        """Return the settings that the command line gives, by key."""
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
        """Return the settings from all sources.

        Raises:
            ConfigError: A key is unknown, or its value is wrong.
        """
        return load(file=self.config, flags=self.flags())


DEFAULT_SETTINGS = Settings()
