"""A method that answers with a stream has the same interceptors as any other."""

import asyncio
from collections.abc import AsyncGenerator

import grpc
import pytest
from google.protobuf.message import Message

from progressor import errors, job_errors
from progressor.api.calls.interceptors import Interceptor
from progressor.api.calls.malformed import Malformed
from progressor.api.calls.ports import CallContext
from progressor.api.calls.traces import trace_context_of
from progressor.api.server.server import JOB_SERVICE
from progressor.clock import SystemClock
from progressor.telemetry.metrics.registry import Metrics
from progressor.v1 import job_service_pb2 as pb
from tests.support.telemetry.measured import counted
from tests.support.telemetry.spans import TRACE_ID, TRACED, Spans, attributes_of, id_of
from tests.unit.api.test_calls import Context, EndError

WATCH_JOB = JOB_SERVICE.methods_by_name["WatchJob"]
REQUEST = pb.WatchJobRequest(namespace="orders", job_id="job")
ONE, OTHER = (pb.WatchJobResponse(job=pb.Job(revision=it)) for it in (1, 2))


class Written(Context):
    """A call whose answers are noted."""

    def __init__(self, metadata: dict[str, str] | None = None) -> None:
        """Take what the caller sent."""
        super().__init__(metadata=tuple((metadata or {}).items()))
        self.written: list[Message] = []

    async def write(self, message: Message) -> None:
        """Note it."""
        self.written.append(message)


async def test_all_is_written_under_the_span_that_tells_of_the_watch() -> None:
    stored: list[dict[str, str]] = []

    async def watch(
        _request: Message, context: CallContext
    ) -> AsyncGenerator[pb.WatchJobResponse, None]:
        stored.append(dict(trace_context_of(context)))
        yield ONE
        yield OTHER

    spans, metrics, context = Spans(), Metrics(), Written(dict(TRACED))
    gate = Interceptor(clock=SystemClock(), metrics=metrics, tracing=spans.tracing)
    await gate.wrapped_watch(WATCH_JOB, watch)(REQUEST, context)

    span = spans.one("progressor.v1.JobService/WatchJob")
    assert context.written == [ONE, OTHER]
    assert stored == [{"traceparent": f"00-{TRACE_ID}-{id_of(span)}-01"}]
    assert attributes_of(span)["progressor.process_id"] == "job"
    assert counted(metrics.requests) == {("orders", "WatchJob", "ok", ""): 1}


async def test_what_was_written_before_an_error_stays_written() -> None:
    async def watch(
        _request: Message, _context: CallContext
    ) -> AsyncGenerator[pb.WatchJobResponse, None]:
        yield ONE
        raise job_errors.JobNotFoundError("orders", "job")

    context = Written()
    with pytest.raises(EndError):
        await Interceptor(clock=SystemClock()).wrapped_watch(WATCH_JOB, watch)(REQUEST, context)

    assert context.written == [ONE]
    assert context.code is grpc.StatusCode.NOT_FOUND


async def test_a_client_that_leaves_while_it_is_written_to_has_cancelled_its_watch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Left(Context):
        async def write(self, _message: Message) -> None:
            message = "the batch failed"
            raise grpc.aio.InternalError(message)

    async def watch(
        _request: Message, _context: CallContext
    ) -> AsyncGenerator[pb.WatchJobResponse, None]:
        yield ONE

    metrics = Metrics()
    serve = Interceptor(clock=SystemClock(), metrics=metrics).wrapped_watch(WATCH_JOB, watch)
    with pytest.raises(asyncio.CancelledError):
        await serve(REQUEST, Left())

    assert counted(metrics.requests) == {("", "WatchJob", "cancelled", ""): 1}
    assert caplog.records == []


async def test_a_watch_that_cannot_be_read_or_comes_too_late_is_never_begun() -> None:
    async def watch(
        _request: Message, _context: CallContext
    ) -> AsyncGenerator[pb.WatchJobResponse, None]:
        yield ONE

    gate, malformed, late = Interceptor(clock=SystemClock()), Written(), Written()
    serve = gate.wrapped_watch(WATCH_JOB, watch)
    with pytest.raises(EndError):
        await serve(Malformed(errors.FieldViolation("request", "is none")), malformed)
    gate.refuse_work()
    with pytest.raises(EndError):
        await serve(REQUEST, late)

    assert malformed.code is grpc.StatusCode.INVALID_ARGUMENT
    assert late.code is grpc.StatusCode.UNAVAILABLE
    assert malformed.written == late.written == []
