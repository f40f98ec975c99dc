"""Addresses of the server: bound as asked, or refused by the key at fault.

gRPC takes a port modulo 65,536, is content when one of the addresses of a host name is free, and
takes a unix socket away from a server that listens there (1.85), so we look first.

Several processes of one engine share a port by SO_REUSEPORT, which would let in every other process
of the same user, so one process holds the port for all of them, with `reserved`.
"""

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc

from progressor import errors

BIND_KEY = "server.bind"

_PORT_MAX = 65_535
_UNIX = "unix:"
_Name = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
_Place = tuple[int, int, int, _Name]


async def check_free(address: str) -> None:
    """Raise ConfigError if an address cannot be bound, or is in use."""
    if address.startswith(_UNIX):
        await _check_socket_free(address)
        return
    with contextlib.ExitStack() as stack:
        await _hold(address, stack, is_shared=False)


@contextlib.asynccontextmanager
async def reserved(address: str) -> AsyncIterator[str]:
    """Hold a TCP port for servers that share it; yield the address, with the port picked for 0.

    While the context is open no other process gets the port; ConfigError if it cannot be bound.
    """
    with contextlib.ExitStack() as stack:
        port = await _hold(address, stack, is_shared=True)
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


async def _hold(address: str, stack: contextlib.ExitStack, *, is_shared: bool) -> int:
    """Bind an address, each for itself and for a moment, or one port for all while it is shared."""
    host, port = _split(address)
    try:
        places = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise errors.ConfigError(BIND_KEY, f"{address!r}: {error.strerror}") from error
    failures = []
    for family, kind, protocol, _, name in places:
        try:
            # The first of several may have picked the port for the rest.
            holder = stack.enter_context(_bound((family, kind, protocol, name), port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise _taken(address) from error
            failures.append(error)
            continue
        if not is_shared:
            holder.close()
            continue
        port = holder.getsockname()[1]
        # From here on, processes that share the port get in by the one, and none by the other.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    # Like gRPC, we do without one, as long as there is another.
    if len(failures) == len(places):
        raise _impossible(address, failures[-1]) from failures[-1]
    return port


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
