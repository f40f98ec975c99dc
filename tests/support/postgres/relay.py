"""Passes bytes between a caller and a server, and cuts connections as a dying host would."""

import asyncio
import contextlib
import gc
import socket

_CHUNK_BYTES = 64 * 1024
_COLLECT_SECONDS = 0.1


class Relay:
    """Passes bytes from an address that stays the same to a port of this machine that need not."""

    def __init__(self, path: str | None) -> None:
        """Listen on the unix socket at `path`; None: on a port that the first `start` chooses."""
        self._path = path
        self._port = 0
        self._server_port = 0
        self._listener: asyncio.Server | None = None
        self._is_open = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._left = asyncio.Event()
        self.came = asyncio.Event()
        """Set when a caller has connected."""
        self.passes = asyncio.Event()
        """Cleared while bytes of new callers are held back: they are connected to nothing."""
        self.passes.set()

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self._port}" if self._path is None else f"unix:{self._path}"

    async def start(self, server_port: int) -> None:
        self._server_port, self._is_open = server_port, True
        if self._path is not None:
            self._listener = await asyncio.start_unix_server(self._serve, self._path)
            return
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse connections, and cut those there are; safe to repeat."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self._is_open = False
            listener.close()
            self.cut()
            await listener.wait_closed()
            if self._serving:
                await asyncio.wait(self._serving)

    def cut(self) -> None:
        """Break every connection at once, both ways."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def hung_up(self, seconds: float) -> None:
        """Wait until all connections are closed, at most so long.

        A caller's gRPC closes the connection of a channel that was closed only when the calls
        that were cancelled on it are gone, and they are parts of cycles: garbage is collected
        here, or it would be waited for until another one does.
        """
        async with asyncio.timeout(seconds):
            while self._writers:
                self._left.clear()
                gc.collect()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_COLLECT_SECONDS):
                        await self._left.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "each connection is served in a task"
        self._serving.add(task)
        self._writers.add(writer)
        try:
            await self._pass_both_ways(reader, writer)
        finally:
            # A caller whose backend does not serve gets no service.
            writer.transport.abort()
            self._writers.discard(writer)
            self._serving.discard(task)
            self._left.set()

    async def _pass_both_ways(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.came.set()
        await self.passes.wait()
        if not self._is_open:
            return
        try:
            way_on = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            return
        server_reader, server_writer = way_on
        self._writers.add(server_writer)
        try:
            # It may have been cut meanwhile.
            if not writer.transport.is_closing():
                async with asyncio.TaskGroup() as group:
                    group.create_task(_pass_on(reader, server_writer), name="relay to server")
                    group.create_task(_pass_on(server_reader, writer), name="relay from server")
        finally:
            server_writer.transport.abort()
            self._writers.discard(server_writer)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    _send_at_once(writer)
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    # The end of one direction ends both: neither peer sends after closing.
    writer.transport.abort()


def _send_at_once(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.family == socket.AF_INET:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
