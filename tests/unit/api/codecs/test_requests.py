"""Requests of all services but schedules: what is wrong with one is named by field, all at once."""

import dataclasses
import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2

from progressor import errors
from progressor.api import gates, jobs, namespaces, replicas
from progressor.api.calls import page_tokens
from progressor.api.processes import requests
from progressor.domain.gates.constraint import CAPACITY_MAX, GATES_MAX, Constraints, Order, Version
from progressor.domain.processes.admission import Import, Request
from progressor.domain.processes.event import HistoryRange
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.policy import REASON_BYTES_MAX, RetryPolicy
from progressor.domain.processes.process import process_key
from progressor.domain.processes.task import TaskType
from progressor.sdk.client.replicas import LogLevel
from progressor.telemetry.logs.level import LEVELS, Level
from progressor.v1 import gate_service_pb2 as gates_pb
from progressor.v1 import job_service_pb2 as jobs_pb
from progressor.v1 import namespace_service_pb2 as namespaces_pb
from progressor.v1 import nodes_pb2
from progressor.v1 import process_service_pb2 as pb
from progressor.v1 import replica_service_pb2 as replicas_pb
from progressor.v1 import types_pb2 as types
from progressor.wire import processes as process_wire
from progressor.wire import shapes
from progressor.wire.processes import retry_policy_from_wire

LIMIT = 1000
YEAR = 365 * 86_400
NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
NEVER = timestamp_pb2.Timestamp(seconds=2**62)
PAST = timestamp_pb2.Timestamp(seconds=1)
BAD_INSTANT = timestamp_pb2.Timestamp(nanos=-1)
PROCESS: dict[str, Any] = {"namespace": "orders", "process_id": "1"}
JOB: dict[str, Any] = {"namespace": "orders", "job_id": "job"}


def fields_of(decode: Callable[[], object]) -> list[str]:
    with pytest.raises(errors.InvalidRequestError) as caught:
        decode()
    return [violation.field for violation in caught.value.violations]


# --- A function for each kind of request, which is right but for the fields that are given


def call(**fields: Any) -> Request:
    message = pb.CallRequest(**PROCESS | fields)
    return requests.request_from_wire(message, TaskType.CALL, {}, payload_bytes_max=LIMIT)


def start(**fields: Any) -> Request:
    message = pb.StartRequest(**PROCESS | fields)
    return requests.request_from_wire(message, TaskType.INIT, {}, payload_bytes_max=LIMIT)


def put(**fields: Any) -> Import:
    message = pb.PutRequest(**PROCESS | {"status": 2} | fields)
    return requests.put_from_wire(message, {}, payload_bytes_max=LIMIT)


def get(**fields: Any) -> requests.Reading:
    return requests.get_from_wire(pb.GetRequest(**PROCESS | fields))


def trace(**fields: Any) -> requests.Tracing:
    return requests.trace_from_wire(pb.TraceRequest(**PROCESS | fields))


def listing(**fields: Any) -> Any:
    own = {
        name: fields.pop(name) for name in ("page_size", "page_token", "causes") if name in fields
    }
    listed: Any = {"namespace": "a"} | fields
    return requests.list_from_wire(pb.ListRequest(filter=types.ProcessFilter(**listed), **own))


def counting(**fields: Any) -> Any:
    return requests.count_from_wire(pb.CountRequest(**fields))


def failures(**fields: Any) -> Any:
    return requests.failures_from_wire(pb.ListFailuresRequest(**fields))


def named(**fields: Any) -> requests.NamedTask:
    return requests.task_from_wire(pb.CancelRequest(**PROCESS | fields))


def awaited(**fields: Any) -> requests.NamedTask:
    return requests.task_from_wire(pb.AwaitTaskRequest(**PROCESS | fields))


def repaired(**fields: Any) -> Any:
    return requests.key_of_request(pb.SimpleRepairRequest(**PROCESS | fields))


def removed(**fields: Any) -> Any:
    return requests.key_of_request(pb.RemoveRequest(**PROCESS | fields))


