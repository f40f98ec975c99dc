"""Requests of ReplicaService from protobuf to domain, and replicas back."""

import dataclasses
from collections.abc import Mapping

from progressor import wire
from progressor.api import page_tokens
from progressor.api.validation import Violations, page_size_from_wire
from progressor.domain.replica import ReplicaState, ReplicaView
from progressor.v1 import replica_service_pb2

_STATE_TO_WIRE: Mapping[ReplicaState, replica_service_pb2.ReplicaState.ValueType] = {
    ReplicaState.SERVING: replica_service_pb2.REPLICA_STATE_SERVING,
    ReplicaState.DRAINING: replica_service_pb2.REPLICA_STATE_DRAINING,
    ReplicaState.SILENT: replica_service_pb2.REPLICA_STATE_SILENT,
}


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


def replica_to_wire(replica: ReplicaView) -> replica_service_pb2.Replica:
    """Return a replica as a message."""
    offset = replica.clock_offset
    return replica_service_pb2.Replica(
        replica_id=replica.replica_id,
        name=replica.name,
        version=replica.version,
        functions=replica.functions,
        started_at=wire.datetime_to_timestamp(replica.started_at),
        heartbeat_at=wire.datetime_to_timestamp(replica.heartbeat_at),
        heartbeat_age=wire.timedelta_to_duration(replica.heartbeat_age),
        lease_timeout=wire.timedelta_to_duration(replica.lease_timeout),
        draining=replica.draining,
        state=_STATE_TO_WIRE[replica.state],
        step_count=replica.step_count,
        caller_count=replica.caller_count,
        clock_offset=None if offset is None else wire.timedelta_to_duration(offset),
        lease_count=replica.lease_count,
    )
