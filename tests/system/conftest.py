"""What several system tests ask for: an engine for the command line, a server, an environment.

A module says with SETTINGS how its replica runs, and with ENV_OPTIONS what its namespaces are
like. A file that needs more of one of these has its own under the same name.
"""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.support.api.scripted_engine import Cli, ScriptedEngine, command_line
from tests.support.api.server import Engine, running_engine
from tests.support.engine.replica import QUIET, Env, Replica, open_env, running_replica


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
async def replica(request: pytest.FixtureRequest, database: str) -> AsyncIterator[Replica]:
    """Return a replica that no scan ever helps: whatever runs on it runs by itself."""
    settings = getattr(request.module, "SETTINGS", QUIET)
    async with running_replica(database, settings) as replica:
        yield replica
        assert settings is not QUIET or replica.points.count("scan_found") == 0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def second_replica(database: str) -> AsyncIterator[Replica]:
    """Return a replica that scans, and stays where others leave."""
    async with running_replica(database, {"replica.name": "second_replica"}) as replica:
        yield replica


@pytest_asyncio.fixture(loop_scope="module")
async def env(request: pytest.FixtureRequest, replica: Replica) -> AsyncIterator[Env]:
    async with open_env(replica, **getattr(request.module, "ENV_OPTIONS", {})) as env:
        yield env