def constraints(**fields: Any) -> Constraints:
    return process_wire.constraints_from_wire(types.Constraints(**fields), "constraints")


def versioned(version: str) -> Order | None:
    return constraints(order=types.Order(key="k", version=version)).order


def timer(**fields: Any) -> Any:
    return process_wire.set_timer_from_wire(types.SetTimer(**fields), "set_timer", LIMIT)


def set_gate(**fields: Any) -> gates.Setting:
    return gates.set_from_wire(gates_pb.SetGateRequest(**fields))


def create(**fields: Any) -> Namespace:
    given: dict[str, Any] = {"name": "orders", "processor_targets": ["localhost:50051"], **fields}
    message = namespaces_pb.Namespace(**given)
    return namespaces.create_from_wire(namespaces_pb.CreateNamespaceRequest(namespace=message))


def update(paths: list[str], revision: int = 0, **fields: Any) -> namespaces.Update:
    message = namespaces_pb.UpdateNamespaceRequest(expected_revision=revision)
    message.namespace.MergeFrom(namespaces_pb.Namespace(**{"name": "orders"} | fields))
    message.update_mask.paths.extend(paths)
    return namespaces.update_from_wire(message)


def get_namespace(name: str) -> str:
    return namespaces.name_from_wire(namespaces_pb.GetNamespaceRequest(name=name))


def set_level(level: Any, lasting_seconds: int = 0) -> replicas.LogChange:
    message = replicas_pb.SetLogLevelRequest(level=level, lasting=seconds(lasting_seconds))
    return replicas.log_change_from_wire(message)


def submit(**fields: Any) -> jobs.Submission:
    message = jobs_pb.SubmitJobRequest(**JOB | {"nodes": [nodes_pb2.NodeSpec(name="a")]} | fields)
    return jobs.submit_from_wire(message, now=NOON)


def retry(**fields: Any) -> jobs.Retrial:
    return jobs.retry_from_wire(jobs_pb.RetryJobRequest(**JOB | fields), now=NOON)


def cancel_job(reason: str) -> jobs.Cancellation:
    return jobs.cancel_from_wire(jobs_pb.CancelJobRequest(**JOB, reason=reason))


def list_jobs(**fields: Any) -> jobs.JobListing:
    return jobs.list_from_wire(jobs_pb.ListJobsRequest(**fields))


def seconds(value: int, nanos: int = 0) -> duration_pb2.Duration:
    return duration_pb2.Duration(seconds=value, nanos=nanos)


def struct(**fields: Any) -> struct_pb2.Struct:
    built = struct_pb2.Struct()
    built.update(fields)
    return built


def uses(*gates: tuple[str, int | None]) -> list[types.GateUse]:
    return [types.GateUse(gate=gate, capacity=capacity) for gate, capacity in gates]


NAMES = ["", "a" * 65, "Orders", "a b", "a\0", "a\n", "é", "a/b"]
CONTEXTS: list[tuple[dict[str, str], str]] = [
    ({f"k{i}": "" for i in range(65)}, "caller_context"),
    ({"k": "x" * 8192}, "caller_context"),
    ({"k": "é" * 4096}, "caller_context"),
    ({"k": "a\0"}, "caller_context['k']"),
    ({"k\0": "a"}, "caller_context['k\\x00']"),
]
RANGES = [({"after": -1}, "after"), ({"limit": -1}, "limit"), ({"limit": 100_001}, "limit"),
          ({"direction": 7}, "direction")]  # fmt: skip
