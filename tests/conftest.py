"""What every test may ask for: a PostgreSQL, a database in it, and how hard hypothesis tries."""

import collections
import logging
import os
from collections.abc import Iterator

import hypothesis
import pytest
from hypothesis.internal.conjecture import engine

from progressor.storage.postgres.migrations import migrate
from tests.support.postgres.cluster import Cluster, open_cluster, own_cluster

# Otherwise commands would use the contexts of the person who runs the tests.
os.environ["PROGRESSOR_CONTEXTS"] = "/nonexistent/contexts.toml"

TEMPLATE = "progressor_template"

PARTITIONS = int(os.environ.get("PROGRESSOR_TEST_PARTITIONS", "0"))
"""Of the tables in the databases of tests; 0: they are not partitioned."""

# What everybody runs asks the same each time, so that what it finds belongs to a change. The others
# look for new failures; each one that they find becomes a case of its own.
for name, examples in (("quick", 20), ("dev", 50), ("ci", 200), ("nightly", 20_000)):
    hypothesis.settings.register_profile(
        name,
        max_examples=examples,
        derandomize=name in {"quick", "dev"},
        deadline=None,  # The machines are shared: how long an example takes says nothing.
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        print_blob=True,
    )
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "dev")
hypothesis.settings.load_profile(PROFILE)

# A failure of a machine on PostgreSQL is shrunk as long as is allowed, which is five minutes, and
# no setting says otherwise. Without the phase it would not be shrunk by a later run either: what
# is kept counts as shrunk.
if PROFILE != "nightly":
    assert engine.MAX_SHRINKING_SECONDS, "hypothesis calls it otherwise now"
    engine.MAX_SHRINKING_SECONDS = 30


MATRIX_SHARE = 10
"""Of the cases of a matrix, one in so many is run by `make test`."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark most cases of a matrix as slow, and skip what is not meant for partitions."""
    cases: collections.Counter[str] = collections.Counter()
    for item in items:
        if PARTITIONS and item.get_closest_marker("plain_tables") is not None:
            item.add_marker(pytest.mark.skip("its figures are those of tables without partitions"))
        if item.get_closest_marker("matrix") is not None:
            name = item.nodeid.partition("[")[0]
            if cases[name] % MATRIX_SHARE:
                item.add_marker("slow")
            cases[name] += 1


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Return a PostgreSQL for the whole run, with a template that has the schema of today."""
    with open_cluster() as opened:
        opened.create_template(TEMPLATE, _prepare)
        yield opened


@pytest.fixture(scope="session")
def durable_cluster() -> Iterator[Cluster]:
    """Return one as durable as a user's, to take the place of `cluster` before a doctor."""
    with open_cluster(durable=True) as opened:
        opened.create_template(TEMPLATE, _prepare)
        yield opened


def _prepare(conninfo: str) -> None:
    migrate(conninfo, partition_count=PARTITIONS or None)


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


@pytest.fixture(scope="module")
def mortal() -> Iterator[Cluster]:
    """Return a PostgreSQL that these tests may kill, wherever the others run."""
    with own_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def conninfo(mortal: Cluster) -> str:
    """Return a database of that server."""
    created = mortal.create_database()
    migrate(created)
    return created


# Of every test: a command that sets up logs writes to the standard error of its own test, which is
# closed when that ends.
@pytest.fixture(autouse=True)
def root_logger() -> Iterator[logging.Logger]:
    """Return the root of all loggers, whose handlers and level are put back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)
