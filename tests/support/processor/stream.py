"""The streams of a scripted processor, written by the messages of the contract alone."""

import asyncio
from collections.abc import Awaitable, Callable

import grpc
from grpc import aio

from progressor.internal.v1 import frames_pb2
from progressor.v1 import processor_service_pb2
from tests.support.processor.script import GARBAGE, EndStream, GarbleFrame, Step, Twice

Context = aio.ServicerContext[bytes, bytes]
CarryOut = Callable[[processor_service_pb2.ProcessRequest, Context], Awaitable[tuple[Step, bytes]]]


class ScriptedStreams:
    """Takes steps from streams, answers each in a frame of its own, and counts what it saw."""

    def __init__(self, carry_out: CarryOut) -> None:
        self.opened_count = 0
        self.frame_sizes: list[int] = []
        """How many steps each frame had."""
        self.cancelled: list[int] = []
        """The step ids that the engine gave up."""
        self.draining = False
        """Whether to say so, first thing, on each stream that is opened."""
        self._carry_out = carry_out
        self._open: set[_Stream] = set()
        self._changed = asyncio.Condition()

    @property
    def open_count(self) -> int:
        """How many streams are open."""
        return len(self._open)

    async def serve(self, _frames: object, context: Context) -> None:
        """Answer one stream; called by the gRPC server."""
        self.opened_count += 1
        stream = _Stream(self, context)
        self._open.add(stream)
        try:
            if self.draining:
                await stream.write(frames_pb2.StepAnswersFrame(draining=True))
            end = await stream.run(self._carry_out)
        finally:
            self._open.discard(stream)
            await self.note()
        if end.code is not grpc.StatusCode.OK:
            await context.abort(end.code, end.text)

    async def write(self, frame: frames_pb2.StepAnswersFrame) -> None:
        """Write a frame on every open stream."""
        for stream in tuple(self._open):
            await stream.write(frame)

    async def until(self, reached: Callable[["ScriptedStreams"], bool]) -> None:
        """Wait until a condition on what was counted holds, 10 s at most."""
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(lambda: reached(self))

    async def note(self) -> None:
        """Have those who wait look again."""
        async with self._changed:
            self._changed.notify_all()


class _Stream:
    def __init__(self, streams: ScriptedStreams, context: Context) -> None:
        self._streams, self._context = streams, context
        self._writing = asyncio.Lock()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._end: asyncio.Future[EndStream] = asyncio.get_running_loop().create_future()

    async def run(self, carry_out: CarryOut) -> EndStream:
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(self._read(group, carry_out))
            end = await self._end
            reading.cancel()
            for task in self._tasks.values():
                task.cancel()
        return end

    async def write(self, frame: frames_pb2.StepAnswersFrame) -> None:
        await self._write(frame.SerializeToString())

    async def _read(self, group: asyncio.TaskGroup, carry_out: CarryOut) -> None:
        while isinstance(packed := await self._context.read(), bytes):
            frame = processor_service_pb2.ProcessStreamRequest.FromString(packed)
            self._streams.frame_sizes.append(len(frame.steps))
            for step in frame.steps:
                self._tasks[step.step_id] = group.create_task(self._answer(step, carry_out))
            for step_id in frame.cancelled:
                self._streams.cancelled.append(step_id)
                if step_id in self._tasks:
                    self._tasks[step_id].cancel()
            await self._streams.note()
        self._finish(EndStream())

    async def _answer(self, asked: processor_service_pb2.StreamedStep, carry_out: CarryOut) -> None:
        step, packed = await carry_out(asked.request, self._context)
        if isinstance(step, GarbleFrame):
            await self._write(GARBAGE)
        elif isinstance(step, EndStream):
            self._finish(step)
        else:
            raw = frames_pb2.RawStepAnswer(step_id=asked.step_id, response=packed)
            for _ in range(2 if isinstance(step, Twice) else 1):
                await self.write(frames_pb2.StepAnswersFrame(answers=[raw]))

    async def _write(self, packed: bytes) -> None:
        async with self._writing:
            # Cancelled in the midst of it, gRPC would have two writes at once with the next one,
            # and the stream would end without a word.
            writing = asyncio.ensure_future(self._context.write(packed))
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                await asyncio.wait({writing})
                raise

    def _finish(self, end: EndStream) -> None:
        if not self._end.done():
            self._end.set_result(end)
