"""One question to a processor: carry out this step."""

import asyncio
import datetime as dt
import re
from collections.abc import Mapping

from grpc import aio

from progressor.clock import Clock
from progressor.domain.event import Event
from progressor.domain.namespace import Namespace
from progressor.domain.task import RunningTask
from progressor.processor import codec, failures
from progressor.processor.channels import Channels

# W3C Trace Context: both headers are visible ASCII, and gRPC raises for anything else.
_TRACE_KEYS = ("traceparent", "tracestate")
_TRACE_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,510}[\x21-\x7e])?")


class ProcessorClient:
    """Asks the processors of all namespaces."""

    def __init__(self, channels: Channels, clock: Clock) -> None:
        """Take the channels, which stay the caller's to close."""
        self._channels = channels
        self._clock = clock

    async def ask(
        self,
        task: RunningTask,
        history: tuple[Event, ...],
        *,
        namespace: Namespace,
        timeout: dt.timedelta,
    ) -> codec.Answer:
        """Have one attempt of a task carried out, and return what came of it.

        Never raises for anything that a processor, or the way to it, does. If cancelled, the
        processor is told and may have acted already.

        Args:
            task: Any but a `remove`, which is done by the engine.
            history: The events that the task asked for, in its order.
            namespace: Where the processor is, and how large a payload may be.
            timeout: From now on; the step ends by itself when it has passed.
        """
        request = codec.encode_request(task, history, self._clock.now() + timeout)
        if len(request) > failures.MESSAGE_BYTES_MAX:
            return failures.message_too_large(
                f"the request has {len(request)} bytes, more than {failures.MESSAGE_BYTES_MAX}"
            )
        answer = await self._call(request, task, namespace, timeout.total_seconds())
        if not isinstance(answer, bytes):
            return answer
        return codec.decode_answer(
            answer, task_type=task.task_type, payload_bytes_max=namespace.payload_bytes_max
        )

    async def _call(
        self, request: bytes, task: RunningTask, namespace: Namespace, seconds: float
    ) -> bytes | codec.Answer:
        connection = await self._channels.take(namespace)
        try:
            return await connection.process(
                request, timeout=seconds, metadata=_trace_metadata(task.trace_context)
            )
        except aio.AioRpcError as error:
            return failures.failure_of(error)
        except asyncio.CancelledError:
            # gRPC says the same where the channel was closed under the call. Only a cancellation
            # that somebody asked of this task is the worker's, and goes on.
            if _is_being_cancelled():
                raise
            return failures.processor_unavailable("the channel was closed during the call")
        finally:
            await self._channels.give_back(connection)


def _is_being_cancelled() -> bool:
    current = asyncio.current_task()
    return current is None or current.cancelling() > 0


def _trace_metadata(context: Mapping[str, str]) -> tuple[tuple[str, str], ...] | None:
    if not context:
        return None
    return tuple(
        (key, context[key])
        for key in _TRACE_KEYS
        if key in context and _TRACE_VALUE.fullmatch(context[key])
    )
