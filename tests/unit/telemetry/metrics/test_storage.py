"""What is read of storage: how the pools are doing, and what stands in line."""

from typing import cast

from progressor.storage.postgres.pools import Pool, Pools
from progressor.telemetry.metrics.registry import Metrics
from tests.support.telemetry.measured import counted


class CountedPool:
    """A pool as its statistics tell of it."""

    def __init__(self, name: str, *, lent: int, **stats: int) -> None:
        self.name, self.lent_count, self.stats = name, lent, stats

    def get_stats(self) -> dict[str, int]:
        return self.stats


def pools() -> Pools:
    front = CountedPool("front", lent=3, pool_available=5, requests_waiting=2, requests_wait_ms=70)
    worker = CountedPool("worker", lent=0, pool_available=1)
    scan = CountedPool("scan", lent=1, requests_wait_ms=1)
    return Pools(front=cast("Pool", front), worker=cast("Pool", worker), scan=cast("Pool", scan))


def test_connections_are_used_or_idle_and_who_waits_is_told_by_pool() -> None:
    metrics = Metrics()

    pools().observed_by(metrics)

    assert counted(metrics.pool_connections) == {
        ("front", "used"): 3, ("front", "idle"): 5,
        ("worker", "used"): 0, ("worker", "idle"): 1,
        ("scan", "used"): 1, ("scan", "idle"): 0,
    }  # fmt: skip
    assert counted(metrics.pool_waiting) == {("front",): 2, ("worker",): 0, ("scan",): 0}
    assert counted(metrics.pool_wait) == {("front",): 70, ("worker",): 0, ("scan",): 1}
