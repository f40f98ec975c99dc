"""A replica loses its database, and its leases with it: it lets go before others take over."""

from collections.abc import Callable, Mapping
from typing import Any

import psycopg
import pytest

from tests.support.engine.replica import Replica, running_replica
from tests.support.faults.env import CALLS, asked_twice, rows
from tests.support.postgres.proxy import Proxy
from tests.support.processor.scripted import Answer, Hang
from tests.support.storage.doctor.judge import judged_env

pytestmark = pytest.mark.asyncio(loop_scope="module")

COUNT = 10
STAYING = {"replica.lease_timeout_seconds": "3"}
"""A tenth of it is more than a busy machine is late."""

BREAKS: Mapping[str, Callable[[Proxy], None]] = {
    "refused": Proxy.refuse,
    "stalled": Proxy.stall,
}


@pytest.mark.parametrize("name", BREAKS)
async def test_no_processor_is_asked_by_two_replicas_at_once(
    second_replica: Replica, proxy: Proxy, observer: psycopg.Connection[Any], name: str
) -> None:
    names = [f"p{number}" for number in range(COUNT)]
    async with (
        judged_env(second_replica) as env,
        running_replica(proxy.conninfo, STAYING) as lonely,
        env.client_at(lonely.address) as there,
    ):
        for each in names:
            await env.running(each, Hang(), Answer())
            await there.call(each, b"1", idempotency_key="1", accept_only=True)
        await env.processor.received(2 * COUNT, seconds=30)
        BREAKS[name](proxy)
        answers = [
            (await env.client.await_task(each, idempotency_key="1")).response for each in names
        ]
        proxy.restore()

        assert answers == [b"1"] * COUNT
        assert env.processor.overlaps == []
        assert lonely.points.count("abandoned") == COUNT
        assert rows(observer, env, CALLS) == [("finished", 2)] * COUNT
        assert asked_twice(env) == []
