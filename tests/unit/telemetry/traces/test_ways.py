"""Traces of a request, its admission and its steps through the engine."""

from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from progressor import errors
from progressor.api.calls.interceptors import Interceptor
from progressor.api.calls.status import RichStatus
from progressor.api.calls.traces import CallContext
from progressor.api.processes.servicer import ProcessServicer
from progressor.clock import SystemClock
from progressor.domain.processes.admission import Admission, Verdict
from progressor.domain.processes.intent import Failed, Rejected
from progressor.storage.steps.settlements import LeaseLost
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


CONTEXT: Any = SimpleNamespace(
    time_remaining=lambda: None, invocation_metadata=lambda: tuple(TRACED.items())
)


async def served(
    tracing: Tracing, end: Exception, request: Message, called: MethodDescriptor
) -> object:
    """Serve a request of a traced caller by a method that ends like this."""

    async def method(_request: Message, _context: CallContext) -> Message:
        raise end

    serve = Interceptor(clock=SystemClock(), tracing=tracing).served(called, method)
    return await serve(request, CONTEXT)


@pytest.mark.parametrize(
    ("service", "method", "request_", "subject"),
    [
        (SCHEDULE_SERVICE, "TriggerSchedule",
         schedules_pb.TriggerScheduleRequest(schedule_id="nightly"),
         {"progressor.schedule_id": "nightly"}),
        (GATE_SERVICE, "SetGate", gates_pb.SetGateRequest(gate="stock"),
         {"progressor.gate": "stock"}),
        (ProcessServicer.service, "AwaitTask", pb.AwaitTaskRequest(process_id="p", task_id=7),
         {"progressor.process_id": "p", "progressor.task_id": 7}),
        (ProcessServicer.service, "Cancel", pb.CancelRequest(process_id="p", task_id=7),
         {"progressor.process_id": "p", "progressor.task_id": 7}),
    ],
)  # fmt: skip
async def test_a_request_says_what_it_is_about(
    service: ServiceDescriptor, method: str, request_: Message, subject: dict[str, object]
) -> None:
    spans, refused = Spans(), errors.StorageUnavailableError(STORAGE_WORDS)

    await served(spans.tracing, refused, request_, service.methods_by_name[method])

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

    call = ProcessServicer.service.methods_by_name["Call"]
    end = await served(spans.tracing, error, pb.CallRequest(), call)

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
    process, other = make_process(), make_process(key=make_key(process_id="another"))
    untraced = make_task(task_id=8, trace_context={})
    following = make_task(task_id=9, trace_context=TRACED)
    elsewhere = make_task(task_id=10, trace_context=TRACED, process=other)
    harness.settlements.script.extend(
        make_written(process=process, next=it) for it in (untraced, following, elsewhere)
    )

    await harness.run_step(make_task(trace_context=TRACED))

    told = [attributes_of(it) for it in spans.ended() if it.name == "progressor.step"]
    assert [it["progressor.task_id"] for it in told] == [7, 9, 10]
    # The task of another process did not wait behind the one before it.
    assert [it.get("progressor.behind_task_id") for it in told] == [None, 8, None]
    entries = harness.settlements.entries
    assert [it.on_sent is None for it in entries] == [False, True, False, False]
    assert entries[1].trace_context == {}


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
