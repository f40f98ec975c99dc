"""The sessions of the asynchronous client: many requests in a frame, answered in any order.

A request opens a session; one that is left by its engine is replaced.

Invariants:

- Each request ends once: with its answer, an error, its timeout or its caller's cancellation,
  whichever comes first. Whatever comes later has no effect.
- A request ends as its unary call would have, with the same status and details.
- When a session breaks, its unanswered requests end with the status that gRPC reports, UNAVAILABLE
  for a lost connection, as unary calls on that connection would.
- A request that is given up before it is written is never written. One that was written is
  cancelled at the engine.
- A session whose engine is draining takes no more requests; the requests in it are answered.
- An engine without sessions (UNIMPLEMENTED) has executed nothing; the requests end with that.
- Nothing is retried here, and nothing happens in the background: a request opens a session, and
  gRPC decides how often it tries an address that does not answer.
- When an engine announces that it drains, the next request opens a session over a connection of its
  own, so that a load balancer can choose another replica; at most one connection a second. The old
  session is read to its end, then its connection is closed.
- A session belongs to its token: with another one the next request opens another session.
- After UNIMPLEMENTED no session is tried for a minute; by then the engine may be a newer one.
- A request that is too large for a session, or one too many, goes as a unary call and does not
  delay others.
"""

import asyncio
import contextvars
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import status_pb2

from progressor.internal.v1 import frames_pb2
from progressor.sdk.transport.exchange import rpc_of
from progressor.sdk.transport.failures import DETAILS_KEY
from progressor.sdk.transport.security import Security
from progressor.v1 import process_service_pb2 as messages
from progressor.wire.frames import BYTES_MAX, Outbox
from progressor.wire.stream_call import StreamCall
from progressor.wire.tls import TlsMaterial

FIELDS: Mapping[type[Message], str] = {
    messages.StartRequest: "start",
    messages.CallRequest: "call",
    messages.NotifyRequest: "notify",
    messages.RepairRequest: "repair",
    messages.GetRequest: "get",
}
"""The requests that a session carries, and the field of a frame's call and answer."""

_METHOD = "/progressor.v1.ProcessService/Session"
_ITEM_BYTES = 160  # Of a request besides its message: ids, timeout, trace context.
_TIMEOUT_SECONDS_MIN = 1e-6

# At the deadline the engine sends an answer that names the task, which continues. Wait a little for
# it, since a frame may have to wait for another.
_GRACE_SHARE = 0.1
_GRACE_SECONDS_MAX = 0.05

