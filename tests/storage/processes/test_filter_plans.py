"""What List and Count read for each combination of filters, in a table that is much larger."""

import datetime as dt
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from bench.filling.load import fill
from bench.filling.plan import FAILURES, Plan
from bench.questions.filters import combinations
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.views.failure import FailureQuery
from progressor.domain.views.filter import ProcessFilter
from progressor.domain.views.process import ProcessQuery
from progressor.storage.processes import listings
from progressor.storage.replicas.counts import Counts
from progressor.storage.steps.failures import Failures
from tests.support.storage.store import Store, running_stores

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.plain_tables]

PLAN = Plan(process_count=30_000, timer_count=0, namespace="orders", broken_share=0.2)
EXAMINED = 500

READ_MAX = 4 * EXAMINED
"""Rows that may be read in sequence, and entries of indexes: windows twice, and what are few."""

COMBINATIONS = 300
"""Those that are chosen by chance, besides each pair of fields."""

READ = """
    SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'processes')
        + (SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'processes')"""


@pytest.fixture(scope="module")
def observer(database: str) -> Iterator[psycopg.Connection[Any]]:
    fill(database, PLAN)
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reader(database: str, observer: psycopg.Connection[Any]) -> AsyncIterator[Store]:
    assert not observer.closed
    async with running_stores(database) as (store,):
        yield store


async def values_of(store: Store) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Return values of each field that many, few or no processes have."""
    [newest] = await store.processes.list(ProcessQuery(page_size=1))
    first = newest.created_at - dt.timedelta(seconds=PLAN.process_count)
    minute = dt.timedelta(minutes=1)
    group = (await Failures(store.context).list(FailureQuery()))[0]
    return {
        "namespace": {"one": {"namespace": "orders"}},
        "seen": {"one": {"seen": ("orders",)}},
        "status": {it.value: {"statuses": (it,)} for it in ProcessStatus},
        "created": {
            "late": {"created_from": newest.created_at - minute},
            "early": {"created_to": first + minute},
            "most": {"created_from": first + minute, "created_to": newest.created_at},
        },
        "metadata": {
            "many": {"metadata": {"region": "eu-3"}},
            "few": {"metadata": {"customer": "c-7"}},
            "none": {"metadata": {"region": "nowhere"}},
        },
        "failure": {
            "group": {"failure_id": group.failure_id},
            "reason": {"failure_reason": FAILURES[0][0]},
            "no_reason": {"failure_reason": "UNKNOWN"},
            "broken_late": {"broken_from": newest.created_at - minute},
            "broken_early": {"broken_to": first + minute},
        },
        "prefix": {
            "all": {"id_prefix": "filled-"},
            "few": {"id_prefix": "filled-1234"},
            "none": {"id_prefix": "nothing"},
        },
    }


async def some_filters(store: Store) -> dict[str, ProcessFilter]:
    found = {label: ProcessFilter(**it) for label, it in combinations(await values_of(store))}
    chosen = random.Random(7).sample([*found], COMBINATIONS)
    pairs = [label for label in found if label.count("=") <= 2]
    return {label: found[label] for label in (*pairs, *chosen)}


@pytest.mark.parametrize("what", ["list", "count"])
async def test_no_combination_of_filters_reads_more_than_it_examines(
    database: str,
    reader: Store,
    observer: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    monkeypatch.setattr(listings, "EXAMINED_MAX", EXAMINED)
    counts = Counts(reader.context, database)
    before, too_many = 0, {}
    for label, wanted in (await some_filters(reader)).items():
        before = await _read(reader, observer)
        if what == "list":
            await reader.processes.list(ProcessQuery(filter=wanted, page_size=20))
        else:
            await counts.count(wanted, exact_max=EXAMINED)
        read = await _read(reader, observer) - before
        if read > READ_MAX:
            too_many[label] = read

    assert too_many == {}


async def _read(store: Store, observer: psycopg.Connection[Any]) -> int:
    async with store.context.connection() as connection:
        await connection.execute("SELECT pg_stat_force_next_flush()")
    [read] = observer.execute(READ).fetchone() or [0]
    return int(read)
