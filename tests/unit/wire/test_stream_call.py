"""A stream's call ends with the status that came, whatever a write that failed made of it."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import grpc
import pytest
from grpc import aio

from progressor.wire.stream_call import StreamCall
from tests.support.runtime.virtual_time import in_virtual_time

OF_A_WRITE = (grpc.StatusCode.INTERNAL, "Internal error from Core")
LOST = (grpc.StatusCode.UNAVAILABLE, "the connection was lost")
REFUSED = (grpc.StatusCode.UNIMPLEMENTED, "no such method")


class GrpcCall:
    """What grpc.aio does: the status that is set last is the one it tells."""

    def __init__(self) -> None:
        self.call = StreamCall(cast("aio.StreamStreamCall[bytes, bytes]", self))
        self._status = (grpc.StatusCode.OK, "")

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callback = callback

    def end(self, *status: tuple[grpc.StatusCode, str]) -> None:
        for each in status:
            self._status = each
            self._callback(self)

    async def code(self) -> grpc.StatusCode:
        return self._status[0]

    async def details(self) -> str:
        return self._status[1]

    async def trailing_metadata(self) -> aio.Metadata:
        return aio.Metadata(("key", "value"))

    async def read(self) -> object:
        code, details = self._status
        if code is grpc.StatusCode.OK:
            return aio.EOF
        raise aio.AioRpcError(code, aio.Metadata(), aio.Metadata(), details)


async def how_it_ended(call: StreamCall[bytes, bytes]) -> tuple[grpc.StatusCode, str | None]:
    try:
        assert await call.read() is aio.EOF
    except aio.AioRpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, None


@pytest.mark.parametrize("statuses", [[REFUSED], [REFUSED, OF_A_WRITE], [OF_A_WRITE, REFUSED]])
@in_virtual_time
async def test_the_status_of_the_processor_counts(
    statuses: list[tuple[grpc.StatusCode, str]],
) -> None:
    grpc_call = GrpcCall()
    grpc_call.end(*statuses)

    assert await how_it_ended(grpc_call.call) == REFUSED


@in_virtual_time
async def test_the_processors_status_is_awaited_after_a_write_that_failed() -> None:
    grpc_call = GrpcCall()
    grpc_call.end(OF_A_WRITE)
    asyncio.get_running_loop().call_later(0.5, grpc_call.end, REFUSED)

    assert await how_it_ended(grpc_call.call) == REFUSED


@in_virtual_time
async def test_a_call_that_ended_without_a_status_has_lost_its_connection() -> None:
    grpc_call = GrpcCall()
    grpc_call.end(OF_A_WRITE)

    assert await how_it_ended(grpc_call.call) == LOST


@in_virtual_time
async def test_a_stream_that_ended_well_ends_well() -> None:
    grpc_call = GrpcCall()
    grpc_call.end((grpc.StatusCode.OK, ""), OF_A_WRITE)

    assert await how_it_ended(grpc_call.call) == (grpc.StatusCode.OK, None)


@in_virtual_time
async def test_an_internal_error_of_the_processors_is_its_own() -> None:
    grpc_call = GrpcCall()
    grpc_call.end((grpc.StatusCode.INTERNAL, "a bug"))

    assert await how_it_ended(grpc_call.call) == (grpc.StatusCode.INTERNAL, "a bug")
