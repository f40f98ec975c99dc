"""What several system tests ask for: an engine for the command line, a server, a stage.

A file that needs more of one of these has its own under the same name.
"""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.support.api_engine import Engine, running_engine
from tests.support.replica import QUIET, Replica, Stage, open_stage, running_replica
from tests.support.scripted_engine import Cli, ScriptedEngine, command_line


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    """Return an engine with scripted answers, for the command line."""
    with ScriptedEngine().running() as running:
        yield running


@pytest.fixture
def cli(engine: ScriptedEngine, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Return the command line, whose commands go to the scripted engine."""
    return command_line(engine, capfd)


@pytest.fixture(params=["unary", "session"])
async def api(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    """Return a server with collaborators in memory; asked by single calls, and by sessions."""
    async with running_engine(in_sessions=request.param == "session") as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    """Return a replica that no scan ever helps."""
    async with running_replica(database, QUIET) as replica:
        yield replica


@pytest_asyncio.fixture(loop_scope="module")
async def stage(replica: Replica) -> AsyncIterator[Stage]:
    """Return a stage on that replica."""
    async with open_stage(replica) as stage:
        yield stage
