"""A replica as operators see it, and its form on the wire."""

import dataclasses
import datetime as dt

from progressor.sdk.codec.wire import WireEnum, duration_from_wire, instant_from_wire
from progressor.v1 import replica_service_pb2 as pb


class ReplicaState(WireEnum):
    """What the others make of a replica. UNSPECIFIED: one that only a newer SDK knows.

    SILENT is presumed dead: its heartbeat is older than its lease timeout.
    """

    UNSPECIFIED = "unspecified"
    SERVING = "serving"
    DRAINING = "draining"
    SILENT = "silent"


class LogLevel(WireEnum):
    """The least that a log says. UNSPECIFIED: one that only a newer SDK knows."""

    UNSPECIFIED = "unspecified"
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogLevelChange:
    """The level that the log of a replica had, and which replica it was."""

    replica_name: str
    previous_level: LogLevel


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """An engine process; instants and the age are by PostgreSQL's clock.

    ``functions`` is the schema of its release's functions. ``step_count`` (steps in hand),
    ``caller_count`` (callers waiting) and ``clock_offset`` (by how much its clock is ahead of
    PostgreSQL's) are as its last heartbeat told; None: its release does not tell them, or the
    clocks were not compared yet. ``lease_count`` is of now.
    """

    replica_id: int
    name: str
    version: str
    state: ReplicaState
    functions: str
    started_at: dt.datetime
    heartbeat_at: dt.datetime
    heartbeat_age: dt.timedelta
    lease_timeout: dt.timedelta
    draining: bool
    step_count: int | None
    caller_count: int | None
    clock_offset: dt.timedelta | None
    lease_count: int


def replica_from_wire(message: pb.Replica) -> Replica:
    """Return a Replica message as its value."""
    return Replica(
        replica_id=message.replica_id,
        name=message.name,
        version=message.version,
        state=ReplicaState.from_number(message.state),
        functions=message.functions,
        started_at=instant_from_wire(message.started_at),
        heartbeat_at=instant_from_wire(message.heartbeat_at),
        heartbeat_age=duration_from_wire(message.heartbeat_age),
        lease_timeout=duration_from_wire(message.lease_timeout),
        draining=message.draining,
        step_count=message.step_count if message.HasField("step_count") else None,
        caller_count=message.caller_count if message.HasField("caller_count") else None,
        clock_offset=(
            duration_from_wire(message.clock_offset) if message.HasField("clock_offset") else None
        ),
        lease_count=message.lease_count,
    )
