"""Namespaces: the bounds and defaults of the proto comments; updates by field mask."""

import datetime as dt

import pytest
from google.protobuf import duration_pb2, field_mask_pb2

from progressor import errors
from progressor.api import namespaces as namespace_codec
from progressor.domain.processes.event import HistoryRange
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.policy import RetryPolicy
from progressor.domain.processes.task import TaskType
from progressor.v1 import namespace_service_pb2 as pb


def create(**fields: object) -> Namespace:
    given = {"name": "orders", "processor_targets": ["localhost:50051"], **fields}
    message = pb.CreateNamespaceRequest(namespace=pb.Namespace(**given))  # type: ignore[arg-type]
    return namespace_codec.create_from_wire(message)


def update_of(paths: list[str], revision: int = 0, **fields: object) -> namespace_codec.Update:
    return namespace_codec.update_from_wire(
        pb.UpdateNamespaceRequest(
            namespace=pb.Namespace(name="orders", **fields),  # type: ignore[arg-type]
            update_mask=field_mask_pb2.FieldMask(paths=paths),
            expected_revision=revision,
        )
    )


def seconds(value: int) -> duration_pb2.Duration:
    return duration_pb2.Duration(seconds=value)


def test_zeros_take_the_defaults_of_a_retry_policy() -> None:
    assert create(retry_policy=pb.RetryPolicy()).retry_policy == RetryPolicy()
    assert create(retry_policy=pb.RetryPolicy(jitter=0)).retry_policy == RetryPolicy(jitter=0)
    of_calls = create(retry_policies={"call": pb.RetryPolicy(attempts_max=1)}).retry_policies
    assert of_calls == {TaskType.CALL: RetryPolicy(attempts_max=1)}


def test_fields_set_by_the_engine_are_returned_and_ignored_in_create() -> None:
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    stored = Namespace(
        name="orders", processor_targets=("a:1",), created_at=now, updated_at=now, revision=7
    )
    message = namespace_codec.namespace_to_wire(stored)
    created = namespace_codec.create_from_wire(pb.CreateNamespaceRequest(namespace=message))

    assert message.revision == 7
    assert message.created_at.ToDatetime(dt.UTC) == now
    assert (created.revision, created.created_at, created.updated_at) == (0, None, None)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (pb.HistoryPolicy(all=True), HistoryRange()),
        (pb.HistoryPolicy(last=2), HistoryRange(after=3)),
        (pb.HistoryPolicy(none=True), HistoryRange(limit=0)),
    ],
)
def test_each_history_policy_is_kept(policy: pb.HistoryPolicy, expected: HistoryRange) -> None:
    namespace = create(history=policy)

    assert namespace.history_for(None, last_event_id=5) == expected
    assert namespace_codec.namespace_to_wire(namespace).history == policy


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"name": "Orders"}, "name"),
        ({"processor_targets": []}, "processor_targets"),
        ({"processor_targets": ["a:1"] * 33}, "processor_targets"),
        ({"processor_targets": ["a:1", "a"]}, "processor_targets[1]"),
        ({"processor_targets": ["a:0"]}, "processor_targets[0]"),
        ({"processor_targets": ["a:65536"]}, "processor_targets[0]"),
        ({"processor_targets": [":1"]}, "processor_targets[0]"),
        ({"processor_targets": ["::1:80"]}, "processor_targets[0]"),
        ({"processor_targets": ["http://a:1"]}, "processor_targets[0]"),
        ({"processor_targets": ["unix:relative"]}, "processor_targets[0]"),
        ({"processor_targets": ["unix:/a\0"]}, "processor_targets[0]"),
        ({"processor_targets": ["unix:/" + "a" * 107]}, "processor_targets[0]"),
        ({"processor_targets": ["a:1\n"]}, "processor_targets[0]"),
        ({"step_timeout": seconds(86_401)}, "step_timeout"),
        ({"step_timeout": duration_pb2.Duration(nanos=999_000)}, "step_timeout"),
        ({"retry_policy": {"coefficient": 0.5}}, "retry_policy.coefficient"),
        ({"retry_policy": {"coefficient": float("nan")}}, "retry_policy.coefficient"),
        ({"retry_policy": {"coefficient": float("inf")}}, "retry_policy.coefficient"),
        ({"retry_policy": {"jitter": 1.1}}, "retry_policy.jitter"),
        ({"retry_policy": {"jitter": float("nan")}}, "retry_policy.jitter"),
        ({"retry_policy": {"attempts_max": -1}}, "retry_policy.attempts_max"),
        ({"retry_policy": {"attempts_max": 1_000_001}}, "retry_policy.attempts_max"),
        ({"retry_policy": {"initial_interval": seconds(-1)}}, "retry_policy.initial_interval"),
        ({"retry_policy": {"interval_max": seconds(-1)}}, "retry_policy.interval_max"),
        ({"retry_policy": {"elapsed_max": seconds(-1)}}, "retry_policy.elapsed_max"),
        (
            {"retry_policy": {"non_retryable_reasons": ["A", "\0"]}},
            "retry_policy.non_retryable_reasons[1]",
        ),
        (
            {"retry_policy": {"non_retryable_reasons": ["A"] * 101}},
            "retry_policy.non_retryable_reasons",
        ),
        ({"retry_policies": {"remove": pb.RetryPolicy()}}, "retry_policies"),
        ({"retry_policies": {"call": pb.RetryPolicy(jitter=-1)}}, "retry_policies['call'].jitter"),
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
        ({"target_patience": duration_pb2.Duration(nanos=999_000)}, "target_patience"),
        ({"target_patience": seconds(30 * 86_400 + 1)}, "target_patience"),
    ],
)
def test_a_field_out_of_bounds_is_named(fields: dict[str, object], path: str) -> None:
    with pytest.raises(errors.InvalidRequestError) as caught:
        create(**fields)

    assert [violation.field for violation in caught.value.violations] == [f"namespace.{path}"]


