"""A processor whose answers are malformed."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator

import grpc

from progressor.v1 import processor_service_pb2 as pb
from tests.fuzz.inputs import Inputs

_SERVICE = pb.DESCRIPTOR.services_by_name["ProcessorService"].full_name
_CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
_LATE_SECONDS = 0.2
_STREAM = pb.ProcessStreamResponse.DESCRIPTOR

_Context = grpc.aio.ServicerContext[bytes, bytes]


class MalformedProcessor:
    """Answers each step with something else; `counts` says how often."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._inputs = Inputs(self._chance)
        self.counts: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def serving(self, *, streaming: bool) -> AsyncIterator[str]:
        """Serve on a free port, and yield the address."""
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Process": grpc.unary_unary_rpc_method_handler(self._process),
            "Describe": grpc.unary_unary_rpc_method_handler(self._describe),
        }
        if streaming:
            handlers["ProcessStream"] = grpc.stream_stream_rpc_method_handler(self._stream)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(None)

    async def _describe(self, _request: bytes, _context: _Context) -> bytes:
        return self._inputs.message(pb.DescribeResponse.DESCRIPTOR)

    async def _process(self, _request: bytes, context: _Context) -> bytes:
        self.counts["unary answers"] += 1
        if self._chance.random() < 0.2:
            metadata = (("grpc-status-details-bin", self._chance.randbytes(40)),)
            await context.abort(
                self._chance.choice(_CODES), "%" * self._chance.randrange(300), metadata
            )
        return self._inputs.message(pb.ProcessResponse.DESCRIPTOR)

    async def _stream(self, requests: AsyncIterator[bytes], context: _Context) -> None:
        async for data in requests:
            for step in pb.ProcessStreamRequest.FromString(data).steps:
                self.counts["streamed answers"] += 1
                await context.write(self._frame(step.step_id))
                if self._chance.random() < 0.05:
                    return
            if self._chance.random() < 0.1:
                await asyncio.sleep(_LATE_SECONDS)

    def _frame(self, step_id: int) -> bytes:
        """Return any frame, or one whose answer is for this step and malformed in itself."""
        if self._chance.random() < 0.5:
            return self._inputs.message(_STREAM)
        answer = pb.StreamedAnswer(step_id=step_id)
        with contextlib.suppress(Exception):
            answer.MergeFromString(self._inputs.message(pb.StreamedAnswer.DESCRIPTOR))
            answer.step_id = step_id
        frame = pb.ProcessStreamResponse(answers=[answer]).SerializeToString()
        return frame if self._chance.random() < 0.7 else self._inputs.mutated(frame)
