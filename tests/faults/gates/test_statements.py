"""Every statement that has to do with gates, with every fault in the middle of it.

Of the two stalls, which take long, each operation meets one; with FAULTS_ALL=1 both.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from progressor.sdk import RetryPolicy
from tests.support.engine.gates import open_gated
from tests.support.engine.replica import running_replica
from tests.support.faults.faults import FAULTS
from tests.support.faults.gate_watch import watched_gates
from tests.support.faults.gates import OPERATIONS, GateGround, Play
from tests.support.faults.ground import QUICK, UNHURRIED, Ground
from tests.support.postgres.proxy import Proxy

pytestmark = pytest.mark.asyncio(loop_scope="module")

CELL_SECONDS = 60
PATIENT = RetryPolicy(attempts_max=100)
STALLS = ("stalled before", "stalled after")
CELLS = [
    pytest.param(play, name, id=f"{play.__name__}, {name}")
    for row, play in enumerate(OPERATIONS)
    for name in FAULTS
    if name not in STALLS or name == STALLS[row % 2] or os.environ.get("FAULTS_ALL")
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on(
    database: str,
    proxy: Proxy,
    observer: psycopg.Connection[Any],
    quick_news: None,  # noqa: ARG001
) -> AsyncIterator[GateGround]:
    async with (
        running_replica(proxy.conninfo, {**QUICK, **UNHURRIED}) as replica,
        open_gated(database, replica, one_at_a_time=False, retry_policy=PATIENT) as gated,
    ):
        ground = Ground(proxy=proxy, env=gated.env, observer=observer)
        with watched_gates(database):
            yield GateGround(ground=ground, gated=gated, conninfo=database)
            proxy.restore()


@pytest.mark.matrix
@pytest.mark.parametrize(("play", "fault"), CELLS)
async def test_a_fault_in_the_middle_leaves_no_gate_held_and_nobody_in_line(
    on: GateGround, play: Play, fault: str
) -> None:
    try:
        async with asyncio.timeout(CELL_SECONDS):
            await play(on, FAULTS[fault])
            await on.ground.at_rest()
            await on.gated.at_rest()
    finally:
        on.ground.proxy.restore()

    on.ground.judge()
    assert on.gated.holders() == {}
