"""Requests of ReplicaService from protobuf to domain, and replicas back."""

import dataclasses
import datetime as dt
from collections.abc import Mapping

from progressor.api.calls import page_tokens
from progressor.api.calls.validation import Violations, duration_from_wire, page_size_from_wire
from progressor.domain.views.replica import ReplicaState, ReplicaView
from progressor.telemetry.logs.level import Level
from progressor.v1 import replica_service_pb2
from progressor.wire.shapes import Field, Shape

STATE_TO_WIRE: Mapping[ReplicaState, replica_service_pb2.ReplicaState.ValueType] = {
    ReplicaState.SERVING: replica_service_pb2.REPLICA_STATE_SERVING,
    ReplicaState.DRAINING: replica_service_pb2.REPLICA_STATE_DRAINING,
    ReplicaState.SILENT: replica_service_pb2.REPLICA_STATE_SILENT,
}

replica_to_wire = Shape(ReplicaView, replica_service_pb2.Replica, state=Field()).message

_LEVEL_TO_WIRE: Mapping[Level, replica_service_pb2.LogLevel.ValueType] = {
    "debug": replica_service_pb2.LOG_LEVEL_DEBUG,
    "info": replica_service_pb2.LOG_LEVEL_INFO,
    "warning": replica_service_pb2.LOG_LEVEL_WARNING,
    "error": replica_service_pb2.LOG_LEVEL_ERROR,
}
_LEVEL_FROM_WIRE: Mapping[int, Level] = {number: it for it, number in _LEVEL_TO_WIRE.items()}

LOG_CHANGE_MAX = dt.timedelta(days=7)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A ListReplicas: at most `limit` with ids above `after`."""

    after: int
    limit: int


def list_from_wire(message: replica_service_pb2.ListReplicasRequest) -> Listing:
    """Return a ListReplicas."""
    violations = Violations()
    limit = page_size_from_wire(message.page_size, violations)
    after = page_tokens.replica_of_token(message.page_token, violations)
    violations.raise_any()
    return Listing(after=after, limit=limit)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogChange:
    """A SetLogLevel; `lasting` zero: until it is changed again."""

    level: Level
    lasting: dt.timedelta


def log_change_from_wire(message: replica_service_pb2.SetLogLevelRequest) -> LogChange:
    """Return a SetLogLevel."""
    violations = Violations()
    level = _LEVEL_FROM_WIRE.get(message.level)
    if level is None:
        violations.add("level", f"{message.level} is not a log level")
    lasting = duration_from_wire(message.lasting, "lasting", violations)
    if lasting is not None and lasting > LOG_CHANGE_MAX:
        description = f"{lasting.total_seconds():.0f} s are more than {LOG_CHANGE_MAX.days} days"
        violations.add("lasting", description)
    violations.raise_any()
    assert level is not None, "a level that is not a violation"
    assert lasting is not None, "a duration that is not a violation"
    return LogChange(level=level, lasting=lasting)


def log_level_to_wire(level: Level) -> replica_service_pb2.LogLevel.ValueType:
    """Return a level of the log as its number."""
    return _LEVEL_TO_WIRE[level]


def page_to_wire(
    replicas: tuple[ReplicaView, ...], *, page_size: int
) -> replica_service_pb2.ListReplicasResponse:
    """Return a page of at most `page_size`; one more says that there is a next."""
    page = replicas[:page_size]
    has_next = len(replicas) > page_size
    return replica_service_pb2.ListReplicasResponse(
        replicas=map(replica_to_wire, page),
        next_page_token=page_tokens.token_of_replica(page[-1].replica_id) if has_next else "",
    )
