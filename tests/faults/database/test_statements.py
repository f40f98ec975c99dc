"""Every statement of the hot path and of the safety nets, with every fault in the middle of it.

Each operation meets each fault, over streams and sessions in one half of the cells and over single
calls in the other, and one of the two stalls, which take long; with FAULTS_ALL=1 all of them over
both.
"""

import asyncio
import contextlib
import datetime as dt
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from progressor.sdk import RetryPolicy
from tests.support.engine.replica import Replica, running_replica
from tests.support.faults.faults import FAULTS
from tests.support.faults.ground import QUICK, UNHURRIED, Ground, open_ground
from tests.support.faults.operations import OPERATIONS, Operation
from tests.support.postgres.proxy import Proxy

pytestmark = pytest.mark.asyncio(loop_scope="module")

CELL_SECONDS = 60
PATIENT = RetryPolicy(
    initial_interval=dt.timedelta(milliseconds=10), coefficient=1.0, jitter=0.0, attempts_max=100
)
"""A fault of storage never spends the attempts of a step, but one that strikes often might."""

UNARY = (False, True)
STALLS = ("stalled before", "stalled after")


def is_chosen(row: int, name: str, unary: bool) -> bool:
    """Whether a cell is among those that are always played."""
    if os.environ.get("FAULTS_ALL"):
        return True
    if name in STALLS and name != STALLS[row % 2]:
        return False
    turn = row // 2 if name in STALLS else row + list(FAULTS).index(name)
    return unary == bool(turn % 2)


CELLS = [
    pytest.param(operation, name, unary, id=f"{operation.name}, {name}{', unary' * unary}")
    for row, operation in enumerate(OPERATIONS)
    for name in FAULTS
    for unary in UNARY
    if is_chosen(row, name, unary)
]

GroundOf = Callable[[Operation, bool], Awaitable[Ground]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(proxy: Proxy, quick_news: None) -> AsyncIterator[Replica]:  # noqa: ARG001
    async with running_replica(proxy.conninfo, {**QUICK, **UNHURRIED}) as replica:
        yield replica
        proxy.restore()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground_of(
    proxy: Proxy, replica: Replica, observer: psycopg.Connection[Any]
) -> AsyncIterator[GroundOf]:
    """Return what gives an operation its namespace: opened once, for all that want one like it."""
    opened: dict[tuple[bool, bool, bool], Ground] = {}
    async with contextlib.AsyncExitStack() as stack:

        async def ground_of(operation: Operation, unary: bool) -> Ground:
            kind = (operation.single_file, operation.mortal, unary)
            if kind not in opened:
                options: dict[str, Any] = {"retry_policy": PATIENT}
                if operation.single_file:
                    options["worker_count_max"] = 1
                if operation.mortal:
                    options["finished_process_retention"] = dt.timedelta(milliseconds=1)
                opened[kind] = await stack.enter_async_context(
                    open_ground(
                        proxy, replica, observer, streaming=not unary, session=not unary, **options
                    )
                )
            return opened[kind]

        yield ground_of


@pytest.mark.matrix
@pytest.mark.parametrize(("operation", "fault", "unary"), CELLS)
async def test_a_fault_in_the_middle_loses_nothing_and_does_nothing_twice(
    ground_of: GroundOf, operation: Operation, fault: str, unary: bool
) -> None:
    ground = await ground_of(operation, unary)
    try:
        async with asyncio.timeout(CELL_SECONDS):
            await operation.play(ground, FAULTS[fault])
            await ground.at_rest()
    finally:
        ground.proxy.restore()

    ground.judge()
