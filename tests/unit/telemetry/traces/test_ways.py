"""Traces of a request, its admission and its steps through the engine."""

import pytest
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from progressor import errors
from progressor.api.calls.interceptors import Interceptor, Served
from progressor.api.calls.ports import CallContext
from progressor.api.calls.status import RichStatus
from progressor.api.calls.traces import trace_context_of
from progressor.api.server.server import PROCESS_SERVICE
from progressor.clock import SystemClock
from progressor.domain.processes.admission import Admission, Verdict
from progressor.domain.processes.intent import Failed, Rejected
from progressor.storage.processes.settlements import LeaseLost
from progressor.telemetry import names
from progressor.telemetry.traces.tracing import Tracing
from progressor.v1 import gate_service_pb2 as gates_pb
from progressor.v1 import process_service_pb2 as pb
from progressor.v1 import schedule_service_pb2 as schedules_pb
from tests.support.builders import (
    make_key,
    make_namespace,
    make_process,
    make_request,
    make_result,
    make_task,
    make_written,
)
from tests.support.runtime.harness import Harness
from tests.support.runtime.virtual_time import in_virtual_time, settled
from tests.support.telemetry.spans import (
    SPAN_ID,
    TRACED,
    Spans,
    attributes_of,
    is_error,
    parent_of,
)

CALL = f"{names.PROCESSOR_SERVICE}/Process"
SERVER = "progressor.v1.ProcessService/Call"
GATE_SERVICE = gates_pb.DESCRIPTOR.services_by_name["GateService"]
SCHEDULE_SERVICE = schedules_pb.DESCRIPTOR.services_by_name["ScheduleService"]
STORAGE_WORDS = "host=db"


