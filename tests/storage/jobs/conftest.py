"""Jobs of a replica, in which nothing is wrong in the end."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.jobs.store import JobStore, job_store
from tests.support.storage.store import Store


@pytest.fixture
def jobs(store: Store, observer: psycopg.Connection[Any]) -> Iterator[JobStore]:
    yield job_store(store)
    assert broken_invariants(observer, now=store.clock.now()) == {}
