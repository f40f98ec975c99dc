"""Replicas whose clocks are hours apart: nothing that they share goes by them."""

import datetime as dt
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.faults.replicas.crowd import crowd_at_work
from tests.support.clock import JumpingClock, SkewedClock
from tests.support.engine.replica import (
    NOW_AND_THEN,
    Env,
    answering,
    running_replica,
    timer,
    unavailable,
)
from tests.support.faults.env import EVENTS, LEASED, asked_twice, rows, until
from tests.support.processor.scripted import Answer, Hang
from tests.support.storage.doctor.judge import judged_env

HOUR = dt.timedelta(hours=1)
COUNT = 10
LEASE_AND_SCANS = 5.0
"""Lease timeout (1 s) and a few scans (0.2 s each), with patience for a busy machine."""

LEASE_LEFT = 0.5
"""What is left of the lease of who is killed, at least: a heartbeat goes each 0.2 s."""

SCANS = 15
"""Of zombies, in which a lease timeout passes, and some more."""


@pytest.fixture
def own_observer(own_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(own_database, autocommit=True) as connection:
        yield connection


def events(observer: psycopg.Connection[Any], env: Env) -> list[bytes]:
    found: dict[str, list[bytes]] = dict(rows(observer, env, EVENTS))
    return found.get("p", [])


async def test_they_share_processes_timers_and_retries_as_if_they_were_not(
    own_database: str, own_observer: psycopg.Connection[Any]
) -> None:
    async with (
        running_replica(own_database, clock=SkewedClock(HOUR)) as ahead,
        running_replica(own_database, clock=SkewedClock(-HOUR)) as behind,
        judged_env(ahead, retry_policy=NOW_AND_THEN) as env,
        env.client_at(behind.address) as there,
    ):
        env.processor.on_process(
            "p",
            answering(b"started", set_timer=timer(0.2)),
            unavailable(),
            answering(b"fired"),
            Answer(),
        )
        begun_at = time.monotonic()
        await there.start("p")
        await until(ahead.points, lambda: events(own_observer, env) == [b"started", b"fired"])
        took = time.monotonic() - begun_at
        answers = [
            (await client.call("p", b"%d" % number)).response
            for number, client in enumerate((env.client, there, env.client, there))
        ]

        assert took < LEASE_AND_SCANS
        assert answers == [b"0", b"1", b"2", b"3"]
        assert events(own_observer, env) == [b"started", b"fired", *answers]
        for replica in (ahead, behind):
            assert replica.points.count("zombie_collected") == 0
            assert replica.points.count("abandoned") == 0
        assert asked_twice(env) == []


@pytest.mark.parametrize("ahead", [HOUR, -HOUR], ids=["ahead", "behind"])
async def test_a_replica_with_a_wrong_clock_takes_over_when_the_lease_ends_and_no_sooner(
    own_database: str, own_observer: psycopg.Connection[Any], tmp_path: Path, ahead: dt.timedelta
) -> None:
    async with (
        running_replica(own_database, clock=SkewedClock(ahead)) as second_replica,
        judged_env(second_replica) as env,
        crowd_at_work(env, own_observer, tmp_path, count=COUNT) as crowd,
    ):
        too_early = second_replica.points.count("zombie_collected")
        crowd.victim.kill()
        killed_at = time.monotonic()
        await second_replica.points.wait("zombie_collected")
        first = time.monotonic() - killed_at
        here = [await caller for caller in crowd.callers_here]
        took = time.monotonic() - killed_at

        assert too_early == 0
        assert first > LEASE_LEFT
        assert took < LEASE_AND_SCANS
        assert set(here) == {b"4"}
        assert asked_twice(env) == []


async def test_postgresqls_clock_that_jumps_ahead_ends_no_lease(
    own_database: str, own_observer: psycopg.Connection[Any]
) -> None:
    clock = JumpingClock()
    async with (
        running_replica(own_database, clock=clock) as one,
        running_replica(own_database, clock=clock) as two,
        judged_env(one) as env,
        env.client_at(two.address) as there,
    ):
        hangs = [Hang() for _ in range(COUNT)]
        for number, hang in enumerate(hangs):
            await env.running(f"p{number}", hang)
            client = env.client if number % 2 else there
            await client.call(f"p{number}", accept_only=True)
        await env.processor.received(2 * COUNT)
        clock.ahead = HOUR
        for replica in (one, two):
            await replica.points.wait("clock_jumped")
            seen = replica.points.count("scanned", scan="zombies")
            await replica.points.wait("scanned", seen + SCANS, scan="zombies")
        for hang in hangs:
            hang.released.set()
        await until(one.points, lambda: not rows(own_observer, env, LEASED))

        assert [each.points.count("zombie_collected") for each in (one, two)] == [0, 0]
        assert [each.points.count("fenced") for each in (one, two)] == [0, 0]
        assert len(env.processor.requests) == 2 * COUNT
