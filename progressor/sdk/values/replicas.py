"""A replica as operators see it, and its form on the wire."""

import dataclasses
import datetime as dt

from progressor.sdk.codec.wire import WireEnum
from progressor.v1 import replica_service_pb2 as pb
from progressor.wire.shapes import Shape


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


replica_from_wire = Shape(Replica, pb.Replica).read
change_from_wire = Shape(LogLevelChange, pb.SetLogLevelResponse).read
