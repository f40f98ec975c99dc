"""Groups of failures: what breaks a process is counted once, and settlements do not wait."""

import asyncio
import dataclasses
import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor.domain.processes.admission import Import
from progressor.domain.processes.intent import Failed
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.domain.views.failure import FailureGroup, FailureQuery
from progressor.domain.views.filter import ProcessFilter
from progressor.domain.views.process import ProcessQuery
from progressor.storage.steps.failures import Failures
from progressor.storage.steps.settlements import Written
from tests.support.postgres.locks import until_blocked
from tests.support.storage.store import (
    BROKEN,
    NAMESPACE,
    Store,
    connect,
    create_namespace,
    fresh_key,
    lent,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

MINUTE = dt.timedelta(minutes=1)


def failed(message: str = "no tea", reason: str = "BUG") -> Failed:
    return dataclasses.replace(BROKEN, message=message, reason=reason)


def failures(store: Store, **more: Any) -> Failures:
    return Failures(store.context, **more)


async def groups(store: Store, **wanted: Any) -> list[FailureGroup]:
    """Return the groups, which do not depend on whether they were added up."""
    found = await failures(store).list(FailureQuery(**wanted))
    await failures(store).add()
    assert await failures(store).list(FailureQuery(**wanted)) == found
    return found


async def retried(store: Store, task: RunningTask) -> RunningTask:
    again = await store.recover(task.key, retries=True)
    [claimed] = await store.claim(task.key, again.task_id)
    return claimed.task


async def test_failures_that_differ_in_ids_alone_are_one_group(store: Store) -> None:
    first_seen_at = store.clock.now()
    inits = [await store.start(fresh_key()) for _ in range(3)]
    for number, init in enumerate(inits):
        await store.settled(init, failed(f"no tea for {init.key.process_id}, {number} left"))
        store.clock.advance(MINUTE)
    [before] = await groups(store)
    again = await retried(store, inits[-1])
    await store.settled(again, failed("no tea for 7, 2 left"))
    [found] = await groups(store)

    assert found == FailureGroup(
        namespace="orders",
        failure_id=before.failure_id,
        reason="BUG",
        message="no tea for *, * left",
        task_type=TaskType.INIT,
        release="",
        first_seen_at=first_seen_at,
        last_seen_at=store.clock.now(),
        failure_count=4,
        broken_count=3,
        sample_process_id=found.sample_process_id,
    )
    matching = ProcessFilter(failure_id=found.failure_id)
    assert len(await store.processes.list(ProcessQuery(filter=matching))) == 3


async def test_what_is_brought_back_is_no_longer_broken(store: Store) -> None:
    inits = [await store.start(fresh_key()) for _ in range(4)]
    for init in inits:
        await store.settled(init, failed())

    await store.recover(inits[0].key)
    await store.settled(await retried(store, inits[1]))
    await store.remove(inits[2].key)
    await store.terminate(inits[3].key, "why")

    [group] = await groups(store)
    assert (group.failure_count, group.broken_count) == (4, 0)
    assert await groups(store, broken_only=True) == []


async def test_each_cause_is_a_group(database: str, store: Store) -> None:
    create_namespace(database, dataclasses.replace(NAMESPACE, name="elsewhere"))
    for outcome in (failed(), failed(reason="BUG_2"), failed("no milk"), failed("no tea")):
        await store.started(fresh_key(), outcome)
    await store.broken(fresh_key())
    await store.started(fresh_key("elsewhere"), failed())
    await store.halt(await store.ready(), "JOB_CANCELLED: no longer wanted")
    await store.put(Import(key=fresh_key(), status=ProcessStatus.ERROR, detail="no tea"))

    found = {
        (it.namespace, it.reason, it.message, it.task_type): it.failure_count
        for it in await groups(store)
    }
    assert found == {
        ("orders", "BUG", "no tea", TaskType.INIT): 2,
        ("orders", "BUG_2", "no tea", TaskType.INIT): 1,
        ("orders", "BUG", "no milk", TaskType.INIT): 1,
        ("orders", "BUG", "it broke", TaskType.CALL): 1,
        ("elsewhere", "BUG", "no tea", TaskType.INIT): 1,
        ("orders", "JOB_CANCELLED", "", None): 1,
        ("orders", "IMPORTED", "no tea", None): 1,
    }
    assert {it.namespace for it in await groups(store, namespace="elsewhere")} == {"elsewhere"}


async def test_a_step_whose_lease_is_lost_is_not_counted(store: Store) -> None:
    init = await store.start(fresh_key())
    await store.settled(init, failed())
    late = await store.settle(init, failed())

    assert not isinstance(late, Written)
    [group] = await groups(store)
    assert group.failure_count == 1


async def test_pages_have_each_group_once_those_with_most_broken_processes_first(
    store: Store,
) -> None:
    for count, word in ((1, "a"), (3, "b"), (2, "c"), (1, "d"), (1, "e")):
        for _ in range(count):
            await store.started(fresh_key(), failed(word))
        store.clock.advance(MINUTE)
    query, seen = FailureQuery(page_size=2), list[FailureGroup]()
    while page := await failures(store).list(query):
        seen += page
        query = dataclasses.replace(query, before=page[-1].place)

    assert [it.message for it in seen] == ["b", "c", "e", "d", "a"]


@pytest.mark.parametrize("added_up", [True, False])
async def test_pages_have_only_groups_of_namespaces_that_one_may_see(
    database: str, store: Store, *, added_up: bool
) -> None:
    create_namespace(database, dataclasses.replace(NAMESPACE, name="elsewhere"))
    for count, word in ((1, "a"), (3, "b"), (2, "c")):
        for namespace, more in ((NAMESPACE.name, 0), ("elsewhere", 1)):
            for _ in range(count + more):
                await store.started(fresh_key(namespace), failed(word))
    if added_up:
        await failures(store).add()

    async def all_pages(*seen: str, **wanted: Any) -> list[tuple[str, str, int]]:
        query, found = FailureQuery(page_size=1, seen=seen, **wanted), list[FailureGroup]()
        while page := await failures(store).list(query):
            found += page
            query = dataclasses.replace(query, before=page[-1].place)
        return [(it.namespace, it.message, it.broken_count) for it in found]

    own = [(NAMESPACE.name, word, count) for word, count in (("b", 3), ("c", 2), ("a", 1))]
    assert await all_pages(NAMESPACE.name, "gone") == own
    assert await all_pages(NAMESPACE.name, broken_only=True) == own
    assert await all_pages() == []
    [hidden] = await failures(store).list(FailureQuery(namespace="elsewhere", page_size=1))
    assert await all_pages(NAMESPACE.name, failure_id=hidden.failure_id) == []
    assert len(await all_pages(NAMESPACE.name, "elsewhere")) == 6


async def test_a_failure_does_not_wait_for_another_one_of_its_group(
    store: Store, observer: psycopg.Connection[Any]
) -> None:
    await store.started(fresh_key(), failed())
    await failures(store).add()
    init = await store.start(fresh_key())

    with observer.transaction():
        observer.execute("SELECT FROM progressor.failures FOR UPDATE")
        observer.execute(
            "INSERT INTO progressor.new_failures (namespace, failure_id, reason, message,"
            " release, seen_at, failure_count, process_id)"
            " SELECT namespace, failure_id, reason, message, release, now(), 1, 'p'"
            " FROM progressor.failures"
        )
        async with asyncio.timeout(5):
            await store.settled(init, failed())

    [group] = await groups(store)
    assert group.failure_count == 3


async def test_replicas_that_add_up_at_once_count_each_failure_once(store: Store) -> None:
    for number in range(20):
        await store.started(fresh_key(), failed("abcd"[number % 4]))

    await asyncio.gather(*(failures(store).add() for _ in range(4)))

    assert {it.message: it.failure_count for it in await groups(store)} == dict.fromkeys("abcd", 5)


async def test_of_too_many_groups_those_stay_that_have_broken_processes_or_were_seen_last(
    database: str, store: Store
) -> None:
    create_namespace(database, dataclasses.replace(NAMESPACE, name="elsewhere"))

    async def brought_back(word: str, namespace: str = "orders") -> None:
        init = await store.start(fresh_key(namespace))
        await store.settled(init, failed(word))
        await store.recover(init.key)
        store.clock.advance(MINUTE)

    await store.started(fresh_key(), failed("broken"))
    await brought_back("old", "elsewhere")
    for number in range(12):
        await brought_back(f"{'x' * number}!")

    await failures(store, groups_max=10).add()

    found = {it.message for it in await failures(store).list(FailureQuery())}
    assert found == {"broken", "old", *(f"{'x' * number}!" for number in range(5, 12))}


async def test_a_surplus_group_that_is_being_added_to_stays(
    store: Store, observer: psycopg.Connection[Any]
) -> None:
    """Waiting for it, while holding groups of its own, would be a deadlock."""
    for word in "ab":
        await store.started(key := fresh_key(), failed(word))
        await store.remove(key)
        store.clock.advance(MINUTE)
        await failures(store).add()
    await store.started(fresh_key(), failed("c"))

    with observer.transaction():
        observer.execute("SELECT FROM progressor.failures WHERE message = 'a' FOR UPDATE")
        await failures(store, groups_max=1).add()

    found = await failures(store).list(FailureQuery())
    assert {it.message for it in found} == {"a", "c"}


async def test_a_namespace_is_not_deleted_while_a_group_is_added_to_it(
    database: str, store: Store, observer: psycopg.Connection[Any]
) -> None:
    create_namespace(database, dataclasses.replace(NAMESPACE, name="elsewhere"))
    await store.started(key := fresh_key("elsewhere"), failed())
    await store.remove(key)
    async with await connect(database) as connection:
        adding = dataclasses.replace(store.context, pool=lent(connection))
        async with asyncio.TaskGroup() as group, connection.transaction():
            await Failures(adding).add()
            deleting = group.create_task(store.namespaces.delete("elsewhere"))
            await until_blocked(observer)

    await deleting
    assert await failures(store).list(FailureQuery()) == []


async def test_what_an_earlier_release_has_broken_gets_a_group(
    store: Store, observer: psycopg.Connection[Any]
) -> None:
    keys = [fresh_key() for _ in range(2)]
    for key in keys:
        await store.started(key, failed(f"no tea for {key.process_id}"))
    [expected] = await groups(store)
    observer.execute("DELETE FROM progressor.failures")
    observer.execute("UPDATE progressor.processes SET failure_id = NULL, broken_at = NULL")

    assert await failures(store).group("orders") == 2
    assert await failures(store).group("orders") == 0

    assert await groups(store) == [expected]
    found = await store.processes.list(ProcessQuery())
    assert {(it.broken_at, it.failure_id) for it in found} == {
        (store.clock.now(), expected.failure_id)
    }


async def test_the_groups_of_a_deleted_namespace_are_gone(database: str, store: Store) -> None:
    create_namespace(database, dataclasses.replace(NAMESPACE, name="elsewhere"))
    for add in (True, False):
        key = fresh_key("elsewhere")
        await store.started(key, failed())
        if add:
            await failures(store).add()
        await store.remove(key)

    await store.namespaces.delete("elsewhere")
    await failures(store).add()

    assert await failures(store).list(FailureQuery()) == []
