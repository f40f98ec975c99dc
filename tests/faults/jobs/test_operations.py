"""All that the engine does for jobs, with every fault in the middle of it.

Each operation meets a third of the faults, every fault a third of the operations, and of the two
stalls, which take long, one in three does; with FAULTS_ALL=1 all meet all.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from progressor.sdk import RetryPolicy
from tests.support.engine.replica import running_replica
from tests.support.faults.faults import FAULTS
from tests.support.faults.ground import QUICK, UNHURRIED, open_ground
from tests.support.faults.jobs import DIAMOND, OPERATIONS, JobGround, Play, recovery
from tests.support.postgres.proxy import Proxy

pytestmark = pytest.mark.asyncio(loop_scope="module")

CELL_SECONDS = 60
PATIENT = RetryPolicy(attempts_max=100)
STALLS = ("stalled before", "stalled after")


def is_chosen(row: int, name: str) -> bool:
    """Whether a cell is among those that are always played."""
    if os.environ.get("FAULTS_ALL"):
        return True
    if name in STALLS:
        return row % 6 == 3 * STALLS.index(name)
    return (row + list(FAULTS).index(name)) % 3 == 0


CELLS = [
    pytest.param(play, name, id=f"{play.__name__}, {name}")
    for row, play in enumerate(OPERATIONS)
    for name in FAULTS
    if is_chosen(row, name)
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on(
    database: str,
    proxy: Proxy,
    observer: psycopg.Connection[Any],
    quick_news: None,  # noqa: ARG001  set before the engine starts
) -> AsyncIterator[JobGround]:
    async with (
        running_replica(proxy.conninfo, {**QUICK, **UNHURRIED}) as replica,
        open_ground(proxy, replica, observer, retry_policy=PATIENT) as ground,
    ):
        yield JobGround(ground=ground, conninfo=database)
        proxy.restore()


@pytest.mark.matrix
@pytest.mark.parametrize(("play", "fault"), CELLS)
async def test_a_fault_in_the_middle_of_a_job_loses_nothing_and_does_nothing_twice(
    on: JobGround, play: Play, fault: str
) -> None:
    points = on.ground.env.points
    recovered = points.count("job_recovered")
    try:
        async with asyncio.timeout(CELL_SECONDS):
            await play(on, FAULTS[fault])
            await on.at_rest()
    finally:
        on.ground.proxy.restore()

    on.ground.judge()
    # Whatever was cut off, the engine has come to terms with it by itself.
    assert play is recovery or points.count("job_recovered") == recovered


@pytest.mark.parametrize("name", ["", "/b"], ids=["leader", "follower"])
async def test_whoever_keeps_a_process_of_a_job_locked_keeps_no_other_job(
    on: JobGround, name: str
) -> None:
    locked, hang = await on.held(DIAMOND, "b")
    other, other_hang = await on.held(DIAMOND, "b")
    async with on.locked(f"{locked}{name}"):
        hang.released.set()
        other_hang.released.set()
        await on.ground.until(lambda: on.state(other) == "done")
        assert on.state(locked) == "running"
    await on.done(locked, DIAMOND)
    await on.done(other, DIAMOND)

    on.ground.judge()
