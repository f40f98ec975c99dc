"""Passes bytes between a caller and a server, and cuts connections as a dying host would."""

import asyncio
import contextlib
import socket

_CHUNK_BYTES = 64 * 1024


class Relay:
    """Passes bytes from an address that stays the same to a port of this machine that need not."""

    def __init__(self, path: str | None) -> None:
        """Listen on the unix socket at `path`; None: on a port that the first `start` chooses."""
        self._path = path
        self._port = 0
        self._server_port = 0
        self._listener: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._left = asyncio.Event()

    @property
    def target(self) -> str:
        """Where it listens, as gRPC names it."""
        return f"127.0.0.1:{self._port}" if self._path is None else f"unix:{self._path}"

    async def start(self, server_port: int) -> None:
        """Accept connections and pass them on to `server_port`."""
        self._server_port = server_port
        if self._path is not None:
            self._listener = await asyncio.start_unix_server(self._serve, self._path)
            return
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse connections, and cut those there are; safe to repeat."""
        if self._listener is not None:
            self._listener.close()
            self.cut()
            await self._listener.wait_closed()
            self._listener = None

    def cut(self) -> None:
        """Break every connection at once, both ways."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def hung_up(self) -> None:
        """Wait until there is no connection."""
        while self._writers:
            self._left.clear()
            await self._left.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            way_on = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            # Nobody serves behind it: to the caller, nobody serves.
            writer.transport.abort()
            return
        server_reader, server_writer = way_on
        pair = (writer, server_writer)
        self._writers.update(pair)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pass_on(reader, server_writer), name="relay to server")
                group.create_task(_pass_on(server_reader, writer), name="relay from server")
        finally:
            self._writers.difference_update(pair)
            self._left.set()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    _send_at_once(writer)
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    # The end of one direction ends both: nobody here speaks on after hanging up.
    writer.transport.abort()


def _send_at_once(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.family == socket.AF_INET:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
