"""Values, constraints and codecs: nothing is lost on the way to the wire and back."""

import dataclasses
import datetime as dt
import re
from pathlib import Path
from typing import Any

import pytest

from progressor import sdk
from progressor.sdk import (
    BYTES,
    JSON,
    Client,
    Constraints,
    GateHold,
    JobState,
    NamespaceConfig,
    NewTimer,
    NodeState,
    ScheduleRunState,
    Step,
)
from progressor.sdk.codec.wire import (
    WireEnum,
    duration_from_wire,
    duration_to_wire,
    object_from_wire,
    object_to_wire,
)
from progressor.sdk.values.constraints import (
    constraints_from_wire,
    constraints_to_wire,
)
from progressor.sdk.values.namespaces import namespace_from_wire, namespace_to_wire
from progressor.sdk.values.processes import read_range, timer_to_wire
from progressor.v1 import bulk_service_pb2 as bulks
from progressor.v1 import job_service_pb2 as jobs
from progressor.v1 import messages_pb2 as messages
from progressor.v1 import namespace_service_pb2 as namespaces
from progressor.v1 import nodes_pb2 as nodes
from progressor.v1 import processor_service_pb2
from progressor.v1 import replica_service_pb2 as replicas
from progressor.v1 import schedule_service_pb2 as schedules
from progressor.v1 import types_pb2 as types

NOON = dt.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)


@dataclasses.dataclass
class Order:
    item: str
    made_at: dt.datetime


def nested(depth: int) -> dict[str, object]:
    """Return a JSON object of so many objects, one in the other."""
    found: dict[str, object] = {}
    for _ in range(depth - 1):
        found = {"a": found}
    return found


FILES = (types, messages, bulks, jobs, nodes, schedules, namespaces, replicas)
ENUMS = {name: it for file in FILES for name, it in file.DESCRIPTOR.enum_types_by_name.items()}


@pytest.mark.parametrize("ours", WireEnum.__subclasses__())
def test_enums_mirror_the_wire(ours: type[WireEnum]) -> None:
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", ours.__name__).upper()
    theirs = ENUMS[ours.__name__]

    assert {f"{prefix}_{it.name}": it.number for it in ours} == {
        value.name: value.number for value in theirs.values
    }
    assert all(ours.from_number(it.number) is it for it in ours)
    assert ours.from_number(1000) is ours.from_number(-1) is ours("unspecified")


def test_a_direction_that_only_a_newer_engine_knows_can_be_read() -> None:
    assert [read_range(types.HistoryRange(direction=it)).direction for it in (0, 1, 2, 1000)] == [  # type: ignore[arg-type]  # as received
        sdk.Direction.FORWARD, sdk.Direction.FORWARD, sdk.Direction.BACKWARD, sdk.Direction.FORWARD,
    ]  # fmt: skip


def test_states_tell_what_has_ended() -> None:
    assert [it for it in JobState if it.has_ended] == ["done", "failed", "cancelled"]
    assert [it for it in NodeState if it.has_ended] == ["done", "failed", "skipped", "cancelled"]
    going = [it for it in ScheduleRunState if not it.has_ended]
    assert going == ["unspecified", "queued", "running"]


PLAIN = NamespaceConfig(name="plain", processor_targets=("127.0.0.1:7421",))


@pytest.mark.parametrize("last", [None, 0, 50])
def test_a_namespace_comes_back_as_it_was_sent(last: int | None) -> None:
    config = dataclasses.replace(PLAIN, history_last=last)

    assert namespace_from_wire(namespace_to_wire(config)) == config


async def test_update_refuses_a_field_that_does_not_exist() -> None:
    async with Client("unix:/nonexistent") as client:
        with pytest.raises(ValueError, match="cannot update field 'revision'"):
            await client.namespaces.update(PLAIN, fields=("revision",))


def test_json_decodes_to_the_type_that_is_asked_for() -> None:
    order = Order("tea", NOON)

    assert JSON.decode(JSON.encode(order), Order) == order
    with pytest.raises(ValueError, match="Expected `object`"):
        JSON.decode(b"[1]", Order)


@pytest.mark.parametrize("codec", [JSON, BYTES])
def test_none_and_no_bytes_mean_each_other(codec: sdk.Codec) -> None:
    assert codec.encode(None) == b""
    assert codec.decode(b"") is None


def test_the_bytes_codec_takes_nothing_else() -> None:
    with pytest.raises(TypeError, match="got str"):
        BYTES.encode("a")


@pytest.mark.parametrize("duration", [0, 0.25, 1e-6, 86_400, dt.timedelta(microseconds=7)])
def test_durations_keep_their_microseconds(duration: float | dt.timedelta) -> None:
    expected = duration if isinstance(duration, dt.timedelta) else dt.timedelta(seconds=duration)

    assert duration_from_wire(duration_to_wire(duration)) == expected


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"a": [{"b": 2**53 + 1}]}, r"a\[0\]\.b: an integer beyond 2\*\*53"),
        ({"a": -(2**64)}, "a: an integer beyond"),
        ({"a": float("nan")}, "a: nan is not a JSON number"),
        (nested(31), "must not be nested deeper than 30"),
        (nested(2000), "must not be nested deeper than 30"),
    ],
)
def test_metadata_that_would_change_on_the_way_is_refused(
    metadata: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        object_to_wire(metadata)


@pytest.mark.parametrize("metadata", [{"a": 2**53, "b": [-(2**53), 1.5, None]}, nested(30)])
def test_other_metadata_come_back_as_they_were(metadata: dict[str, object]) -> None:
    assert object_from_wire(object_to_wire(metadata)) == metadata


def test_a_timer_is_due_in_one_way_only() -> None:
    with pytest.raises(ValueError, match="at most one"):
        timer_to_wire(NewTimer(after=1, at=dt.datetime.now(dt.UTC)), JSON)


def test_the_package_is_typed() -> None:
    assert (Path(sdk.__file__).parent.parent / "py.typed").exists()


def test_what_an_engine_does_not_say_has_the_meaning_of_the_contract() -> None:
    assert constraints_from_wire(types.Constraints()) == Constraints(priority=3, hold="task")
    newer = types.Constraints(hold=9)  # type: ignore[arg-type]  # a newer engine
    assert constraints_from_wire(newer).hold is GateHold.UNSPECIFIED


def test_keys_alone_are_gates_that_must_be_there() -> None:
    assert Constraints(gates=["a", "b"]) == Constraints(gates={"a": None, "b": None})
    with pytest.raises(TypeError, match=r"as \['db-1'\]"):
        Constraints(gates="db-1")


def test_a_hold_that_there_is_not_is_refused() -> None:
    word: Any = "forever"
    with pytest.raises(ValueError, match="forever"):
        Constraints(hold=word)


def test_a_naive_instant_is_refused() -> None:
    with pytest.raises(ValueError, match="must have a time zone"):
        constraints_to_wire(Constraints(run_at=NOON.replace(tzinfo=None)))


def test_a_step_sets_a_timer_with_constraints() -> None:
    response = processor_service_pb2.ProcessResponse()
    step: Step[None] = Step(processor_service_pb2.ProcessRequest(), response, codec=BYTES)

    step.set_timer(after=1, constraints=Constraints(gates={"g": 2}))
    set_first = response.set_timer.constraints.gates[0].capacity
    step.set_timer(after=1)

    assert set_first == 2
    assert not response.set_timer.HasField("constraints")
