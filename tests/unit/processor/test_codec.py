"""What goes to a processor, and what is made of its answers."""

import datetime as dt
from typing import Any

import pytest
from google.protobuf import duration_pb2, struct_pb2, text_format, timestamp_pb2

from progressor.domain.gates.constraint import Constraints
from progressor.domain.jobs.graph import GRAPH_BYTES_MAX
from progressor.domain.jobs.job import NODES_PER_STEP_MAX, NodeSpec, StartNodes
from progressor.domain.processes.event import Direction, Event, HistoryRange, NewEvent
from progressor.domain.processes.intent import (
    Complete,
    Failed,
    Intent,
    KeepTimer,
    Rejected,
    RemoveProcess,
    SetTimer,
    Succeeded,
    UnsetTimer,
)
from progressor.domain.processes.message import Message, MessageKind, Sender
from progressor.domain.processes.process import Process, ProcessStatus, process_key
from progressor.domain.processes.task import NodeOutcome, NodeState, RunningTask, TaskType
from progressor.processor import codec, failures
from progressor.v1 import namespace_service_pb2, nodes_pb2, processor_service_pb2, types_pb2
from tests.support.builders import make_error

NOW = dt.datetime(2026, 5, 4, 3, 2, 1, 123456, tzinfo=dt.UTC)
PAYLOAD_BYTES_MAX = 100
TOO_LARGE = b"x" * (PAYLOAD_BYTES_MAX + 1)

OUTCOMES = (
    NodeOutcome(name="a", state=NodeState.DONE, result=b"result"),
    NodeOutcome(name="b", state=NodeState.FAILED, error=make_error()),
    NodeOutcome(name="c", state=NodeState.SKIPPED, skipped_because_of="b"),
    NodeOutcome(name="d", state=NodeState.CANCELLED),
)
PROCESS = Process(
    key=process_key("orders", "order-1"),
    status=ProcessStatus.ERROR,
    previous_status=ProcessStatus.RUNNING,
    detail="went wrong",
    aux_state=b"state",
    metadata={"customer": "c-7", "total": 12.5},
    corrupted_by=41,
    created_at=NOW,
    status_changed_at=NOW + dt.timedelta(seconds=1),
    last_event_id=2,
    init_task_id=40,
    result=None,
    state_version=4,
)
TASK = RunningTask(
    process=PROCESS,
    task_id=42,
    task_type=TaskType.JOIN,
    attempt=3,
    token=99,
    args=b"args",
    caller_context={"user": "u-1"},
    trace_context={"traceparent": "00-a-b-01"},
    history_range=None,
    step_timeout=None,
    scheduled_at=NOW + dt.timedelta(seconds=2),
    started_at=NOW,
    first_started_at=NOW,
    nodes=OUTCOMES,
    timer_name="reminder",
    sender=Sender(namespace="shop", process_id="cart-1", task_id=7),
)
EVENT = Event(
    event_id=1,
    occurred_at=NOW + dt.timedelta(seconds=3),
    payload=b"created",
    format_version=2,
    metadata={"by": "u-1"},
    task_id=40,
)
REQUEST = """
process {
  namespace: "orders" process_id: "order-1" aux_state: "state" detail: "went wrong"
  status: PROCESS_STATUS_ERROR previous_status: PROCESS_STATUS_RUNNING
  corrupted_by: 41 last_event_id: 2 state_version: 4
  metadata {
    fields { key: "customer" value { string_value: "c-7" } }
    fields { key: "total" value { number_value: 12.5 } }
  }
  created_at { seconds: 1777863721 nanos: 123456000 }
  status_changed_at { seconds: 1777863722 nanos: 123456000 }
}
history {
  event_id: 1 payload: "created" format_version: 2 task_id: 40
  metadata { fields { key: "by" value { string_value: "u-1" } } }
  occurred_at { seconds: 1777863724 nanos: 123456000 }
}
task {
  task_id: 42 type: TASK_TYPE_JOIN args: "args" attempt: 3 token: 99
  caller_context { key: "user" value: "u-1" }
  trace_context { key: "traceparent" value: "00-a-b-01" }
  scheduled_at { seconds: 1777863723 nanos: 123456000 }
  nodes { name: "a" state: NODE_STATE_DONE result: "result" }
  nodes { name: "b" state: NODE_STATE_FAILED error { code: 13 reason: "BUG" message: "it broke" } }
  nodes { name: "c" state: NODE_STATE_SKIPPED skipped_because_of: "b" }
  nodes { name: "d" state: NODE_STATE_CANCELLED }
  timer_name: "reminder"
  sender { namespace: "shop" process_id: "cart-1" task_id: 7 }
}
deadline { seconds: 1777863751 nanos: 123456000 }
epoch: 2
"""