TOKENS = [
    "!", "a", "é", "x" * 2000, page_tokens.NAMESPACES.write("orders"),
    "dC0x",  # t-1
    "dDk5OTk5OTk5OTk5OTk5OTk5OTk5",  # t99999999999999999999
    *(page_tokens.encode("p", it) for it in (
        "1/", "1/a", "1/a/", "/a/1", "9999999999999999999/a/1", "1/a/\0", "1/A/1", "1/another/1",
    )),
]  # fmt: skip
PUTS: list[tuple[dict[str, Any], str]] = [
    *(({"status": it}, "status") for it in (0, 1, 9)),
    ({"status": 2, "detail": "x"}, "detail"),
    ({"status": 4, "detail": "x"}, "detail"),
    ({"status": 2, "corrupted_by_type": 5}, "corrupted_by_type"),
    ({"status": 3, "corrupted_by_type": 99}, "corrupted_by_type"),
    ({"status": 3, "timer": types.SetTimer()}, "timer"),
    ({"status": 4, "timer": types.SetTimer()}, "timer"),
    ({"status": 2, "result": b"x"}, "result"),
    ({"status": 3, "result": b"x"}, "result"),
    ({"previous_status": 77}, "previous_status"),
    ({"aux_state": b"x" * 1001}, "aux_state"),
    ({"state_version": -1}, "state_version"),
    ({"status": 3, "detail": "a\0"}, "detail"),
    ({"status": 3, "detail": "a" * 1001}, "detail"),
    ({"status": 4, "result": b"x" * 1001}, "result"),
    ({"created_at": BAD_INSTANT}, "created_at"),
    ({"status_changed_at": BAD_INSTANT}, "status_changed_at"),
    ({"history": [{}, {"payload": b"x" * 1001}]}, "history[1].payload"),
    ({"history": [{"payload": b"x" * 1001}] * 500},
     " ".join(f"history[{it}].payload" for it in range(shapes.VIOLATIONS_MAX))),
    ({"timer": types.SetTimer(args=b"x" * 1001)}, "timer.args"),
    ({"timer": types.SetTimer(constraints=types.Constraints())}, "timer.constraints"),
    ({"status": 4, "named_timers": {"a": types.SetTimer()}}, "named_timers['a']"),
    ({"named_timers": {"": types.SetTimer()}}, "named_timers['']"),
    ({"named_timers": {"a": types.SetTimer(args=b"x" * 1001)}}, "named_timers['a'].args"),
    ({"timer": types.SetTimer(), "named_timers": {str(it): types.SetTimer() for it in range(32)}},
     "named_timers"),
    ({"idempotency_key": "\0"}, "idempotency_key"),
    ({"metadata": {"a": "\0"}}, "metadata.a"),
]  # fmt: skip
VERSIONS = ["", ".", "1.", ".1", "1..2", "v1", "1.-2", " 1", "1\n", "\u0661", "2147483648",
            ".".join("1" * 17), "9" * 257, "9" * 100_000]  # fmt: skip
