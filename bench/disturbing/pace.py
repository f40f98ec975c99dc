"""The lengths and counts of a run."""

import dataclasses

LEASE_SECONDS = 5.0
"""Of a replica by default."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """``seconds`` is the length of a window, before a fault and after it.

    ``processes`` have a running step when a replica is killed; with ``fails`` their namespace has
    the zombie policy fail.
    """

    seconds: float = 15.0
    warm_up: float = 5.0
    turns: int = 3
    callers: int = 48
    hold_seconds: float = 300.0
    backlog: int = 500_000
    processes: int = 200
    lease_seconds: float = LEASE_SECONDS
    fails: bool = False
