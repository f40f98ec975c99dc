"""Addresses and connection strings: checked, by `ConfigError`, and shown without secrets."""

import dataclasses
import re

from progressor import errors

_PORT_MAX = 65535
_HOST = r"\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+"
_HOST_AND_PORT = re.compile(rf"(?:{_HOST}):(\d{{1,5}})", re.ASCII)
_HTTP_BIND = re.compile(rf"({_HOST}):(\d{{1,5}})(\+?)", re.ASCII)
_UNIX = re.compile(r"unix:\S+")
_COLLECTOR = re.compile(rf"(?:https?://)?(?:{_HOST}):(\d{{1,5}})/?", re.ASCII)

_DSN_CHOICES = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "target_session_attrs": (
        "any", "read-write", "read-only", "primary", "standby", "prefer-standby",
    ),
}  # fmt: skip
"""Options that libpq checks only when it connects, and then reports as an unavailable server."""

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
    """Where to listen for HTTP; with `or_above`, at a higher port if that one is in use."""

    host: str
    port: int
    or_above: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}{'+' if self.or_above else ''}"


def http_bind(key: str, text: str) -> HttpBind:
    """Parse ``host:port`` or ``host:port+``."""
    match = _HTTP_BIND.fullmatch(text)
    if match is None or int(match[2]) > _PORT_MAX:
        raise errors.ConfigError(
            key,
            f"must be host:port or host:port+, with a port 0 to {_PORT_MAX}, or off, got {text!r}",
        )
    return HttpBind(host=match[1].strip("[]"), port=int(match[2]), or_above=bool(match[3]))


def check_address(key: str, address: str, *, port_min: int) -> None:
    """Check that `address` is ``host:port`` or ``unix:/path``."""
    if _UNIX.fullmatch(address):
        return
    match = _HOST_AND_PORT.fullmatch(address)
    if match is None or not port_min <= int(match[1]) <= _PORT_MAX:
        has_no_port = re.fullmatch(_HOST, address) and not address.isdecimal()
        hint = ", which has no port" if has_no_port else ""
        ports = f"a port {port_min} to {_PORT_MAX}"
        raise errors.ConfigError(
            key, f"must be host:port, with {ports}, or unix:/path, got {address!r}{hint}"
        )


def check_collector(key: str, endpoint: str) -> None:
    """Check that `endpoint` is ``host:port``, with or without ``http://`` or ``https://``."""
    # The pattern knows only the white space of ASCII.
    match = None if any(map(str.isspace, endpoint)) else _COLLECTOR.fullmatch(endpoint)
    if match is None or not 1 <= int(match[1]) <= _PORT_MAX:
        words = f"must be a URL such as http://localhost:4317, got {endpoint!r}"
        raise errors.ConfigError(key, words)


def check_dsn(key: str, dsn: str) -> None:
    """Check that libpq can read `dsn`; no connection is made."""
    # Imported here: a client does not need the driver.
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
                f"has a port outside 1 to {_PORT_MAX}; percent-encode : and / in a password",
            )
    for option, choices in _DSN_CHOICES.items():
        if given.get(option, choices[0]) not in choices:
            raise errors.ConfigError(key, f"{option} must be one of {', '.join(choices)}")


def redact_dsn(dsn: str) -> str:
    """Return a connection string with every secret in it replaced by ``***``."""
    if "://" in dsn:
        return _URL_PARAMETER.sub(r"\1***", _URL_PASSWORD.sub(r"\1***", dsn))
    return _KEY_AND_VALUE.sub(r"\1***", dsn)