TARGETS: list[tuple[list[str], str]] = [
    ([], ""),
    (["a:1"] * 33, ""),
    (["a:1", "a"], "[1]"),
    *(([it], "[0]") for it in ("a:0", "a:65536", ":1", "::1:80", "http://a:1", "unix:relative",
                               "unix:/a\0", "unix:/" + "a" * 107, "a:1\n")),
]  # fmt: skip
NAMESPACES: list[tuple[dict[str, Any], str]] = [
    ({"name": "Orders"}, "name"),
    *(({"processor_targets": it}, f"processor_targets{place}") for it, place in TARGETS),
    ({"step_timeout": seconds(86_401)}, "step_timeout"),
    ({"step_timeout": seconds(0, 999_000)}, "step_timeout"),
    ({"retry_policy": {"coefficient": 0.5}}, "retry_policy.coefficient"),
    ({"retry_policy": {"coefficient": float("nan")}}, "retry_policy.coefficient"),
    ({"retry_policy": {"coefficient": float("inf")}}, "retry_policy.coefficient"),
    ({"retry_policy": {"jitter": 1.1}}, "retry_policy.jitter"),
    ({"retry_policy": {"jitter": float("nan")}}, "retry_policy.jitter"),
    ({"retry_policy": {"attempts_max": 1_000_001}}, "retry_policy.attempts_max"),
    ({"retry_policy": {"initial_interval": seconds(-1)}}, "retry_policy.initial_interval"),
    ({"retry_policy": {"interval_max": seconds(-1)}}, "retry_policy.interval_max"),
    ({"retry_policy": {"non_retryable_reasons": ["A"] * 101}},
     "retry_policy.non_retryable_reasons"),
    ({"retry_policies": {"remove": {}}}, "retry_policies"),
    ({"retry_policies": {"call": namespaces_pb.RetryPolicy(jitter=-1)}},
     "retry_policies['call'].jitter"),
    ({"zombie_policy": 9}, "zombie_policy"),
    ({"worker_count_max": -1}, "worker_count_max"),
    ({"worker_count_max": 100_001}, "worker_count_max"),
    ({"history": {"last": 0}}, "history.last"),
    ({"history": {"last": 100_001}}, "history.last"),
    ({"history": {"all": False}}, "history.all"),
    ({"history": {"none": False}}, "history.none"),
    ({"finished_process_retention": seconds(-1)}, "finished_process_retention"),
    ({"task_retention": seconds(-1)}, "task_retention"),
    ({"payload_bytes_max": -1}, "payload_bytes_max"),
    ({"payload_bytes_max": 16 * 1024 * 1024 + 1}, "payload_bytes_max"),
    ({"waiting_callers_max": -1}, "waiting_callers_max"),
    ({"unreachable_patience": seconds(0, 999_000)}, "unreachable_patience"),
    ({"unreachable_patience": seconds(30 * 86_400 + 1)}, "unreachable_patience"),
]  # fmt: skip
DUES: list[dict[str, Any]] = [
    {"timeout": seconds(0)}, {"timeout": seconds(-1)}, {"deadline": PAST},
    {"deadline": timestamp_pb2.Timestamp(seconds=10**12)},
]  # fmt: skip