def decode(
    response: processor_service_pb2.ProcessResponse,
    task_type: TaskType = TaskType.CALL,
    *,
    payload_bytes_max: int = PAYLOAD_BYTES_MAX,
) -> codec.StepOutcome:
    return codec.decode_response(
        response.SerializeToString(),
        task_type=task_type,
        namespace="orders",
        payload_bytes_max=payload_bytes_max,
    )


def answer_of(**fields: object) -> processor_service_pb2.ProcessResponse:
    """Return an answer; fields of it may be given as dicts."""
    return processor_service_pb2.ProcessResponse(**fields)  # type: ignore[arg-type]


def event_of(**fields: object) -> types_pb2.NewEvent:
    """Return an event; fields of it may be given as dicts."""
    return types_pb2.NewEvent(**fields)  # type: ignore[arg-type]


def nested(depth: int) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    inner = struct
    for _ in range(depth - 1):
        inner = inner.fields["a"].struct_value
    inner.fields["a"].bool_value = True
    return struct


def struct(**fields: struct_pb2.Value) -> struct_pb2.Struct:
    return struct_pb2.Struct(fields=fields)


def test_a_request_tells_all_of_process_history_task_nodes_and_deadline() -> None:
    packed = codec.encode_request(TASK, (EVENT,), NOW + dt.timedelta(seconds=30), epoch=2)

    expected = text_format.Parse(REQUEST, processor_service_pb2.ProcessRequest())
    assert processor_service_pb2.ProcessRequest.FromString(packed) == expected


TIMER_CHANGES: list[tuple[dict[str, Any], object]] = [
    ({}, KeepTimer()),
    ({"unset_timer": {}}, UnsetTimer()),
    ({"set_timer": {}}, SetTimer(after=dt.timedelta(0))),
]


@pytest.mark.parametrize(("timer", "change"), TIMER_CHANGES)
@pytest.mark.parametrize(
    "action", [{}, {"remove": {}}, {"complete": {}}, {"start_nodes": {"nodes": [{"name": "a"}]}}]
)
def test_a_timer_can_be_combined_with_every_action(
    timer: dict[str, Any], change: object, action: dict[str, Any]
) -> None:
    answer = decode(answer_of(**timer, **action))

    assert isinstance(answer, Succeeded)
    assert answer.intent.timer == change
    assert (answer.intent.action is None) == (action == {})


def test_ten_thousand_events_are_taken_and_one_more_is_not() -> None:
    events = [event_of()] * codec.EVENTS_MAX

    most = decode(answer_of(events=events))
    more = decode(answer_of(events=[*events, event_of()]))

    assert isinstance(most, Succeeded)
    assert len(most.intent.events) == codec.EVENTS_MAX
    assert more == invalid("events: must have at most 10000 items, got 10001")


def invalid(text: str) -> Failed:
    return Failed(code=13, reason="INVALID_ANSWER", message=text, retryable=False)


def set_timer(**fields: object) -> processor_service_pb2.ProcessResponse:
    timer = types_pb2.SetTimer(**fields)  # type: ignore[arg-type]
    return answer_of(set_timer=timer)


def named(*changes: dict[str, Any]) -> processor_service_pb2.ProcessResponse:
    return answer_of(timers=changes)


def with_metadata(value: struct_pb2.Value) -> processor_service_pb2.ProcessResponse:
    return answer_of(metadata=struct(m=value))


def nodes(**fields: Any) -> processor_service_pb2.ProcessResponse:
    """Return an answer that starts two nodes, of which the second one has the fields."""
    second = nodes_pb2.NodeSpec(**{"name": "b"} | fields)
    return answer_of(start_nodes={"nodes": [nodes_pb2.NodeSpec(name="a"), second]})


def job(**fields: Any) -> processor_service_pb2.ProcessResponse:
    return answer_of(start_nodes={"nodes": [{"name": "a"}], **fields})


