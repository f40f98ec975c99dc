"""Rates shared by replicas: never much over the quota, and never starving anybody.

Replicas come, go, and are late with their heartbeats, or cease to send any; demand moves between
them; clocks jump ahead.
"""

import dataclasses
import math
from typing import cast

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from progressor import errors
from progressor.clock import Clock
from progressor.domain.processes.task import TaskType
from progressor.domain.quotas.quotas import Quota, Quotas
from progressor.domain.quotas.rates import FLOOR, Told, next_share
from progressor.runtime.core.context import Context
from progressor.runtime.core.rates import Rates
from tests.support.builders import make_namespace, make_request

STEP = 0.25
BEAT_SECONDS = 1.0
LEASE_SECONDS = 5.0
KEPT_SECONDS = 0.9 * LEASE_SECONDS
"""After how long without a heartbeat a replica lets go of what it has."""

WINDOW = 10.0
OVER = 1.25
"""How much over its rate a namespace may get within WINDOW, whatever the replicas do."""


@dataclasses.dataclass
class Time:
    now_seconds: float = 1000.0

    def monotonic(self) -> float:
        return self.now_seconds


class Replica:
    def __init__(self, time: Time) -> None:
        self.rates = Rates(Context(clock=cast("Clock", time)))
        self.demand = 0.0
        self.unsent = 0.0
        self.next_beat = time.now_seconds
        self.beaten_at = time.now_seconds - LEASE_SECONDS
        self.row: object = None


class Sharing(RuleBasedStateMachine):
    @initialize(
        rate=st.sampled_from([1, 7, 100, 1000]),
        count=st.integers(1, 4),
        seconds_each=st.sampled_from([0, 0, 2, 5]),
    )
    def begin(self, rate: int, count: int, seconds_each: int = 0) -> None:
        """Begin with starts; or with requests whose bytes take seconds of the whole rate each."""
        self.time = Time()
        self.rate = rate
        self.cost = rate * seconds_each or 1
        quotas = Quotas(bytes_per_second=rate) if seconds_each else Quotas(starts_per_second=rate)
        self.namespace = make_namespace(quotas=quotas)
        self.request = make_request(task_type=TaskType.INIT, args=bytes(self.cost))
        self.replicas: list[Replica] = []
        self.accepted: list[float] = []
        self.hints: list[float] = []
        self.joined: list[float] = []
        for _ in range(count):
            self.join()

    @precondition(lambda self: len(self.replicas) < 5)
    @rule()
    def join(self) -> None:
        self.replicas.append(Replica(self.time))
        self.joined.append(self.time.now_seconds)
        self.beat(self.replicas[-1])

    @precondition(lambda self: len(self.replicas) > 1)
    @rule(index=st.integers(0, 4))
    def leave(self, index: int) -> None:
        del self.replicas[index % len(self.replicas)]

    @rule(index=st.integers(0, 4), times=st.sampled_from([0.0, 0.1, 0.5, 1.0, 5.0]))
    def move_demand(self, index: int, times: float) -> None:
        self.replicas[index % len(self.replicas)].demand = times * self.rate

    @rule(index=st.integers(0, 4), seconds=st.floats(0.5, LEASE_SECONDS - 0.5))
    def delay_beat(self, index: int, seconds: float) -> None:
        late = self.replicas[index % len(self.replicas)]
        late.next_beat = max(late.next_beat, late.beaten_at + seconds)

    @rule(index=st.integers(0, 4))
    def fall_silent(self, index: int) -> None:
        silent = self.replicas[index % len(self.replicas)]
        silent.next_beat = self.time.now_seconds + 4 * LEASE_SECONDS

    @rule(seconds=st.sampled_from([1.0, 3.0, 12.0]))
    def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds / STEP)):
            self.time.now_seconds += STEP
            for replica in self.replicas:
                if replica.next_beat <= self.time.now_seconds:
                    self.beat(replica)
                if self.time.now_seconds - replica.beaten_at >= KEPT_SECONDS:
                    replica.rates.let_go(lambda _: self.namespace)
                self.send(replica)
        self.check()

    @rule(seconds=st.sampled_from([20.0, 3600.0]))
    def jump(self, seconds: float) -> None:
        self.time.now_seconds += seconds
        for replica in self.replicas:
            self.beat(replica)

    def beat(self, replica: Replica) -> None:
        now = self.time.now_seconds
        # What a heartbeat reports was computed at the last one, as in the thread of the heartbeat.
        replica.row, replica.beaten_at, replica.next_beat = replica.rates.told, now, now + 1.0
        others = [it for it in self.replicas if it is not replica]
        live = [it.row or None for it in others if now - it.beaten_at <= LEASE_SECONDS]
        replica.rates.share(cast("list[None]", live), lambda _: self.namespace)

    def send(self, replica: Replica) -> None:
        replica.unsent += replica.demand * STEP
        while replica.unsent >= self.cost:
            replica.unsent -= self.cost
            if self.is_taken(replica):
                self.accepted.append(self.time.now_seconds)

    def is_taken(self, replica: Replica) -> bool:
        try:
            return replica.rates.take(self.namespace, self.request)
        except errors.QuotaExceededError as error:
            self.hints.append(error.retry_after.total_seconds())
            return False

    def check(self) -> None:
        assert all(0 < it <= 11.0 for it in self.hints)
        self.hints.clear()
        now = self.time.now_seconds
        count = sum(it > now - WINDOW for it in self.accepted)
        # A bucket lets its last request in whole.
        joined = sum(it > now - WINDOW - 1 for it in self.joined)
        last = (len(self.replicas) + joined) * self.cost
        assert count * self.cost <= OVER * self.rate * WINDOW + last

    def teardown(self) -> None:
        if not getattr(self, "replicas", None):
            return
        for replica in self.replicas:
            replica.demand = 0.0
        # Whoever waits as long as it was told gets in, though nobody lends it anything.
        self.time.now_seconds += 10 * len(self.replicas) / FLOOR
        assert all(self.is_taken(replica) for replica in self.replicas)


