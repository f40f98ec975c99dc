"""Options that many commands share, and how they become values; a wrong one is named.

cyclopts turns each field of a dataclass into an option.
"""

import contextlib
import dataclasses
import datetime as dt
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, TypeVar

import msgspec
from cyclopts import Group, Parameter, Token, convert
from cyclopts.types import Int32, Int64

from progressor import errors
from progressor.cli.input import contexts
from progressor.cli.input.login_tokens import LoginToken
from progressor.cli.output import note
from progressor.domain.processes.event import Direction, HistoryRange
from progressor.sdk.codec.revealed import Ask, Revealer
from progressor.sdk.codec.wire import object_to_wire
from progressor.sdk.values.constraints import PRIORITY_DEFAULT, Constraints
from progressor.settings.addresses import check_address
from progressor.settings.config import Config, load
from progressor.wire.tls import TlsFileError, read_token

Item = TypeVar("Item")
Value = TypeVar("Value")

PAGE_MAX = 1000
"""Items of one page."""

_LIMIT_MAX = 1_000_000
_REQUEST = Group("Request", sort_key=5)
_DIGITS_MAX = 9  # More do not fit into an int32; the engine's own limit is far below.


TIMEOUT_MIN = 0.001
"""Seconds."""

_ENGINE = Group("Engine", sort_key=10)
ADDRESS = "127.0.0.1:7420"
_TIMEOUT_MAX = 7 * 86_400

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON document.")]


def option(meaning: str) -> Parameter:
    """Return an option with its help, and without a negative form for a flag or list."""
    return Parameter(help=meaning, negative="")


def duration(meaning: str, *, name: str | None = None, shown: str = "") -> Parameter:
    """Return an option that takes a duration such as 30s; the help shows `shown` as its default."""
    return Parameter(name, help=meaning, converter=_duration, show_default=lambda _: shown)


def _duration(kind: type[dt.timedelta], tokens: Sequence[Token]) -> dt.timedelta:
    try:
        found = convert(kind, tokens)
    except OverflowError as error:
        description = f"{tokens[0].value!r} is too long"
        raise ValueError(description) from error
    assert isinstance(found, dt.timedelta), "converted to another type"
    return found


def bad_input(option: str, description: str) -> errors.InvalidRequestError:
    return errors.InvalidRequestError(errors.FieldViolation(option, description))


def check_range(option: str, value: float, lowest: float, highest: float) -> None:
    if not lowest <= value <= highest:
        raise bad_input(option, f"must be from {lowest:,} to {highest:,}, got {value}")


def check_limit(limit: int) -> None:
    check_range("--limit", limit, 1, _LIMIT_MAX)


async def first(limit: int, items: AsyncIterator[Item]) -> tuple[list[Item], bool]:
    """Return the first `limit` items, and whether there are more."""
    found: list[Item] = []
    async for item in items:
        if len(found) == limit:
            return found, True
        found.append(item)
    return found, False


@Parameter(name="*", group=_REQUEST)
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PayloadInput:
    """The args of a request, in one of three forms."""

    args: Annotated[str | None, Parameter(name="--args", allow_leading_hyphen=True)] = None
    """The args for the processor: JSON, sent unchanged."""
    args_file: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    """A file with the args, sent unchanged; - for standard input."""
    text: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    """The args as plain text, sent as UTF-8."""

    def payload(self) -> bytes:
        """Return the bytes to send, empty without any of the three."""
        if sum(form is not None for form in (self.args, self.args_file, self.text)) > 1:
            raise bad_input("--args", "only one of --args, --args-file and --text can be given")
        if self.args is not None:
            return json_bytes("--args", self.args)
        if self.args_file is not None:
            return file_bytes("--args-file", self.args_file)
        return (self.text or "").encode()


class RequestArguments(TypedDict):
    args: bytes
    idempotency_key: str
    context: dict[str, str]
    history: HistoryRange | None