def started(*specs: NodeSpec, **fields: Any) -> Succeeded:
    return Succeeded(Intent(action=StartNodes(nodes=specs, **fields)))


A, B = NodeSpec(name="a"), NodeSpec(name="b")
LARGEST = b"x" * PAYLOAD_BYTES_MAX
VALID: dict[str, tuple[processor_service_pb2.ProcessResponse, codec.StepOutcome]] = {
    "changes of named timers in their order": (
        named({"name": "b", "set": {"remove": True}}, {"name": "é" * 32, "unset": {}}),
        Succeeded(
            Intent(
                timers={
                    "b": SetTimer(after=dt.timedelta(0), remove=True), "é" * 32: UnsetTimer(),
                }
            )
        ),
    ),
    "a timer with all of its fields": (
        set_timer(
            at={"seconds": 1_800_000_000, "nanos": 1_999},
            remove=True,
            args=b"args",
            history_range={"after": 3, "limit": 0, "direction": types_pb2.DIRECTION_BACKWARD},
            step_timeout={"nanos": 1_000_000},
        ),
        Succeeded(
            Intent(
                timer=SetTimer(
                    at=dt.datetime(2027, 1, 15, 8, 0, 0, 1, tzinfo=dt.UTC),
                    remove=True,
                    args=b"args",
                    history_range=HistoryRange(after=3, limit=0, direction=Direction.BACKWARD),
                    step_timeout=dt.timedelta(milliseconds=1),
                )
            )
        ),
    ),
    "payloads as large as the namespace allows": (
        answer_of(
            events=[event_of(payload=LARGEST)],
            aux_state=LARGEST,
            state_version=3,
            response=LARGEST,
            complete={"result": LARGEST},
        ),
        Succeeded(
            Intent(
                events=(NewEvent(payload=LARGEST),),
                aux_state=LARGEST,
                state_version=3,
                response=LARGEST,
                action=Complete(LARGEST),
            )
        ),
    ),
    "constraints that say nothing": (
        nodes(constraints=types_pb2.Constraints(priority=2)), started(A, B)
    ),
    "a job without a deadline": (job(), started(A)),
    "a job with a timeout": (
        job(timeout={"nanos": 1_000}), started(A, timeout=dt.timedelta(microseconds=1))
    ),
    "a job with a deadline": (
        job(deadline={"seconds": 1}),
        started(A, deadline=dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)),
    ),
    "a target that does not serve the namespace": (
        answer_of(failure={"code": 12, "reason": "NO_PROCESSOR", "message": "who?"}),
        failures.misconfigured(12, "NO_PROCESSOR", "who?"),
    ),
    "a target that does not accept the engine": (
        answer_of(failure={"code": 16, "reason": "NO_PROCESSOR", "message": "who?"}),
        failures.misconfigured(16, "NO_PROCESSOR", "who?"),
    ),
    "a failure without a reason": (
        answer_of(failure={"code": 14, "message": "busy", "retry_after": {"seconds": 2}}),
        Failed(
            code=14,
            reason="UNAVAILABLE",
            message="busy",
            retryable=True, unreachable=True,
            retry_after=dt.timedelta(seconds=2),
        ),
    ),
    "a reject without a code": (
        answer_of(reject={"message": "no"}), Rejected(code=2, message="no")
    ),
    "texts that PostgreSQL cannot store": (
        answer_of(
            reject={
                "code": 9,
                "message": "\0" + "é" * 5000,
                "reason": "R\0" * 300,
                "metadata": {"a\0": "b\0"},
            }
        ),
        Rejected(code=9, message="é" * 2048, reason="R" * 256, metadata={"a": "b"}),
    ),
}  # fmt: skip
for code in sorted({*range(1, 17)} - {12, 16}):
    VALID[f"a failure with code {code}"] = (
        answer_of(failure={"code": code, "reason": "R"}),
        Failed(
            code=code,
            reason="R",
            message="",
            retryable=code in {2, 8, 10, 14},
            unreachable=code in {8, 14},
        ),
    )


@pytest.mark.parametrize("name", VALID)
def test_a_valid_answer_becomes_an_outcome(name: str) -> None:
    response, expected = VALID[name]

    assert decode(response) == expected


