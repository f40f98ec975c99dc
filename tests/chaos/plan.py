"""What will break, when, and for how long: one random number generator decides it beforehand."""

import dataclasses
import enum
import random
from collections.abc import Mapping
from types import MappingProxyType

LEASE_SECONDS = 1.5
"""The lease timeout of every replica."""

SCAN_SECONDS = 0.25
"""Between two scans, and after which a scan takes what another replica should have taken."""

STEP_SECONDS = 3.0
"""How long a step may take."""

BACKOFF_SECONDS = 0.5
"""The longest wait between two attempts."""

TIMER_SECONDS = 2.0
"""The furthest away that a timer is set."""

TIMERS_MAX = 3
"""How many timers follow each other without a request."""

_PAIRED = 0.2
"""Share of faults that the next does not wait for."""


class FaultKind(enum.StrEnum):
    """What can be done to those that work here."""

    KILL_REPLICA = "kill replica"
    FREEZE_REPLICA = "freeze replica"
    DRAIN_REPLICA = "drain replica"
    KILL_PROCESSOR = "kill processor"
    FREEZE_PROCESSOR = "freeze processor"
    RESTART_POSTGRES = "restart postgres"
    KILL_POSTGRES = "kill postgres"
    END_BACKENDS = "end backends"
    TAKE_CONNECTIONS = "take connections"
    HOLD_LOCKS = "hold locks"
    CUT_CALLERS = "cut callers"
    STOP_STANDBY = "stop standby"
    PROMOTE_STANDBY = "promote standby"


LASTING: Mapping[FaultKind, tuple[float, float]] = MappingProxyType(
    {
        FaultKind.KILL_REPLICA: (0.2, 3.0),
        FaultKind.FREEZE_REPLICA: (LEASE_SECONDS + 0.3, LEASE_SECONDS + 3.0),
        FaultKind.DRAIN_REPLICA: (0.0, 1.0),
        FaultKind.KILL_PROCESSOR: (0.2, 3.0),
        FaultKind.FREEZE_PROCESSOR: (0.5, STEP_SECONDS + 1.5),
        FaultKind.RESTART_POSTGRES: (0.0, 0.0),
        FaultKind.KILL_POSTGRES: (0.0, 3.0),
        FaultKind.END_BACKENDS: (0.0, 0.0),
        FaultKind.TAKE_CONNECTIONS: (0.5, 3.0),
        FaultKind.HOLD_LOCKS: (0.5, 4.0),
        FaultKind.CUT_CALLERS: (0.0, 0.0),
        FaultKind.STOP_STANDBY: (0.2, 5.0),
        FaultKind.PROMOTE_STANDBY: (0.0, 1.0),
    }
)
"""For how many seconds each may last, beyond what it takes to begin and to fix it."""

_OF_STANDBY = (FaultKind.STOP_STANDBY, *(FaultKind.PROMOTE_STANDBY,) * 2)
_ALWAYS = tuple(kind for kind in FaultKind if kind not in _OF_STANDBY)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One of the plan: at so many seconds from the start of the load, to the target of a number.

    ``seed`` is for whatever else it has to choose.
    """

    number: int
    kind: FaultKind
    at: float
    seconds: float
    target: int
    seed: int

    def __str__(self) -> str:
        return f"#{self.number} at {self.at:.1f} s: {self.kind} {self.target}, {self.seconds:.1f} s"


def calm_seconds(seconds: float) -> float:
    """Return how long a run is without faults at its beginning and at its end."""
    return min(30.0, max(8.0, seconds / 10))


def plan(seed: int, seconds: float, *, standby: bool = False) -> tuple[Fault, ...]:
    """Return the faults of a run of so many seconds: each kind once before any comes again.

    Faults of a standby are planned only if there is one; a promotion then comes twice as often.

    ``target`` is to be taken modulo the number of those there are.
    """
    chosen = random.Random(seed)
    faults: list[Fault] = []
    deck: list[FaultKind] = []
    at = calm_seconds(seconds)
    while True:  # ends: the time of the next grows by a second at least
        if not deck:
            deck = [*_ALWAYS, *_OF_STANDBY] if standby else list(_ALWAYS)
            chosen.shuffle(deck)
        kind = deck.pop()
        lasting = chosen.uniform(*LASTING[kind])
        if at + lasting > seconds - calm_seconds(seconds):
            return tuple(faults)
        faults.append(
            Fault(
                number=len(faults) + 1,
                kind=kind,
                at=at,
                seconds=lasting,
                target=chosen.randrange(60),
                seed=chosen.randrange(2**32),
            )
        )
        is_paired = chosen.random() < _PAIRED
        at += 1.0 if is_paired else lasting + chosen.uniform(2.0, 4.0)
