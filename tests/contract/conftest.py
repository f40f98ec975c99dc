"""Storage on a real PostgreSQL: one database a module, processes of their own for each test."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from tests.support.clock import ManualClock
from tests.support.jobs_storage import JobDesk, job_desk
from tests.support.storage import Desk, create_namespace, empty, running_desks


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desks(database: str, clock: ManualClock) -> AsyncIterator[tuple[Desk, ...]]:
    """Return two replicas on one database."""
    create_namespace(database)
    async with running_desks(database, count=2, clock=clock) as desks:
        for each in desks:
            await each.beat()
        yield desks


@pytest.fixture
def desk(desks: tuple[Desk, ...]) -> Desk:
    return desks[0]


@pytest.fixture
def other(desks: tuple[Desk, ...]) -> Desk:
    return desks[1]


@pytest.fixture
def jobs(desk: Desk) -> JobDesk:
    return job_desk(desk)


@pytest.fixture(scope="module")
def eye(database: str) -> Iterator[psycopg.Connection[Any]]:
    """Return a connection to look at the tables with."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture(autouse=True)
def _emptied(eye: psycopg.Connection[Any]) -> None:
    """Begin without processes: what is due is due because of the test."""
    empty(eye, keep=("namespaces", "replicas"))
