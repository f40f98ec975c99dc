"""Shapes: what differs between a value and its message is stated once, for both directions."""

import dataclasses
import datetime as dt
import enum
from collections.abc import Mapping
from typing import Any

import pytest
from google.protobuf.message import Message

from progressor import errors
from progressor.v1 import gate_service_pb2 as gates
from progressor.v1 import namespace_service_pb2 as namespaces
from progressor.v1 import schedule_service_pb2 as schedules
from progressor.v1 import types_pb2 as types
from progressor.wire.shapes import UNSENT, Field, OneOf, Shape, between, flat


class GateHold(enum.StrEnum):
    UNSPECIFIED = "unspecified"
    TASK = "task"
    PROCESS = "process"


class KnownHold(enum.StrEnum):
    TASK = "task"
    PROCESS = "process"


@dataclasses.dataclass(frozen=True)
class Policy:
    coefficient: float = 2.0
    jitter: float = 0.2
    interval_max: dt.timedelta = dt.timedelta(seconds=30)
    elapsed_max: dt.timedelta | None = None
    note: str = "of our own"


@dataclasses.dataclass(frozen=True)
class Line:
    gates: tuple[str, ...]
    since: dt.datetime | None


@dataclasses.dataclass(frozen=True)
class Waiting:
    key: str
    line: Line


@dataclasses.dataclass(frozen=True)
class Held:
    hold: GateHold


@dataclasses.dataclass(frozen=True)
class HeldForSure:
    hold: KnownHold


@dataclasses.dataclass(frozen=True)
class Cron:
    expression: str


@dataclasses.dataclass(frozen=True)
class Every:
    every: dt.timedelta


@dataclasses.dataclass(frozen=True)
class Spec:
    times: Cron | Every


POLICY = Shape(
    Policy,
    namespaces.RetryPolicy,
    coefficient=between(1, 10),
    interval_max=Field(zero_is_default=True, check=between(dt.timedelta(0), dt.timedelta(1))),
    note=UNSENT,
)
WAITING = Shape(
    Waiting,
    gates.GateWaiter,
    key="process_id",
    line=flat(Shape(Line, gates.GateWaiter)),
)
SPEC = Shape(
    Spec,
    schedules.ScheduleSpec,
    times=OneOf(
        name="times",
        shapes={
            "cron": Shape(Cron, schedules.CronTimes),
            "interval": Shape(Every, schedules.IntervalTimes, every=Field(given=True)),
        },
        absent="must be cron or interval",
    ),
)
NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def said(shape: Shape[Any, Any], message: Message) -> list[tuple[str, str]]:
    with pytest.raises(errors.InvalidRequestError) as caught:
        shape.read(message, "the.")
    return [(it.field, it.description) for it in caught.value.violations]


def test_what_is_absent_takes_the_default_and_a_zero_with_presence_does_not() -> None:
    message = namespaces.RetryPolicy(jitter=0)
    message.interval_max.SetInParent()

    assert POLICY.read(message) == Policy(jitter=0)


def test_none_is_not_written_and_a_zero_is() -> None:
    message = POLICY.message(Policy(jitter=0))

    assert message.HasField("jitter")
    assert not message.HasField("elapsed_max")
    assert POLICY.read(message) == Policy(jitter=0)


def test_all_violations_are_named_by_their_paths() -> None:
    message = namespaces.RetryPolicy(coefficient=11)
    message.interval_max.FromTimedelta(dt.timedelta(2))

    assert said(POLICY, message) == [
        ("the.coefficient", "must be 1 to 10, got 11.0"),
        ("the.interval_max", "must be 0 s to 86400 s, got 2 days"),
    ]


def test_a_flat_value_stands_in_the_outer_message() -> None:
    value = Waiting(key="a", line=Line(gates=("x", "y"), since=NOON))
    message = WAITING.message(value)

    assert (message.process_id, [*message.gates]) == ("a", ["x", "y"])
    assert WAITING.read(message) == value


def test_an_unknown_enum_is_unspecified_if_the_class_has_that_and_else_an_error() -> None:
    unknown = types.GateHolder(hold=9)  # type: ignore[arg-type]  # of a newer release

    assert Shape(Held, types.GateHolder).read(unknown) == Held(GateHold.UNSPECIFIED)
    sure = Shape(HeldForSure, types.GateHolder)
    assert said(sure, unknown) == [("the.hold", "unknown gate hold 9")]
    assert said(sure, types.GateHolder()) == [("the.hold", "must be given")]


@pytest.mark.parametrize("value", [Spec(Cron("@daily")), Spec(Every(dt.timedelta(hours=1)))])
def test_a_union_is_a_oneof(value: Spec) -> None:
    assert SPEC.read(SPEC.message(value)) == value


def test_a_oneof_without_a_member_and_a_member_without_its_field_are_named() -> None:
    without = schedules.ScheduleSpec(interval=schedules.IntervalTimes())

    assert said(SPEC, schedules.ScheduleSpec()) == [("the.times", "must be cron or interval")]
    assert said(SPEC, without) == [("the.interval.every", "must be given")]


def test_the_whole_value_is_checked_even_if_a_field_is_bad() -> None:
    def check_all(values: Mapping[str, object], path: str, _context: object) -> None:
        raise errors.InvalidRequestError(errors.FieldViolation(f"{path}all", f"{[*values]}"))

    shape = Shape(Policy, namespaces.RetryPolicy, check_all, jitter=between(0, 1), note=UNSENT)

    assert said(shape, namespaces.RetryPolicy(jitter=2)) == [
        ("the.jitter", "must be 0 to 1, got 2.0"),
        ("the.all", "['coefficient', 'interval_max', 'elapsed_max']"),
    ]


def test_a_field_that_neither_side_has_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="RetryPolicy has no field note"):
        Shape(Policy, namespaces.RetryPolicy).message(Policy())
