"""A replica as the others see it: by its row, which its heartbeats renew."""

import dataclasses
import datetime as dt
import enum
from collections.abc import Mapping

from progressor.domain.quotas.quotas import Quota


class ReplicaState(enum.StrEnum):
    """The state of a replica as other replicas judge it by its heartbeat."""

    SERVING = "serving"
    DRAINING = "draining"
    SILENT = "silent"


LOADS_MAX = 200
"""Namespaces that a heartbeat describes at most."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepTally:
    """What a replica has done in a namespace since it started; the values only grow.

    ``settled_count``: attempts whose outcome was written. ``attempt_count``: attempts that the
    processor has ended, ``failed_count`` of them by a failure, ``processor_time`` in total.
    """

    settled_count: int = 0
    attempt_count: int = 0
    failed_count: int = 0
    processor_time: dt.timedelta = dt.timedelta()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepSize:
    process_id: str
    size_bytes: int
    limit_bytes: int

    @property
    def share(self) -> float:
        """Return the size as a share of the limit; above 1 it was not sent."""
        return self.size_bytes / self.limit_bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceLoad:
    """The workers of one namespace in a replica, and its processor.

    ``unreachable_for`` None: it was reached, or there was no attempt. ``tally`` None: the replica's
    release does not report it. ``largest_step`` only if it came close to the limit of the
    processor.
    """

    busy_count: int
    size: int
    unreachable_for: dt.timedelta | None = None
    tally: StepTally | None = None
    largest_step: StepSize | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """What a replica is working on: running steps, and tasks that callers wait for.

    ``loads`` are those of its namespaces, at most LOADS_MAX. ``rates``: of each namespace and quota
    that is shared with other replicas, the demand and the share here.
    """

    step_count: int
    caller_count: int
    loads: Mapping[str, NamespaceLoad] = dataclasses.field(default_factory=dict, hash=False)
    rates: Mapping[str, Mapping[str, tuple[float, float]]] = dataclasses.field(
        default_factory=dict, hash=False
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """A replica as its last heartbeat described it; instants and the age by PostgreSQL's clock.

    ``lease_count`` are the leases that it holds now, where they were counted. None: its release
    does not report it. ``clock_offset`` (by how much its clock is ahead) is also None after its
    first heartbeat, and ``loads`` where they were not read. A namespace that is not among the loads
    has no step in that replica, unless they are LOADS_MAX.
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
    clock_offset: dt.timedelta | None = None
    lease_count: int = 0
    loads: Mapping[str, NamespaceLoad] | None = None
    rates: Mapping[str, Mapping[str, tuple[float, float]]] | None = None

    def holds_timers(self, namespace: str, limit: int) -> bool:
        """Return whether due timers wait there for their quota: it tells a demand above that."""
        told = ((self.rates or {}).get(namespace) or {}).get(Quota.TIMERS_PER_SECOND)
        return limit > 0 and told is not None and told[0] > limit

    @property
    def is_silent(self) -> bool:
        """Whether it is presumed dead, by the same rule as the scan for zombies."""
        return self.heartbeat_age > self.lease_timeout

    @property
    def state(self) -> ReplicaState:
        if self.is_silent:
            return ReplicaState.SILENT
        return ReplicaState.DRAINING if self.draining else ReplicaState.SERVING


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of the replicas at ``read_at``, by PostgreSQL's clock.

    ``collecting`` is how long at most a lost lease waits for a scan that collects it.
    """

    read_at: dt.datetime
    replicas: Mapping[int, ReplicaView]
    collecting: dt.timedelta

    def serving(self) -> tuple[ReplicaView, ...]:
        return tuple(it for it in self.replicas.values() if it.state is ReplicaState.SERVING)