class Context:
    """A call as gRPC, or a session, would show it."""

    def __init__(self, caller: dict[str, str]) -> None:
        """Take the caller's context."""
        self._trace = tuple(caller.items())

    def time_remaining(self) -> float | None:
        """Return that the call has no deadline."""
        return None

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return what was given."""
        return self._trace


class Method:
    """A method that notes the context it was served with, and ends as told."""

    def __init__(self, end: Message | Exception) -> None:
        """Take the end."""
        self._end = end
        self.contexts: list[dict[str, str]] = []

    async def __call__(self, _request: Message, context: CallContext) -> Message:
        """Serve."""
        self.contexts.append(dict(trace_context_of(context)))
        if isinstance(self._end, Exception):
            raise self._end
        return self._end


def served(tracing: Tracing, method: Method, called: MethodDescriptor | None = None) -> Served:
    gate = Interceptor(clock=SystemClock(), tracing=tracing)
    return gate.served(called or PROCESS_SERVICE.methods_by_name["Call"], method)


@pytest.mark.parametrize(
    ("service", "method", "request_", "subject"),
    [
        (SCHEDULE_SERVICE, "TriggerSchedule",
         schedules_pb.TriggerScheduleRequest(schedule_id="nightly"),
         {"progressor.schedule_id": "nightly"}),
        (GATE_SERVICE, "SetGate", gates_pb.SetGateRequest(gate="stock"),
         {"progressor.gate": "stock"}),
        (PROCESS_SERVICE, "AwaitTask", pb.AwaitTaskRequest(process_id="p", task_id=7),
         {"progressor.process_id": "p", "progressor.task_id": 7}),
        (PROCESS_SERVICE, "Cancel", pb.CancelRequest(process_id="p", task_id=7),
         {"progressor.process_id": "p", "progressor.task_id": 7}),
    ],
)  # fmt: skip
async def test_a_request_says_what_it_is_about(
    service: ServiceDescriptor, method: str, request_: Message, subject: dict[str, object]
) -> None:
    spans, refused = Spans(), Method(errors.StorageUnavailableError(STORAGE_WORDS))
    serve = served(spans.tracing, refused, service.methods_by_name[method])

    await serve(request_, Context(dict(TRACED)))

    [span] = spans.ended()
    assert subject.items() <= attributes_of(span).items()


@pytest.mark.parametrize(
    ("error", "reason", "failed"),
    [
        (errors.ProcessFinishedError("o-1"), "PROCESS_FINISHED", False),
        (errors.StorageUnavailableError(STORAGE_WORDS), "STORAGE_UNAVAILABLE", True),
        (errors.RejectedError("no", code=14, processor_reason="BUSY"), None, False),
        (KeyError("a bug"), "INTERNAL", True),
    ],
)
async def test_the_end_of_a_request_is_told_with_its_reason(
    error: Exception, reason: str | None, failed: bool
) -> None:
    spans = Spans()

    end = await served(spans.tracing, Method(error))(pb.CallRequest(), Context(dict(TRACED)))

    assert isinstance(end, RichStatus)
    span = spans.one(SERVER)
    assert attributes_of(span)["rpc.response.status_code"] == end.code.name
    assert attributes_of(span).get("error.type") == reason
    assert is_error(span) is failed


@in_virtual_time
async def test_an_admission_lasts_from_the_line_to_the_answer() -> None:
    spans = Spans()
    harness = Harness(tracing=spans.tracing)
    answer = await harness.ask(make_request(trace_context=TRACED))
    (entry,) = harness.admissions.entries
    assert entry.on_sent is not None
    entry.on_sent()
    assert spans.ended() == ()

    harness.admissions.answer(Admission(verdict=Verdict.ACCEPTED, task_id=7))
    await settled()
    harness.replies.deliver(make_result())
    await answer

    span = spans.one("progressor.admit")
    assert parent_of(span) == SPAN_ID
    assert attributes_of(span)["progressor.verdict"] == "accepted"
    assert attributes_of(span)["progressor.task_id"] == 7
    assert "progressor.batch_wait_ms" in attributes_of(span)


@in_virtual_time
async def test_an_admission_that_storage_fails_says_so() -> None:
    spans = Spans()
    harness = Harness(tracing=spans.tracing)
    answer = await harness.ask(make_request(trace_context=TRACED))

    harness.admissions.answer(errors.StorageUnavailableError(STORAGE_WORDS))

    with pytest.raises(errors.StorageUnavailableError):
        await answer
    assert spans.one("progressor.admit").status.description == "STORAGE_UNAVAILABLE"


@in_virtual_time
async def test_each_task_that_a_worker_goes_on_with_has_a_step_of_its_own() -> None:
    spans = Spans()
    harness = Harness(tracing=spans.tracing)
    following = make_task(task_id=8, trace_context={})
    last = make_task(task_id=9, trace_context=TRACED)
    process = make_process()
    harness.settlements.script.append(make_written(process=process, next=following))
    harness.settlements.script.append(make_written(process=process, next=last))

    await harness.run_step(make_task(trace_context=TRACED))

    told = [span for span in spans.ended() if span.name == "progressor.step"]
    assert [attributes_of(span)["progressor.task_id"] for span in told] == [7, 9]
    first, second, third = harness.settlements.entries
    assert first.on_sent is not None
    assert second.on_sent is None
    assert third.on_sent is not None
    assert second.trace_context == {}


@in_virtual_time
async def test_a_task_that_a_worker_goes_on_with_names_the_one_that_it_waited_behind() -> None:
    spans = Spans()
    harness = Harness(tracing=spans.tracing)
    other = make_process(key=make_key(process_id="another"))
    elsewhere = make_task(task_id=9, trace_context=TRACED, process=other)
    harness.settlements.script.extend(
        [
            make_written(process=make_process(), next=make_task(task_id=8, trace_context=TRACED)),
            make_written(process=other, next=elsewhere),
        ]
    )

    await harness.run_step(make_task(trace_context=TRACED))

    told = [span for span in spans.ended() if span.name == "progressor.step"]
    assert [attributes_of(it).get("progressor.behind_task_id") for it in told] == [None, 7, None]


@pytest.mark.parametrize(
    ("outcome", "settlement", "failed"),
    [
        (Failed(code=14, reason="AWAY", message="", retryable=True), "retry", True),
        (Failed(code=13, reason="BUG", message="", retryable=False), "break", True),
        (Rejected(code=9, message="no"), "fail", False),
    ],
)
@in_virtual_time
async def test_an_attempt_says_how_it_ended(
    outcome: Failed | Rejected, settlement: str, failed: bool
) -> None:
    spans = Spans()
    harness = Harness(tracing=spans.tracing)
    harness.processor.script.append(outcome)

    await harness.run_step(make_task(trace_context=TRACED))

    assert attributes_of(spans.one("progressor.settle"))["progressor.settlement"] == settlement
    assert [is_error(spans.one(name)) for name in ("progressor.step", CALL)] == [failed] * 2
    assert not is_error(spans.one("progressor.settle"))


REFUSED = errors.StorageRefusedError(STORAGE_WORDS)


@pytest.mark.parametrize(
    ("settlements", "reason"),
    [
        ([LeaseLost()], "LEASE_LOST"),
        ([REFUSED], "INVALID_ANSWER"),
        ([REFUSED, REFUSED], REFUSED.reason),
    ],
    ids=["lease lost", "outcome refused", "failure refused too"],
)
@in_virtual_time
async def test_a_step_whose_settlement_is_not_written_has_failed(
    settlements: list[LeaseLost | Exception], reason: str
) -> None:
    spans = Spans()
    harness = Harness(tracing=spans.tracing)
    harness.settlements.script.extend(settlements)

    await harness.run_step(make_task(trace_context=TRACED))

    told = [spans.one(name) for name in ("progressor.settle", "progressor.step")]
    assert [span.status.description for span in told] == [reason] * 2


@in_virtual_time
async def test_a_step_whose_namespace_is_gone_has_failed() -> None:
    spans = Spans()
    harness = Harness(make_namespace(name="other"), tracing=spans.tracing)

    await harness.run_step(make_task(trace_context=TRACED))

    assert spans.one("progressor.step").status.description == "ABANDONED"