@Parameter(name="*", group=_REQUEST)
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestInput(PayloadInput):
    """Options of every request to a processor."""

    idempotency_key: str = ""
    """Makes the request safe to repeat: the same key and request run once, with one answer."""
    context: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """KEY=VALUE, passed on to the processor; may be repeated."""
    history_last: Int32 | None = None
    """How many of the last events the processor gets; by default, as set for the namespace."""

    def arguments(self) -> RequestArguments:
        last = self.history_last
        return {
            "args": self.payload(),
            "idempotency_key": self.idempotency_key,
            "context": pairs("--context", self.context),
            "history": None if last is None else HistoryRange.last(last),
        }


@Parameter(name="*", group=Group("Constraints", sort_key=6))
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintsInput:
    """The constraints that must be met before a task runs."""

    gate: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """A gate to hold: KEY, or KEY=CAPACITY to create it if absent; may be repeated."""
    order: str | None = None
    """KEY=VERSION: wait until all tasks of this key with a smaller version have ended."""
    run_at: str | None = None
    """Do not run before this instant, for example 2026-01-31T12:00:00Z."""
    priority: Int32 | None = None
    """The priority for gates, from 1, the highest, to 5; 3 by default."""
    hold: Literal["task", "process"] | None = None
    """Whether the gates are held until the end of the task or the process; task by default."""

    def constraints(self) -> Constraints | None:
        """Return the constraints; None without any of the options."""
        if self == ConstraintsInput():
            return None
        return Constraints(
            run_at=instant("--run-at", self.run_at),
            order=None if self.order is None else _key_and_version(self.order),
            gates=_gates(self.gate),
            priority=PRIORITY_DEFAULT if self.priority is None else self.priority,
            hold=self.hold or "task",
        )


@Parameter(name="*", group=Group("History", sort_key=5))
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HistoryInput:
    """The part of a history to print."""

    after: Int64 = 0
    """Leave out the events up to and including this id."""
    limit: Int32 | None = None
    """The maximum number of events."""
    backward: Annotated[bool, Parameter(negative="")] = False
    """Print the newest events first."""

    def range(self) -> HistoryRange:
        direction = Direction.BACKWARD if self.backward else Direction.FORWARD
        return HistoryRange(after=self.after, limit=self.limit, direction=direction)


def json_bytes(option: str, text: str) -> bytes:
    """Return the bytes of a JSON text, unchanged."""
    encoded = text.encode()
    _json(option, encoded, msgspec.Raw, "is not JSON")
    return encoded


def json_object(option: str, text: str | None) -> dict[str, object] | None:
    """Return a JSON object that is valid as metadata; None for None."""
    if text is None:
        return None
    found = _json(option, text.encode(), dict[str, object], "is not a JSON object")
    return parsed(option, checked_metadata, found)


def _json(option: str, encoded: bytes, kind: type[Item], otherwise: str) -> Item:
    try:
        return msgspec.json.decode(encoded, type=kind)
    except msgspec.DecodeError as error:
        raise bad_input(option, f"{otherwise}: {error}") from error
    except RecursionError as error:
        raise bad_input(option, "is nested too deeply") from error


def checked_metadata(metadata: dict[str, object]) -> dict[str, object]:
    """Return metadata unchanged; ValueError says where it is what the SDK cannot send."""
    object_to_wire(metadata)
    return metadata


def instant(option: str, text: str | None) -> dt.datetime | None:
    """Return the instant of an option's text; None for None."""
    return None if text is None else parsed(option, instant_of, text)


def instant_of(text: str) -> dt.datetime:
    """Return an ISO 8601 instant in UTC, which is also the zone if it names none."""
    try:
        found = dt.datetime.fromisoformat(text)
        return found.astimezone(dt.UTC) if found.tzinfo else found.replace(tzinfo=dt.UTC)
    except (ValueError, OverflowError) as error:
        message = f"must be an instant such as 2026-01-31T12:00:00Z, got {text!r}"
        raise ValueError(message) from error


def parsed(option: str, parse: Callable[[Value], Item], value: Value) -> Item:
    """Return what `parse` makes of a value; its ValueError becomes one about the option."""
    try:
        return parse(value)
    except (ValueError, OverflowError) as error:
        raise bad_input(option, str(error)) from error


def file_bytes(option: str, path: str) -> bytes:
    """Return the bytes of a file, or of standard input for ``-``."""
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise bad_input(option, f"cannot read {path}: {error.strerror}") from error


def pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """Return ``KEY=VALUE`` texts as a mapping; the last value of a key wins."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key.strip() and equals):
            raise bad_input(option, f"must be KEY=VALUE, got {text!r}")
        found[key.strip()] = value
    return found


def _key_and_version(text: str) -> tuple[str, str]:
    key, _, version = text.rpartition("=")
    if not (key and version):
        raise bad_input("--order", f"must be KEY=VERSION, got {text!r}")
    return key, version


def _gates(texts: Iterable[str]) -> dict[str, int | None]:
    """Return gates with their capacities; a key that contains ``=`` must be followed by one."""
    found: dict[str, int | None] = {}
    for text in texts:
        key, equals, number = text.rpartition("=") if "=" in text else (text, "", "")
        is_number = number.isascii() and number.isdecimal() and len(number) <= _DIGITS_MAX
        if not key or (number and not is_number):
            raise bad_input("--gate", f"must be KEY or KEY=CAPACITY, got {text!r}")
        if key in found:
            raise bad_input("--gate", f"must name {key!r} only once")
        found[key] = int(number) if equals and number else None
    return found


if TYPE_CHECKING:  # loaded by the commands that make one
    from progressor.sdk.client.client import Client


@Parameter(name="*", group=_ENGINE)
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How to reach an engine."""

    context: Annotated[str, Parameter(env_var="PROGRESSOR_CONTEXT")] = ""
    """The context to use, instead of the current one; see `progressor context`."""
    address: Annotated[str, Parameter(env_var="PROGRESSOR_ADDRESS")] = ADDRESS
    """Where the engine listens: host:port or unix:/path."""
    timeout: float = 30.0
    """Seconds to wait for the answer; an accepted task continues after that."""
    tls: Annotated[bool, Parameter(negative="", env_var="PROGRESSOR_TLS")] = False
    """Use TLS, and trust the system's certificate authorities."""
    tls_ca: Annotated[Path | None, Parameter(env_var="PROGRESSOR_TLS_CA")] = None
    """Use TLS, and trust the certificate authorities in this PEM file."""
    tls_certificate: Annotated[Path | None, Parameter(env_var="PROGRESSOR_TLS_CERTIFICATE")] = None
    """Use TLS, and show the certificate in this PEM file."""
    tls_key: Annotated[Path | None, Parameter(env_var="PROGRESSOR_TLS_KEY")] = None
    """The PEM file of the certificate's key."""
    tls_server_name: Annotated[str, Parameter(env_var="PROGRESSOR_TLS_SERVER_NAME")] = ""
    """Use TLS, and expect this name in the engine's certificate, instead of that of the address."""
    token_file: Annotated[Path | None, Parameter(env_var="PROGRESSOR_TOKEN_FILE")] = None
    """Send the bearer token in this file, over TLS, to this machine or to a unix socket."""
    decode_url: Annotated[str, Parameter(env_var="PROGRESSOR_DECODE_URL")] = ""
    """Show encrypted payloads as this endpoint decrypts them; https://, or on this machine."""
    decode_token_file: Annotated[Path | None, Parameter(env_var="PROGRESSOR_DECODE_TOKEN_FILE")] = (
        None
    )
    """Send the bearer token in this file to the endpoint of --decode-url."""
    json: Json = False

    def __post_init__(self) -> None:
        try:
            check_address("--address", self.address, port_min=1)
        except errors.ConfigError as error:
            raise bad_input(error.key, error.description) from error
        check_range("--timeout", self.timeout, TIMEOUT_MIN, _TIMEOUT_MAX)

    @property
    def again(self) -> str:
        """What reaches the same engine, at the end of a command that is printed; "" by default."""
        given = {
            "--context": self.context,
            "--address": self.address if self.address != ADDRESS else None,
            "--tls-ca": self.tls_ca,
            "--tls-certificate": self.tls_certificate,
            "--tls-key": self.tls_key,
            "--tls-server-name": self.tls_server_name,
            "--token-file": self.token_file,
        }
        known = contexts.read().get(self.context) if self.context else contexts.Context()
        words = [
            f" {option} {shlex.quote(str(it))}"
            for option, it in given.items()
            if it and it != getattr(known, option[2:].replace("-", "_"), None)
        ]
        return "".join([*words, " --tls"] if self.tls and not known.tls else words)

    @property
    def identity(self) -> Mapping[str, Any]:
        """The arguments of a client that say how it knows the engine, and who it is."""
        from progressor.sdk.transport.security import Security, Tls  # noqa: PLC0415  # as below

        files = {"ca": self.tls_ca, "certificate": self.tls_certificate, "key": self.tls_key}
        if (self.tls_certificate is None) != (self.tls_key is None):
            missing = "--tls-key" if self.tls_key is None else "--tls-certificate"
            raise bad_input(missing, "must be given: a certificate and its key belong together")
        has_tls = self.tls or self.tls_server_name or any(files.values())
        tls = Tls(**files, server_name=self.tls_server_name) if has_tls else None
        try:
            Security(self.address, tls, self.token_file or self._login())
        except TlsFileError as error:
            option = "--token-file" if error.field == "token" else f"--tls-{error.field}"
            raise bad_input(option, error.why) from error
        except ValueError as error:
            what = "needs --tls or --tls-ca, unless the engine is on this machine"
            raise bad_input("--token-file", what) from error
        return {"tls": tls, "token": self.token_file or self._login()}

    def _login(self) -> LoginToken | None:
        if not self.context:
            return None
        found = LoginToken(self.context, contexts.read().get(self.context))
        return found if found.exists else None

    @property
    def codec(self) -> Revealer:
        """The codec of a client: payloads stay bytes, and encrypted ones can be decrypted."""
        ask = self._decode_endpoint() if self.decode_url else None

        def tell(why: str) -> None:
            note(f"payloads stay encrypted: {why}", as_json=self.json)

        return Revealer(ask, tell)

    def _decode_endpoint(self) -> Ask:
        from progressor.sdk.codec.decode_client import Endpoint  # noqa: PLC0415  # slow, and rare

        try:
            token = read_token(self.decode_token_file) if self.decode_token_file else None
            return Endpoint(self.decode_url, token)
        except TlsFileError as error:
            raise bad_input("--decode-token-file", error.why) from error
        except ValueError as error:
            raise bad_input("--decode-url", str(error)) from error


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


