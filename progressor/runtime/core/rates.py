"""The rates of namespaces with quotas, as this replica may use them; see ``domain/quotas``.

Shares are exchanged with heartbeats. Of a rate for which no replica has any demand nothing is told,
and each takes its equal part.
"""

import asyncio
import datetime as dt
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from progressor import errors
from progressor.domain.processes.admission import Import, Request
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.task import TaskType
from progressor.domain.quotas.quotas import Quota
from progressor.domain.quotas.rates import BURST_SECONDS, FLOOR, Bucket, Told, next_share
from progressor.runtime.core.context import Context
from progressor.telemetry.instruments import Labels

FULL_SECONDS = 5.0
"""When to try again if a process must finish first, which may be at any time."""

LOOK_SECONDS, LOOK_SECONDS_MAX = 0.05, 1.0
"""How often held timers are looked at: for so much of their share at once."""

DEMAND_MAX = 2.0
"""What is told as the demand of held timers, as a multiple of their rate."""

_SILENT = 0.0, 0.0

_RATES = tuple(it for it in Quota if it is not Quota.OPEN_PROCESSES)
_OF_REQUESTS = {
    TaskType.INIT: Quota.STARTS_PER_SECOND,
    TaskType.CALL: Quota.CALLS_PER_SECOND,
    TaskType.NOTIFY: Quota.CALLS_PER_SECOND,
}
"""The rate that a request takes from. Repairs are free, since operators send them."""


