"""A session by the generated stubs alone: what a client in any language can do."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import grpc
from google.protobuf.message import Message

from progressor.v1 import process_service_pb2 as messages
from progressor.v1.process_service_pb2_grpc import ProcessServiceStub
from tests.support.engine.points import PATIENCE_SECONDS

CARRIED = ("Start", "Call", "Notify", "Repair", "Get")
"""The RPCs that a session carries."""


class RawSession:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stream: Any = ProcessServiceStub(channel).Session()
        self.answers: list[messages.SessionAnswer] = []
        self.is_draining = False

    async def send(self, *calls: messages.SessionCall, cancelled: Sequence[int] = ()) -> None:
        await self.stream.write(messages.SessionRequest(calls=calls, cancelled=cancelled))

    async def read(self) -> messages.SessionResponse | None:
        """Return the next frame; None once the engine has ended the session.

        Raises:
            AioRpcError: It has ended it with an error.
        """
        async with asyncio.timeout(PATIENCE_SECONDS):
            frame = await self.stream.read()
        if frame is grpc.aio.EOF:
            return None
        self.answers.extend(frame.answers)
        self.is_draining |= frame.draining
        return frame  # type: ignore[no-any-return]  # untyped by grpc

    async def answered(self, count: int = 1) -> Mapping[int, messages.SessionAnswer]:
        while len(self.answers) < count:
            assert await self.read() is not None, "it ended too early"
        return {answer.call_id: answer for answer in self.answers}

    async def until_draining(self) -> None:
        while not self.is_draining:
            assert await self.read() is not None, "it ended too early"

    async def ended(self) -> None:
        await self.stream.done_writing()
        while await self.read() is not None:
            pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stream.cancel()


class SessionStub:
    """A `ProcessServiceStub` whose calls go through sessions, one session each, where they can."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._stub = ProcessServiceStub(channel)

    def __getattr__(self, rpc: str) -> Callable[..., Any]:
        if rpc not in CARRIED:
            return getattr(self._stub, rpc)  # type: ignore[no-any-return]  # untyped by grpc

        def call(
            request: Message,
            *,
            timeout: float | None = None,
            metadata: Sequence[tuple[str, str]] = (),
        ) -> asyncio.Task[Message]:
            asked = call_of(1, request, timeout=timeout, trace_context=dict(metadata))
            return asyncio.ensure_future(self._ask(asked))

        return call

    async def _ask(self, call: messages.SessionCall) -> Message:
        async with RawSession(self._channel) as session:
            await session.send(call)
            # grpc.aio hangs up by itself where a read is cancelled.
            answer = (await session.answered())[1]
            await session.ended()
        if answer.HasField("error"):
            raise error_of(answer)
        return getattr(answer, answer.WhichOneof("result") or "")  # type: ignore[no-any-return]  # untyped by grpc


def call_of(
    call_id: int,
    request: Message,
    *,
    timeout: float | None = None,
    trace_context: Mapping[str, str] | None = None,
) -> messages.SessionCall:
    field = type(request).__name__.removesuffix("Request").lower()
    call = messages.SessionCall(call_id=call_id, trace_context=trace_context)
    getattr(call, field).CopyFrom(request)
    getattr(call, field).SetInParent()
    if timeout is not None:
        call.timeout.FromNanoseconds(int(timeout * 1e9))
    return call


def error_of(answer: messages.SessionAnswer) -> grpc.aio.AioRpcError:
    code = next(code for code in grpc.StatusCode if code.value[0] == answer.error.code)
    trailing = grpc.aio.Metadata(("grpc-status-details-bin", answer.error.SerializeToString()))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details=answer.error.message)