UNREADABLE, UNNAMED = types_pb2.Order(key="k", version="x"), types_pb2.GateUse(gate="")
INVALID: list[tuple[processor_service_pb2.ProcessResponse, str]] = [
    (answer_of(response=TOO_LARGE), "response: must be at most 100 bytes, got 101"),
    (answer_of(aux_state=TOO_LARGE), "aux_state: must be at most 100 bytes, got 101"),
    (answer_of(aux_state=b"", state_version=-1), "state_version: must not be negative, got -1"),
    (answer_of(state_version=2), "state_version: must not be set without aux_state, got 2"),
    (answer_of(complete={"result": TOO_LARGE}),
     "complete.result: must be at most 100 bytes, got 101"),
    (set_timer(args=TOO_LARGE), "set_timer.args: must be at most 100 bytes, got 101"),
    (named({"name": "a", "unset": {}}, {"unset": {}}), "timers[1].name: must not be empty"),
    (named({"name": "é" * 33, "unset": {}}),
     "timers[0].name: must be at most 64 bytes, got 66"),
    (named({"name": "a\n", "unset": {}}),
     "timers[0].name: must not contain the control character U+000A"),
    (named(*[{"name": "a", "unset": {}}] * 2), "timers[1].name: timer 'a' is listed twice"),
    (named({"name": "a"}), "timers[0]: must have set or unset"),
    (named({"name": "a", "set": {"args": TOO_LARGE}}),
     "timers[0].set.args: must be at most 100 bytes, got 101"),
    (named(*[{"name": str(number), "set": {}} for number in range(33)]),
     "timers: a process can have at most 32 timers"),
    (named(*[{"name": str(number), "unset": {}} for number in range(65)]),
     "timers: must have at most 64 items, got 65"),
    (answer_of(events=[event_of(), event_of(payload=TOO_LARGE)]),
     "events[1].payload: must be at most 100 bytes, got 101"),
    (answer_of(events=[event_of(occurred_at={"seconds": 1})]), "events[0].occurred_at:"),
    (answer_of(events=[event_of(metadata={"a": ["\0"]})]),
     "events[0].metadata.a[0]: must not contain a NUL"),
    (answer_of(metadata={"\0": 1}), "metadata.'\\x00': must not contain a NUL"),
    (with_metadata(struct_pb2.Value(number_value=float("nan"))),
     "metadata.m: must be a finite number, got nan"),
    (with_metadata(struct_pb2.Value(number_value=float("-inf"))),
     "metadata.m: must be a finite number, got -inf"),
    (answer_of(metadata=nested(31)), "metadata.a."),
    (answer_of(metadata={"a": "x" * 65_536}), "metadata: must be at most 65536 bytes, got 655"),
    (set_timer(after={"nanos": -1_000}),
     "set_timer.after: must be 0 to 365000 days, got -0.000001 s"),
    (set_timer(after={"seconds": 86_400_000_000}),
     "set_timer.after: must be 0 to 365000 days, got 1000000 days"),
    (set_timer(after={"seconds": 1, "nanos": -1}),
     "set_timer.after: nanos must be less than 1 s, with the sign of 1 s, got -1"),
    (set_timer(after={"seconds": 2**62}),
     "set_timer.after: must be at most 10,000 years, got 4611686018427387904 s"),
    (set_timer(at={"seconds": 2**40}),
     "set_timer.at: must be from 0001-01-02 to 9999-12-30, got 1099511627776 s"),
    (set_timer(at={"seconds": -(2**40)}),
     "set_timer.at: must be from 0001-01-02 to 9999-12-30, got -1099511627776 s"),
    (set_timer(at={"nanos": -1}), "set_timer.at: nanos must be 0 to 999999999, got -1"),
    (set_timer(step_timeout={}), "set_timer.step_timeout: must be 1 ms to 1 day, got 0 s"),
    (set_timer(step_timeout={"seconds": 86_401}),
     "set_timer.step_timeout: must be 1 ms to 1 day, got 86401 s"),
    (set_timer(history_range={"after": -1}),
     "set_timer.history_range.after: must not be negative, got -1"),
    (set_timer(history_range={"limit": -1}),
     "set_timer.history_range.limit: must be 0 to 100000, got -1"),
    (set_timer(history_range={"limit": 100_001}),
     "set_timer.history_range.limit: must be 0 to 100000, got 100001"),
    (set_timer(history_range=types_pb2.HistoryRange.FromString(b"\x18\x09")),
     "set_timer.history_range.direction: unknown direction 9"),
    (answer_of(reject={"code": 17}), "reject.code: must be in 1 .. 16, or 0 for"),
    (answer_of(reject={"code": 3, "metadata": {"a": "x" * 2048}}),
     "reject.metadata: must be at most 2048 bytes, got 2049"),
    (answer_of(reject={"code": 3, "metadata": {str(i): "" for i in range(65)}}),
     "reject.metadata: must have at most 64 items, got 65"),
    (answer_of(failure={"code": -1}), "failure.code: must be in 1 .. 16"),
    (answer_of(failure={"code": 14, "retry_after": {"seconds": -1}}),
     "failure.retry_after: -1 day, 23:59:59 is not"),
    (answer_of(failure={"code": 14, "retry_after": {"seconds": 31_536_000}}),
     "failure.retry_after: 365 days"),
    (answer_of(start_nodes={}), "start_nodes.nodes: must have 1 to 10000 items, got 0"),
    (answer_of(start_nodes={"nodes": [{"name": "a"}] * (NODES_PER_STEP_MAX + 1)}),
     "start_nodes.nodes: must have 1 to 10000 items, got 10001"),
    (nodes(args=b"x" * (PAYLOAD_BYTES_MAX + 1)),
     "start_nodes.nodes[1].args: must be at most 100 bytes, got 101"),
    (nodes(namespace="Stock"),
     "start_nodes.nodes[1].namespace: must be 1 to 64 characters of [a-z0-9._-], got 'Stock'"),
    (nodes(namespace="progressor.operations"),
     "start_nodes.nodes[1].namespace: must not be progressor.operations"),
    (nodes(constraints=types_pb2.Constraints(priority=6)),
     "start_nodes.nodes[1].constraints.priority: must be 0 to 5, got 6"),
    (nodes(retry_policy=namespace_service_pb2.RetryPolicy(coefficient=0.5)),
     "start_nodes.nodes[1].retry_policy.coefficient: must be at least 1, got 0.5"),
    (nodes(zombie_policy=9), "start_nodes.nodes[1].zombie_policy: unknown zombie policy 9"),
    (nodes(target="x" * 513),
     "start_nodes.nodes[1].target: must be at most 512 bytes without NUL characters"),
    (nodes(target="\0"),
     "start_nodes.nodes[1].target: must be at most 512 bytes without NUL characters"),
    (job(timeout=duration_pb2.Duration()),
     "start_nodes.timeout: must be greater than 0 and at most 365000 days, got 0 s"),
    (job(timeout=duration_pb2.Duration(seconds=40_000_000_000)),
     "start_nodes.timeout: must be greater than 0 and at most 365000 days, got 40000000000 s"),
    (job(deadline=timestamp_pb2.Timestamp(nanos=-1)),
     "start_nodes.deadline: nanos must be 0 to 999999999, got -1"),
    (set_timer(constraints=types_pb2.Constraints(priority=9)),
     "set_timer.constraints.priority: must be 0 to 5, got 9"),
    (set_timer(constraints=types_pb2.Constraints(order=UNREADABLE, gates=[UNNAMED])),
     ("set_timer.constraints.order.version: 'x' is not a version: dotted numbers, as 1.10.2; "
     "set_timer.constraints.gates[0].gate: ")),
    (set_timer(constraints=types_pb2.Constraints(run_at=timestamp_pb2.Timestamp(seconds=1))),
     "set_timer.constraints.run_at: "),
    (set_timer(remove=True, constraints=types_pb2.Constraints()), "set_timer.constraints: "),
]  # fmt: skip


