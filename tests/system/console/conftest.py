"""A console in front of the module's replica, and somebody who visits it."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.support.console.console import Console, running_console
from tests.support.console.guarded import GUARDED, Guarded, running_guarded
from tests.support.console.visitor import Visitor
from tests.support.engine.replica import Replica, running_replica
from tests.support.postgres.cluster import Cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def console(replica: Replica) -> AsyncIterator[Console]:
    async with running_console(replica.address) as console:
        yield console


@pytest_asyncio.fixture(loop_scope="module")
async def visitor(console: Console) -> Visitor:
    return console.visitor()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(cluster: Cluster) -> AsyncIterator[Guarded]:
    """Return a console of an engine with access control, on a database of its own."""
    database = cluster.create_database("progressor_template")
    async with (
        running_replica(database, GUARDED) as replica,
        running_guarded(database, replica) as found,
    ):
        yield found
    cluster.drop_database(database)
