"""All sessions of a replica: opened by clients, told of the drain, ended with it.

What holds: a session that was told ends by itself once its client has closed its side and all is
answered; one whose client does not care is ended when the drain is over, with all answers sent.
"""

import asyncio
import contextlib
from collections.abc import Mapping

from google.protobuf.descriptor import ServiceDescriptor

from progressor import errors
from progressor.api.interceptors import (
    RETRY_AFTER,
    Interceptor,
    Method,
    StreamContext,
    request_type,
)
from progressor.api.malformed import deserializer
from progressor.api.session import Kind, Session
from progressor.clock import Clock
from progressor.internal.v1 import frames_pb2

SESSIONS_MAX = 10_000
"""Sessions of one replica at a time."""

_METHODS = {
    "start": "Start",
    "call": "Call",
    "notify": "Notify",
    "repair": "Repair",
    "get": "Get",
}


class Sessions:
    """All sessions of a replica: the stream that the server is given."""

    frame = frames_pb2.CallsFrame

    def __init__(
        self,
        service: ServiceDescriptor,
        methods: Mapping[str, Method],
        *,
        interceptor: Interceptor,
        clock: Clock,
        calls_max: int,
    ) -> None:
        """Serve calls by `methods`, at most `calls_max` of one session at a time."""
        self._kinds = {
            field: Kind(
                rpc=rpc,
                parse=deserializer(request_type(service.methods_by_name[rpc])),
                serve=interceptor.served(service.methods_by_name[rpc], methods[rpc]),
            )
            for field, rpc in _METHODS.items()
        }
        self._interceptor = interceptor
        self._clock = clock
        self._calls_max = calls_max
        self._open: set[Session] = set()
        self._left = asyncio.Event()
        self._draining = False
        self._ended = False

    async def serve(self, context: StreamContext) -> None:
        """Serve one session to its end; if it is cancelled, its calls are.

        Raises:
            InvalidRequestError: The client sent a frame that is none.
            OverloadedError: SESSIONS_MAX others are open.
            ShuttingDownError: It came too late.
        """
        if self._ended:
            raise errors.ShuttingDownError(RETRY_AFTER)
        if len(self._open) >= SESSIONS_MAX:
            raise errors.OverloadedError(f"{SESSIONS_MAX} sessions are open", RETRY_AFTER)
        session = Session(
            context,
            self._kinds,
            interceptor=self._interceptor,
            clock=self._clock,
            calls_max=self._calls_max,
        )
        self._open.add(session)
        if self._draining:
            session.tell_draining()
        try:
            await session.run()
        finally:
            self._open.discard(session)
            self._left.set()

    @property
    def open_count(self) -> int:
        """How many are open; to be read from any thread."""
        return len(self._open)

    def tell_draining(self) -> None:
        """Tell every session, and each that comes, to send no more calls."""
        self._draining = True
        for session in self._open:
            session.tell_draining()

    async def end(self, patience: float) -> None:
        """Return once every session has ended with all its answers sent.

        Clients that were told get `patience` seconds to close their side, so that what is on its
        way to us is answered too; then nothing more is read. If it is cancelled, sessions go on.
        """
        self._ended = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._all_left()
        for session in self._open:
            session.end()
        await self._all_left()

    async def _all_left(self) -> None:
        while self._open:
            self._left.clear()
            await self._left.wait()
