"""What every test may ask for: a PostgreSQL, a database in it, and how hard hypothesis tries."""

import os
from collections.abc import Iterator

import hypothesis
import pytest

from progressor.storage.migrations import migrate
from tests.support.postgres import Cluster, open_cluster

TEMPLATE = "progressor_template"

for name, examples in (("dev", 50), ("ci", 200), ("nightly", 20_000)):
    hypothesis.settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,  # The machines are shared: how long an example takes says nothing.
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        print_blob=True,
    )
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Return a PostgreSQL for the whole run, with a template that has the schema of today."""
    with open_cluster() as opened:
        opened.create_template(TEMPLATE, _prepare)
        yield opened


def _prepare(conninfo: str) -> None:
    migrate(conninfo)


@pytest.fixture(scope="module")
def database(cluster: Cluster) -> Iterator[str]:
    """Return the conninfo of a fresh database with the schema, for one module."""
    conninfo = cluster.create_database(TEMPLATE)
    yield conninfo
    cluster.drop_database(conninfo)


@pytest.fixture
def own_database(cluster: Cluster) -> Iterator[str]:
    """Return the conninfo of a fresh database with the schema, for one test."""
    conninfo = cluster.create_database(TEMPLATE)
    yield conninfo
    cluster.drop_database(conninfo)
