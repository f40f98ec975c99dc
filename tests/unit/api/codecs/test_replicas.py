"""Replicas on the wire: every field, what is unknown left out, pages by their tokens."""

import datetime as dt

import pytest

from progressor import errors
from progressor.api import replicas as replica_codec
from progressor.domain.views.replica import ReplicaState
from progressor.sdk.client.replicas import LogLevel
from progressor.sdk.client.replicas import ReplicaState as SdkState
from progressor.telemetry.logs.level import LEVELS, Level
from progressor.v1 import replica_service_pb2 as pb
from tests.support.builders import make_replica_view, seconds


@pytest.mark.parametrize("state", ReplicaState)
def test_every_state_has_its_number_in_all_three_places(state: ReplicaState) -> None:
    age = seconds(6) if state is ReplicaState.SILENT else seconds(0)
    view = make_replica_view(heartbeat_age=age, draining=state is ReplicaState.DRAINING)
    message = replica_codec.replica_to_wire(view)

    assert view.state is state
    assert pb.ReplicaState.Name(message.state) == f"REPLICA_STATE_{state.name}"
    assert SdkState.from_number(message.state).value == state.value


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_of_a_log_has_its_number_in_all_three_places(level: Level) -> None:
    number = replica_codec.log_level_to_wire(level)
    request = pb.SetLogLevelRequest(level=number)
    request.lasting.FromSeconds(600)

    assert pb.LogLevel.Name(number) == f"LOG_LEVEL_{level.upper()}"
    assert LogLevel.from_number(number).value == level
    assert replica_codec.log_change_from_wire(request) == replica_codec.LogChange(
        level=level, lasting=seconds(600)
    )


def test_the_levels_of_the_sdk_are_those_of_the_wire() -> None:
    assert {f"LOG_LEVEL_{it.name}": it.number for it in LogLevel} == dict(pb.LogLevel.items())


def test_a_level_lasts_until_it_is_changed_unless_told_otherwise() -> None:
    change = replica_codec.log_change_from_wire(pb.SetLogLevelRequest(level=pb.LOG_LEVEL_DEBUG))

    assert change.lasting == dt.timedelta()


@pytest.mark.parametrize(
    ("fields", "level", "lasting_seconds"),
    [
        (["level"], 0, 0),
        (["level"], 5, 0),
        (["lasting"], 1, -1),
        (["lasting"], 1, 7 * 86_400 + 1),
        (["level", "lasting"], 9, -1),
    ],
)
def test_a_level_that_cannot_be_is_refused_by_its_field(
    fields: list[str], level: int, lasting_seconds: int
) -> None:
    request = pb.SetLogLevelRequest(level=pb.LogLevel.ValueType(level))
    request.lasting.FromSeconds(lasting_seconds)
    with pytest.raises(errors.InvalidRequestError) as caught:
        replica_codec.log_change_from_wire(request)

    assert [it.field for it in caught.value.violations] == fields
