"""Two replicas on one database, and environments with gates on them."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.support.engine.gates import Gated, open_gated, running_pair
from tests.support.engine.replica import Replica


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas(database: str) -> AsyncIterator[tuple[Replica, Replica]]:
    async with running_pair(database) as pair:
        yield pair


@pytest_asyncio.fixture(loop_scope="module")
async def gated(database: str, replicas: tuple[Replica, Replica]) -> AsyncIterator[Gated]:
    here, there = replicas
    async with open_gated(database, here, there.address) as gated:
        yield gated


@pytest_asyncio.fixture(loop_scope="module")
async def two_workers(database: str, replicas: tuple[Replica, Replica]) -> AsyncIterator[Gated]:
    """Return an environment with a single worker in each replica."""
    here, there = replicas
    async with open_gated(database, here, there.address, worker_count_max=1) as gated:
        yield gated