_CODES: Mapping[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
_UNANSWERED = "the session ended without an answer"


REQUEST_BYTES_MAX = BYTES_MAX
"""The largest request in a session."""

CALLS_MAX = 8_192
"""Requests in flight on a session, below the engine's limit; more go as unary calls, which wait."""

UNARY_SECONDS = 60.0
"""How long no session is tried after an engine had none."""

CHANNEL_SECONDS_MIN = 1.0
"""A younger channel is kept when the engine behind it drains."""


class NoSessionsError(Exception):
    """The engine has no sessions; the request was not executed."""


# The field of the answer (of RawCallAnswer) and its content.
Answer: TypeAlias = tuple[str, bytes]


@dataclasses.dataclass(slots=True, eq=False)
class Pending:
    """One request without an answer."""

    field: str
    data: bytes
    ends_at: float
    trace: Sequence[tuple[str, str]] | None
    answer: asyncio.Future[Answer]
    call_id: int = 0
    is_written: bool = False


class Unanswered:
    """The unanswered requests of one session."""

    def __init__(self) -> None:
        self._pending: dict[int, Pending] = {}
        self._last_call_id = 0

    def __len__(self) -> int:
        """Return their number."""
        return len(self._pending)

    def __contains__(self, pending: Pending) -> bool:
        """Return whether a request is unanswered."""
        return pending.call_id in self._pending

    def add(self, pending: Pending) -> None:
        """Add a request and set its id."""
        self._last_call_id += 1
        pending.call_id = self._last_call_id
        self._pending[pending.call_id] = pending

    def resolve(self, call_id: int, answer: Answer) -> None:
        """End a request with its answer, unless it has ended."""
        pending = self._pending.pop(call_id, None)
        if pending is not None and not pending.answer.done():
            pending.answer.set_result(answer)

    def give_up(self, pending: Pending, error: Exception | None = None) -> bool:
        """End a request with `error`, unless it has ended; return whether it was written."""
        if self._pending.pop(pending.call_id, None) is None:
            return False
        if error is not None and not pending.answer.done():
            pending.answer.set_exception(error)
        return pending.is_written

    def fail(self, error: Callable[[], Exception]) -> None:
        """End every request, each with a new error."""
        pendings, self._pending = self._pending, {}
        for pending in pendings.values():
            if not pending.answer.done():
                pending.answer.set_exception(error())


class Session:
    """One stream to an engine; runs in a task of its own."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        left: Callable[[], None],
        authorization: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._channel, self.authorization = channel, authorization
        self._left = left
        self._loop = asyncio.get_running_loop()
        self._unanswered = Unanswered()
        self._outbox: Outbox[Pending | int] = Outbox(size=_size)
        self._call: Any = None
        self._answered = False
        self.is_open = True
        self.is_draining = False

    def __len__(self) -> int:
        """Return the number of unanswered requests."""
        return len(self._unanswered)

    def retire(self) -> None:
        """Take no more requests; end once those in it are answered."""
        self._leave()
        self._outbox.close()

    async def ask(
        self, request: Message, *, timeout: float, trace: Sequence[tuple[str, str]] | None
    ) -> Any:  # noqa: ANN401 - the response of the RPC
        """Return the response, or raise what a unary call would, or NoSessionsError."""
        assert self.is_open, "a request was put into a session that is closed"
        field, response = FIELDS[type(request)], rpc_of(request).response
        data = request.SerializeToString()
        ends_at = time.monotonic() + timeout
        pending = Pending(
            field, data, ends_at=ends_at, trace=trace, answer=self._loop.create_future()
        )
        self._unanswered.add(pending)
        self._outbox.put(pending)
        grace = min(_GRACE_SHARE * timeout, _GRACE_SECONDS_MAX)
        timer = self._loop.call_later(timeout + grace, self._expire, pending)
        try:
            found, answer = await pending.answer
        except asyncio.CancelledError:
            self._give_up(pending)
            raise
        finally:
            timer.cancel()
        if found == field:
            try:
                return response.FromString(answer)
            except DecodeError:
                found = "unreadable"
        if found == "error":
            raise _error_of(answer)
        raise rpc_error(grpc.StatusCode.INTERNAL, f"the answer to {field} is {found}")

    async def run(self) -> None:
        """Send requests and receive answers until the stream ends; then fail the unanswered."""
        end = rpc_error(grpc.StatusCode.INTERNAL, "the session broke")
        try:
            self._call = StreamCall(
                self._channel.stream_stream(
                    _METHOD,
                    request_serializer=frames_pb2.CallsFrame.SerializeToString,
                    response_deserializer=frames_pb2.CallAnswersFrame.FromString,
                )(metadata=self.authorization)
            )
            async with asyncio.TaskGroup() as group:
                writing = group.create_task(self._write_all(), name="session requests")
                end = await self._read_all()
                writing.cancel()
        except asyncio.CancelledError:
            end = rpc_error(grpc.StatusCode.CANCELLED, "the client was closed")
            raise
        finally:
            self._leave()
            if self._call is not None:
                self._call.cancel()
            if end.code() is grpc.StatusCode.UNIMPLEMENTED and not self._answered:
                self._unanswered.fail(NoSessionsError)
            else:
                self._unanswered.fail(lambda: _copy_of(end))

    async def _read_all(self) -> grpc.aio.AioRpcError:
        """Deliver answers until the stream ends, and return the status it ended with."""
        try:
            while (frame := await self._call.read()) is not grpc.aio.EOF:
                self._answered = True
                for raw in frame.answers:
                    field = raw.WhichOneof("result") or "empty"
                    data = getattr(raw, field) if field != "empty" else b""
                    self._unanswered.resolve(raw.call_id, (field, data))
                if frame.draining and self.is_open:
                    self.is_draining = True
                    self.retire()
        except grpc.aio.AioRpcError as error:
            return error
        except asyncio.CancelledError:
            # grpc.aio also raises it when a stopping server has cancelled the stream.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
        return rpc_error(grpc.StatusCode.UNAVAILABLE, _UNANSWERED)

    async def _write_all(self) -> None:
        """Write until the outbox is closed, then close this side of the stream."""
        try:
            await self._outbox.run(self._write)
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.InternalError):
            # The stream has ended; its reader raises the reason.
            return

    async def _write(self, items: Sequence[Pending | int]) -> None:
        frame = frames_pb2.CallsFrame()
        now = time.monotonic()
        for item in items:
            if isinstance(item, int):
                frame.cancelled.append(item)
            elif item in self._unanswered:
                item.is_written = True
                raw = frame.calls.add(call_id=item.call_id, **{item.field: item.data})
                timeout = max(item.ends_at - now, _TIMEOUT_SECONDS_MIN)
                raw.timeout.seconds = seconds = int(timeout)
                raw.timeout.nanos = int((timeout - seconds) * 1e9)
                if item.trace is not None:
                    raw.trace_context.update(item.trace)
        if frame.calls or frame.cancelled:
            await self._call.write(frame)

    def _expire(self, pending: Pending) -> None:
        self._give_up(pending, rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))

    def _give_up(self, pending: Pending, error: Exception | None = None) -> None:
        if self._unanswered.give_up(pending, error) and self.is_open:
            self._outbox.put(pending.call_id)

    def _leave(self) -> None:
        if self.is_open:
            self.is_open = False
            self._left()


class Sessions:
    """The session of a client, opened on demand on a channel of its own."""

    def __init__(
        self, open_channel: Callable[[TlsMaterial | None], grpc.aio.Channel], security: Security
    ) -> None:
        self._open_channel, self._security = open_channel, security
        self._channel: grpc.aio.Channel | None = None
        self._material: TlsMaterial | None = None
        # Without a session, and not closed yet: their certificates have changed.
        self._outdated: list[grpc.aio.Channel] = []
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
        if session is not None and session.authorization is not self._security.authorization():
            session.retire()
            session = None
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
        await self._close_outdated()

    def _opened(self) -> Session:
        authorization, material = self._security.authorization(), self._security.material
        if self._channel is not None and material is not self._material:
            if self._channel not in self._channels.values():
                self._outdated.append(self._channel)
            self._channel = None
        if self._channel is None:
            self._channel, self._material = self._open_channel(material), material
            self._channel_opened_at = time.monotonic()
        channel = self._channel
        session = self._session = Session(
            channel, left=self._no_session, authorization=authorization
        )
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
            await self._close_outdated()
            await session.run()
        finally:
            del self._channels[task]
            if channel is not self._channel and channel not in self._channels.values():
                await channel.close()

    async def _close_outdated(self) -> None:
        while self._outdated:
            await self._outdated.pop().close()

    def _no_session(self) -> None:
        session, self._session = self._session, None
        is_old = time.monotonic() - self._channel_opened_at >= CHANNEL_SECONDS_MIN
        if session is not None and session.is_draining and is_old:
            self._channel = None


def rpc_error(
    code: grpc.StatusCode, message: str, details: bytes | None = None
) -> grpc.aio.AioRpcError:
    """Return the error that a unary call with this status would raise."""
    trailing = grpc.aio.Metadata()
    if details is not None:
        trailing.add(DETAILS_KEY, details)
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details=message)


def _error_of(data: bytes) -> grpc.aio.AioRpcError:
    try:
        status = status_pb2.Status.FromString(data)
    except DecodeError:
        return rpc_error(grpc.StatusCode.UNKNOWN, "the answer is an error that cannot be read")
    code = _CODES.get(status.code or grpc.StatusCode.UNKNOWN.value[0], grpc.StatusCode.UNKNOWN)
    return rpc_error(code, status.message, data)


def _copy_of(error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
    """Return a copy of an error: each caller raises one of its own."""
    return grpc.aio.AioRpcError(
        error.code(), error.initial_metadata(), error.trailing_metadata(), details=error.details()
    )


def _size(item: Pending | int) -> int:
    return 10 if isinstance(item, int) else _ITEM_BYTES + len(item.data)
