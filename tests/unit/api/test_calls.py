"""What a call carries besides its message (trace, deadline), and how its end is reported."""

import asyncio
import datetime as dt
from collections.abc import Sequence
from typing import Never

import grpc
import pytest
from google.protobuf.message import Message

from progressor import errors
from progressor.api.calls.interceptors import Interceptor, Method
from progressor.api.calls.malformed import Malformed
from progressor.api.calls.servicer import Servicer, seconds_left
from progressor.api.calls.traces import trace_context_of
from progressor.api.processes.servicer import ProcessServicer
from progressor.api.server.server import JOB_SERVICE, PROCESS_SERVICE
from progressor.clock import SystemClock
from progressor.telemetry.metrics.registry import Metrics
from progressor.v1 import process_service_pb2 as pb
from tests.support.telemetry.measured import counted

PROCESS_ID, WHY = "p", "host=db"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STATED = {"traceparent": PARENT, "tracestate": "a=1"}


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
        """Take what the caller sent."""
        self.remaining, self.metadata = remaining, metadata
        self.code: grpc.StatusCode | None = None
        self.details = ""

    def time_remaining(self) -> float | None:
        """Return what was given."""
        return self.remaining

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]] | None:
        """Return what was given."""
        return self.metadata

    async def abort(
        self, code: grpc.StatusCode, details: str = "", _trailing_metadata: object = ()
    ) -> Never:
        """Note the end."""
        self.code, self.details = code, details
        raise EndError


def interceptor(metrics: Metrics | None = None) -> Interceptor:
    return Interceptor(clock=SystemClock(), metrics=metrics)


def wrapped(gate: Interceptor, name: str, method: Method) -> Method:
    return gate.wrapped(PROCESS_SERVICE.methods_by_name[name], method)


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


@pytest.mark.parametrize("name", sorted(set(PROCESS_SERVICE.methods_by_name) - {"Session"}))
async def test_no_method_of_processes_begins_after_the_deadline(name: str) -> None:
    # Nothing may reach the backend, so that there need not be one.
    servicer = ProcessServicer(None)  # type: ignore[arg-type]
    request = getattr(pb, f"{name}Request")(namespace="a")

    with pytest.raises(errors.DeadlineExceededError):
        await servicer.method(name)(request, Context(remaining=0.0))


async def test_an_error_is_reported_and_counted() -> None:
    async def method(_request: Message, _context: Context) -> Message:
        raise errors.ProcessFinishedError(PROCESS_ID)

    metrics, context = Metrics(), Context()
    with pytest.raises(EndError):
        await wrapped(interceptor(metrics), "Call", method)(pb.CallRequest(), context)

    assert context.code is grpc.StatusCode.FAILED_PRECONDITION
    assert counted(metrics.requests) == {("", "Call", "refused", "PROCESS_FINISHED"): 1}


@pytest.mark.parametrize(
    "bug", [ValueError("secret"), errors.StorageRefusedError("secret"), KeyError("secret")]
)
async def test_a_bug_is_logged_under_the_id_that_the_caller_gets(
    bug: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def method(_request: Message, _context: Context) -> Message:
        raise bug

    metrics, context = Metrics(), Context()
    with pytest.raises(EndError):
        await wrapped(interceptor(metrics), "Call", method)(pb.CallRequest(), context)

    (record,) = caplog.records
    assert context.code is grpc.StatusCode.INTERNAL
    assert context.details == f"internal error [{vars(record)['error_id']}]"
    assert record.exc_info is not None
    assert record.exc_info[1] is bug
    assert counted(metrics.requests) == {("", "Call", "internal", "INTERNAL"): 1}


async def test_unavailable_storage_is_logged_once_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def method(_request: Message, _context: Context) -> Message:
        raise errors.StorageUnavailableError(WHY)

    serve = wrapped(interceptor(), "Call", method)
    for _ in range(3):
        with pytest.raises(EndError):
            await serve(pb.CallRequest(), Context())

    assert [vars(record)["why"] for record in caplog.records] == ["host=db"]


async def test_a_malformed_request_never_reaches_the_method() -> None:
    async def method(_request: Message, _context: Context) -> Message:
        pytest.fail("it was called")

    context = Context()
    malformed = Malformed(errors.FieldViolation("process_id", "is not UTF-8"))
    with pytest.raises(EndError):
        await wrapped(interceptor(), "Call", method)(malformed, context)

    assert context.code is grpc.StatusCode.INVALID_ARGUMENT
    assert context.details == "process_id: is not UTF-8"


async def test_draining_refuses_work_and_serves_reads() -> None:
    async def method(_request: Message, _context: Context) -> Message:
        return pb.GetResponse()

    gate, context = interceptor(), Context()
    gate.refuse_work()
    with pytest.raises(EndError):
        await wrapped(gate, "Call", method)(pb.CallRequest(), context)

    assert context.code is grpc.StatusCode.UNAVAILABLE
    assert await wrapped(gate, "Get", method)(pb.GetRequest(), Context()) == pb.GetResponse()


async def test_a_cancellation_passes_through_and_a_cut_call_is_reported() -> None:
    async def method(_request: Message, _context: Context) -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    gate, hung_up, cut = interceptor(), Context(), Context()
    serve = wrapped(gate, "Call", method)
    first = asyncio.ensure_future(serve(pb.CallRequest(), hung_up))
    second = asyncio.ensure_future(serve(pb.CallRequest(), cut))
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
        pass

    with pytest.raises(AttributeError, match="submit_job"):
        interceptor().handler(JOB_SERVICE, Nothing(None))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="Session has frames both ways"):
        interceptor().handler(PROCESS_SERVICE, ProcessServicer(None))  # type: ignore[arg-type]
