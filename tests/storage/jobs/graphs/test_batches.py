"""A batch of settlements does to jobs what they do one by one, even with lost leases."""

import asyncio
import datetime as dt
import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from progressor.domain.processes.intent import Lost, Outcome, SetTimer
from tests.support.clock import ManualClock
from tests.support.models.jobs.graphs import random_graph, specs
from tests.support.storage.jobs.store import DONE, job_store, leader_of
from tests.support.storage.store import (
    BROKEN,
    NO_TIME,
    UNREACHABLE,
    create_namespace,
    empty,
    running_stores,
    success,
)

LEADERS = [leader_of(number) for number in range(2)]
NODES = 8
BATCHES_MAX = 40
MINUTE = dt.timedelta(minutes=1)
OUTCOMES: tuple[Outcome, ...] = (
    DONE, DONE, DONE, DONE, BROKEN, UNREACHABLE, success(), success(SetTimer(after=NO_TIME)),
)  # fmt: skip


@pytest.fixture(scope="module")
def observer(database: str) -> Iterator[psycopg.Connection[Any]]:
    create_namespace(database)
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@settings(max_examples=settings().max_examples // 2)
@given(seed=st.integers(0, 2**32))
def test_it_is_as_if_one_came_after_the_other(
    database: str, observer: psycopg.Connection[Any], seed: int
) -> None:
    at_once = asyncio.run(_play(database, observer, seed, is_batched=True))
    one_by_one = asyncio.run(_play(database, observer, seed, is_batched=False))

    assert at_once == one_by_one


async def _play(
    database: str, observer: psycopg.Connection[Any], seed: int, *, is_batched: bool
) -> list[Any]:
    """Return the pictures of both jobs after each batch."""
    empty(observer)
    chance, pictures = random.Random(seed), list[Any]()
    clock = ManualClock()
    async with running_stores(database, clock=clock) as [store]:
        jobs = job_store(store)
        for leader in LEADERS:
            await jobs.submit(leader, specs(random_graph(chance, NODES)))
        for _ in range(BATCHES_MAX):
            clock.advance(MINUTE)
            claimed = [each.task for each in await store.claim_due(limit=1000)]
            if not claimed:
                break
            claimed.sort(key=lambda task: task.key.process_id)
            chance.shuffle(claimed)
            # Only its replica knows that a lease is gone.
            lost = [task for task in claimed if chance.random() < 0.2]
            for task in lost:
                await jobs.settled(task, Lost())
            entries = [await jobs.entry(task, chance.choice(OUTCOMES)) for task in claimed]
            if is_batched:
                await asyncio.gather(*map(store.settlements.submit, entries))
            else:
                for entry in entries:
                    await store.settlements.submit(entry)
            pictures += [await jobs.picture(leader) for leader in LEADERS]
    return pictures
