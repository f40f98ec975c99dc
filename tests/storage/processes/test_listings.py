"""Processes as people read them: histories, traces, lists."""

import dataclasses
import datetime as dt
from typing import Any

import pytest

from progressor import errors
from progressor.domain.processes.admission import Import
from progressor.domain.processes.event import Direction, Event, HistoryRange, NewEvent
from progressor.domain.processes.intent import Complete
from progressor.domain.processes.process import ProcessKey, ProcessStatus
from progressor.domain.processes.task import TaskStatus, TaskType
from progressor.domain.views.process import ProcessQuery, place_of
from progressor.domain.views.wait import TimerNotDue
from progressor.storage.postgres.context import StorageContext
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

HOUR = dt.timedelta(hours=1)
SECOND = dt.timedelta(seconds=1)


class TestHistory:
    @pytest.mark.parametrize(
        ("wanted", "ids"),
        [
            (HistoryRange(), [1, 2, 3, 4, 5]),
            (HistoryRange(after=2), [3, 4, 5]),
            (HistoryRange(after=5), []),
            (HistoryRange(limit=2), [1, 2]),
            (HistoryRange(limit=0), []),
            (HistoryRange(direction=Direction.BACKWARD), [5, 4, 3, 2, 1]),
            (HistoryRange(after=3, direction=Direction.BACKWARD), [2, 1]),
            (HistoryRange(after=4, limit=1, direction=Direction.BACKWARD), [3]),
        ],
    )
    async def test_is_the_range_that_was_asked_for(
        self, store: Store, wanted: HistoryRange, ids: list[int]
    ) -> None:
        key = await store.ready(success(events=5))

        page = await store.processes.history(key, wanted, last_event_id=5, bytes_max=9999)

        assert ([event.event_id for event in page.events], page.next_after) == (ids, None)

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
        await store.writes.put(put)

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
                await store.writes.remove(key)
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
        query = ProcessQuery(namespace="orders", page_size=2)
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
            await store.writes.put(Import(key=key, status=ProcessStatus.RUNNING))
        seen: list[Any] = []
        query = ProcessQuery(namespace="", page_size=2)
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

        page = await store.processes.page(ProcessQuery(namespace=""))
        none = await store.processes.page(ProcessQuery(namespace="", causes=(TimerNotDue,)))

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
            listed = await store.processes.list(ProcessQuery(namespace="orders", **filters))
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

        assert await store.processes.list(ProcessQuery(namespace="nowhere")) == ()