@contextlib.asynccontextmanager
async def client_of(engine: EngineOptions) -> AsyncIterator["Client"]:
    """Return a client of the engine, whose payloads are bytes."""
    from progressor.sdk.client.client import Client  # noqa: PLC0415  # version and config need none

    client = Client(
        engine.address,
        namespace=engine.namespace if isinstance(engine, NamespaceOptions) else "default",
        codec=engine.codec,
        timeout=engine.timeout,
        **engine.identity,
        session=False,
        repeats=False,  # The user wants to know at once that the engine is unreachable.
    )
    async with client:
        yield client


OneCell = Annotated[str | None, option("Only this cell; by default all of them.")]


def cells_of(config: Config, cell: str | None) -> Mapping[str, Config]:
    """Return the settings of each cell, or of the one that is wanted, by its name."""
    found = config.by_cell
    if cell is None:
        return found
    if cell not in found:
        raise bad_input("--cell", f"must be one of {', '.join(found)}, got {cell!r}")
    return {cell: found[cell]}


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
    insecure: Annotated[bool, Parameter(negative="")] = False
    """The same as --set server.insecure=true"""
    workers: int | None = None
    """The same as --set server.workers=…; 0 for one per core."""
    log_level: str | None = None
    """The same as --set log.level=…"""
    log_format: str | None = None
    """The same as --set log.format=…"""

    def flags(self) -> dict[str, str]:
        named = {
            "database.dsn": self.dsn,
            "database.data_directory": self.data_directory,
            "server.bind": self.bind,
            "server.insecure": True if self.insecure else None,
            "server.workers": self.workers,
            "log.level": self.log_level,
            "log.format": self.log_format,
        }
        given = {key: str(value) for key, value in named.items() if value is not None}
        return pairs("--set", self.set) | given

    def load(self) -> Config:
        return load(file=self.config, flags=self.flags())
