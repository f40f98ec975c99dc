"""Addresses and certificates of the server: bound as asked, or refused by the key at fault.

gRPC takes a port modulo 65,536, is content when one of the addresses of a host name is free, and
takes a unix socket away from a server that listens there (1.85), so we look first.

Several processes of one engine share a port by SO_REUSEPORT, which would let in every other process
of the same user, so one process holds the port for all of them, with `reserved`.
"""

import asyncio
import contextlib
import dataclasses
import errno
import os
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import grpc

from progressor import errors

BIND_KEY = "server.bind"

_PORT_MAX = 65_535
_UNIX = "unix:"
_Name = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
_Place = tuple[int, int, int, _Name]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """PEM files of the certificate chain and its private key."""

    certificate: Path
    key: Path


def credentials_of(tls: Tls) -> grpc.ServerCredentials:
    """Return the credentials; ConfigError if the files are not a PEM certificate and its key."""
    chain = _read("server.tls_certificate", tls.certificate)
    key = _read("server.tls_key", tls.key)
    _check_pair(tls)
    return grpc.ssl_server_credentials([(key, chain)])


async def check_free(address: str) -> None:
    """Raise ConfigError if an address cannot be bound, or is in use."""
    if address.startswith(_UNIX):
        await _check_socket_free(address)
        return
    host, port = _split(address)
    await _check_port_free(address, host, port)


@contextlib.asynccontextmanager
async def reserved(address: str) -> AsyncIterator[str]:
    """Hold a TCP port for servers that share it; yield the address, with the port picked for 0.

    While the context is open no other process gets the port; ConfigError if it cannot be bound.
    """
    host, port = _split(address)
    with contextlib.ExitStack() as stack:
        held, why = False, "it stands for no address"
        for place in await _places(address, host, port):
            try:
                # The first of several may have picked the port for the rest.
                holder = stack.enter_context(_bound(place, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise _taken(address) from error
                # Like gRPC, we do without, as long as there is another.
                why = os.strerror(error.errno) if error.errno else str(error)
                continue
            port = holder.getsockname()[1]
            # From here on, processes that share the port get in by the one, and none by the other.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            held = True
        if not held:
            raise errors.ConfigError(BIND_KEY, f"cannot listen on {address!r}: {why}")
        yield f"{address.rpartition(':')[0]}:{port}"


def bind(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> str:
    """Bind an address and return it with its port; ConfigError if it cannot be bound."""
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        # gRPC says why only in its own log, on stderr.
        raise errors.ConfigError(BIND_KEY, f"cannot listen on {address!r}") from error
    if port == 0:
        raise errors.ConfigError(BIND_KEY, f"cannot listen on {address!r}")
    if address.startswith(_UNIX):
        return address
    return f"{address.rpartition(':')[0]}:{port}"


async def _check_socket_free(address: str) -> None:
    path = Path(address.removeprefix(_UNIX))
    try:
        path.parent.stat()
        _, writer = await asyncio.open_unix_connection(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        if error.filename == str(path.parent):
            raise _impossible(address, error) from error
        return
    except OSError:
        return
    writer.close()
    raise _taken(address)


async def _check_port_free(address: str, host: str, port: int) -> None:
    failures = []
    places = await _places(address, host, port)
    for place in places:
        try:
            _bound(place, port).close()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise _taken(address) from error
            failures.append(error)
    # Like gRPC, we do without one, as long as there is another.
    if len(failures) == len(places):
        raise _impossible(address, failures[-1]) from failures[-1]


async def _places(address: str, host: str, port: int) -> list[_Place]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise errors.ConfigError(BIND_KEY, f"{address!r}: {error.strerror}") from error
    return [(family, kind, protocol, name) for family, kind, protocol, _, name in found]


def _bound(place: _Place, port: int) -> socket.socket:
    family, kind, protocol, name = place
    found = socket.socket(family, kind, protocol)
    try:
        # Without it, connections that a stopped engine left behind would count.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((name[0], port, *name[2:]))
    except OSError:
        found.close()
        raise
    return found


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and int(port[:6]) <= _PORT_MAX):
        raise errors.ConfigError(BIND_KEY, f"{address!r} is neither host:port nor unix:/path")
    return host.strip("[]"), int(port)


def _taken(address: str) -> errors.ConfigError:
    return errors.ConfigError(BIND_KEY, f"address already in use: {address!r}")


def _impossible(address: str, error: OSError) -> errors.ConfigError:
    return errors.ConfigError(BIND_KEY, f"cannot listen on {address!r}: {error.strerror or error}")


def _check_pair(tls: Tls) -> None:
    try:
        # Without a password it would ask for one on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            tls.certificate, tls.key, password=""
        )
    except ssl.SSLError as error:
        why = (error.reason or "no PEM data").replace("_", " ").lower()
        files = f"{tls.certificate} and {tls.key}"
        raise errors.ConfigError(
            "server.tls_certificate", f"{files} are not a PEM certificate and its key: {why}"
        ) from error


def _read(setting: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise errors.ConfigError(setting, f"{path}: {error.strerror}") from error
