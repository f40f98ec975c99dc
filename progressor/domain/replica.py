"""A replica as the others see it: by its row, which its heartbeats renew."""

import dataclasses
import datetime as dt
import enum


class ReplicaState(enum.StrEnum):
    """What the others make of a replica."""

    SERVING = "serving"
    DRAINING = "draining"
    SILENT = "silent"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a replica has in hand: places taken by steps, and tasks that callers wait for."""

    step_count: int
    caller_count: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """A replica as its last heartbeat told of it; instants and the age by PostgreSQL's clock.

    ``lease_timeout`` is the one by which its leases are judged. ``lease_count`` are the leases that
    stand in its name now. What is None its release does not tell, and the ``clock_offset`` (by how
    much its clock is ahead) is not told by a first heartbeat either.
    """

    replica_id: int
    name: str
    version: str
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

    @property
    def state(self) -> ReplicaState:
        """Whether it is presumed dead, and else whether it drains."""
        if self.heartbeat_age > self.lease_timeout:
            return ReplicaState.SILENT
        return ReplicaState.DRAINING if self.draining else ReplicaState.SERVING
