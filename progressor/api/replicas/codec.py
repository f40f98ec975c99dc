"""Requests of ReplicaService from protobuf to domain, and replicas back."""

import dataclasses
import datetime as dt
from collections.abc import Mapping

from progressor.api.calls import page_tokens
from progressor.domain.views.replica import ReplicaState, ReplicaView
from progressor.telemetry.logs.level import Level
from progressor.v1 import replica_service_pb2
from progressor.wire.fields import refuse
from progressor.wire.shapes import Field, Shape, between, enum_numbers

STATE_TO_WIRE = enum_numbers(ReplicaState, replica_service_pb2.ReplicaState.DESCRIPTOR)

replica_to_wire = Shape(ReplicaView, replica_service_pb2.Replica, state=Field()).message

_LEVEL_TO_WIRE: Mapping[Level, replica_service_pb2.LogLevel.ValueType] = {
    "debug": replica_service_pb2.LOG_LEVEL_DEBUG,
    "info": replica_service_pb2.LOG_LEVEL_INFO,
    "warning": replica_service_pb2.LOG_LEVEL_WARNING,
    "error": replica_service_pb2.LOG_LEVEL_ERROR,
}
_LEVEL_FROM_WIRE: Mapping[int, Level] = {number: it for it, number in _LEVEL_TO_WIRE.items()}

LOG_CHANGE_MAX = dt.timedelta(days=7)


list_from_wire = page_tokens.REPLICAS.listing(replica_service_pb2.ListReplicasRequest).read


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogChange:
    """A SetLogLevel; `lasting` zero: until it is changed again."""

    level: Level
    lasting: dt.timedelta


def _level_of(message: replica_service_pb2.SetLogLevelRequest, path: str, _: object) -> Level:
    level = _LEVEL_FROM_WIRE.get(message.level)
    if level is None:
        refuse(f"{path}level", f"unknown log level {message.level}")
    return level


_LOG_CHANGE = Shape(
    LogChange,
    replica_service_pb2.SetLogLevelRequest,
    level=Field(read=_level_of),
    lasting=between(dt.timedelta(0), LOG_CHANGE_MAX),
)
log_change_from_wire = _LOG_CHANGE.read


def log_level_to_wire(level: Level) -> replica_service_pb2.LogLevel.ValueType:
    """Return a level of the log as its number."""
    return _LEVEL_TO_WIRE[level]


def page_to_wire(
    replicas: tuple[ReplicaView, ...], *, page_size: int
) -> replica_service_pb2.ListReplicasResponse:
    """Return a page of at most `page_size`; one more says that there is a next."""
    page, token = page_tokens.REPLICAS.page(replicas, page_size, lambda it: it.replica_id)
    return replica_service_pb2.ListReplicasResponse(
        replicas=map(replica_to_wire, page), next_page_token=token
    )
