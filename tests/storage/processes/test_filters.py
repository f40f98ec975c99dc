"""The filter of processes, and what is recorded of a process that breaks."""

import dataclasses
import datetime as dt
import math
import random
from collections.abc import Sequence
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql

from progressor.domain.processes.admission import Import
from progressor.domain.processes.intent import Complete
from progressor.domain.processes.process import (
    Process,
    ProcessCount,
    ProcessStatus,
    process_key,
)
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.domain.views.bulk import OPERATIONS
from progressor.domain.views.filter import ProcessFilter
from progressor.domain.views.process import ProcessQuery, place_of
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.rows.filters import EXAMINED_MAX, filter_document
from progressor.storage.processes import listings
from progressor.storage.replicas.counts import Counts
from tests.support.storage.store import (
    BROKEN,
    NAMESPACE,
    Store,
    create_namespace,
    fresh_key,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(autouse=True)
def _any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a request examine as many as it may, however slow the machine is."""
    monkeypatch.setattr(listings, "SECONDS_MAX", math.inf)


MINUTE = dt.timedelta(minutes=1)
NO_FAILURE = (None, "", "")
Broken = tuple[dt.datetime | None, str, str]


def broken_of(process: Process) -> Broken:
    return process.broken_at, process.failure_id, process.failure_reason


def matches(wanted: ProcessFilter, process: Process) -> bool:
    """Return what the filter says, in other words than SQL's."""
    at = process.broken_at
    metadata = process.metadata or {}
    return all(
        (
            (wanted.namespace or process.key.namespace) == process.key.namespace,
            wanted.namespace or process.key.namespace != OPERATIONS,
            wanted.seen is None or process.key.namespace in wanted.seen,
            not wanted.statuses or process.status in wanted.statuses,
            wanted.created_from is None or process.created_at >= wanted.created_from,
            wanted.created_to is None or process.created_at < wanted.created_to,
            (wanted.metadata or {}).items() <= metadata.items(),
            wanted.failure_id in {"", process.failure_id},
            wanted.failure_reason in {"", process.failure_reason},
            wanted.broken_from is None or (at is not None and at >= wanted.broken_from),
            wanted.broken_to is None or (at is not None and at < wanted.broken_to),
            process.key.process_id.startswith(wanted.id_prefix),
        )
    )


def random_filters(everything: Sequence[Process], count: int) -> list[ProcessFilter]:
    """Return filters of up to four fields, whose values are those of processes."""
    chance = random.Random(7)

    def some(name: str) -> Any:
        process = chance.choice(everything)
        values = {
            "namespace": process.key.namespace,
            "seen": tuple(chance.sample(["orders", "elsewhere", "gone"], chance.randint(0, 3))),
            "statuses": tuple(chance.sample([*ProcessStatus], chance.randint(1, 3))),
            "metadata": process.metadata,
            "failure_id": process.failure_id,
            "failure_reason": process.failure_reason,
            "id_prefix": process.key.process_id[: chance.randint(1, 5)],
        }
        if name in values:
            return values[name]
        return process.created_at if name.startswith("created") else process.broken_at

    names = [field.name for field in dataclasses.fields(ProcessFilter)]
    return [
        ProcessFilter(**{name: some(name) for name in chance.sample(names, chance.randint(0, 4))})
        for _ in range(count)
    ]


async def all_pages(store: Store, query: ProcessQuery) -> list[tuple[Process, ...]]:
    pages = []
    while True:  # ends with the last page
        page = await store.processes.page(query)
        pages.append(tuple(it.process for it in page.listed))
        if page.next_before is None:
            return pages
        assert query.before is None or page.next_before < query.before
        query = dataclasses.replace(query, before=page.next_before)


async def test_a_filter_finds_exactly_the_processes_that_match_it(
    database: str,
    store: Store,
    observer: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create_namespace(database, dataclasses.replace(NAMESPACE, name="elsewhere"))
    create_namespace(database, dataclasses.replace(NAMESPACE, name=OPERATIONS))
    ids = ("a", "ab", "aBc", "a%", "a_b", "ä", "b'", "b\\", "o-1", "o-12", "o-2", "p")
    for number, process_id in enumerate(ids):
        store.clock.advance(MINUTE)
        key = process_key(("orders", "elsewhere", OPERATIONS)[number % 3], process_id)
        metadata: Any = {"n": number % 3, "q": "it's"} if number % 2 else None
        match number % 4:
            case 0:
                await store.started(key, success(metadata=metadata))
            case 1:
                await store.started(key, dataclasses.replace(BROKEN, reason=f"R'{number % 3}"))
            case 2:
                await store.started(key, success(Complete(), metadata=metadata))
            case _:
                detail = f"import {number}"
                await store.put(
                    Import(key=key, status=ProcessStatus.ERROR, detail=detail, metadata=metadata)
                )
    counts = Counts(store.context, database)
    own = ProcessQuery(filter=ProcessFilter(namespace=OPERATIONS), page_size=1000)
    everything = [
        *await store.processes.list(own),
        *await store.processes.list(ProcessQuery(page_size=1000)),
    ]
    everything.sort(key=place_of, reverse=True)
    assert len(everything) == len(ids)

    with_large_namespaces = []
    examined_max = EXAMINED_MAX
    for wanted in random_filters(everything, 300):
        monkeypatch.setattr(listings, "EXAMINED_MAX", examined_max)
        found = await store.processes.list(ProcessQuery(filter=wanted, page_size=1000))
        monkeypatch.setattr(listings, "EXAMINED_MAX", 3)

        assert found == tuple(it for it in everything if matches(wanted, it)), wanted
        if wanted.id_prefix:
            with_large_namespaces.append((wanted, found))
        assert (await counts.count(wanted, exact_max=len(ids))).count == len(found), wanted
        pages = await all_pages(store, ProcessQuery(filter=wanted, page_size=2))
        assert tuple(it for page in pages for it in page) == found, wanted

    observer.execute(
        "INSERT INTO progressor.process_counts SELECT name, NULL, 'running', 20001"
        " FROM progressor.namespaces"
    )
    for wanted, found in with_large_namespaces:
        pages = await all_pages(store, ProcessQuery(filter=wanted, page_size=2))
        assert tuple(it for page in pages for it in page) == found, wanted


async def test_what_is_found_by_metadata_is_of_the_namespace_of_the_filter(
    database: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_namespace(database, dataclasses.replace(NAMESPACE, name="elsewhere"))
    monkeypatch.setattr(listings, "EXAMINED_MAX", 3)
    for number in range(12):
        store.clock.advance(MINUTE)
        key = process_key(("orders", "elsewhere")[number % 2], f"p{number}")
        await store.started(key, success(metadata={"a": "x" if number < 8 else "y"}))
    wanted = ProcessFilter(namespace="orders", metadata={"a": "x"})

    pages = await all_pages(store, ProcessQuery(filter=wanted, page_size=5))

    assert [it.key.process_id for page in pages for it in page] == ["p6", "p4", "p2", "p0"]


@pytest.mark.parametrize("namespace", ["orders", ""])
async def test_a_page_ends_where_enough_has_been_examined(
    store: Store, monkeypatch: pytest.MonkeyPatch, namespace: str
) -> None:
    monkeypatch.setattr(listings, "EXAMINED_MAX", 4)
    keys = []
    for number in range(11):
        store.clock.advance(MINUTE)
        keys.append(await store.ready(success() if number in {0, 9} else success(Complete())))
    running = ProcessFilter(namespace=namespace, statuses=(ProcessStatus.RUNNING,))

    pages = await all_pages(store, ProcessQuery(filter=running, page_size=2))

    assert [[it.key for it in page] for page in pages] == [[keys[9]], [], [keys[0]]]


async def test_a_common_value_with_a_rare_status_is_examined_in_bounds(
    store: Store,
    observer: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    database: str,
) -> None:
    """More have the value than one request reads, and all but the oldest have ended."""
    monkeypatch.setattr(listings, "EXAMINED_MAX", 5_000)
    oldest = await store.ready(success(metadata={"customer": "acme"}))
    observer.execute(
        "INSERT INTO progressor.processes (slot, namespace, process_id, status, metadata,"
        "  created_at, status_changed_at, finished_at, init_task_id)"
        " SELECT 0, namespace, 'many' || n, 'finished', metadata, created_at + n * interval '1 s',"
        "  created_at, created_at, 0"
        " FROM progressor.processes, generate_series(1, 12000) n WHERE process_id = %s",
        [oldest.process_id],
    )
    wanted = ProcessFilter(metadata={"customer": "acme"}, statuses=(ProcessStatus.RUNNING,))
    counts = Counts(store.context, database)

    pages = await all_pages(store, ProcessQuery(filter=wanted, page_size=9))

    assert [[it.key for it in page] for page in pages] == [[], [], [oldest]]
    assert (await counts.count(wanted, exact_max=12_000)).is_estimate
    assert await counts.count(wanted, exact_max=12_001) == ProcessCount(count=1)


async def test_a_filter_without_a_value_is_not_looked_up_in_the_index_of_metadata(
    store: Store, observer: psycopg.Connection[Any]
) -> None:
    """It would be read from end to end."""
    wanted = [ProcessFilter(metadata={"x": {}}), ProcessFilter(metadata={"x": [[]]})]
    for each in wanted:
        await store.ready(success(metadata=each.metadata))
        searched = _searched(observer, "SELECT {}.find_few(%s, 9)", filter_document(each))
        assert "processes_by_metadata" not in searched

    assert [len(await store.processes.list(ProcessQuery(filter=it))) for it in wanted] == [1, 1]


@pytest.mark.plain_tables
@pytest.mark.parametrize(("count", "index"), [(20_000, "by_creation"), (20_001, "pkey")])
async def test_the_beginning_of_an_id_is_looked_up_by_key_in_large_namespaces(
    store: Store, observer: psycopg.Connection[Any], count: int, index: str
) -> None:
    keys = [process_key("orders", process_id) for process_id in ("a", "ab", "b", "ba")]
    for key in keys:
        store.clock.advance(MINUTE)
        await store.started(key)
    observer.execute("DELETE FROM progressor.process_counts")
    observer.execute(
        "INSERT INTO progressor.process_counts VALUES ('orders', NULL, 'running', %s)", [count]
    )

    query = ProcessQuery(filter=ProcessFilter(id_prefix="a"), page_size=1)
    [newest] = await store.processes.list(query)
    [older] = await store.processes.list(dataclasses.replace(query, before=place_of(newest)))
    of_one = ProcessFilter(namespace="orders", statuses=(ProcessStatus.RUNNING,), id_prefix="a")

    assert [newest.key, older.key] == [keys[1], keys[0]]
    assert await store.processes.list(ProcessQuery(filter=of_one)) == (newest, older)
    assert _searched(observer, "SELECT {}.find_by_prefix('{{orders}}', 'a', 9, 20000)") == {
        f"processes_{index}"
    }
    # Not where all namespaces together are too large.
    assert _searched(observer, "SELECT {}.find_by_prefix(NULL, 'a', 9, 19999)") == set()


@pytest.mark.plain_tables
@pytest.mark.parametrize("seen", [("orders",), ("elsewhere", "orders")])
@pytest.mark.parametrize("function", ["list_processes", "count_matching"])
async def test_of_the_namespaces_that_one_may_see_the_index_of_lists_is_read(
    store: Store, observer: psycopg.Connection[Any], seen: tuple[str, ...], function: str
) -> None:
    """By key, all of a namespace would be read and sorted for each page."""
    await store.ready(success())
    observer.execute(
        "INSERT INTO progressor.processes (slot, namespace, process_id, status, created_at,"
        "  status_changed_at, init_task_id)"
        " SELECT n % 1024, CASE n % 10 WHEN 0 THEN 'orders' ELSE 'other' END, 'many' || n,"
        "  'running', created_at + n * interval '1 s', created_at, 0"
        " FROM progressor.processes, generate_series(1, 20000) n"
    )
    observer.execute("VACUUM ANALYZE progressor.processes")
    statements: dict[str, LiteralString] = {
        "list_processes": "SELECT {}.list_processes(%s, NULL, NULL, NULL, 100, 1000, 'Infinity')",
        "count_matching": "SELECT {}.count_matching(%s, 10000)",
    }

    searched = _searched(observer, statements[function], filter_document(ProcessFilter(seen=seen)))

    assert searched == {"processes_by_creation"}


def _searched(
    observer: psycopg.Connection[Any], statement: LiteralString, *values: object
) -> set[str]:
    """Return the indexes of the processes that a statement searches."""

    def scans() -> dict[str, int]:
        return dict(
            observer.execute(
                "SELECT indexrelname, idx_scan FROM pg_stat_user_indexes"
                " WHERE relname = 'processes'"
            ).fetchall()
        )

    before = scans()
    observer.execute("SET enable_seqscan = off")
    observer.execute("SELECT pg_stat_force_next_flush()")
    observer.execute(sql.SQL(statement).format(sql.Identifier(Functions().schema)), values or None)
    observer.execute("SELECT pg_stat_force_next_flush()")
    observer.execute("RESET enable_seqscan")
    return {name for name, count in scans().items() if count > before[name]}


async def test_a_broken_process_has_the_time_and_group_of_its_latest_failure(
    store: Store,
) -> None:
    key = fresh_key()

    async def broken_by(task: RunningTask, message: str) -> Broken:
        store.clock.advance(MINUTE)
        await store.settled(task, dataclasses.replace(BROKEN, message=message))
        [listed] = await store.processes.list(ProcessQuery())
        found = broken_of((await store.processes.get(key)).process)
        assert (found, listed.detail) == (broken_of(listed), message)
        assert (found[0], found[2]) == (store.clock.now(), "BUG")
        return found

    async def retried() -> RunningTask:
        again = await store.recover(key, retries=True)
        [claimed] = await store.claim(key, again.task_id)
        return claimed.task

    first = await broken_by(await store.start(key), f"no tea in {key.process_id}, 3 left")
    another = await broken_by(await retried(), "no tea in stock, 4 left")
    same = await broken_by(await retried(), "no tea in stock, 17 left")
    assert first[1] != another[1] == same[1]

    await store.settled(await retried())
    assert broken_of((await store.processes.get(key)).process) == NO_FAILURE


@pytest.mark.parametrize("end", ["simple repair", "terminate"])
async def test_a_process_that_is_no_longer_in_error_has_no_failure(store: Store, end: str) -> None:
    key = fresh_key()
    await store.broken(key)
    if end == "simple repair":
        await store.recover(key)
    else:
        await store.terminate(key, "why")

    [process] = await store.processes.list(ProcessQuery())
    assert process.status is not ProcessStatus.ERROR
    assert broken_of(process) == NO_FAILURE


@pytest.mark.parametrize(
    ("detail", "reason"),
    [("JOB_CANCELLED: no longer wanted", "JOB_CANCELLED"), ("no longer wanted", "STOPPED")],
)
async def test_a_process_that_is_put_into_error_from_outside_has_a_failure(
    store: Store, detail: str, reason: str
) -> None:
    keys = [await store.ready(), await store.ready()]
    for key in keys:
        await store.halt(key, detail)

    halted = await store.processes.list(ProcessQuery())
    assert len({broken_of(it) for it in halted}) == 1
    assert broken_of(halted[0]) == (store.clock.now(), halted[0].failure_id, reason)


async def test_an_imported_process_in_error_broke_when_its_status_changed(store: Store) -> None:
    at = store.clock.now() - MINUTE
    keys = [fresh_key() for _ in range(2)]
    for key in keys:
        await store.put(
            Import(
                key=key,
                status=ProcessStatus.ERROR,
                detail=f"{key.process_id} broke",
                corrupted_by_type=TaskType.CALL,
                status_changed_at=at,
            )
        )

    imported = await store.processes.list(ProcessQuery())
    assert {broken_of(it) for it in imported} == {(at, imported[0].failure_id, "IMPORTED")}