@pytest.mark.parametrize(("response", "beginning"), INVALID, ids=[it[1] for it in INVALID])
def test_an_invalid_answer_fails_the_step_and_names_the_field(
    response: processor_service_pb2.ProcessResponse, beginning: str
) -> None:
    answer = decode(response)

    assert isinstance(answer, Failed)
    assert answer == invalid(answer.message)
    assert answer.message.startswith(beginning)


def test_bytes_that_are_no_answer_fail_the_step() -> None:
    answer = codec.decode_response(
        b"\xffnonsense", task_type=TaskType.CALL, namespace="orders", payload_bytes_max=100
    )

    assert answer == invalid("response: is not a ProcessResponse")


def test_a_field_that_this_release_does_not_know_is_ignored() -> None:
    unknown = b"\xa2\x06\x03abc"
    known = answer_of(response=b"r", complete={"result": b"end"}).SerializeToString()

    answer = codec.decode_response(
        known + unknown, task_type=TaskType.CALL, namespace="orders", payload_bytes_max=100
    )

    assert answer == Succeeded(Intent(response=b"r", action=Complete(b"end")))


@pytest.mark.parametrize("task_type", [TaskType.TIMEOUT, TaskType.JOIN])
def test_what_nobody_asked_for_cannot_be_rejected(task_type: TaskType) -> None:
    response = answer_of(reject={"code": 9})

    answer = decode(response, task_type)

    assert answer == invalid(f"reject: a {task_type} has no caller to refuse")


