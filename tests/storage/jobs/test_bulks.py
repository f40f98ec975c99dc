"""Bulk operations in storage: two replicas at one, and deletion in pieces."""

import asyncio
import dataclasses
import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor import errors
from progressor.domain.gates.constraint import Constraints
from progressor.domain.processes.intent import Complete
from progressor.domain.processes.process import ProcessKey, ProcessStatus, process_key
from progressor.domain.views.bulk import (
    NAMESPACE,
    OPERATIONS,
    BulkKind,
    BulkRequest,
    BulkResult,
    BulkState,
)
from progressor.domain.views.filter import ProcessFilter
from progressor.storage.jobs import bulks as module
from progressor.storage.jobs.bulks import Bulks
from tests.support.postgres.locks import until_blocked
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.store import (
    BROKEN,
    Store,
    a_request,
    connect,
    count,
    create_namespace,
    fresh_key,
    lent,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)


@pytest.fixture
def bulks(store: Store, database: str) -> Bulks:
    create_namespace(database, NAMESPACE)
    return Bulks(store.context)


async def started(store: Store, bulks: Bulks, *, broken: int, follow: bool = False) -> BulkRequest:
    """Start a retry of so many broken processes."""
    for _ in range(broken):
        await store.broken(fresh_key())
    store.clock.advance(HOUR)
    request = BulkRequest(
        operation_id=fresh_key().process_id, kind=BulkKind.RETRY, rate_max=None,
        filter=ProcessFilter(namespace="orders"), follow=follow,
    )  # fmt: skip
    await bulks.start(request, {})
    return request


async def test_a_deleted_operation_goes_in_pieces_and_its_id_with_the_last(
    store: Store,
    bulks: Bulks,
    observer: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "DELETED_MAX", 2)
    request = await started(store, bulks, broken=5)
    await bulks.match(request.operation_id)
    assert not await bulks.delete()
    await store.remove(process_key(OPERATIONS, request.operation_id))
    observer.execute("DELETE FROM progressor.replies")

    with pytest.raises(errors.OperationNotFoundError):
        await bulks.get(request.operation_id)
    left = []
    for _ in range(3):
        with pytest.raises(errors.OperationAlreadyExistsError):
            await bulks.start(request, {})
        assert await bulks.delete()
        left.append(count(observer, "bulk_items"))
        assert broken_invariants(observer) == {}

    assert left == [3, 1, 0]
    assert not await bulks.delete()
    is_known, _ = await bulks.start(request, {})
    assert not is_known


async def test_items_that_are_added_meanwhile_are_applied_too(
    store: Store, bulks: Bulks, database: str, observer: psycopg.Connection[Any]
) -> None:
    """A replica that has lost its lease adds items while another ends a chunk."""
    name = (await started(store, bulks, broken=1, follow=True)).operation_id
    await bulks.match(name)
    await store.broken(fresh_key())
    async with await connect(database) as connection:
        adding = Bulks(dataclasses.replace(store.context, pool=lent(connection)))
        async with asyncio.TaskGroup() as group, connection.transaction():
            await adding.match(name)
            applying = group.create_task(bulks.apply(await bulks.get(name), limit=1))
            await until_blocked(observer)

    assert (await applying)[0] == 1
    bulk = await bulks.get(name)
    assert (bulk.state, bulk.matched_count, bulk.done_count) == (BulkState.RUNNING, 2, 1)
    await bulks.apply(bulk, limit=1)
    assert (await bulks.get(name)).state is BulkState.FOLLOWING
    assert broken_invariants(observer) == {}


@pytest.mark.parametrize("step", [-HOUR, HOUR], ids=["back", "forward"])
async def test_what_was_skipped_is_taken_up_again_and_nothing_else(
    store: Store, bulks: Bulks, step: dt.timedelta
) -> None:
    name = (await started(store, bulks, broken=2, follow=True)).operation_id
    await bulks.match(name)
    [first, second] = await bulks.items(name, failed=False, after=0, limit=9)
    key = process_key("orders", first.process_id)
    await store.recover(key, retries=True)
    [again] = await store.claim_due()
    store.clock.advance(step)
    await store.settled(again.task, BROKEN)

    await bulks.apply(await bulks.get(name), limit=9)
    assert await bulks.match(name)
    items = await bulks.items(name, failed=False, after=0, limit=9)
    assert [(it.process_id, it.result) for it in items] == [
        (first.process_id, BulkResult.SKIPPED),
        (second.process_id, BulkResult.DONE),
        (first.process_id, BulkResult.PENDING),
    ]


