"""Addresses and connection strings: checked, and shown without their secrets."""

import dataclasses
import re

from progressor import errors

_PORT_MAX = 65535
_HOST = r"\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+"
_HOST_AND_PORT = re.compile(rf"(?:{_HOST}):(\d{{1,5}})", re.ASCII)
_HTTP_BIND = re.compile(rf"({_HOST}):(\d{{1,5}})(\+?)", re.ASCII)
_UNIX = re.compile(r"unix:\S+")

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
        raise errors.ConfigError(
            key,
            f"{address!r} is neither host:port, with a port {port_min} .. 65535, nor unix:/path",
        )


def redact_dsn(dsn: str) -> str:
    """Return a connection string with every secret in it replaced by ``***``."""
    if "://" in dsn:
        return _URL_PARAMETER.sub(r"\1***", _URL_PASSWORD.sub(r"\1***", dsn))
    return _KEY_AND_VALUE.sub(r"\1***", dsn)
