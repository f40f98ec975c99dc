"""Addresses and connection strings: checked, and shown without their secrets."""

import dataclasses
import re

from progressor import errors

_PORT_MAX = 65535
_HOST = r"\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+"
_HOST_AND_PORT = re.compile(rf"(?:{_HOST}):(\d{{1,5}})", re.ASCII)
_HTTP_BIND = re.compile(rf"({_HOST}):(\d{{1,5}})(\+?)", re.ASCII)
_UNIX = re.compile(r"unix:\S+")
_COLLECTOR = re.compile(r"(?:https?://)?([^\s/]+?)/?")

_DSN_CHOICES = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "target_session_attrs": (
        "any", "read-write", "read-only", "primary", "standby", "prefer-standby",
    ),
}  # fmt: skip
"""Options that libpq checks only when it connects, and then reports like a server that is away."""

_QUOTED = re.compile(r'".*"', re.DOTALL)

# Greedy up to the last @: a password with an unescaped @ or / must not show either.
_URL_PASSWORD = re.compile(r"(://[^:/@?]*:).*(?=@)", re.DOTALL)
_SECRETS = r"(?:ssl)?password|oauth_client_secret|scram_\w+_key"
_URL_PARAMETER = re.compile(rf"([?&](?:{_SECRETS})=)[^&]*", re.IGNORECASE)
_KEY_AND_VALUE = re.compile(
    rf"(\b(?:{_SECRETS})\s*=\s*)(?:'(?:[^'\\]|\\.)*(?:'|$)|(?:\\.|[^\s\\])+)",
    re.IGNORECASE | re.DOTALL,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HttpBind:
    """Where to listen for HTTP; with `or_above`, at a higher port where that one is taken."""

    host: str
    port: int
    or_above: bool

    def __str__(self) -> str:
        """Return it as it is written in the configuration."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}{'+' if self.or_above else ''}"


def http_bind(key: str, text: str) -> HttpBind:
    """Return what ``host:port`` stands for, or ``host:port+``.

    Raises:
        ConfigError: It is neither, or there is no such port.
    """
    match = _HTTP_BIND.fullmatch(text)
    if match is None or int(match[2]) > _PORT_MAX:
        raise errors.ConfigError(
            key, f"{text!r} is not host:port, with a port 0 .. {_PORT_MAX} and a + or none, nor off"
        )
    return HttpBind(host=match[1].strip("[]"), port=int(match[2]), or_above=bool(match[3]))


def check_address(key: str, address: str, *, port_min: int) -> None:
    """Check that `address` is ``host:port`` or ``unix:/path``.

    Raises:
        ConfigError: It is neither, or its port is not in ``port_min .. 65535``.
    """
    if _UNIX.fullmatch(address):
        return
    match = _HOST_AND_PORT.fullmatch(address)
    if match is None or not port_min <= int(match[1]) <= _PORT_MAX:
        has_no_port = re.fullmatch(_HOST, address) and not address.isdecimal()
        wrong = "has no port: it must be" if has_no_port else "is not"
        raise errors.ConfigError(
            key, f"{address!r} {wrong} host:port, with a port {port_min} .. 65535, or unix:/path"
        )


def check_collector(key: str, endpoint: str) -> None:
    """Check that `endpoint` is ``host:port``, with ``http://`` or ``https://`` before it or not.

    Raises:
        ConfigError: It is not, or its port is not in ``1 .. 65535``.
    """
    match = _COLLECTOR.fullmatch(endpoint)
    port = _HOST_AND_PORT.fullmatch(match[1]) if match is not None else None
    if port is None or not 1 <= int(port[1]) <= _PORT_MAX:
        raise errors.ConfigError(key, f"{endpoint!r} is not a URL such as http://localhost:4317")


def check_dsn(key: str, dsn: str) -> None:
    """Check that libpq can read `dsn`; nothing is connected.

    Raises:
        ConfigError: It cannot. What is quoted from it is masked: it may be a part of a password.
    """
    # Only here: a command that asks an engine does without the driver.
    from psycopg import ProgrammingError, conninfo  # noqa: PLC0415

    try:
        given = conninfo.conninfo_to_dict(dsn)
    except ProgrammingError as error:
        why = _QUOTED.sub('"***"', str(error).replace('"="', "=").strip())
        raise errors.ConfigError(key, f"is not a PostgreSQL connection string: {why}") from None
    for port in str(given.get("port") or "").split(","):
        if port and not (port.isascii() and port.isdecimal() and 1 <= int(port[:6]) <= _PORT_MAX):
            raise errors.ConfigError(
                key,
                f"has a port that is not in 1 .. {_PORT_MAX}; percent-encode : and / in a password",
            )
    for option, choices in _DSN_CHOICES.items():
        if given.get(option, choices[0]) not in choices:
            raise errors.ConfigError(key, f"{option} must be one of {', '.join(choices)}")


def redact_dsn(dsn: str) -> str:
    """Return a connection string with every secret in it replaced by ``***``."""
    if "://" in dsn:
        return _URL_PARAMETER.sub(r"\1***", _URL_PASSWORD.sub(r"\1***", dsn))
    return _KEY_AND_VALUE.sub(r"\1***", dsn)
