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
from tests.support.storage.store import Store, create_namespace, empty, running_stores


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


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stores(database: str, clock: ManualClock) -> AsyncIterator[tuple[Store, ...]]:
    """Return two replicas on one database."""
    create_namespace(database)
    async with running_stores(database, count=2, clock=clock) as stores:
        for each in stores:
            await each.beat()
        yield stores


@pytest.fixture
def emptied(observer: psycopg.Connection[Any]) -> None:
    """Begin without processes: what is due is due because of the test."""
    empty(observer, keep=("namespaces", "replicas"))


@pytest.fixture
def store(stores: tuple[Store, ...], emptied: None) -> Store:  # noqa: ARG001
    return stores[0]


@pytest.fixture
def other(stores: tuple[Store, ...], emptied: None) -> Store:  # noqa: ARG001
    return stores[1]


@pytest.fixture
def jobs(store: Store) -> JobStore:
    return job_store(store)


@pytest_asyncio.fixture(loop_scope="module")
async def pair(database: str, observer: psycopg.Connection[Any]) -> AsyncIterator[list[JobStore]]:
    """Return the storage of two replicas, in which nothing is wrong in the end."""
    create_namespace(database)
    empty(observer)
    clock = ManualClock()
    async with running_stores(database, count=2, clock=clock) as stores:
        yield [job_store(store) for store in stores]
    assert broken_invariants(observer, now=clock.now()) == {}
