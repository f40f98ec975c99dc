"""Jobs as two replicas use them, in which nothing is wrong in the end."""

import pytest

from tests.support.storage.jobs.store import JobStore


@pytest.fixture
def jobs(pair: list[JobStore]) -> JobStore:
    """Return the storage of the first of the two."""
    return pair[0]
