"""What goes on, asked of any replica: what each has done, what waits, who is out of reach."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio
from grpc import StatusCode
from grpc_health.v1 import health_pb2

import progressor
from progressor.sdk import (
    Activity,
    Client,
    ReplicaState,
    SyncClient,
    rates_between,
    rates_by_namespace,
)
from tests.support.engine.activities import namespace_in, queue_in, replica_in, tally_in, told
from tests.support.engine.process import running_process
from tests.support.engine.replica import (
    NOW_AND_THEN,
    Env,
    Replica,
    health_becomes,
    open_env,
    refusal,
    running_replica,
    starting_replica,
    unavailable,
)
from tests.support.processor.scripted import Answer, Hang, reject

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
NO_TIME = dt.timedelta()
FAILED_PRECONDITION = 9


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def second_replica(database: str) -> AsyncIterator[Replica]:
    """Return a replica that scans and stays."""
    async with running_replica(database, {"replica.name": "second_replica"}) as replica:
        yield replica


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

    return await told(client, is_told)


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
            names = [it.name for it in activity.replicas if it.replica_id in done]
            assert names == ["second_replica", "second"]
            assert activity.queues_age is not None

    async def test_counts_what_failed_and_what_was_refused(self, own_id: int, env: Env) -> None:
        await env.running("p", unavailable(), Answer(), reject(FAILED_PRECONDITION))
        await env.client.call("p")
        await refusal(env.client.call("p"))

        # The start, a failed attempt, its retry, and a refusal, which is an answer.
        tally = tally_in(await settled(env.client, env, {own_id: 4}), own_id, env.namespace)
        assert (tally.attempt_count, tally.failed_count) == (4, 1)

    async def test_is_who_they_are_and_what_they_have_in_hand(self, own_id: int, env: Env) -> None:
        hang, _ = await env.busy("p")
        seen = await told(env.client, lambda it: replica_in(it, own_id).step_count == 1)
        hang.released.set()

        found = replica_in(seen, own_id)
        namespace = namespace_in(seen, own_id, env.namespace)
        assert (found.version, found.state) == (progressor.__version__, ReplicaState.SERVING)
        assert found.heartbeat_age == max(NO_TIME, seen.read_at - found.heartbeat_at)
        assert not found.is_partial
        assert (namespace.busy_count, namespace.worker_count) == (1, 1000)
        assert namespace.unreachable_for is None

    async def test_makes_rates(self, own_id: int, env: Env) -> None:
        await env.running("p")
        before = await settled(env.client, env, {own_id: 1})
        for _ in range(20):
            await env.client.call("p")
        after = await settled(env.client, env, {own_id: 21})

        lasting = replica_in(after, own_id).heartbeat_at - replica_in(before, own_id).heartbeat_at
        rate = rates_by_namespace(rates_between(before, after))[env.namespace]
        assert rate.settled_per_second == pytest.approx(20 / lasting.total_seconds())
        assert rate.failed_per_second == 0
        assert rate.mean_processor_time is not None
        assert rate.mean_processor_time > NO_TIME

    async def test_is_not_told_of_a_namespace_that_was_deleted(
        self, second_replica: Replica, own_id: int
    ) -> None:
        async with open_env(second_replica) as env:
            await env.running("p")
            await settled(env.client, env, {own_id: 1})
        async with Client(second_replica.address) as client:
            seen = await told(
                client,
                lambda it: (
                    env.namespace
                    not in {each.namespace for each in replica_in(it, own_id).namespaces}
                    and env.namespace not in {queue.namespace for queue in it.queues}
                ),
            )

        assert replica_in(seen, own_id).state is ReplicaState.SERVING

    async def test_tells_first_which_processor_is_out_of_reach(
        self, second_replica: Replica, own_id: int
    ) -> None:
        async with second_replica.namespace("nowhere", "127.0.0.1:1") as client:
            await client.start("p", accept_only=True)
            seen = await told(
                client, lambda it: namespace_in(it, own_id, "nowhere").unreachable_for is not None
            )
            await client.remove("p")

        assert replica_in(seen, own_id).namespaces[0].namespace == "nowhere"


class TestWhatWaits:
    async def test_is_counted_by_what_it_waits_for(self, env: Env) -> None:
        def is_told(activity: Activity) -> bool:
            queue = queue_in(activity, env.namespace)
            return (queue.timer_count, queue.behind_count) == (1, 3)

        await env.timed("timer", after=3600)
        hang, _ = await env.busy("p")
        for _ in range(3):
            await env.client.call("p", accept_only=True)
        queue = queue_in(await told(env.client, is_told), env.namespace)
        hang.released.set()

        assert (queue.due_count, queue.due_age, queue.retry_count) == (0, None, 0)
        assert queue.behind_age is not None
        assert queue.behind_age >= NO_TIME


class TestAReplicaThatLeaves:
    async def test_is_silent_with_what_it_did_once_it_was_killed(
        self, second_replica: Replica, env: Env, database: str, tmp_path: Path
    ) -> None:
        await env.running("p", Answer(), Hang(), Answer())
        async with (
            running_process(database, tmp_path, {"replica.name": "victim"}) as victim,
            env.client_at(victim.address) as there,
        ):
            await there.call("p")
            accepted = await there.call("p", accept_only=True)
            await env.asked("p", 3)
            (victim_id,) = [
                it.replica_id
                for it in (await there.replicas.activity()).replicas
                if it.name == "victim"
            ]
            await settled(env.client, env, {victim_id: 1})
            victim.kill()
            await second_replica.points.wait("zombie_collected", task_id=accepted.task_id)
        seen = await told(
            env.client, lambda it: replica_in(it, victim_id).state is ReplicaState.SILENT
        )

        assert replica_in(seen, victim_id).heartbeat_age > NO_TIME
        assert tally_in(seen, victim_id, env.namespace).settled_count == 1

    async def test_tells_of_all_while_it_drains(self, own_id: int, env: Env, database: str) -> None:
        await env.running("p", hang := Hang())
        async with (
            running_replica(database) as leaving,
            env.client_at(leaving.address) as there,
            asyncio.TaskGroup() as group,
        ):
            leaving_id = leaving.engine.replica_id
            group.create_task(there.call("p"))
            await env.asked("p", 2)
            leaving.engine.stop()
            await health_becomes(leaving.address, NOT_SERVING)
            seen = await told(
                there, lambda it: replica_in(it, leaving_id).state is ReplicaState.DRAINING
            )
            hang.released.set()

        assert replica_in(seen, own_id).state is ReplicaState.SERVING


async def test_an_engine_that_has_not_reached_its_database_cannot_tell() -> None:
    async with (
        starting_replica("host=127.0.0.1 port=1 dbname=nowhere") as starting,
        Client(starting.address) as client,
    ):
        status = await refusal(client.replicas.activity(timeout=0.5))

    assert (status.code, status.reason) == (StatusCode.UNAVAILABLE, "STORAGE_UNAVAILABLE")


async def test_the_blocking_client_asks_too(second_replica: Replica, own_id: int) -> None:
    def ask() -> list[int]:
        with SyncClient(second_replica.address) as client:
            return [it.replica_id for it in client.replicas.activity().replicas]

    assert own_id in await asyncio.to_thread(ask)
