"""The gRPC call under a stream, which ends with the status that the other side gave.

grpc.aio says INTERNAL, "Internal error from Core", where a write failed because the call had ended,
and forgets the status that ended it, or has it come a moment later (grpc issue 36066; so in 1.85).
A server without streams would look like a broken one, and a lost connection like a bug.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

import grpc
from grpc import aio

Request = TypeVar("Request")
Response = TypeVar("Response")
Value = TypeVar("Value")

_WRITE_FAILED = "Internal error from Core"

_STATUS_WAIT_SECONDS = 1.0
"""How long the status may come after the write that failed for it."""


class StreamCall(Generic[Request, Response]):
    """One call, of messages both ways."""

    def __init__(self, call: aio.StreamStreamCall[Request, Response]) -> None:
        self._call = call
        self._end: asyncio.Future[aio.AioRpcError] = asyncio.get_running_loop().create_future()
        call.add_done_callback(self._note_end)

    async def write(self, request: Request, /) -> None:
        """Send a frame; AioRpcError or InvalidStateError if the call has ended, however it has."""
        await self._call.write(request)

    async def read(self) -> object:
        """Return the next frame; EOF after the last, where the call ended with OK.

        Raises:
            AioRpcError: The call has ended with this status.
        """
        try:
            return await self._call.read()
        except aio.AioRpcError as error:
            if not _is_of_a_write(error):
                raise
            await asyncio.wait((self._end,), timeout=_STATUS_WAIT_SECONDS)
            if not self._end.done():
                # A call that has ended without a status has lost its connection.
                raise aio.AioRpcError(
                    grpc.StatusCode.UNAVAILABLE,
                    aio.Metadata(),
                    aio.Metadata(),
                    details="the connection was lost",
                ) from error
            if self._end.result().code() is grpc.StatusCode.OK:
                return aio.EOF
            raise self._end.result() from error

    async def done_writing(self) -> None:
        """Close the sending side; raises what `write` raises."""
        await self._call.done_writing()

    def cancel(self) -> bool:
        return self._call.cancel()

    def _note_end(self, call: Any) -> None:  # noqa: ANN401  # grpc's stubs name another class here
        # Called for each status, at the moment in which it is known: one turn of the event loop
        # later a write that failed may have put its own in place of it.
        error = aio.AioRpcError(
            _at_once(call.code()),
            aio.Metadata(),
            _at_once(call.trailing_metadata()) or aio.Metadata(),
            details=_at_once(call.details()),
        )
        if not _is_of_a_write(error) and not self._end.done():
            self._end.set_result(error)


def _is_of_a_write(error: aio.AioRpcError) -> bool:
    return error.code() is grpc.StatusCode.INTERNAL and error.details() == _WRITE_FAILED


def _at_once(known: Coroutine[Any, Any, Value]) -> Value:
    """Return what a coroutine returns that has nothing to wait for: the call has its status."""
    try:
        known.send(None)
    except StopIteration as stop:
        value: Value = stop.value
        return value
    known.close()
    message = "a call that has ended does not know its status"
    raise AssertionError(message)