REFUSED: list[tuple[Callable[..., object], dict[str, Any], str]] = [
    *((call, {"namespace": it}, "namespace") for it in NAMES),
    (call, {"process_id": ""}, "process_id"),
    (repaired, {"namespace": "", "process_id": ""}, "namespace process_id"),
    (removed, {"namespace": "", "process_id": ""}, "namespace process_id"),
    *((call, {"caller_context": pairs}, field) for pairs, field in CONTEXTS),
    *((call, {"idempotency_key": it}, "idempotency_key") for it in ("k" * 257, "a\0")),
    *((read, {"history_range": it}, f"history_range.{field}")
      for it, field in RANGES for read in (call, get)),
    (start, {"metadata": struct(price=float("nan"))}, "metadata.price"),
    *((read, fields, field) for read in (named, awaited) for fields, field in (
        ({}, "task"), ({"task_id": 0}, "task_id"), ({"idempotency_key": ""}, "idempotency_key"))),
    *((read, {"page_size": it}, "page_size") for it in (-1, 1001) for read in (trace, listing)),
    *((read, {"page_token": it}, "page_token") for it in TOKENS for read in (trace, listing)),
    *((failures, {name: value}, name) for name, value in (
        ("namespace", "Orders"), ("failure_id", "0123456789abc"), ("page_size", 1001),
        ("page_token", page_tokens.encode("f", "1/another/1")))),
    *((counting, {"exact_max": it}, "exact_max") for it in (-1, 1_000_001)),
    (counting, {"filter": types.ProcessFilter(id_prefix="\0")}, "filter.id_prefix"),
    (listing, {"causes": [11, 0, 99]}, "causes[1] causes[2]"),
    (listing, {"created_from": timestamp_pb2.Timestamp(seconds=2), "created_to": PAST},
     "filter.created_to"),
    (listing, {"broken_from": timestamp_pb2.Timestamp(seconds=2), "broken_to": PAST},
     "filter.broken_to"),
    (listing, {"failure_id": "0123456789AB", "failure_reason": "x" * 257, "id_prefix": "a\0"},
     "filter.failure_id filter.failure_reason filter.id_prefix"),
    (listing, {"statuses": [1, 2, 4], "failure_id": "0123456789ab", "broken_to": PAST},
     "filter.failure_id filter.broken_to"),
    (listing, {"namespace": "Orders", "statuses": [1, 9], "created_from": BAD_INSTANT,
               "created_to": NEVER, "metadata": {"a": "\0"}, "page_size": -5, "page_token": "?"},
     ("filter.namespace filter.statuses[1] filter.created_from filter.created_to "
      "filter.metadata.a page_size page_token")),
    *((put, fields, field) for fields, field in PUTS),
    (call, {"namespace": "Orders", "process_id": "", "constraints": types.Constraints(
        run_at=NEVER,
        order=types.Order(key="", version="1.x"),
        gates=uses(("a", CAPACITY_MAX + 1), ("b", 1), ("", None), ("b", None), ("c\n", -1)),
        priority=6,
        hold=3,  # type: ignore[arg-type]  # a newer client
    )},
     ("namespace process_id constraints.run_at constraints.order.key constraints.order.version "
      "constraints.gates[0].capacity constraints.gates[2].gate constraints.gates[3].gate "
      "constraints.gates[4].gate constraints.gates[4].capacity constraints.priority "
      "constraints.hold")),
    (constraints, {"gates": uses(*((f"g{it}", None) for it in range(GATES_MAX + 1)))},
     "constraints.gates"),
    # Beyond the limit only the first are checked: however much nonsense comes, the answer is short.
    (constraints, {"gates": uses(*[("", None)] * 10_000)},
     " ".join(f"constraints.gates{it}" for it in
              ("", *(f"[{number}].gate" for number in range(GATES_MAX))))),
    *((versioned, {"version": it}, "constraints.order.version") for it in VERSIONS),
    (timer, {"constraints": types.Constraints(run_at=PAST)}, "set_timer.constraints.run_at"),
    (timer, {"remove": True, "constraints": {"gates": uses(("g", 1))}}, "set_timer.constraints"),
    (set_gate, {"namespace": "Orders", "gate": "a\n", "expected_revision": -1},
     "namespace gate capacity expected_revision"),
    *((create, fields, f"namespace.{field}") for fields, field in NAMESPACES),
    *((update, {"paths": ["worker_count_max", it]}, "update_mask.paths[1]")
      for it in ("nope", "retry_policy.jitter", "revision", "created_at", "*", "")),
    (update, {"paths": ["processor_targets"]}, "namespace.processor_targets"),
    (update, {"paths": [], "name": "", "revision": -1}, "namespace.name expected_revision"),
    (get_namespace, {"name": "A"}, "name"),
    (set_level, {"level": 0}, "level"),
    (set_level, {"level": 5}, "level"),
    (set_level, {"level": 1, "lasting_seconds": -1}, "lasting"),
    (set_level, {"level": 1, "lasting_seconds": 7 * 86_400 + 1}, "lasting"),
    (set_level, {"level": 9, "lasting_seconds": -1}, "level lasting"),
    (submit, {"namespace": "Orders", "job_id": "", "nodes": [
        nodes_pb2.NodeSpec(name="a", namespace="Stock"),
        nodes_pb2.NodeSpec(name="b", zombie_policy=9),  # type: ignore[arg-type]  # a newer client
    ], "deadline": PAST, "caller_context": {"a": "\0"}, "metadata": struct(a=float("nan"))},
     ("namespace job_id nodes[0].namespace nodes[1].zombie_policy deadline caller_context['a'] "
      "metadata.a")),
    *((read, due, next(iter(due))) for due in DUES for read in (submit, retry)),
    (cancel_job, {"reason": "x" * 1025}, "reason"),
    (cancel_job, {"reason": "\0"}, "reason"),
    (list_jobs, {"states": [1, 9], "schedule_id": "\n", "page_size": 1001, "page_token": "x"},
     "namespace states[1] schedule_id page_token page_size"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("read", "fields", "refused"), REFUSED, ids=[f"{it[0].__name__}-{it[2][:60]}" for it in REFUSED]
)
def test_all_that_is_wrong_with_a_request_is_named(
    read: Callable[..., object], fields: dict[str, Any], refused: str
) -> None:
    assert fields_of(lambda: read(**fields)) == refused.split()


def test_a_violation_says_what_was_given_and_what_is_allowed() -> None:
    message = namespaces_pb.RetryPolicy(
        initial_interval=seconds(YEAR + 1),
        coefficient=0.5,
        interval_max=seconds(1, -1),
        jitter=2,
        attempts_max=-1,
        elapsed_max=seconds(-1),
        non_retryable_reasons=["ok", "x" * (REASON_BYTES_MAX + 1), "\0"],
    )

    with pytest.raises(errors.InvalidRequestError) as caught:
        retry_policy_from_wire(message, "p")
    assert [(it.field, it.description) for it in caught.value.violations] == [
        ("p.initial_interval", "must be 0 s to 365 days, got 31536001 s"),
        ("p.coefficient", "must be at least 1, got 0.5"),
        ("p.interval_max", "nanos must be less than 1 s, with the sign of 1 s, got -1"),
        ("p.jitter", "must be 0 to 1, got 2.0"),
        ("p.attempts_max", "must be 1 to 1000000, got -1"),
        ("p.elapsed_max", "must not be negative, got -1 s"),
        ("p.non_retryable_reasons[1]", "must be at most 256 bytes, got 257"),
        ("p.non_retryable_reasons[2]", "must not contain a NUL character"),
    ]
    with pytest.raises(errors.InvalidRequestError, match="args: must be at most 1000 bytes, got 1"):
        call(args=b"x" * (LIMIT + 1))
    with pytest.raises(errors.InvalidRequestError, match="unknown field 'nope' of Namespace"):
        update(["nope"])
    with pytest.raises(errors.InvalidRequestError, match="must not name revision, which the eng"):
        update(["revision"])


# --- Processes


@pytest.mark.parametrize("kind", [pb.StartRequest, pb.CallRequest, pb.RepairRequest])
def test_accept_only_waits_for_nothing(kind: type[pb.CallRequest]) -> None:
    message = kind(**PROCESS, accept_only=True)
    request = requests.request_from_wire(message, TaskType.CALL, {}, payload_bytes_max=LIMIT)

    assert not request.waits


@pytest.mark.parametrize("value", ["a" * 256, "é" * 128, " ", "a\u00a0b", "👩‍👩‍👧", "/../", "%00"])
def test_any_other_id_is_fine(value: str) -> None:
    assert call(process_id=value, idempotency_key=value).key.process_id == value


def test_what_is_within_the_bounds_is_read_as_it_is() -> None:
    assert call(args=b"x" * LIMIT).args == b"x" * LIMIT
    assert get(await_init=True) == requests.Reading(
        key=process_key("orders", "1"), history_range=HistoryRange(), await_init=True
    )
    assert repaired() == removed() == process_key("orders", "1")
    assert [read(task_id=7).task for read in (named, awaited)] == [7, 7]
    assert [read(idempotency_key="k").task for read in (named, awaited)] == ["k", "k"]
    assert listing(statuses=[3, 0]).filter.statuses == ()
    assert listing(statuses=[3, 1], failure_reason="X" * 256).filter.failure_reason == "X" * 256
    gates = uses(*((f"g{number}", None) for number in range(GATES_MAX)))
    assert len(constraints(gates=gates).gates) == GATES_MAX
    assert "constraints" not in pb.RepairRequest.DESCRIPTOR.fields_by_name


def test_a_list_of_all_namespaces_continues_in_any_of_them() -> None:
    query = listing(namespace="", page_token=page_tokens.encode("p", "1/another/1"))

    assert query.filter.namespace == ""
    assert query.before[1:] == ("another", "1")


@pytest.mark.parametrize(
    ("text", "parts"),
    [("1", (1,)), ("1.0", (1,)), ("1.10", (1, 10)), ("2147483647", (2**31 - 1,)),
     (".".join("1" * 16), (1,) * 16)],
)  # fmt: skip
def test_a_version_is_its_numbers(text: str, parts: tuple[int, ...]) -> None:
    assert versioned(text) == Order("k", Version(parts))


# --- Namespaces


def test_zeros_take_the_defaults_of_a_retry_policy() -> None:
    policy = namespaces_pb.RetryPolicy
    assert create(retry_policy=policy()).retry_policy == RetryPolicy()
    assert create(retry_policy=policy(jitter=0)).retry_policy == RetryPolicy(jitter=0)
    of_calls = create(retry_policies={"call": policy(attempts_max=1)}).retry_policies
    assert of_calls == {TaskType.CALL: RetryPolicy(attempts_max=1)}


def test_fields_set_by_the_engine_are_returned_and_ignored_in_create() -> None:
    stored = dataclasses.replace(create(), created_at=NOON, updated_at=NOON, revision=7)
    message = namespaces.namespace_to_wire(stored)
    created = namespaces.create_from_wire(namespaces_pb.CreateNamespaceRequest(namespace=message))

    assert (message.revision, message.created_at.ToDatetime(dt.UTC)) == (7, NOON)
    assert created == create()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (namespaces_pb.HistoryPolicy(all=True), HistoryRange()),
        (namespaces_pb.HistoryPolicy(last=2), HistoryRange(after=3)),
        (namespaces_pb.HistoryPolicy(none=True), HistoryRange(limit=0)),
    ],
)
def test_each_history_policy_is_kept(
    policy: namespaces_pb.HistoryPolicy, expected: HistoryRange
) -> None:
    namespace = create(history=policy)

    assert namespace.history_for(None, last_event_id=5) == expected
    assert namespaces.namespace_to_wire(namespace).history == policy