async def test_a_process_that_is_retried_is_skipped_and_taken_up_if_it_breaks_again(
    store: Store, bulks: Bulks
) -> None:
    name = (await started(store, bulks, broken=1, follow=True)).operation_id
    await bulks.match(name)
    [item] = await bulks.items(name, failed=False, after=0, limit=9)
    await store.recover(process_key("orders", item.process_id), retries=True)
    await bulks.apply(await bulks.get(name), limit=9)
    [retried] = await store.claim_due()
    await bulks.match(name)
    [skipped] = await bulks.items(name, failed=False, after=0, limit=9)
    assert (skipped.result, skipped.reason) == (BulkResult.SKIPPED, "PROCESS_IS_RUNNING")

    await store.settled(retried.task, BROKEN)
    await bulks.match(name)
    [_, again] = await bulks.items(name, failed=False, after=0, limit=9)
    assert (again.process_id, again.result) == (item.process_id, BulkResult.PENDING)


async def test_what_a_task_with_constraints_broke_is_applied_alone(
    store: Store, bulks: Bulks
) -> None:
    """The gates of several would be locked in no order, and for as long as all of them take."""
    for _ in range(2):
        await constrained(store)
    name = (await started(store, bulks, broken=0)).operation_id
    await bulks.match(name)

    bulk = await bulks.get(name)
    assert [(await bulks.apply(bulk, limit=9))[0] for _ in range(3)] == [1, 1, 0]


async def constrained(store: Store) -> ProcessKey:
    """Break a process by a task with a gate."""
    key = await store.ready()
    await store.admit(a_request(key, constraints=Constraints(gates={"a": 1})), run=False)
    [call] = await store.claim_due()
    await store.settled(call.task, BROKEN)
    return key


async def by_process(bulks: Bulks, name: str) -> dict[str, tuple[str, str]]:
    items = await bulks.items(name, failed=False, after=0, limit=99)
    return {it.process_id: (it.result.value, it.reason) for it in items}


async def test_what_is_locked_is_left_for_the_next_pass(
    store: Store, bulks: Bulks, observer: psycopg.Connection[Any], database: str
) -> None:
    plain = [fresh_key() for _ in range(3)]
    await store.broken(plain[0])
    await store.broken(plain[1])
    alone = [await constrained(store) for _ in range(3)]
    await store.broken(plain[2])
    name = (await started(store, bulks, broken=0)).operation_id
    await bulks.match(name)
    locked = {plain[0].process_id, alone[1].process_id}
    with psycopg.connect(database) as locker:
        locker.execute(
            "SELECT FROM progressor.processes WHERE process_id = ANY (%s) FOR UPDATE", [[*locked]]
        )
        for _ in range(9):
            await bulks.apply(await bulks.get(name), limit=9)
            assert broken_invariants(observer) == {}
        found = await by_process(bulks, name)
        assert {it for it, (result, _) in found.items() if result == "pending"} == locked
        bulk = await bulks.get(name)
        assert (bulk.state, bulk.done_count) == (BulkState.RUNNING, 4)

    while (bulk := await bulks.get(name)).state is BulkState.RUNNING:
        await bulks.apply(bulk, limit=9)
    assert (bulk.state, bulk.done_count) == (BulkState.DONE, 6)
    assert broken_invariants(observer) == {}


