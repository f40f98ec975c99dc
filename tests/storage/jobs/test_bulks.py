"""Bulk operations in storage: deletion in pieces."""

import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor import errors
from progressor.domain.processes.process import process_key
from progressor.domain.views.bulk import (
    NAMESPACE,
    OPERATIONS,
    BulkKind,
    BulkRequest,
)
from progressor.domain.views.filter import ProcessFilter
from progressor.storage.jobs import bulks as module
from progressor.storage.jobs.bulks import Bulks
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.store import (
    Store,
    count,
    create_namespace,
    fresh_key,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)


@pytest.fixture
def bulks(store: Store, database: str) -> Bulks:
    create_namespace(database, NAMESPACE)
    return Bulks(store.context)


async def started(store: Store, bulks: Bulks, *, broken: int) -> BulkRequest:
    """Start a retry of so many broken processes."""
    for _ in range(broken):
        await store.broken(fresh_key())
    store.clock.advance(HOUR)
    request = BulkRequest(
        operation_id=fresh_key().process_id, kind=BulkKind.RETRY, rate_max=None,
        filter=ProcessFilter(namespace="orders"),
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
