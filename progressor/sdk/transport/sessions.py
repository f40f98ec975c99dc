"""The sessions of a client: opened by requests, replaced when their engine drains.

Invariants:

- Nothing is retried here, and nothing happens in the background: a request opens a session, and
  gRPC decides how often it tries an address that does not answer.
- When an engine announces that it drains, the next request opens a session over a connection of its
  own, so that a load balancer can choose another replica; at most one connection a second. The old
  session is read to its end, then its connection is closed.
- After UNIMPLEMENTED no session is tried for a minute; by then the engine may be a newer one.
- A request that is too large for a session, or one too many, goes as a unary call and does not
  delay others.
"""

import asyncio
import contextvars
import time
from collections.abc import Callable

import grpc
from google.protobuf.message import Message

from progressor.sdk.transport.session import FIELDS, Session
from progressor.wire.frames import BYTES_MAX

REQUEST_BYTES_MAX = BYTES_MAX
"""The largest request in a session."""

CALLS_MAX = 8_192
"""Requests in flight on a session, below the engine's limit; more go as unary calls, which wait."""

UNARY_SECONDS = 60.0
"""How long no session is tried after an engine had none."""

CHANNEL_SECONDS_MIN = 1.0
"""A younger channel is kept when the engine behind it drains."""


class Sessions:
    """The session of a client, opened on demand on a channel of its own."""

    def __init__(self, open_channel: Callable[[], grpc.aio.Channel]) -> None:
        self._open_channel = open_channel
        self._channel: grpc.aio.Channel | None = None
        self._channel_opened_at = 0.0
        self._session: Session | None = None
        # A client has no task group: `close` ends these tasks.
        self._channels: dict[asyncio.Task[None], grpc.aio.Channel] = {}
        self._unary_until = 0.0

    def session_for(self, request: Message) -> Session | None:
        """Return the session for a request; None: it goes as a unary call."""
        if type(request) not in FIELDS or request.ByteSize() > REQUEST_BYTES_MAX:
            return None
        session = self._session
        if session is None:
            if self._unary_until > time.monotonic():
                return None
            session = self._opened()
        return session if len(session) < CALLS_MAX else None

    def forget(self) -> None:
        """Open no session for a while: the engine has none."""
        self._unary_until = time.monotonic() + UNARY_SECONDS

    async def close(self) -> None:
        """End the sessions; their requests end with an error. Safe to repeat."""
        tasks = tuple(self._channels)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    def _opened(self) -> Session:
        if self._channel is None:
            self._channel = self._open_channel()
            self._channel_opened_at = time.monotonic()
        channel = self._channel
        session = self._session = Session(channel, left=self._no_session)
        # Without a context of its own it would keep the context of the first caller.
        task = asyncio.get_running_loop().create_task(
            self._run(session, channel), name="session", context=contextvars.Context()
        )
        self._channels[task] = channel
        return session

    async def _run(self, session: Session, channel: grpc.aio.Channel) -> None:
        task = asyncio.current_task()
        assert task is not None, "it runs in a task of its own"
        try:
            await session.run()
        finally:
            del self._channels[task]
            if channel is not self._channel and channel not in self._channels.values():
                await channel.close()

    def _no_session(self) -> None:
        session, self._session = self._session, None
        is_old = time.monotonic() - self._channel_opened_at >= CHANNEL_SECONDS_MIN
        if session is not None and session.is_draining and is_old:
            self._channel = None
