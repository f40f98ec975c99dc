"""What a call carries besides its message (trace, deadline), and how its end is reported."""

import asyncio
import datetime as dt
from collections.abc import AsyncGenerator, Sequence
from typing import Never

import grpc
import pytest
from google.protobuf.message import Message

from progressor import errors, job_errors
from progressor.api.calls.guarded import Method
from progressor.api.calls.interceptors import Interceptor
from progressor.api.calls.malformed import Malformed
from progressor.api.calls.servicer import Servicer, seconds_left
from progressor.api.calls.traces import CallContext, trace_context_of
from progressor.api.jobs import JobServicer
from progressor.api.processes.servicer import ProcessServicer
from progressor.clock import SystemClock
from progressor.telemetry.metrics.registry import Metrics
from progressor.v1 import job_service_pb2 as jobs_pb
from progressor.v1 import process_service_pb2 as pb
from tests.support.telemetry.measured import counted
from tests.support.telemetry.spans import TRACE_ID, TRACED, Spans, attributes_of, id_of

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STATED = {"traceparent": PARENT, "tracestate": "a=1"}
WATCH_JOB = JobServicer.service.methods_by_name["WatchJob"]
REQUEST = jobs_pb.WatchJobRequest(namespace="orders", job_id="job")
ONE, OTHER = (jobs_pb.WatchJobResponse(job=jobs_pb.Job(revision=it)) for it in (1, 2))
CALL = pb.CallRequest()


class EndError(Exception):
    """Stands for grpc.aio's AbortError."""


class Context:
    """A call as gRPC would show it."""

    def __init__(
        self,
        *,
        remaining: float | None = None,
        metadata: Sequence[tuple[str, str | bytes]] | None = (),
    ) -> None:
        self.remaining, self.metadata = remaining, metadata
        self.code: grpc.StatusCode | None = None
        self.details = ""
        self.written: list[Message] = []

    def time_remaining(self) -> float | None:
        return self.remaining

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]] | None:
        return self.metadata

    async def abort(
        self, code: grpc.StatusCode, details: str = "", _trailing_metadata: object = ()
    ) -> Never:
        self.code, self.details = code, details
        raise EndError

    async def write(self, message: Message) -> None:
        self.written.append(message)


def interceptor(metrics: Metrics | None = None) -> Interceptor:
    return Interceptor(clock=SystemClock(), metrics=metrics)


def wrapped(gate: Interceptor, name: str, method: Method) -> Method:
    return gate.wrapped(ProcessServicer.service.methods_by_name[name], method)


def raising(error: Exception) -> Method:
    async def method(_request: Message, _context: Context) -> Message:
        raise error

    return method


async def ended(
    serve: Method, request: object = REQUEST, context: Context | None = None
) -> Context:
    """Return the context of a call that ends with a status."""
    context = context or Context()
    with pytest.raises(EndError):
        await serve(request, context)
    return context


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (None, {}),
        ([], {}),
        ([("user-agent", "x")], {}),
        ([("traceparent", PARENT)], {"traceparent": PARENT}),
        (
            [("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b@c=2 ,")],
            {"traceparent": PARENT, "tracestate": "a=1,b@c=2"},
        ),
        ([("traceparent", PARENT), ("tracestate", "A=1")], {"traceparent": PARENT}),
        ([("traceparent", PARENT), ("tracestate", "a=" + "x" * 600)], {"traceparent": PARENT}),
        ([("traceparent", PARENT), ("tracestate", " , ,a=1" + " " * 600)], STATED),
        ([("traceparent", PARENT), ("tracestate", "a=1" + " " * 5000)], {"traceparent": PARENT}),
        ([("traceparent", PARENT), ("tracestate", "a=1," * 33)], {"traceparent": PARENT}),
        ([("tracestate", "a=1")], {}),
        ([("traceparent", PARENT), ("traceparent", PARENT)], {}),
        ([("traceparent", PARENT.upper())], {}),
        ([("traceparent", PARENT + "-00")], {}),
        ([("traceparent", PARENT + "\n")], {}),
        ([("traceparent", "01" + PARENT[2:] + "-ab")], {"traceparent": "01" + PARENT[2:] + "-ab"}),
        ([("traceparent", "ff" + PARENT[2:])], {}),
        ([("traceparent", "00-" + "0" * 32 + PARENT[35:])], {}),
        ([("traceparent", PARENT[:36] + "0" * 16 + "-01")], {}),
        ([("traceparent", b"x")], {}),
    ],
)
def test_a_trace_context_is_taken_only_when_valid(
    metadata: list[tuple[str, str | bytes]] | None, expected: dict[str, str]
) -> None:
    assert trace_context_of(Context(metadata=metadata)) == expected


@pytest.mark.parametrize(
    ("remaining", "margin"), [(0.05, 0.005), (0.5, 0.015), (5.0, 0.06), (3600.0, 0.11)]
)
def test_the_engine_gives_up_a_little_before_the_caller(remaining: float, margin: float) -> None:
    assert seconds_left(Context(remaining=remaining)) == pytest.approx(remaining - margin)


@pytest.mark.parametrize("remaining", [0.0, -1.0, 0.0009])
def test_a_deadline_that_has_passed_ends_the_call(remaining: float) -> None:
    with pytest.raises(errors.DeadlineExceededError, match="no task is known"):
        seconds_left(Context(remaining=remaining))


