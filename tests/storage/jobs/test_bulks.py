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
from progressor.domain.processes.process import ProcessStatus, process_key
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

    with pytest.raises(errors.ProcessNotFoundError):
        await bulks.get(request.operation_id)
    left = []
    for _ in range(3):
        with pytest.raises(errors.IdempotencyKeyReusedError):
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


async def test_what_was_skipped_is_taken_up_again_and_nothing_else(
    store: Store, bulks: Bulks
) -> None:
    name = (await started(store, bulks, broken=2, follow=True)).operation_id
    await bulks.match(name)
    [first, second] = await bulks.items(name, failed=False, after=0, limit=9)
    key = process_key("orders", first.process_id)
    await store.recover(key, retries=True)
    [again] = await store.claim_due()
    store.clock.advance(HOUR)
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
        key = await store.ready()
        await store.admit(a_request(key, constraints=Constraints(gates={"a": 1})), run=False)
        [call] = await store.claim_due()
        await store.settled(call.task, BROKEN)
    name = (await started(store, bulks, broken=0)).operation_id
    await bulks.match(name)

    bulk = await bulks.get(name)
    assert [(await bulks.apply(bulk, limit=9))[0] for _ in range(3)] == [1, 1, 0]


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
