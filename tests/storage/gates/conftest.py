"""Gates of a replica, about which nothing is left to do in the end."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.store import Store


@pytest.fixture
def store(store: Store, observer: psycopg.Connection[Any]) -> Iterator[Store]:
    """Return a store over empty tables; in the end all invariants hold at rest."""
    store.reported.clear()
    yield store
    assert broken_invariants(observer, at_rest=True, now=store.clock.now()) == {}
