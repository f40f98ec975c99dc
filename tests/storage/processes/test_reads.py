"""Reads of processes: Get, histories, lists and traces."""

import asyncio
import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any

import pytest

from progressor import errors
from progressor.domain.processes.admission import Import
from progressor.domain.processes.event import Direction, Event, HistoryRange, NewEvent
from progressor.domain.processes.intent import Complete
from progressor.domain.processes.process import ProcessKey, ProcessStatus
from progressor.domain.processes.task import TaskStatus, TaskType
from progressor.domain.views.filter import ProcessFilter
from progressor.domain.views.process import HistoryPage, ProcessQuery, ProcessView, place_of
from progressor.domain.views.wait import TimerNotDue
from progressor.storage.commit.group_read import READ_BOUNDS
from progressor.storage.postgres.context import StorageContext
from progressor.storage.processes.processes import (
    BATCH_EVENT_BYTES_MAX,
    BATCH_EVENTS_MAX,
    STATE_BYTES_MAX,
    WAITS_MAX,
)
from tests.support.storage.store import (
    BROKEN,
    NAMESPACE,
    NO_TIME,
    Store,
    a_request,
    create_namespace,
    fresh_key,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
ALL = HistoryRange()
BACKWARD = Direction.BACKWARD
ORDERS = ProcessFilter(namespace="orders")
MIB = 1024**2
INT64_MAX = 2**63 - 1
Found = tuple[ProcessView, HistoryPage] | errors.ProgressorError


RANGES = [
    (ALL, [1, 2, 3, 4, 5]),
    (HistoryRange(after=2), [3, 4, 5]),
    (HistoryRange(after=4, limit=3), [5]),
    (HistoryRange(after=5), []),
    (HistoryRange(after=6), []),
    (HistoryRange(after=INT64_MAX), []),
    (HistoryRange(after=INT64_MAX, limit=100_000), []),
    (HistoryRange(limit=2), [1, 2]),
    (HistoryRange(after=1, limit=2), [2, 3]),
    (HistoryRange(limit=0), []),
    (HistoryRange(direction=BACKWARD), [5, 4, 3, 2, 1]),
    (HistoryRange(limit=2, direction=BACKWARD), [5, 4]),
    (HistoryRange(limit=100_000, direction=BACKWARD), [5, 4, 3, 2, 1]),
    (HistoryRange(limit=0, direction=BACKWARD), []),
    (HistoryRange(after=3, direction=BACKWARD), [2, 1]),
    (HistoryRange(after=4, limit=1, direction=BACKWARD), [3]),
    (HistoryRange(after=1, direction=BACKWARD), []),
]
HOUR = dt.timedelta(hours=1)
SECOND = dt.timedelta(seconds=1)


async def put(
    store: Store, events: Sequence[NewEvent] = (), *, aux_state: bytes = b""
) -> ProcessKey:
    key = fresh_key()
    imported = Import(
        key=key, status=ProcessStatus.RUNNING, history=tuple(events), aux_state=aux_state
    )
    await store.put(imported)
    return key


def numbered(count: int, *, size: int = 1) -> list[NewEvent]:
    return [NewEvent(payload=b"%d" % n + b"x" * size) for n in range(1, count + 1)]


async def read(store: Store, key: ProcessKey, wanted: HistoryRange = ALL) -> Found:
    try:
        return await store.processes.read(key, wanted, bytes_max=3 * MIB)
    except errors.ProgressorError as error:
        return error


async def read_all(store: Store, *wanted: tuple[ProcessKey, HistoryRange]) -> list[Found]:
    """Read at the same time."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(read(store, key, history)) for key, history in wanted]
    return [task.result() for task in tasks]


def ids(found: Found) -> list[int]:
    assert not isinstance(found, errors.ProgressorError), found
    return [event.event_id for event in found[1].events]


async def test_every_range_is_what_was_asked_for(store: Store) -> None:
    key = await put(store, numbered(5))

    found = await read_all(store, *((key, wanted) for wanted, _ in RANGES))

    assert [ids(each) for each in found] == [expected for _, expected in RANGES]


async def test_of_a_process_without_events_every_range_is_empty(store: Store) -> None:
    key = await put(store)

    found = await read_all(store, *((key, wanted) for wanted, _ in RANGES))

    assert [ids(each) for each in found] == [[] for _ in RANGES]


async def test_an_event_is_what_a_history_of_its_own_tells(store: Store) -> None:
    key = await put(
        store,
        [
            NewEvent(payload=b"\0\xff", format_version=-3, metadata={"ü": [1, None, {"a": 1.5}]}),
            NewEvent(payload=b"", metadata={}),
            NewEvent(payload=b"plain"),
        ],
    )

    found = await read(store, key)

    assert not isinstance(found, errors.ProgressorError)
    apart = await store.processes.history(key, ALL, last_event_id=3, bytes_max=MIB)
    assert found[1] == apart
    assert found[0] == await store.processes.get(key)


async def test_many_at_once_get_their_own_missing_and_huge_ones_too(store: Store) -> None:
    small = [
        await put(store, numbered(3), aux_state=b"%d" % n) for n in range(2 * READ_BOUNDS.batch_max)
    ]
    state = await put(store, numbered(2), aux_state=b"s" * (STATE_BYTES_MAX + 1))
    long = await put(store, numbered(2000))
    fat = await put(store, numbered(3, size=BATCH_EVENT_BYTES_MAX // 2))
    huge = await put(store, numbered(4, size=MIB))
    gone = fresh_key()
    odd = [state, long, fat, huge, gone]

    found = await read_all(store, *((key, ALL) for key in [*small[:9], *odd, *small[9:]]))

    plain = [*found[:9], *found[9 + len(odd) :]]
    for n, each in enumerate(plain):
        assert ids(each) == [1, 2, 3]
        assert not isinstance(each, errors.ProgressorError)
        assert (each[0].process.key, each[0].process.aux_state) == (small[n], b"%d" % n)
    of_state, of_long, of_fat, of_huge, of_gone = found[9 : 9 + len(odd)]
    assert (ids(of_state), ids(of_fat)) == ([1, 2], [1, 2, 3])
    assert not isinstance(of_state, errors.ProgressorError)
    assert of_state[0].process.aux_state == b"s" * (STATE_BYTES_MAX + 1)
    assert ids(of_long) == list(range(1, 2001))
    assert not isinstance(of_huge, errors.ProgressorError)
    assert (ids(of_huge), of_huge[1].next_after) == ([1, 2], 2)
    assert isinstance(of_gone, errors.ProcessNotFoundError)


@pytest.mark.parametrize("count", [BATCH_EVENTS_MAX - 1, BATCH_EVENTS_MAX, BATCH_EVENTS_MAX + 1])
async def test_at_the_bound_of_a_batch_a_history_is_whole(store: Store, count: int) -> None:
    key = await put(store, numbered(count))

    forward, backward, tail = await read_all(
        store,
        (key, ALL),
        (key, HistoryRange(direction=BACKWARD)),
        (key, HistoryRange(limit=2, direction=BACKWARD)),
    )

    assert ids(forward) == ids(backward)[::-1] == list(range(1, count + 1))
    assert ids(tail) == [count, count - 1]


async def test_a_poisoned_key_spoils_nobody_elses_read(store: Store) -> None:
    key = await put(store, numbered(1))
    poisoned = [ProcessKey(key.slot, key.namespace, bad) for bad in ("nul\0", "\ud800")]

    good, nul, surrogate, again = await read_all(
        store, (key, ALL), *((each, ALL) for each in poisoned), (key, ALL)
    )

    assert ids(good) == ids(again) == [1]
    assert isinstance(nul, errors.StorageRefusedError)
    assert isinstance(surrogate, errors.StorageRefusedError)


async def test_a_caller_that_goes_away_leaves_the_others_their_answers(store: Store) -> None:
    keys = [await put(store, numbered(2)) for _ in range(8)]
    tasks = [asyncio.ensure_future(read(store, key)) for key in keys]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()

    await asyncio.wait(tasks)

    assert all(task.cancelled() for task in tasks[::2])
    assert [ids(task.result()) for task in tasks[1::2]] == [[1, 2]] * 4


async def test_whatever_was_acknowledged_is_seen_by_every_replica(
    store: Store, other: Store
) -> None:
    keys = [fresh_key() for _ in range(12)]

    async def write_and_look(key: ProcessKey) -> None:
        await store.started(key, success(events=1))
        for count in range(1, 6):
            assert ids(await read(other, key)) == ids(await read(store, key))
            assert ids(await read(other, key)) == list(range(1, count + 1))
            call = await store.run_task(a_request(key))
            await store.settled(call, success(events=1))

    async with asyncio.TaskGroup() as group:
        for key in keys:
            group.create_task(write_and_look(key))


async def test_a_process_and_its_history_are_of_one_instant(store: Store, other: Store) -> None:
    key = await store.ready(success(events=1))
    writing = asyncio.Event()

    async def write() -> None:
        for _ in range(20):
            call = await store.run_task(a_request(key))
            await store.settled(call, success(events=3))
        writing.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        while not writing.is_set():
            found = await read(other, key)
            assert not isinstance(found, errors.ProgressorError)
            last = found[0].process.last_event_id
            assert ids(found) == list(range(1, last + 1))
            # It runs or it does not: between a settlement and the next admission nothing waits.
            assert len(found[0].waits) <= 1


async def test_a_crowd_before_a_process_is_told_as_far_as_may_be(store: Store) -> None:
    key = fresh_key()
    await store.start(key)
    admitted = [await store.admit(a_request(key, TaskType.NOTIFY)) for _ in range(WAITS_MAX + 5)]

    waits = (await store.processes.get(key)).waits

    assert [each.task_id for each in waits[1:]] == [
        each.task_id for each in admitted[: WAITS_MAX - 1]
    ]


class TestHistory:
    async def test_is_the_range_that_was_asked_for(self, store: Store) -> None:
        key = await store.ready(success(events=5))

        for wanted, expected in RANGES:
            if wanted.after <= 5:
                page = await store.processes.history(key, wanted, last_event_id=5, bytes_max=9999)
                assert page.next_after is None
                assert [event.event_id for event in page.events] == expected, wanted

    async def test_ends_where_the_reader_knows_it_to_end(self, store: Store) -> None:
        key = await store.ready(success(events=5))

        forward, backward = [
            await store.processes.history(
                key, HistoryRange(direction=direction), last_event_id=3, bytes_max=9999
            )
            for direction in Direction
        ]

        assert [event.event_id for event in forward.events] == [1, 2, 3]
        assert [event.event_id for event in backward.events] == [3, 2, 1]

    async def test_is_cut_where_a_message_is_full_but_moves_on(self, store: Store) -> None:
        key = await store.ready(success(events=5))
        seen, after = [], 0
        while True:
            page = await store.processes.history(
                key, HistoryRange(after=after), last_event_id=5, bytes_max=1
            )
            seen += [event.event_id for event in page.events]
            if page.next_after is None:
                break
            after = page.next_after

        assert seen == [1, 2, 3, 4, 5]

    async def test_longer_than_a_page_is_read_whole(self, store: Store) -> None:
        put = Import(
            key=fresh_key(),
            status=ProcessStatus.RUNNING,
            history=(NewEvent(payload=b""),) * 2001,
        )
        await store.put(put)

        for direction in Direction:
            page = await store.processes.history(
                put.key, HistoryRange(direction=direction), last_event_id=2001, bytes_max=10**9
            )
            assert len({event.event_id for event in page.events}) == 2001

    async def test_after_an_event_that_does_not_exist_is_refused(self, store: Store) -> None:
        with pytest.raises(errors.EventNotFoundError):
            await store.processes.history(
                fresh_key(), HistoryRange(after=1), last_event_id=0, bytes_max=1
            )


class TestTrace:
    async def test_tells_each_task_with_its_events_in_order(self, store: Store) -> None:
        key = await store.ready(success(events=2))
        call = await store.run_task(
            a_request(key, args=b"a", caller_context={"who": "me"}, idempotency_key="k")
        )
        store.clock.advance(SECOND)
        await store.settled(call, success(events=1, response=b"r"))
        refused = await store.run_task(a_request(key))
        await store.settled(refused, BROKEN)

        init, done, failed = await store.processes.trace(key, after=0, limit=10)

        assert [event.event_id for event in init.events] == [1, 2]
        assert [event.event_id for event in done.events] == [3]
        assert (done.args, done.caller_context, done.idempotency_key, done.response) == (
            b"a", {"who": "me"}, "k", b"r",
        )  # fmt: skip
        assert (done.created_at, done.finished_at) == (
            store.clock.now() - SECOND,
            store.clock.now(),
        )
        assert (done.attempt_count, done.error) == (1, None)
        assert (failed.status, failed.error is not None) == (TaskStatus.ERROR, True)

    async def test_is_read_in_pages(self, store: Store) -> None:
        key = await store.ready()
        for _ in range(4):
            await store.settled(await store.run_task(a_request(key)))
        seen, after = [], 0
        while page := await store.processes.trace(key, after=after, limit=2):
            seen += [task.task_id for task in page]
            after = page[-1].task_id

        assert len(seen) == 5
        assert seen == sorted(seen)

    async def test_is_refused_where_there_is_nothing(self, store: Store) -> None:
        with pytest.raises(errors.ProcessNotFoundError):
            await store.processes.trace(fresh_key(), after=0, limit=1)

    async def test_is_refused_where_the_process_goes_meanwhile(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key = await store.ready(success(events=2))
        read = StorageContext.read_on

        async def too_late(
            context: Any, connection: Any, row: Any, *keys: Any, **named: Any
        ) -> Any:
            if row is Event:
                await store.remove(key)
            return await read(context, connection, row, *keys, **named)

        monkeypatch.setattr(StorageContext, "read_on", too_late)

        with pytest.raises(errors.ProcessNotFoundError):
            await store.processes.trace(key, after=0, limit=10)


class TestList:
    async def test_pages_from_the_newest_without_gap_or_repetition(self, store: Store) -> None:
        keys = []
        for number in range(7):
            keys.append(fresh_key())
            await store.start(keys[-1])
            store.clock.advance(SECOND if number % 3 == 0 else NO_TIME)
        seen: list[Any] = []
        query = ProcessQuery(filter=ORDERS, page_size=2)
        while page := await store.processes.list(query):
            seen += page
            query = dataclasses.replace(query, before=place_of(page[-1]))

        assert {process.key for process in seen} == set(keys)
        assert len(seen) == 7
        order = [(process.created_at, process.key.process_id) for process in seen]
        assert order == sorted(order, reverse=True)

    async def test_of_all_namespaces_pages_from_the_newest_without_gap_or_repetition(
        self, database: str, store: Store
    ) -> None:
        names = ("orders", "anywhere", "elsewhere", "empty")
        for name in names:
            create_namespace(database, dataclasses.replace(NAMESPACE, name=name))
        keys = [fresh_key(names[number % 3]) for number in range(11)]
        for number, key in enumerate(keys):
            # Several of one instant, in several namespaces.
            store.clock.advance(SECOND if number % 4 == 0 else NO_TIME)
            await store.put(Import(key=key, status=ProcessStatus.RUNNING))
        seen: list[Any] = []
        query = ProcessQuery(page_size=2)
        while page := await store.processes.list(query):
            seen += page
            query = dataclasses.replace(query, before=place_of(page[-1]))

        assert len(seen) == len(keys)
        assert {it.key for it in seen} == {*keys}
        assert [*map(place_of, seen)] == sorted(map(place_of, seen), reverse=True)

    async def test_of_all_namespaces_reports_what_each_process_waits_for(
        self, database: str, store: Store
    ) -> None:
        create_namespace(database, dataclasses.replace(NAMESPACE, name="elsewhere"))
        keys = [fresh_key(), fresh_key("elsewhere")]
        for key in keys:
            await store.admit(a_request(key, TaskType.INIT), run=False)

        page = await store.processes.page(ProcessQuery())
        none = await store.processes.page(ProcessQuery(causes=(TimerNotDue,)))

        waits = {it.process.key: it.first_wait for it in page.listed}
        assert waits.keys() == {*keys}
        for key, wait in waits.items():
            assert wait == (await store.processes.get(key)).waits[0]
        assert none.listed == ()

    async def test_filters_by_status_time_and_metadata(self, store: Store) -> None:
        broken, tagged, early = fresh_key(), fresh_key(), fresh_key()
        await store.started(early, success(Complete()))
        store.clock.advance(HOUR)
        await store.broken(broken)
        await store.started(tagged, success(metadata={"colour": "red", "n": [1, 2]}))

        async def found(**filters: Any) -> set[ProcessKey]:
            listed = await store.processes.list(ProcessQuery(filter=ProcessFilter(**filters)))
            return {process.key for process in listed}

        assert await found(statuses=(ProcessStatus.ERROR,)) == {broken}
        assert await found(statuses=(ProcessStatus.ERROR, ProcessStatus.FINISHED)) == {
            broken, early,
        }  # fmt: skip
        assert await found(created_from=store.clock.now()) == {broken, tagged}
        assert await found(created_to=store.clock.now()) == {early}
        assert await found(metadata={"colour": "red"}) == {tagged}
        assert await found(metadata={"n": [2]}) == {tagged}
        assert await found(metadata={"colour": "blue"}) == set()

    async def test_knows_nothing_of_other_namespaces(self, store: Store) -> None:
        await store.start(fresh_key())

        assert (
            await store.processes.list(ProcessQuery(filter=ProcessFilter(namespace="nowhere")))
            == ()
        )