TestSharing = Sharing.TestCase


@given(
    st.integers(1, 10**6),
    st.lists(st.floats(0, 1e7), min_size=1, max_size=8),
)
def test_replicas_that_know_the_same_share_the_whole_rate(rate: int, demands: list[float]) -> None:
    told = [Told(it, 0.0) for it in demands]

    shares = [
        next_share(rate, it.demand, told[:index] + told[index + 1 :])
        for index, it in enumerate(told)
    ]

    assert math.isclose(sum(shares), rate)
    assert min(shares) >= FLOOR * rate / len(demands) * 0.999


def test_a_lone_busy_replica_soon_gets_nearly_the_whole_rate() -> None:
    machine = Sharing()
    machine.begin(rate=100, count=3)
    machine.replicas[1].demand = 500.0

    machine.pass_time(5.0)
    before = len(machine.accepted)
    machine.pass_time(10.0)

    assert 0.9 * 1000 <= len(machine.accepted) - before <= 1.1 * 1000


def test_two_busy_replicas_get_equal_parts_and_an_idle_one_nothing_of_them() -> None:
    machine = Sharing()
    machine.begin(rate=100, count=3)
    for replica in machine.replicas[:2]:
        replica.demand = 300.0

    machine.pass_time(10.0)

    shares = [it.rates.told["orders"][Quota.STARTS_PER_SECOND][1] for it in machine.replicas]
    assert shares[0] == shares[1] > 10 * shares[2]


def test_a_replica_without_heartbeats_leaves_its_share_to_the_others() -> None:
    machine = Sharing()
    machine.begin(rate=100, count=2)
    for replica in machine.replicas:
        replica.demand = 500.0
    machine.pass_time(12.0)

    machine.fall_silent(0)
    machine.pass_time(2 * LEASE_SECONDS)
    before = len(machine.accepted)
    machine.pass_time(10.0)

    assert 0.9 * 1000 <= len(machine.accepted) - before <= 1.1 * 1000
