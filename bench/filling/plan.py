"""The contents of a filled database, and the numbers of its processes.

Processes are numbered from 0, and their ids are `<prefix>-<number>`, so that a client can name
them:

    0 .. callable_count - 1      running, waiting for calls; the last `timer_count` of them have a
                                 timer in some weeks
    .. then due_count            running, with a timer that is due
    .. then                      finished
    .. then                      broken, by the failures of `FAILURES` in turn

Each has three tasks and three events. The order of creation is a different one.
"""

import dataclasses
import datetime as dt
import math
from collections.abc import Sequence

FAILURES: Sequence[tuple[str, str]] = (
    ("PAYMENT_FAILED", "the payment provider answered 402"),
    ("OUT_OF_STOCK", "the warehouse has no such article"),
    ("CARRIER_UNAVAILABLE", "the carrier did not answer within 30 s"),
)
"""The reasons and messages of what breaks processes."""

_SHARE_FINISHED = 0.05
_SHARE_TIMED = 0.1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The counts; the same seed makes the same rows, except for their times."""

    process_count: int
    timer_count: int
    due_count: int = 0
    due_after: dt.timedelta = dt.timedelta()
    """From the beginning of the load until the first of the due timers is due."""
    long_event_count: int = 0
    """Events of one more process, `<prefix>-long`, each of its own task; 0: no such process."""
    broken_share: float = 0.05
    namespace: str = "filled"
    prefix: str = "filled"
    seed: int = 1

    def __post_init__(self) -> None:
        """Check that there are enough processes for the timers."""
        if min(self.process_count, self.timer_count, self.due_count) < 0:
            message = "counts must not be negative"
            raise ValueError(message)
        if self.timer_count + self.due_count > self.running_count:
            message = (
                f"{self.timer_count} + {self.due_count} timers do not fit {self.running_count} "
                f"running processes of {self.process_count}"
            )
            raise ValueError(message)

    @property
    def finished_count(self) -> int:
        return round(_SHARE_FINISHED * self.process_count)

    @property
    def broken_count(self) -> int:
        return round(self.broken_share * self.process_count)

    @property
    def running_count(self) -> int:
        return self.process_count - self.finished_count - self.broken_count

    @property
    def callable_count(self) -> int:
        """Processes that accept calls, and do nothing else for weeks."""
        return self.running_count - self.due_count

    @property
    def first_timed(self) -> int:
        """The first number with a timer in some weeks."""
        return self.callable_count - self.timer_count

    @property
    def task_count(self) -> int:
        """The number of tasks, and of ids that they use."""
        return 3 * self.process_count + self.long_event_count

    def creation_step(self) -> int:
        """Return the distance in the order of creation between two neighbours.

        It has no common divisor with the number of processes, so that each position is used once.
        """
        step = max(1, round(0.618 * self.process_count))
        while math.gcd(step, max(1, self.process_count)) != 1:
            step += 1
        return step


def default_timer_count(process_count: int) -> int:
    return round(_SHARE_TIMED * process_count)