def test_an_update_changes_what_its_mask_names_and_nothing_else() -> None:
    current = Namespace(name="orders", processor_targets=("a:1",), worker_count_max=5)
    update = update_of(
        ["step_timeout", "exhausted_call_fails_alone"],
        3,
        step_timeout=seconds(7),
        worker_count_max=9,
    )

    assert (update.name, update.expected_revision) == ("orders", 3)
    assert update.change(current) == Namespace(
        name="orders",
        processor_targets=("a:1",),
        worker_count_max=5,
        step_timeout=dt.timedelta(seconds=7),
    )


def test_an_update_without_a_mask_changes_what_is_set() -> None:
    current = Namespace(name="orders", processor_targets=("a:1",), worker_count_max=5, revision=4)
    update = update_of([], processor_targets=["b:2"], revision=9)

    assert update.change(current) == Namespace(
        name="orders", processor_targets=("b:2",), worker_count_max=5, revision=4
    )


@pytest.mark.parametrize("path", ["nope", "retry_policy.jitter", "revision", "created_at", "*", ""])
def test_a_path_that_cannot_be_updated_is_named(path: str) -> None:
    with pytest.raises(errors.InvalidRequestError) as caught:
        update_of(["worker_count_max", path])

    assert [violation.field for violation in caught.value.violations] == ["update_mask.paths[1]"]
    assert path in caught.value.violations[0].description


def test_an_update_cannot_leave_a_namespace_without_targets() -> None:
    with pytest.raises(errors.InvalidRequestError, match=r"namespace\.processor_targets"):
        update_of(["processor_targets"])


def test_a_negative_revision_and_a_bad_name_are_named_together() -> None:
    message = pb.UpdateNamespaceRequest(expected_revision=-1)
    with pytest.raises(errors.InvalidRequestError) as caught:
        namespace_codec.update_from_wire(message)

    fields = [violation.field for violation in caught.value.violations]
    assert fields == ["namespace.name", "expected_revision"]


@pytest.mark.parametrize("kind", [pb.GetNamespaceRequest, pb.DeleteNamespaceRequest])
def test_an_invalid_namespace_name_is_refused(kind: type[pb.GetNamespaceRequest]) -> None:
    assert namespace_codec.name_from_wire(kind(name="a")) == "a"
    with pytest.raises(errors.InvalidRequestError, match="name: "):
        namespace_codec.name_from_wire(kind(name="A"))
