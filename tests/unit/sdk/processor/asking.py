"""One request to a processor without a socket: what the tests of handlers go through."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from progressor.sdk import Processor, Step
from progressor.v1 import processor_service_pb2 as pb
from progressor.v1 import types_pb2 as types


async def answer(
    asked: Processor[Any] | Callable[[Step[Any]], Any],
    request: pb.ProcessRequest | None = None,
    **task: Any,
) -> pb.ProcessResponse:
    """Return what a processor, or a handler of calls, answers to a request, by default a call."""
    if not isinstance(asked, Processor):
        handler, asked = asked, Processor("orders")
        asked.call(handler)
    if request is None:
        request = pb.ProcessRequest(task=pb.ProcessorTask(**{"type": types.TASK_TYPE_CALL, **task}))
    with ThreadPoolExecutor(1) as threads:
        return await asked.answer(request, threads)