def test_an_update_changes_what_its_mask_names_or_else_what_is_set() -> None:
    current = Namespace(name="orders", processor_targets=("a:1",), worker_count_max=5, revision=4)
    paths = ["step_timeout", "exhausted_call_fails_alone"]
    masked = update(paths, 3, step_timeout=seconds(7), worker_count_max=9)
    unmasked = update([], processor_targets=["b:2"], revision=0)

    assert (masked.name, masked.expected_revision) == ("orders", 3)
    assert masked.change(current) == dataclasses.replace(
        current, step_timeout=dt.timedelta(seconds=7)
    )
    assert unmasked.change(current) == dataclasses.replace(current, processor_targets=("b:2",))


# --- Replicas and jobs


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_of_a_log_has_its_number_in_all_three_places(level: Level) -> None:
    number = replicas.log_level_to_wire(level)

    assert replicas_pb.LogLevel.Name(number) == f"LOG_LEVEL_{level.upper()}"
    assert LogLevel.from_number(number).value == level
    assert set_level(number, 600) == replicas.LogChange(
        level=level, lasting=dt.timedelta(seconds=600)
    )


def test_the_levels_of_the_sdk_are_those_of_the_wire() -> None:
    of_the_sdk = {f"LOG_LEVEL_{it.name}": it.number for it in LogLevel}
    assert of_the_sdk == dict(replicas_pb.LogLevel.items())


def test_a_log_level_does_not_expire_by_default() -> None:
    message = replicas_pb.SetLogLevelRequest(level=replicas_pb.LOG_LEVEL_DEBUG)
    assert replicas.log_change_from_wire(message).lasting == dt.timedelta()


def test_a_repeated_request_may_have_a_past_deadline() -> None:
    repeated = submit(deadline=PAST, idempotency_key="key")

    assert repeated.action.deadline == PAST.ToDatetime(dt.UTC)


def test_a_retry_needs_no_deadline_and_a_reason_is_limited() -> None:
    key = process_key("orders", "job")
    assert retry() == jobs.Retrial(key=key, deadline=None, timeout=None)
    assert cancel_job("x" * 1024) == jobs.Cancellation(key=key, reason="x" * 1024)
