"""What goes on, asked of any replica: what each has done, what waits, who is out of reach."""

import datetime as dt
from collections.abc import AsyncIterator, Mapping

import pytest
import pytest_asyncio

from progressor.sdk import (
    Activity,
    Client,
)
from tests.support.engine.activities import activity_where, namespace_in, replica_in, tally_in
from tests.support.engine.replica import (
    NOW_AND_THEN,
    Env,
    Replica,
    open_env,
    refusal,
    running_replica,
    unavailable,
)
from tests.support.processor.scripted import Answer, reject

pytestmark = pytest.mark.asyncio(loop_scope="module")

NO_TIME = dt.timedelta()
FAILED_PRECONDITION = 9


@pytest_asyncio.fixture(loop_scope="module")
async def env(second_replica: Replica) -> AsyncIterator[Env]:
    async with open_env(second_replica, one_at_a_time=False, retry_policy=NOW_AND_THEN) as env:
        yield env


@pytest.fixture
def own_id(second_replica: Replica) -> int:
    return second_replica.engine.replica_id


async def settled(client: Client, env: Env, counts: Mapping[int, int]) -> Activity:
    """Wait until replicas, by their ids, report so many settled attempts."""

    def is_told(activity: Activity) -> bool:
        return all(
            tally_in(activity, replica_id, env.namespace).settled_count == count
            for replica_id, count in counts.items()
        )

    return await activity_where(client, is_told)


class TestWhatReplicasDo:
    async def test_is_told_by_each_of_all(self, own_id: int, env: Env, database: str) -> None:
        async with (
            running_replica(database, {"replica.name": "second"}) as second,
            env.client_at(second.address) as there,
        ):
            done = {own_id: 6, second.engine.replica_id: 5}
            for number in range(3):
                await env.running(f"p{number}")
                await env.client.call(f"p{number}")
            for _ in range(5):
                await there.call("p0")
            seen = [await settled(client, env, done) for client in (env.client, there)]

        for activity in seen:
            for replica_id, count in done.items():
                tally = tally_in(activity, replica_id, env.namespace)
                assert (tally.attempt_count, tally.failed_count) == (count, 0)
                assert tally.processor_time > NO_TIME
            names = [replica.name for replica in activity.replicas if replica.replica_id in done]
            assert names == ["second_replica", "second"]
            assert activity.queues_age is not None

    async def test_counts_what_failed_and_what_was_refused(self, own_id: int, env: Env) -> None:
        await env.running("p", unavailable(), Answer(), reject(FAILED_PRECONDITION))
        await env.client.call("p")
        await refusal(env.client.call("p"))

        # The start, a failed attempt, its retry, and a refusal, which is an answer.
        tally = tally_in(await settled(env.client, env, {own_id: 4}), own_id, env.namespace)
        assert (tally.attempt_count, tally.failed_count) == (4, 1)

    async def test_tells_first_which_processor_is_out_of_reach(
        self, second_replica: Replica, own_id: int
    ) -> None:
        async with second_replica.namespace("nowhere", "127.0.0.1:1") as client:
            await client.start("p", accept_only=True)
            seen = await activity_where(
                client,
                lambda each: namespace_in(each, own_id, "nowhere").unreachable_for is not None,
            )
            await client.remove("p")

        assert replica_in(seen, own_id).namespaces[0].namespace == "nowhere"
