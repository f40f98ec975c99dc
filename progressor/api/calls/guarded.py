"""Methods behind access control: each request is checked before, and its answer emptied after."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from google.protobuf.message import Message

from progressor import errors
from progressor.api.calls.traces import CallContext, Known, grpc_context_of, trace_context_of
from progressor.api.guard.callers import Credentials, credentials_of
from progressor.api.guard.guard import Guard
from progressor.api.guard.rules import RULES
from progressor.domain.access.rights import Right

# Each method has a message type of its own; no union of them fits a callable.
Method = Callable[..., Awaitable[Message]]
Watch = Callable[..., AsyncGenerator[Message, None]]
"""A method that answers with a stream of messages."""

RECHECK_SECONDS = 1.0

_WAITING = frozenset({Right.CALL, Right.READ})
"""The rights of requests that may wait for long."""


def guarded(rpc: str, method: Method, guard: Guard | None) -> Method:
    """Return a method that only serves whom the guard admits; None: everybody."""
    if guard is None:
        return method
    waits = RULES[rpc].right in _WAITING

    async def serve(request: Any, context: CallContext) -> Message:  # noqa: ANN401  # of the RPC
        admitted = await _admitted(rpc, request, context, guard)
        try:
            answer = await method(request, admitted)
        finally:
            if waits:
                # What was allowed when it began may not be any more, an error neither.
                admitted = await _admitted(rpc, request, context, guard)
        guard.show(rpc, request, answer, admitted.caller)
        return answer

    return serve


def guarded_watch(rpc: str, watch: Watch, guard: Guard | None) -> Watch:
    """Return a watch as `guarded` does; it ends when its caller may not see more."""
    if guard is None:
        return watch

    async def serve(request: Any, context: CallContext) -> AsyncGenerator[Message, None]:  # noqa: ANN401  # of the RPC
        admitted = await _admitted(rpc, request, context, guard)
        async with contextlib.aclosing(watch(request, admitted)) as responses:
            async for message in responses:
                admitted = await _admitted(rpc, request, context, guard)
                guard.show(rpc, request, message, admitted.caller)
                yield message

    return serve


def credentials_in(context: CallContext) -> Credentials:
    """Return the credentials of a call: its own, or those with which its session was opened."""
    call = grpc_context_of(context)
    found = getattr(call, "credentials", None)
    return found if isinstance(found, Credentials) else credentials_of(call)


class Recheck:
    """Checks every second whether what opened a stream is still valid, and ends it if not.

    Messages and calls are checked by themselves; this is for a stream that has none.
    """

    def __init__(
        self, check: Callable[[], object], end: Callable[[errors.ProgressorError], None]
    ) -> None:
        self._check, self._end = check, end
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(RECHECK_SECONDS, self._look)

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        try:
            self._check()
        except errors.StorageUnavailableError:
            pass
        except errors.RequestError as error:
            self._end(error)
            return
        self._timer = self._loop.call_later(RECHECK_SECONDS, self._look)


async def _admitted(rpc: str, request: Any, context: CallContext, guard: Guard) -> Known:  # noqa: ANN401  # of the RPC
    caller = await guard.authenticated(rpc, credentials_in(context))
    guard.check(rpc, request, caller)
    return Known(context, trace_context_of(context), caller)