async def test_what_stays_locked_fails_in_the_end(
    store: Store, bulks: Bulks, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ATTEMPTS_MAX", 2)
    keys = [await constrained(store), await constrained(store)]
    name = (await started(store, bulks, broken=1)).operation_id
    await bulks.match(name)
    with psycopg.connect(database) as locker:
        locker.execute(
            "SELECT FROM progressor.processes WHERE process_id = %s FOR UPDATE",
            [keys[1].process_id],
        )
        while (bulk := await bulks.get(name)).state is BulkState.RUNNING:
            await bulks.apply(bulk, limit=9)

    assert (bulk.done_count, bulk.failed_count) == (2, 1)
    assert (await by_process(bulks, name))[keys[1].process_id] == ("failed", "PROCESS_LOCKED")


async def test_what_postgresql_refuses_fails_alone_also_beside_what_is_locked(
    store: Store, bulks: Bulks, database: str, observer: psycopg.Connection[Any]
) -> None:
    locked, bad, good = fresh_key(), fresh_key(), fresh_key()
    for key in (good, bad, locked):  # the last comes first
        await store.broken(key)
        store.clock.advance(HOUR)
    name = (await started(store, bulks, broken=0)).operation_id
    await bulks.match(name)
    observer.execute(
        "ALTER TABLE progressor.schedule ADD CONSTRAINT refuses CHECK (process_id <> %s)".replace(
            "%s", f"'{bad.process_id}'"
        )
    )
    try:
        with psycopg.connect(database) as locker:
            locker.execute(
                "SELECT FROM progressor.processes WHERE process_id = %s FOR UPDATE",
                [locked.process_id],
            )
            bulk = await bulks.get(name)
            with pytest.raises(errors.StorageRefusedError):
                await bulks.apply(bulk, limit=9)
            counts = [(await bulks.apply(bulk, limit=1))[0] for _ in range(3)]
        await bulks.apply(bulk, limit=1)
    finally:
        observer.execute("ALTER TABLE progressor.schedule DROP CONSTRAINT refuses")

    assert counts == [0, 1, 1]
    assert await by_process(bulks, name) == {
        locked.process_id: ("done", ""), bad.process_id: ("failed", "INTERNAL"),
        good.process_id: ("done", ""),
    }  # fmt: skip


async def test_a_snapshot_goes_on_where_enough_has_been_examined(
    store: Store, bulks: Bulks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EXAMINED_MAX", 2)
    finished, _ = await store.ready(success(Complete())), await store.ready()
    for _ in range(4):
        store.clock.advance(HOUR)
        await store.ready(success(Complete()))
    store.clock.advance(HOUR)
    request = BulkRequest(
        operation_id="b", kind=BulkKind.NOTIFY, rate_max=None,
        filter=ProcessFilter(namespace="orders", statuses=(ProcessStatus.RUNNING,)),
    )  # fmt: skip
    await bulks.start(request, {})

    is_all = [await bulks.match("b") for _ in range(4)]
    items = await bulks.items("b", failed=False, after=0, limit=9)

    assert is_all == [False, False, False, True]
    assert finished.process_id not in {it.process_id for it in items}
    assert len(items) == 1


@pytest.mark.parametrize("step", [-HOUR, HOUR], ids=["back", "forward"])
async def test_a_snapshot_is_that_of_the_start_whatever_the_clock_says(
    store: Store, bulks: Bulks, step: dt.timedelta
) -> None:
    broken, retried, running = fresh_key(), fresh_key(), await store.ready()
    await store.broken(broken)
    await store.broken(retried)
    store.clock.advance(step)
    for kind in (BulkKind.RETRY, BulkKind.NOTIFY):
        await bulks.start(
            BulkRequest(operation_id=kind, kind=kind, filter=ProcessFilter(namespace="orders")), {}
        )
    store.clock.advance(step)
    await store.recover(retried, retries=True)
    await store.admit(a_request(running))
    for work in await store.claim_due():
        await store.settled(work.task, BROKEN if work.task.key == retried else success())
    await store.broken(fresh_key())
    await store.ready()

    for kind in (BulkKind.RETRY, BulkKind.NOTIFY):
        assert await bulks.match(kind)

    found = {
        kind: [it.process_id for it in await bulks.items(kind, failed=False, after=0, limit=9)]
        for kind in (BulkKind.RETRY, BulkKind.NOTIFY)
    }
    assert found == {
        BulkKind.RETRY: [broken.process_id], BulkKind.NOTIFY: [running.process_id],
    }  # fmt: skip


async def test_a_cancellation_leaves_tasks_alone_that_are_newer_than_itself(
    store: Store, bulks: Bulks
) -> None:
    idle, busy = await store.ready(), await store.ready()
    older = await store.admit(a_request(busy), run=False)
    request = BulkRequest(
        operation_id="c", kind=BulkKind.CANCEL, filter=ProcessFilter(namespace="orders")
    )
    await bulks.start(request, {})
    await store.admit(a_request(idle), run=False)

    await bulks.match("c")

    [item] = await bulks.items("c", failed=False, after=0, limit=9)
    assert (item.process_id, item.task_id) == (busy.process_id, older.task_id)


async def test_following_ends_at_a_number_of_processes(
    store: Store, bulks: Bulks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FOLLOWED_MAX", 2)
    name = (await started(store, bulks, broken=2, follow=True)).operation_id
    await bulks.match(name)
    await bulks.apply(await bulks.get(name), limit=9)
    await bulks.match(name)

    bulk = await bulks.get(name)

    assert (bulk.state, bulk.stop_reason) == (BulkState.STOPPED, "it has taken up 2 processes")
    assert bulk.done_count == 2


async def test_a_process_that_is_retried_is_counted_as_waiting_until_it_breaks_again(
    store: Store, bulks: Bulks
) -> None:
    name = (await started(store, bulks, broken=2)).operation_id
    await bulks.match(name)
    await bulks.apply(await bulks.get(name), limit=9)
    outcomes = [await bulks.count_outcomes(await bulks.get(name))]
    for work in await store.claim_due():
        await store.settled(work.task, BROKEN)
        outcomes.append(await bulks.count_outcomes(await bulks.get(name)))

    assert [(it.error_count, it.waiting_count) for it in outcomes] == [(0, 2), (1, 1), (2, 0)]