@pytest.mark.parametrize("name", sorted(set(ProcessServicer.service.methods_by_name) - {"Session"}))
async def test_no_method_of_processes_begins_after_the_deadline(name: str) -> None:
    # Nothing may reach the backend, so that there need not be one.
    servicer = ProcessServicer(None)  # type: ignore[arg-type]
    request = getattr(pb, f"{name}Request")()
    if name not in {"List", "Count"}:
        request.namespace = "a"

    with pytest.raises(errors.DeadlineExceededError):
        await servicer.method(name)(request, Context(remaining=0.0))


async def test_an_error_is_reported_and_counted() -> None:
    metrics, method = Metrics(), raising(errors.ProcessFinishedError("p"))
    context = await ended(wrapped(interceptor(metrics), "Call", method), CALL)

    assert context.code is grpc.StatusCode.FAILED_PRECONDITION
    assert counted(metrics.requests) == {("", "Call", "refused", "PROCESS_FINISHED"): 1}


@pytest.mark.parametrize(
    "bug", [ValueError("secret"), errors.StorageRefusedError("secret"), KeyError("secret")]
)
async def test_a_bug_is_logged_under_the_id_that_the_caller_gets(
    bug: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    context = await ended(wrapped(interceptor(metrics), "Call", raising(bug)), CALL)

    (record,) = caplog.records
    assert context.code is grpc.StatusCode.INTERNAL
    assert context.details == f"internal error [{vars(record)['error_id']}]"
    assert record.exc_info is not None
    assert record.exc_info[1] is bug
    assert counted(metrics.requests) == {("", "Call", "internal", "INTERNAL"): 1}


async def test_unavailable_storage_is_logged_once_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    serve = wrapped(interceptor(), "Call", raising(errors.StorageUnavailableError("host=db")))
    for _ in range(3):
        await ended(serve, CALL)

    assert [vars(record)["why"] for record in caplog.records] == ["host=db"]


async def test_a_malformed_request_never_reaches_the_method() -> None:
    malformed = Malformed(errors.FieldViolation("process_id", "is not UTF-8"))
    serve = wrapped(interceptor(), "Call", raising(AssertionError("it was called")))
    context = await ended(serve, malformed)

    assert context.code is grpc.StatusCode.INVALID_ARGUMENT
    assert context.details == "process_id: is not UTF-8"


async def test_draining_refuses_work_and_serves_reads() -> None:
    async def method(_request: Message, _context: Context) -> Message:
        return pb.GetResponse()

    gate = interceptor()
    gate.refuse_work()
    context = await ended(wrapped(gate, "Call", method), CALL)

    assert context.code is grpc.StatusCode.UNAVAILABLE
    assert await wrapped(gate, "Get", method)(pb.GetRequest(), Context()) == pb.GetResponse()


async def test_a_cancellation_passes_through_and_a_cut_call_is_reported() -> None:
    async def method(_request: Message, _context: Context) -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    gate, hung_up, cut = interceptor(), Context(), Context()
    serve = wrapped(gate, "Call", method)
    first = asyncio.ensure_future(serve(CALL, hung_up))
    second = asyncio.ensure_future(serve(CALL, cut))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    gate.cut_off()
    with pytest.raises(EndError):
        await second

    assert hung_up.code is None
    assert cut.code is grpc.StatusCode.UNAVAILABLE
    async with asyncio.timeout(dt.timedelta(seconds=1).total_seconds()):
        await gate.all_done()


def test_every_rpc_of_the_contract_needs_its_method() -> None:
    class Nothing(Servicer):
        service = JobServicer.service

    with pytest.raises(AttributeError, match="submit_job"):
        interceptor().handler(Nothing(None))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="Session has frames both ways"):
        interceptor().handler(ProcessServicer(None))  # type: ignore[arg-type]


async def watch_one(
    _request: Message, _context: CallContext
) -> AsyncGenerator[jobs_pb.WatchJobResponse, None]:
    yield ONE


async def test_all_is_written_under_the_span_that_tells_of_the_watch() -> None:
    stored: list[dict[str, str]] = []

    async def watch(
        _request: Message, context: CallContext
    ) -> AsyncGenerator[jobs_pb.WatchJobResponse, None]:
        stored.append(dict(trace_context_of(context)))
        yield ONE
        yield OTHER

    spans, metrics, context = Spans(), Metrics(), Context(metadata=tuple(TRACED.items()))
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
    ) -> AsyncGenerator[jobs_pb.WatchJobResponse, None]:
        yield ONE
        raise job_errors.JobNotFoundError("orders", "job")

    context = await ended(interceptor().wrapped_watch(WATCH_JOB, watch))

    assert context.written == [ONE]
    assert context.code is grpc.StatusCode.NOT_FOUND


async def test_a_client_that_leaves_while_it_is_written_to_has_cancelled_its_watch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Left(Context):
        async def write(self, _message: Message) -> None:
            message = "the batch failed"
            raise grpc.aio.InternalError(message)

    metrics = Metrics()
    serve = interceptor(metrics).wrapped_watch(WATCH_JOB, watch_one)
    with pytest.raises(asyncio.CancelledError):
        await serve(REQUEST, Left())

    assert counted(metrics.requests) == {("", "WatchJob", "cancelled", ""): 1}
    assert caplog.records == []


async def test_a_watch_that_cannot_be_read_or_comes_too_late_is_never_begun() -> None:
    gate = interceptor()
    serve = gate.wrapped_watch(WATCH_JOB, watch_one)
    malformed = await ended(serve, Malformed(errors.FieldViolation("request", "is none")))
    gate.refuse_work()
    late = await ended(serve)

    assert malformed.code is grpc.StatusCode.INVALID_ARGUMENT
    assert late.code is grpc.StatusCode.UNAVAILABLE
    assert malformed.written == late.written == []
