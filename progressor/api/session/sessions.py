"""All sessions of a replica: opened by clients, notified of the drain, ended with it.

What holds: a session that was told ends by itself once its client has closed its side and all is
answered; one whose client does not care is ended when the drain is over, with all answers sent.
"""

import asyncio
import contextlib
from collections.abc import Hashable, Mapping

from google.protobuf.descriptor import ServiceDescriptor

from progressor import errors
from progressor.api.calls.interceptors import (
    RETRY_AFTER,
    Interceptor,
    Method,
    StreamContext,
    request_type,
)
from progressor.api.calls.malformed import deserializer
from progressor.api.session.session import Kind, Session
from progressor.clock import Clock
from progressor.internal.v1 import frames_pb2

SESSIONS_MAX = 10_000
"""Sessions of one replica at a time."""

UNSENT_BYTES_MAX = 256 * 1024 * 1024
"""Bytes of answers that clients have not taken; over it the one with the most is cut off."""

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
        self.unsent_bytes = 0
        """What all clients have not taken yet."""

    async def serve(self, context: StreamContext) -> None:
        """Serve one session to its end; if it is cancelled, its calls are.

        Raises:
            InvalidRequestError: The client sent an invalid frame.
            OverloadedError: SESSIONS_MAX others are open; or its answers are not taken.
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
            caller=_connection_of(context),
            on_unsent=self._note_unsent,
        )
        self._open.add(session)
        if self._draining:
            session.notify_draining()
        try:
            await session.run()
        finally:
            self._open.discard(session)
            self._left.set()

    @property
    def open_count(self) -> int:
        """How many are open; to be read from any thread."""
        return len(self._open)

    def _note_unsent(self, change: int) -> None:
        self.unsent_bytes += change
        while self.unsent_bytes > UNSENT_BYTES_MAX:
            before = self.unsent_bytes
            most = max(self._open, key=lambda session: session.unsent_bytes)
            most.cut_off(
                f"{self.unsent_bytes} bytes of unread answers wait for clients of this replica, "
                f"{most.unsent_bytes} of them for this one"
            )
            if self.unsent_bytes == before:
                return  # all of it is being written

    def notify_draining(self) -> None:
        """Tell every session, and each that comes, to send no more calls."""
        self._draining = True
        for session in self._open:
            session.notify_draining()

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


def _connection_of(context: StreamContext) -> Hashable:
    """Return the caller that a session counts as: its connection, or itself if that has no name.

    All connections over a unix socket have the same name.
    """
    peer = getattr(context, "peer", None)
    name = "" if peer is None else str(peer())
    return object() if not name or name.startswith("unix") else name
