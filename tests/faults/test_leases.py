"""A replica loses its database, and its leases with it: it lets go before others take over."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from tests.support.faults_crowd import rows
from tests.support.faults_ground import asked_twice
from tests.support.faults_judge import judged_stage
from tests.support.processor import Answer, Hang
from tests.support.proxy import Proxy
from tests.support.replica import Replica, running_replica

pytestmark = pytest.mark.asyncio(loop_scope="module")

COUNT = 10
SETTINGS = {"replica.lease_timeout_seconds": "3"}
"""A tenth of it is more than a busy machine is late."""

BREAKS: Mapping[str, Callable[[Proxy], None]] = {
    "refused": Proxy.refuse,
    "stalled": Proxy.stall,
}
CALLS = """
    SELECT status::text, attempt_count FROM progressor.tasks
    WHERE namespace = %(namespace)s AND task_type = 'call'"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def survivor(database: str) -> AsyncIterator[Replica]:
    """Return a replica that stays, and scans."""
    async with running_replica(database, SETTINGS) as replica:
        yield replica


@pytest.mark.parametrize("name", BREAKS)
async def test_no_processor_is_asked_by_two_replicas_at_once(
    survivor: Replica, proxy: Proxy, eye: psycopg.Connection[Any], name: str
) -> None:
    names = [f"p{number}" for number in range(COUNT)]
    async with (
        judged_stage(survivor) as stage,
        running_replica(proxy.conninfo, SETTINGS) as lonely,
        stage.client_at(lonely.address) as there,
    ):
        for each in names:
            await stage.running(each, Hang(), Answer())
            await there.call(each, b"1", idempotency_key="1", accept_only=True)
        await stage.processor.received(2 * COUNT, seconds=30)
        BREAKS[name](proxy)
        answers = [
            (await stage.client.await_task(each, idempotency_key="1")).response for each in names
        ]
        proxy.restore()

        assert answers == [b"1"] * COUNT
        assert stage.processor.overlaps == []
        assert lonely.points.count("abandoned") == COUNT
        assert rows(eye, stage, CALLS) == [("finished", 2)] * COUNT
        assert asked_twice(stage) == []
