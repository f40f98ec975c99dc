"""Sessions: many requests on one stream, answered in any order, by the same servicers.

- Each call is served by the method of its RPC, in a task of its own, and answered once, unless its
  caller has cancelled it or the session broke; neither ends the task in the engine.
- A call that cannot be read, that breaks, or that is one too many ends alone. Only a frame that
  cannot be read ends the session.
- What exceeds `calls_max` calls is refused. Where as many answers or READ_AHEAD_BYTES wait, nothing
  more is read; a client that takes none for STALL_SECONDS, with STALLED_BYTES waiting, is cut off.
- Before the connection reaches its maximum age, the session says that it drains: its client opens
  the next one over a new connection, and what is in flight here is answered.
- A session whose token ends, by its lifetime or by a revocation, ends with UNAUTHENTICATED.
- While draining, the session says so once and refuses what is new, except Get. It ends when its
  client has closed its side and all is answered, or when the drain is over.
"""

import asyncio
import contextlib
import datetime as dt
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import grpc
from google.protobuf.message import Message

from progressor import errors
from progressor.api.calls.interceptors import (
    RETRY_AFTER,
    Interceptor,
    Served,
    StreamContext,
    request_type,
)
from progressor.api.calls.malformed import Malformed, deserializer
from progressor.api.calls.servicer import Servicer
from progressor.api.calls.status import RichStatus
from progressor.api.guard.callers import Credentials
from progressor.clock import Clock
from progressor.internal.v1 import frames_pb2
from progressor.wire import fields as wire
from progressor.wire.frames import Outbox

SESSIONS_MAX = 10_000
"""Sessions of one replica at a time."""

UNSENT_BYTES_MAX = 256 * 1024 * 1024
"""Bytes of answers that clients have not taken; over it the one with the most is cut off."""

TIMEOUT_SECONDS_MAX = 10 * 366 * 24 * 3600
"""Of one call. Who waits longer gives no timeout."""

READ_AHEAD_BYTES = 16 * 1024 * 1024
STALLED_BYTES = 4 * 1024 * 1024
STALL_SECONDS = 10.0

_RPC = "Session"
_CARRIED = ("Start", "Call", "Notify", "Repair", "Get")
# gRPC ends connections at 0.9 to 1.1 times their maximum age.
_AGE_SHARE = 0.8

_ITEM_BYTES = 32  # What an item takes besides its payload, at most.
_NANOS = 1e-9

# The call, the field of its answer, and what is in it; None says that we are draining.
Reply: TypeAlias = "tuple[Call, str, bytes] | None"


class Kind(NamedTuple):
    """How calls of one kind are read and served."""

    rpc: str
    parse: Callable[[bytes], Message | Malformed]
    serve: Served


