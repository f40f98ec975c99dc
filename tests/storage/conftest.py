"""What several storage tests ask for: a place for a server of their own, replicas with jobs."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from tests.support.clock import ManualClock
from tests.support.postgres.cluster import put_cluster
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.jobs.store import JobStore, job_store
from tests.support.storage.store import create_namespace, empty, running_stores


@pytest.fixture
def home() -> Iterator[Path]:
    """Yield a short directory that every user may enter, unlike tmp_path."""
    path = Path(tempfile.mkdtemp(prefix="progressor-embedded-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def data(home: Path) -> Path:
    """Return where a server may keep its data."""
    return home / "data"


@pytest.fixture
def made(data: Path) -> Path:
    """Return a directory with a ready cluster, for tests that are not about creating one."""
    put_cluster(data)
    return data


@pytest.fixture(scope="module")
def observer(database: str) -> Iterator[psycopg.Connection[Any]]:
    """Yield a connection that looks on."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest_asyncio.fixture(loop_scope="module")
async def pair(database: str, observer: psycopg.Connection[Any]) -> AsyncIterator[list[JobStore]]:
    """Return the storage of two replicas, in which nothing is wrong in the end."""
    create_namespace(database)
    empty(observer)
    clock = ManualClock()
    async with running_stores(database, count=2, clock=clock) as stores:
        yield [job_store(store) for store in stores]
    assert broken_invariants(observer, now=clock.now()) == {}


@pytest.fixture
def jobs(pair: list[JobStore]) -> JobStore:
    """Return the storage of the first of the two."""
    return pair[0]
