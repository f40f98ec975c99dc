"""What the tests of the doctor ask for."""

import pytest

from tests.support.storage.store import create_namespace


@pytest.fixture
def orders(own_database: str) -> str:
    """Return a database with a namespace."""
    create_namespace(own_database)
    return own_database
