"""Serves a console by HTTP, in the event loop of its caller."""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn
from starlette.types import ASGIApp

from progressor import errors
from progressor.settings.addresses import HttpBind

_STARTING_SECONDS = 0.01
_PORT_MAX = 65_535
_DRAIN_SECONDS = 0.5
"""For requests that have begun."""

_SHUTDOWN_SECONDS = 10
"""More than it takes: what uvicorn cancels then, it logs as an error."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the program."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests end, then cut the streams of browsers, which never end by themselves."""
        cut = asyncio.get_running_loop().call_later(_DRAIN_SECONDS, self._cut)
        await super().shutdown(sockets)
        cut.cancel()

    def _cut(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, bind: HttpBind, *, base_path: str = "") -> AsyncIterator[str]:
    """Serve a console within the context, and return its address, as in ``http://127.0.0.1:7480``.

    Raises:
        ConfigError: It cannot listen there.
    """
    listener = _listener(bind)
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            server_header=False,
            root_path=base_path,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
    )
    task = asyncio.create_task(server.serve(sockets=[listener]), name="console")
    try:
        while not server.started:
            if task.done():
                await task
            await asyncio.sleep(_STARTING_SECONDS)
        host = f"[{bind.host}]" if ":" in bind.host else bind.host
        yield f"http://{host}:{listener.getsockname()[1]}{base_path}/"
    finally:
        server.should_exit = True
        await task
        listener.close()


def _listener(bind: HttpBind) -> socket.socket:
    """Return a socket that listens at the address, or at a higher port if that is in use."""
    family = socket.AF_INET6 if ":" in bind.host else socket.AF_INET
    ports = range(bind.port, _PORT_MAX + 1) if bind.or_above and bind.port else (bind.port,)
    for port in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((bind.host, port))
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE and port != ports[-1]:
                continue
            raise errors.ConfigError("--bind", f"cannot listen at {bind}: {error}") from error
        return listener
    raise AssertionError("there is always a last port")
