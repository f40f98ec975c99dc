"""A console in front of the module's replica, and somebody who visits it."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.support.console.console import Console, running_console
from tests.support.console.visitor import Visitor
from tests.support.engine.replica import Replica


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def console(replica: Replica) -> AsyncIterator[Console]:
    async with running_console(replica.address) as console:
        yield console


@pytest_asyncio.fixture(loop_scope="module")
async def visitor(console: Console) -> Visitor:
    return console.visitor()
