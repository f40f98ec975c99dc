"""Replicas as operators see them."""

import dataclasses
import datetime as dt

from progressor.sdk.codec.wire import WireEnum
from progressor.v1 import replica_service_pb2 as pb
from progressor.wire.shapes import Shape


class ReplicaState(WireEnum):
    """The state of a replica as others see it. UNSPECIFIED: one that only a newer SDK knows.

    SILENT: presumed dead, since its heartbeat is older than its lease timeout.
    """

    UNSPECIFIED = "unspecified"
    SERVING = "serving"
    DRAINING = "draining"
    SILENT = "silent"


class LogLevel(WireEnum):
    """The lowest level that is logged. UNSPECIFIED: one that only a newer SDK knows."""

    UNSPECIFIED = "unspecified"
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogLevelChange:
    """The replica whose log level was set, and its level before."""

    replica_name: str
    previous_level: LogLevel


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """An engine process; instants and ages are by PostgreSQL's clock.

    ``functions`` is the schema with the functions of its release. ``step_count`` (running steps),
    ``caller_count`` (waiting callers) and ``clock_offset`` (how far its clock is ahead of
    PostgreSQL's) are those of its last heartbeat; None: its release does not report them, or the
    clocks have not been compared yet. ``lease_count`` is current.
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
