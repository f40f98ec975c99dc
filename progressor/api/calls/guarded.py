"""Methods behind access control and the audit.

Each request is checked before, and its answer emptied after; what changes something is recorded.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from google.protobuf.message import Message

from progressor import errors
from progressor.api.calls.traces import (
    CallContext,
    Known,
    caller_of,
    grpc_context_of,
    trace_context_of,
)
from progressor.api.guard.audit import DENIALS, Recorder
from progressor.api.guard.callers import Credentials, credentials_of
from progressor.api.guard.guard import Caller, Guard
from progressor.api.guard.rules import RULES
from progressor.domain.access.rights import Right
from progressor.storage.postgres import attempt

# Each method has a message type of its own; no union of them fits a callable.
Method = Callable[..., Awaitable[Message]]
Watch = Callable[..., AsyncGenerator[Message, None]]
"""A method that answers with a stream of messages."""

RECHECK_SECONDS = 1.0

_WAITING = frozenset({Right.CALL, Right.READ})
"""The rights of requests that may wait for long."""


def guarded(
    rpc: str, method: Method, guard: Guard | None, recorder: Recorder | None = None
) -> Method:
    """Return a method that only serves whom the guard admits; None: everybody.

    The recorder records it, if that is to be, and denials.
    """
    if recorder is not None and rpc in recorder.rpcs:
        method = _recorded(rpc, method, recorder)
    if guard is None:
        return method
    waits = RULES[rpc].right in _WAITING

    async def serve(request: Any, context: CallContext) -> Message:  # noqa: ANN401  # of the RPC
        known = await admitted(rpc, request, context, guard, recorder)
        try:
            answer = await method(request, known)
        finally:
            # What was allowed when it began may not be any more, an error neither.
            if waits and not guard.is_unchanged(known.caller, credentials_in(context)):
                known = await admitted(rpc, request, context, guard, recorder)
        guard.show(rpc, request, answer, known.caller)
        return answer

    return serve


def guarded_watch(
    rpc: str, watch: Watch, guard: Guard | None, recorder: Recorder | None = None
) -> Watch:
    """Return a watch as `guarded` does; it ends when its caller may not see more."""
    if guard is None:
        return watch

    async def serve(request: Any, context: CallContext) -> AsyncGenerator[Message, None]:  # noqa: ANN401  # of the RPC
        known = await admitted(rpc, request, context, guard, recorder)
        async with contextlib.aclosing(watch(request, known)) as responses:
            async for message in responses:
                known = await admitted(rpc, request, context, guard, recorder)
                guard.show(rpc, request, message, known.caller)
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


def _recorded(rpc: str, method: Method, recorder: Recorder) -> Method:
    """Return a method whose statements insert an audit entry with what they change."""

    async def serve(request: Any, context: CallContext) -> Message:  # noqa: ANN401  # of the RPC
        entry = _entry(rpc, request, context, caller_of(context), recorder)
        try:
            with attempt.of(entry):
                answer = await method(request, context)
        except Exception as error:
            recorder.note_failed(entry, error)
            raise
        recorder.note_done(rpc, entry)
        return answer

    return serve


def _entry(
    rpc: str,
    request: Any,  # noqa: ANN401  # of the RPC
    context: CallContext,
    caller: Caller | None,
    recorder: Recorder,
) -> str:
    trace = trace_context_of(context)
    return recorder.entry(rpc, request, caller=caller, peer=_peer_of(context), trace=trace)


def _peer_of(context: CallContext) -> str:
    """Return the address of a client; that of a session, for a call that came in one."""
    call = grpc_context_of(context)
    peer = getattr(call, "peer", None)
    if peer is not None:
        return str(peer())
    caller = getattr(call, "caller", None)
    return caller if isinstance(caller, str) else "unix:"


async def admitted(
    rpc: str,
    request: Any,  # noqa: ANN401  # of the RPC
    context: CallContext,
    guard: Guard,
    recorder: Recorder | None,
) -> Known:
    """Return the context of a call whose sender the guard lets in; a denial is recorded."""
    caller = None
    try:
        caller = await guard.authenticated(rpc, credentials_in(context))
        guard.check(rpc, request, caller)
    except DENIALS as error:
        if recorder is not None:
            recorder.note_failed(_entry(rpc, request, context, caller, recorder), error)
        raise
    return Known(context, trace_context_of(context), caller)
