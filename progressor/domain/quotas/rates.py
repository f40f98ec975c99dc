"""Rates that replicas share: token buckets, and the share of each replica.

A replica keeps a bucket for each rate of a namespace. It fills at the replica's *share* of the
rate, and holds a second of it. With each heartbeat a replica tells the others its *demand* (what
it was asked for) and its share, and learns theirs. From that it finds its next share:

- the *floor*, a tenth of the rate in equal parts, which every replica has;
- of the rest, what it demands, or if all demand more than there is, an equal part at least;
- what is left over, in equal parts again, so that a replica that was idle can begin.

Demands are as of the last heartbeats, so two replicas may hold different views. Therefore no
replica takes more than the others' shares leave over, the floor excepted: a share grows only once
another replica has told that its own has shrunk. So the shares add up to 1.1 times the rate at
most, whenever heartbeats come late, unless two replicas grow at the same moment. And a replica that
receives all requests of a namespace gets at least 0.9 of the rate, a few heartbeats later.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

FLOOR = 0.1
BURST_SECONDS = 1.0
HINT_SECONDS_MIN, HINT_SECONDS_MAX = 0.001, 10.0

_SILENT = 0.01


class Told(NamedTuple):
    """What another replica has told of a rate."""

    demand: float
    share: float


def next_share(rate: float, own_demand: float, others: Sequence[Told]) -> float:
    """Return the share of a replica by its demand as the others know it, and what they told."""
    floor = FLOOR * rate / (1 + len(others))
    pool = (1 - FLOOR) * rate
    granted = _granted(pool, [own_demand, *(it.demand for it in others)])
    rest = (pool - sum(granted)) / len(granted)
    room = rate - sum(it.share for it in others)
    return max(floor, min(floor + granted[0] + rest, room))


def _granted(pool: float, demands: Sequence[float]) -> list[float]:
    """Grant every demand, or cut the largest ones to the same level."""
    level, left = 0.0, pool
    for index, demand in enumerate(sorted(demands)):
        level = left / (len(demands) - index)
        if demand > level:
            return [min(it, level) for it in demands]
        left -= demand
    return list(demands)


@dataclasses.dataclass(slots=True, kw_only=True)
class Bucket:
    """A token bucket, and a count of what was asked of it.

    Instants are seconds of a clock that never goes back. Whatever comes while there is a token is
    let in, and paid off afterwards, however much it costs: if it had to wait for more, small
    requests could keep it out forever.
    """

    share: float
    level: float
    filled_at: float
    asked: float = 0.0
    taken: float = 0.0
    demand: float = 0.0
    hinted_until: float = 0.0

    def take(self, cost: float, now: float) -> bool:
        """Take tokens if there are any; what costs nothing needs none."""
        self.asked += cost
        self._fill(now)
        if cost and self.level < min(cost, 1.0):
            return False
        self.level -= cost
        self.taken += cost
        return True

    def give_back(self, cost: float) -> None:
        self.level += cost
        self.taken -= cost
        self.asked -= cost

    def room(self, now: float) -> int:
        """Return how many whole tokens there are."""
        self._fill(now)
        return max(0, int(self.level))

    def is_full(self, now: float) -> bool:
        self._fill(now)
        return self.level >= self._size

    def fills_in(self, count: float, now: float) -> float:
        """Return the seconds until there are so many tokens, or as many as it holds."""
        self._fill(now)
        missing = max(0.0, min(count, self._size) - self.level)
        return missing / max(self.share, 1 / HINT_SECONDS_MAX)

    def wait_seconds(self, cost: float, now: float) -> float:
        """Return in how many seconds to ask again for what was refused.

        Each refusal gets a later instant than the one before it, as the bucket fills.
        """
        at = max(self.hinted_until, now + self.fills_in(1.0, now))
        spacing = cost / max(self.share, 1 / HINT_SECONDS_MAX)
        self.hinted_until = min(at + spacing, now + HINT_SECONDS_MAX)
        return min(max(at - now, HINT_SECONDS_MIN), HINT_SECONDS_MAX)

    def measure(self, seconds: float) -> float:
        """Begin a new measurement of the demand; return the rate of what was taken."""
        seconds = max(seconds, 1e-3)
        self.demand = max(self.asked / seconds, self.demand / 2)
        if self.demand < _SILENT:
            self.demand = 0.0
        used, self.asked, self.taken = self.taken / seconds, 0.0, 0.0
        return used

    def resize(self, share: float, now: float) -> None:
        """Fill at another rate from now on."""
        self._fill(now)
        if share > self.share:
            # Those who were told to wait longer leave it to those who ask now.
            self.hinted_until = now + (self.hinted_until - now) * self.share / share
        self.share = share
        self.level = min(self.level, self._size)

    @property
    def _size(self) -> float:
        return max(1.0, self.share * BURST_SECONDS)

    def _fill(self, now: float) -> None:
        passed = max(0.0, now - self.filled_at)
        self.level = min(self._size, self.level + passed * self.share)
        self.filled_at = max(self.filled_at, now)