class Call:
    """One call in flight; what its method sees of it is a `CallContext`."""

    __slots__ = (
        "_clock", "_ends_at", "_sent", "_trace",
        "call_id", "caller", "credentials", "task", "timer",
    )  # fmt: skip

    def __init__(
        self,
        call_id: int,
        clock: Clock,
        ends_at: float | None,
        trace: Sequence[tuple[str, str | bytes]],
        caller: Hashable = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.call_id, self._clock, self._ends_at, self._trace = call_id, clock, ends_at, trace
        self.caller, self.credentials = caller, credentials
        self._sent: list[Callable[[], None]] = []
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    def time_remaining(self) -> float | None:
        if self._ends_at is None:
            return None
        return max(0.0, self._ends_at - self._clock.monotonic())

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]]:
        return self._trace

    def when_sent(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the client has read the answer, or never will."""
        self._sent.append(callback)

    def sent(self) -> None:
        """Note that the client has read the answer, or never will."""
        while self._sent:
            self._sent.pop()()

    def forget(self) -> None:
        """Drop the references to the task, which has ended or is about to end."""
        self.task = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Session:
    """One session, from its first frame to its last."""

    def __init__(self, context: StreamContext, sessions: "Sessions") -> None:
        self._context, self._sessions = context, sessions
        self._caller = _connection_of(context)
        self._interceptor, self._clock = sessions.interceptor, sessions.clock
        self._credentials = self._interceptor.credentials_of(context)
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, Call] = {}
        self._group: asyncio.TaskGroup = asyncio.TaskGroup()
        self._outbox: Outbox[Reply] = Outbox(size=_size)
        self._written = asyncio.Event()
        self._writing: list[Call] = []
        self._running: asyncio.Task[object] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._taken_at = 0.0
        self._fault: errors.ProgressorError | None = None
        self._is_closed = self._is_cut_off = False
        self.unsent_bytes = 0
        """What waits for the client, and is being written."""

    async def run(self) -> None:
        """Serve until the client closes its side, or `end`, and until all is answered."""
        self._running = asyncio.current_task()
        try:
            await self._serve_all()
        except asyncio.CancelledError:
            # Ours, as asyncio.timeout has it.
            if not self._is_cut_off or self._running is None or self._running.uncancel() > 0:
                raise
            assert self._fault is not None, "a session is cut off with a reason"
            raise self._fault from None
        except BaseExceptionGroup as group:
            if group.subgroup(_is_not_departure) is not None:
                raise
            # The peer is gone; the group has already released the calls.
            errors.forget_frames(group)
        else:
            if self._fault is not None:
                raise self._fault
        finally:
            self._forget_calls()

    def cut_off(self, fault: errors.ProgressorError) -> None:
        """End at once with an error; answers that were not taken are dropped."""
        if self._running is None or self._is_cut_off:
            return
        self._fault = fault
        self._is_closed = self._is_cut_off = True
        for item in self._outbox.clear():
            self._note_taken(item)
        self._running.cancel()

    def notify_draining(self) -> None:
        """Say so with the next frame."""
        if not self._is_closed:
            self._outbox.put(None)

    def end(self) -> None:
        """Read no more."""
        if self._reading is not None:
            self._reading.cancel()

    async def _serve_all(self) -> None:
        async with asyncio.TaskGroup() as writers:
            writers.create_task(self._outbox.run(self._write), name="session answers")
            async with self._group:
                self._reading = self._group.create_task(self._read(), name="session calls")
            self._is_closed = True
            self._outbox.close()

    def _forget_calls(self) -> None:
        """Drop the references to the calls: their tasks refer back to the session."""
        self._reading = self._running = None
        for call in self._calls.values():
            call.forget()
            call.sent()
        self._calls.clear()
        for item in self._outbox.clear():
            self._note_taken(item)
        # What was being written when it ended.
        self._sessions.note_unsent(-self.unsent_bytes)
        self.unsent_bytes = 0
        while self._writing:
            self._writing.pop().sent()
        if self._stall is not None:
            self._stall.cancel()

    async def _read(self) -> None:
        while (frame := await self._context.read()) is not grpc.aio.EOF:
            if isinstance(frame, Malformed):
                self._fault = errors.InvalidRequestError(frame.violation)
                for call_id in tuple(self._calls):
                    self._let_go(call_id)
                return
            now = self._clock.monotonic()
            for raw in frame.calls:
                # Until the client has taken some of its answers.
                while self._is_full():
                    self._written.clear()
                    await self._written.wait()
                self._begin(raw, now)
            for call_id in frame.cancelled:
                self._let_go(call_id)

    def _is_full(self) -> bool:
        is_long = len(self._outbox) >= self._sessions.calls_max
        return is_long or self.unsent_bytes >= READ_AHEAD_BYTES

    def _begin(self, raw: frames_pb2.RawCall, now: float) -> None:
        field = raw.WhichOneof("request")
        kind = None if field is None else self._sessions.kinds[field]
        try:
            if field is None or kind is None:
                wire.refuse("request", "must be a request that a session can carry")
            timeout = self._checked(raw)
        except errors.RequestError as error:
            end = self._interceptor.told_end(_RPC if kind is None else kind.rpc, None, error)
            self._answer(Call(raw.call_id, self._clock, None, ()), "error", end.details)
            return
        trace = tuple(raw.trace_context.items()) if raw.trace_context else ()
        ends_at = None if timeout is None else now + timeout
        call = self._calls[raw.call_id] = Call(
            raw.call_id, self._clock, ends_at, trace, self._caller, self._credentials
        )
        call.task = self._group.create_task(
            self._serve(call, kind, field, getattr(raw, field)), name="session call"
        )
        if timeout is not None:
            call.timer = self._loop.call_later(timeout, self._expire, call.task)

    def _checked(self, raw: frames_pb2.RawCall) -> float | None:
        """Return the seconds that a call has, None for no end, if it may begin at all."""
        if raw.call_id in self._calls:
            wire.refuse("call_id", f"call {raw.call_id} is already in flight")
        calls_max = self._sessions.calls_max
        if len(self._calls) + len(self._outbox) >= calls_max:
            what = f"{calls_max} calls are in flight on this session"
            raise errors.OverloadedError(what, RETRY_AFTER)
        return _timeout_of(raw) if raw.HasField("timeout") else None

    async def _serve(self, call: Call, kind: Kind, field: str, data: bytes) -> None:
        try:
            self._interceptor.weigh(len(data))
            end = await kind.serve(kind.parse(data), call)
        finally:
            call.forget()
        # One that was let go may have been too far gone to be stopped.
        if self._calls.get(call.call_id) is not call:
            call.sent()
            return
        del self._calls[call.call_id]
        if isinstance(end, RichStatus):
            self._answer(call, "error", end.details)
        else:
            self._answer(call, field, end.SerializeToString())

    def _answer(self, call: Call, field: str, data: bytes) -> None:
        if self._is_cut_off:
            call.sent()
            return
        self._outbox.put((call, field, data))
        self.unsent_bytes += len(data)
        self._sessions.note_unsent(len(data))
        if self.unsent_bytes >= STALLED_BYTES and self._stall is None:
            self._stall = self._loop.call_later(STALL_SECONDS, self._look)

    def _look(self) -> None:
        """Cut the client off if it has stopped reading answers; otherwise check again later."""
        self._stall = None
        if self.unsent_bytes < STALLED_BYTES:
            return
        left = self._taken_at + STALL_SECONDS - self._loop.time()
        if left > 0:
            self._stall = self._loop.call_later(left, self._look)
            return
        self.cut_off(
            errors.OverloadedError(
                f"the client has read no answers for {STALL_SECONDS:g} s; {self.unsent_bytes} "
                "bytes of answers are waiting for it",
                RETRY_AFTER,
            )
        )

    def _note_taken(self, item: Reply) -> None:
        if item is not None:
            call, _, data = item
            self.unsent_bytes -= len(data)
            self._sessions.note_unsent(-len(data))
            call.sent()

    def _expire(self, task: asyncio.Task[None]) -> None:
        # A task that has not begun yet finds by itself that it is too late.
        self._interceptor.cut_short(task, errors.DeadlineExceededError(None))

    def _let_go(self, call_id: int) -> None:
        call = self._calls.pop(call_id, None)
        if call is not None and call.task is not None:
            call.task.cancel()
            # One that has not begun yet will not even end.
            call.forget()

    async def _write(self, items: Sequence[Reply]) -> None:
        frame = frames_pb2.CallAnswersFrame()
        for item in items:
            if item is None:
                frame.draining = True
            else:
                call, field, data = item
                frame.answers.add(call_id=call.call_id, **{field: data})
                self._writing.append(call)
        await self._context.write(frame)
        self._writing.clear()
        for item in items:
            self._note_taken(item)
        self._taken_at = self._loop.time()
        self._written.set()


class Sessions:
    """All sessions of a replica: the stream that the server is given."""

    frame = frames_pb2.CallsFrame

    def __init__(
        self,
        servicer: Servicer,
        *,
        interceptor: Interceptor,
        clock: Clock,
        calls_max: int,
        age_max: dt.timedelta | None = None,
    ) -> None:
        methods = servicer.service.methods_by_name
        self.kinds: Mapping[str, Kind] = {
            rpc.lower(): Kind(
                rpc=rpc,
                parse=deserializer(request_type(methods[rpc])),
                serve=interceptor.served(methods[rpc], servicer.method(rpc)),
            )
            for rpc in _CARRIED
        }
        self.interceptor, self.clock, self.calls_max = interceptor, clock, calls_max
        self._age_max = age_max
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
            UnauthenticatedError: What opened it is not valid any more.
            ShuttingDownError: It came too late.
        """
        if self._ended:
            raise errors.ShuttingDownError(RETRY_AFTER)
        if len(self._open) >= SESSIONS_MAX:
            raise errors.OverloadedError(f"{SESSIONS_MAX} sessions are open", RETRY_AFTER)
        session = Session(context, self)
        self._open.add(session)
        if self._draining:
            session.notify_draining()
        aging = None
        if self._age_max:
            seconds = _AGE_SHARE * self._age_max.total_seconds()
            aging = asyncio.get_running_loop().call_later(seconds, session.notify_draining)
        try:
            with self.interceptor.rechecked(_RPC, context, session.cut_off):
                await session.run()
        finally:
            if aging is not None:
                aging.cancel()
            self._open.discard(session)
            self._left.set()

    @property
    def open_count(self) -> int:
        """How many are open; to be read from any thread."""
        return len(self._open)

    def note_unsent(self, change: int) -> None:
        """Count answers that wait (more, or fewer); over the bound, cut off who has the most."""
        self.unsent_bytes += change
        while self.unsent_bytes > UNSENT_BYTES_MAX:
            before = self.unsent_bytes
            most = max(self._open, key=lambda session: session.unsent_bytes)
            most.cut_off(
                errors.OverloadedError(
                    f"{self.unsent_bytes} bytes of unread answers wait for clients of this "
                    f"replica, {most.unsent_bytes} of them for this one",
                    RETRY_AFTER,
                )
            )
            if self.unsent_bytes == before:
                return  # all of it is being written

    def notify_draining(self) -> None:
        """Ask the clients of all sessions, present and future, to send no more calls."""
        self._draining = True
        for session in self._open:
            session.notify_draining()

    async def end(self, patience: float) -> None:
        """Return once every session has ended with all its answers sent.

        Notified clients get `patience` seconds to close their side, so that requests already sent
        are answered too; then nothing more is read. If it is cancelled, sessions go on.
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


def _is_not_departure(error: BaseException) -> bool:
    return not isinstance(error, grpc.aio.InternalError | BaseExceptionGroup)


def _timeout_of(raw: frames_pb2.RawCall) -> float:
    seconds = raw.timeout.seconds + raw.timeout.nanos * _NANOS
    if not 0 < seconds <= TIMEOUT_SECONDS_MAX:
        wanted = f"must be greater than 0 and at most {TIMEOUT_SECONDS_MAX} s"
        wire.refuse("timeout", f"{wanted}, got {seconds:g} s")
    return seconds


def _size(item: Reply) -> int:
    return _ITEM_BYTES if item is None else _ITEM_BYTES + len(item[2])