@pytest.mark.parametrize("action", ["reject", "failure"])
def test_what_stands_beside_a_refusal_or_failure_is_ignored(action: str) -> None:
    response = answer_of(aux_state=TOO_LARGE)
    getattr(response, action).code = 9

    answer = decode(response)

    assert isinstance(answer, Rejected | Failed)
    assert answer.code == 9


def test_the_depth_of_metadata_and_the_bytes_of_a_graph_have_bounds() -> None:
    large = nodes_pb2.NodeSpec(name="a", args=b"x" * (GRAPH_BYTES_MAX // 2))

    deep = decode(answer_of(metadata=nested(30)))
    too_large = decode(
        answer_of(start_nodes={"nodes": [large] * 2}), payload_bytes_max=GRAPH_BYTES_MAX
    )

    assert isinstance(deep, Succeeded)
    assert too_large == invalid(
        f"start_nodes: must be at most 33554432 bytes, got {GRAPH_BYTES_MAX + 26}"
    )


def message_of(**fields: Any) -> dict[str, Any]:
    return {"kind": 2, "process_id": "b"} | fields


def test_messages_are_read_with_all_their_fields() -> None:
    start = message_of(
        kind=1, namespace="stock", args=b"a", caller_context={"k": "v"},
        constraints={"priority": 1}, metadata={"of": "a"},
    )  # fmt: skip
    gated = message_of(kind=3, constraints={"gates": [{"gate": "g"}]})

    assert decode(answer_of(messages=[message_of(), start, gated], remove={})) == Succeeded(
        Intent(
            action=RemoveProcess(),
            messages=(
                Message(kind=MessageKind.NOTIFY, receiver=process_key("orders", "b")),
                Message(
                    kind=MessageKind.START,
                    receiver=process_key("stock", "b"),
                    args=b"a",
                    caller_context={"k": "v"},
                    metadata={"of": "a"},
                ),
                Message(
                    kind=MessageKind.CALL,
                    receiver=process_key("orders", "b"),
                    constraints=Constraints(gates={"g": None}),
                ),
            ),
        )
    )


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"kind": 0}, "kind: unknown kind 0"),
        ({"kind": 9}, "kind: unknown kind 9"),
        ({"process_id": ""}, "process_id: must not be empty"),
        ({"process_id": "a\n"}, "process_id: must not contain the control character U+000A"),
        (
            {"namespace": "No"},
            "namespace: must be 1 to 64 characters of [a-z0-9._-], got 'No'",
        ),
        (
            {"namespace": "progressor.operations"},
            "namespace: must not be progressor.operations, which only BulkService changes",
        ),
        ({"args": b"x" * 101}, "args: must be at most 100 bytes, got 101"),
        ({"metadata": {}}, "metadata: must not be set in a notify, only in a start"),
        ({"constraints": {"priority": 9}}, "constraints.priority: must be 0 to 5, got 9"),
        (
            {"caller_context": {"a": "\0"}},
            "caller_context['a']: must not contain a NUL character",
        ),
    ],
)
def test_a_bad_message_is_refused_by_its_place_and_field(fields: dict[str, Any], what: str) -> None:
    answer = answer_of(messages=[message_of(), message_of(**fields)])

    assert decode(answer) == invalid(f"messages[1].{what}")


def test_too_many_messages_are_refused() -> None:
    answer = answer_of(messages=[message_of()] * 101)

    assert decode(answer) == invalid("messages: must have at most 100 items, got 101")