class Rates:
    def __init__(
        self, context: Context, *, timers_have_room: Callable[[str], None] = lambda _: None
    ) -> None:
        """Begin with equal parts; ``timers_have_room`` is called once held timers may fire."""
        self.told: Mapping[str, Mapping[str, tuple[float, float]]] = {}
        """What the next heartbeat tells; replaced as a whole, so that its thread may read it."""
        self._clock, self._metrics = context.clock, context.metrics
        self._jitter = context.spread
        self._buckets: dict[str, dict[Quota, Bucket]] = {}
        self._used: list[tuple[Labels, float]] = []
        self._others_count = 0
        self._timers_have_room = timers_have_room
        self._held: dict[str, asyncio.TimerHandle] = {}
        """The namespaces where due timers wait for their quota, and when to look again."""
        self._begun_at = self._shared_at = math.inf

    def take(self, namespace: Namespace, request: Request | Import) -> bool:
        """Take what a request costs; return whether it costs anything.

        Raises:
            QuotaExceededError: A quota is used up; nothing was taken.
        """
        now, taken = self._clock.monotonic(), list[tuple[Bucket, float]]()
        for quota, cost in _costs(request):
            bucket = self._bucket(namespace, quota, now)
            if bucket is None or bucket.take(cost, now):
                taken.extend(() if bucket is None else [(bucket, cost)])
                continue
            for other, amount in taken:
                other.give_back(amount)
            raise self._refusal(namespace, quota, bucket.wait_seconds(cost, now))
        return bool(taken)

    def give_back(self, namespace: Namespace, request: Request | Import) -> None:
        """Return what a request took that was there before."""
        for quota, cost in _costs(request):
            bucket = self._buckets.get(namespace.name, {}).get(quota)
            if bucket is not None:
                bucket.give_back(cost)

    def full(self, namespace: Namespace) -> errors.QuotaExceededError:
        """Return how a start is refused above the quota of open processes."""
        return self._refusal(namespace, Quota.OPEN_PROCESSES, FULL_SECONDS)

    def take_timers(self, namespace: Namespace, count: int, *, oldest: bool) -> int:
        """Return how many timers may fire, at most `count`, and take them.

        While some wait, only the `oldest` may, which are found by a search.
        """
        if not namespace.quotas.timers_per_second:
            return count
        now = self._clock.monotonic()
        bucket = self._bucket(namespace, Quota.TIMERS_PER_SECOND, now)
        assert bucket is not None, "it has a quota"
        granted = 0
        if oldest or namespace.name not in self._held:
            granted = min(count, bucket.room(now))
            bucket.take(granted, now)
        if not granted:
            self.hold_timers(namespace)
        return granted

    def give_back_timers(self, namespace: str, count: int) -> None:
        bucket = self._buckets.get(namespace, {}).get(Quota.TIMERS_PER_SECOND)
        if bucket is not None:
            bucket.give_back(count)

    def hold_timers(self, namespace: Namespace) -> None:
        """Let due timers wait until there is room for some of them."""
        now, name = self._clock.monotonic(), namespace.name
        bucket = self._bucket(namespace, Quota.TIMERS_PER_SECOND, now)
        if bucket is None:
            return
        if name in self._held and self._held[name].when() > asyncio.get_running_loop().time():
            return
        seconds = bucket.fills_in(max(1.0, bucket.share * LOOK_SECONDS), now)
        self._held[name] = asyncio.get_running_loop().call_later(
            min(max(seconds, LOOK_SECONDS), LOOK_SECONDS_MAX), self._timers_have_room, name
        )

    def release_timers(self, namespace: str) -> None:
        """Note that no due timers wait any longer."""
        if (handle := self._held.pop(namespace, None)) is not None:
            handle.cancel()

    def share(
        self,
        others: Sequence[Mapping[str, Any] | None],
        find: Callable[[str], Namespace | None],
    ) -> None:
        """Adjust the shares by what a heartbeat has read of the other replicas."""
        now = self._clock.monotonic()
        self._begun_at = min(self._begun_at, now)
        seconds, self._shared_at = now - self._shared_at, now
        self._others_count = len(others)
        told: dict[str, dict[str, tuple[float, float]]] = {}
        used: list[tuple[Labels, float]] = []
        active = {*self._buckets, *itertools.chain.from_iterable(filter(None, others))}
        for name, quota in itertools.product(active, _RATES):
            namespace = find(name)
            bucket = None if namespace is None else self._bucket(namespace, quota, now)
            if namespace is None or bucket is None:
                self._forget(name, quota)
                continue
            limit = namespace.quotas.limit(quota)
            found = [_told(it, name, quota, limit / (1 + len(others))) for it in others]
            # By what the others know of it, so that all find the same.
            own = self.told.get(name, {}).get(quota, _SILENT)[0]
            bucket.resize(next_share(limit, min(own, limit), found), now)
            used.append(((name, quota), bucket.measure(seconds) / limit))
            held = quota is Quota.TIMERS_PER_SECOND and name in self._held
            # What is held is not counted, and tells the others that there is some.
            demand = DEMAND_MAX * limit if held else min(bucket.demand, limit)
            if demand or any(it.demand for it in found):
                told.setdefault(name, {})[quota] = (round(demand, 3), round(bucket.share, 3))
            elif bucket.is_full(now):
                # A new one will be full too; what a large request still owes must not be lost.
                self._forget(name, quota)
        self.told, self._used = told, used

    def let_go(self, find: Callable[[str], Namespace | None]) -> None:
        """Keep the floor of each share: without heartbeats of this one, others take the rest."""
        now = self._clock.monotonic()
        for name, buckets in self._buckets.items():
            namespace = find(name)
            if namespace is None:
                continue
            for quota, bucket in buckets.items():
                floor = FLOOR * namespace.quotas.limit(quota) / (1 + self._others_count)
                bucket.resize(min(bucket.share, floor), now)

    def used(self) -> Sequence[tuple[Labels, float]]:
        """Return the use of each rate as a share of the quota; from any thread."""
        return self._used

    def _bucket(self, namespace: Namespace, quota: Quota, now: float) -> Bucket | None:
        """Return the bucket of a rate; None: it has no limit."""
        limit = namespace.quotas.limit(quota)
        if not limit:
            return None
        buckets = self._buckets.setdefault(namespace.name, {})
        found = buckets.get(quota)
        if found is None:
            share = limit / (1 + self._others_count)
            # What it would have filled with since this replica began.
            level = max(1.0, share * min(BURST_SECONDS, now - self._begun_at))
            found = buckets[quota] = Bucket(share=share, level=level, filled_at=now)
        return found

    def _forget(self, name: str, quota: Quota) -> None:
        buckets = self._buckets.get(name, {})
        buckets.pop(quota, None)
        if not buckets:
            self._buckets.pop(name, None)

    def _refusal(
        self, namespace: Namespace, quota: Quota, seconds: float
    ) -> errors.QuotaExceededError:
        self._metrics.quota_refused.add(1, (namespace.name, quota))
        retry_after = dt.timedelta(seconds=seconds * (1 + 0.1 * self._jitter.random()))
        limit = namespace.quotas.limit(quota)
        return errors.QuotaExceededError(namespace.name, quota, limit, retry_after)


def _told(rates: Mapping[str, Any] | None, name: str, quota: Quota, equal_part: float) -> Told:
    found = ((rates or {}).get(name) or {}).get(quota)
    return Told(0.0, equal_part) if found is None else Told(*found)


def _costs(request: Request | Import) -> tuple[tuple[Quota, int], ...]:
    quota = _OF_REQUESTS.get(request.task_type)
    return () if quota is None else ((quota, 1), (Quota.BYTES_PER_SECOND, request.size))
