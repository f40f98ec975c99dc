"""The gRPC call of a processor's stream, without gRPC: frames kept here, answers given by hand."""

import asyncio
from collections.abc import Iterable

import grpc
from grpc import aio

from progressor.internal.v1 import frames_pb2
from progressor.wire.stream_call import StreamCall


class ScriptedCall(StreamCall[bytes, bytes]):
    """Keeps what is written; reads what it is given. Writing waits until `flowing`."""

    def __init__(self) -> None:
        self.frames: list[frames_pb2.StepsFrame] = []
        self.is_cancelled = False
        self.flowing = asyncio.Event()
        self.flowing.set()
        self._to_read: asyncio.Queue[object] = asyncio.Queue()

    @property
    def steps(self) -> dict[int, bytes]:
        return {step.step_id: step.request for frame in self.frames for step in frame.steps}

    @property
    def cancelled(self) -> list[int]:
        return [step_id for frame in self.frames for step_id in frame.cancelled]

    async def write(self, request: bytes, /) -> None:
        self.frames.append(frames_pb2.StepsFrame.FromString(request))
        await self.flowing.wait()

    async def read(self) -> object:
        word = await self._to_read.get()
        if isinstance(word, BaseException):
            raise word
        return word

    def cancel(self) -> bool:
        """Have the reader see the end, as gRPC does."""
        self.is_cancelled = True
        self._to_read.put_nowait(asyncio.CancelledError())
        return True

    def answer(
        self, answers: Iterable[tuple[int, bytes | None]], *, draining: bool = False
    ) -> None:
        """Put a frame of answers on the stream; None: one without a response."""
        raws = [frames_pb2.RawStepAnswer(step_id=i, response=answer) for i, answer in answers]
        frame = frames_pb2.StepAnswersFrame(answers=raws, draining=draining)
        self._to_read.put_nowait(frame.SerializeToString())

    def ask(self, step_id: int, **request: bytes) -> None:
        """Put a frame with a call of a step on the stream."""
        call = frames_pb2.RawStepCall(call_id=step_id, step_id=step_id, **request)
        self._to_read.put_nowait(frames_pb2.StepAnswersFrame(calls=[call]).SerializeToString())

    def garble(self) -> None:
        self._to_read.put_nowait(b"\xff\xfe")

    def end(self, code: grpc.StatusCode = grpc.StatusCode.OK) -> None:
        if code is grpc.StatusCode.OK:
            self._to_read.put_nowait(aio.EOF)
        else:
            metadata = aio.Metadata()
            self._to_read.put_nowait(aio.AioRpcError(code, metadata, metadata, "text"))
