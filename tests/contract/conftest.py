"""Storage on a real PostgreSQL: one database a module, processes of their own for each test."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from tests.support.clock import ManualClock
from tests.support.storage.jobs.store import JobStore, job_store
from tests.support.storage.store import Store, create_namespace, empty, running_stores


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
def store(stores: tuple[Store, ...]) -> Store:
    return stores[0]


@pytest.fixture
def other(stores: tuple[Store, ...]) -> Store:
    return stores[1]


@pytest.fixture
def jobs(store: Store) -> JobStore:
    return job_store(store)


@pytest.fixture(scope="module")
def observer(database: str) -> Iterator[psycopg.Connection[Any]]:
    """Return a connection to look at the tables with."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture(autouse=True)
def _emptied(observer: psycopg.Connection[Any]) -> None:
    """Begin without processes: what is due is due because of the test."""
    empty(observer, keep=("namespaces", "replicas"))
