"""Quotas: how much work a namespace may bring, in the user's terms."""

import dataclasses
import enum

RATE_MAX = 1_000_000
SIZE_MAX = 10**12


class Quota(enum.StrEnum):
    """What a quota limits: the fields of `Quotas`."""

    STARTS_PER_SECOND = "starts_per_second"
    CALLS_PER_SECOND = "calls_per_second"
    TIMERS_PER_SECOND = "timers_per_second"
    OPEN_PROCESSES = "open_processes"
    BYTES_PER_SECOND = "bytes_per_second"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """The quotas of a namespace, over all replicas; 0: no limit.

    ``starts_per_second``: starts, jobs and imports. ``calls_per_second``: calls and notifies.
    ``timers_per_second``: timers that fire; later ones wait. ``open_processes``: processes that
    have not finished. ``bytes_per_second``: the arguments of starts, calls and notifies.
    """

    starts_per_second: int = 0
    calls_per_second: int = 0
    timers_per_second: int = 0
    open_processes: int = 0
    bytes_per_second: int = 0

    def limit(self, quota: Quota) -> int:
        return int(getattr(self, quota))


NO_QUOTAS = Quotas()
