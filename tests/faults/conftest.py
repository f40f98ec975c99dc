"""What every fault test may ask for: a database behind a proxy, an observer past it, and a seed.

And what none can go without: the doctor looks at its database when it is over.

Where chance has a say, it is a `random.Random` of the seed in the report's header; the same one is
taken again with FAULTS_SEED=n.
"""

import os
import random
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from tests.support.engine.replica import Replica, running_replica
from tests.support.faults.env import QUICK, FaultEnv, open_fault_env
from tests.support.faults.load import BRIEF
from tests.support.postgres.cluster import Cluster
from tests.support.postgres.proxy import Proxy, running_proxy
from tests.support.storage.doctor.judge import ailments

SEED = int(os.environ.get("FAULTS_SEED") or secrets.randbelow(1_000_000))


def pytest_report_header() -> str:
    return f"faults: seed {SEED} (FAULTS_SEED={SEED} takes it again)"


@pytest.fixture(scope="session")
def cluster(durable_cluster: Cluster) -> Cluster:
    """Return a server in which the doctor, who looks at all, finds nothing wrong."""
    return durable_cluster


DATABASES = ("database", "own_database", "conninfo")
"""The fixtures that are the conninfo of a database with the schema."""


JUDGED_EVERY = 20
"""Cases of a matrix between two looks of the doctor, who takes as long as a case does."""


@pytest.fixture(autouse=True)
def last_judge(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have the doctor look at the database of every test, once everything else of it has ended.

    Cases of a matrix share a database and delete nothing of each other: there it looks at each
    twentieth and at the last, and finds what any of them has left.
    """
    databases = [
        request.getfixturevalue(name) for name in DATABASES if name in request.fixturenames
    ]
    assert databases, "a fault test has a database, by one of the names that the judge knows"
    yield
    if _is_judged(request.node):
        assert [each for database in databases for each in ailments(database)] == []


def _is_judged(test: pytest.Item) -> bool:
    if test.get_closest_marker("matrix") is None:
        return True
    cases = [item for item in test.session.items if item.path == test.path]
    return test is cases[-1] or cases.index(test) % JUDGED_EVERY == 0


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Return the chance of one test, which others before it have no part in."""
    print(f"FAULTS_SEED={SEED}")  # noqa: T201  shown where the test fails
    return random.Random(f"{SEED} {request.node.name}")


@pytest.fixture(scope="module")
def quick_news() -> Iterator[None]:
    """Have the slow round over the waiting callers be a quick one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("progressor.runtime.effects.replies._SAFETY_SECONDS", 0.1)
        yield


@pytest.fixture(scope="module")
def observer(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="module")
def proxy(database: str) -> Iterator[Proxy]:
    """Return a way to the module's database that fails when told to."""
    with running_proxy(database) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def behind(
    request: pytest.FixtureRequest,
    proxy: Proxy,
    quick_news: None,  # noqa: ARG001  set before the engine starts
) -> AsyncIterator[Replica]:
    """Return a quick engine behind the proxy, with the SETTINGS of the module."""
    settings = getattr(request.module, "SETTINGS", {})
    async with running_replica(proxy.conninfo, {**QUICK, **settings}) as replica:
        yield replica
        proxy.restore()


@pytest_asyncio.fixture(loop_scope="module")
async def env(
    request: pytest.FixtureRequest,
    proxy: Proxy,
    behind: Replica,
    observer: psycopg.Connection[Any],
) -> AsyncIterator[FaultEnv]:
    """Return an environment on that engine, with the RETRY_POLICY of the module, if any."""
    policy = getattr(request.module, "RETRY_POLICY", None)
    options = {} if policy is None else {"retry_policy": policy}
    async with open_fault_env(proxy, behind, observer, **options) as env:
        yield env


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def second_replica(request: pytest.FixtureRequest, database: str) -> AsyncIterator[Replica]:
    """Return a replica that stays, has its own way to the database, and scans."""
    settings = getattr(request.module, "STAYING", {})
    async with running_replica(database, settings) as replica:
        yield replica


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas(conninfo: str) -> AsyncIterator[tuple[Replica, Replica]]:
    """Return two engines on that database that soon notice an absence."""
    async with running_replica(conninfo, BRIEF) as here, running_replica(conninfo, BRIEF) as there:
        yield here, there
