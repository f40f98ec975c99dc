"""A replica whose heartbeats are not written, and those that the others write."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from grpc import StatusCode

from progressor import errors
from progressor.domain.views.replica import ReplicaLoad
from progressor.storage.replicas.heartbeats import Heard, Heartbeats
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.replica import (
    Env,
    Replica,
    open_env,
    refusal,
    running_replica,
    starting_replica,
)
from tests.support.faults.faults import Fault, cut_after, cut_before, stalled_after, stalled_before
from tests.support.postgres.proxy import running_proxy
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

BEAT = "INSERT INTO progressor.replicas"
NEVER_SCANNING = {"scanner.interval_seconds": "3600"}


class Silence:
    """Keeps heartbeats from being written: those of one replica, or of all but one."""

    def __init__(self) -> None:
        self.of = 0
        self.of_all_but = 0
        self.met = threading.Event()

    def holds(self, replica_id: int) -> bool:
        """Tell whether the beats of a replica fail."""
        return self.of == replica_id or self.of_all_but not in {0, replica_id}

    def end(self) -> None:
        """Let all through from now on."""
        self.of = self.of_all_but = 0


@pytest.fixture
def silence() -> Iterator[Silence]:
    """Return a silence that can be laid upon the replicas of this process."""
    silence, beat = Silence(), Heartbeats.beat

    def beat_or_not(heartbeats: Heartbeats, *, draining: bool, load: ReplicaLoad) -> Heard:
        if silence.holds(heartbeats._constants["replica_id"]):
            silence.met.set()
            raise errors.StorageUnavailableError("silenced, says the test")
        return beat(heartbeats, draining=draining, load=load)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Heartbeats, "beat", beat_or_not)
        yield silence
        silence.end()


@pytest_asyncio.fixture(loop_scope="module")
async def env(second_replica: Replica) -> AsyncIterator[Env]:
    async with open_env(second_replica, one_at_a_time=False) as env:
        yield env


class TestWithoutHeartbeats:
    async def test_a_replica_stops_its_steps_before_another_takes_them(
        self, second_replica: Replica, env: Env, database: str, silence: Silence
    ) -> None:
        await env.running("p", Hang(), Answer())
        order: list[str] = []
        async with (
            running_replica(database) as silenced,
            env.client_at(silenced.address) as there,
        ):
            for replica in (second_replica, silenced):
                replica.points.observers.add(lambda point, _facts: order.append(point))
            accepted = await there.call("p", b"1", accept_only=True)
            await env.asked("p", 2)
            silence.of = silenced.engine.replica_id
            answer = await env.client.await_task("p", task_id=accepted.task_id)
            silence.end()

        first, second = (request.task for request in env.asked_for("p")[1:])
        assert answer.response == b"1"
        assert (first.attempt, second.attempt) == (1, 2)
        assert order.index("abandoned") < order.index("zombie_collected")
        assert order.count("abandoned") == 1

    async def test_a_replica_takes_no_more_and_goes_on_with_the_next_heartbeat_without_a_scan(
        self, own_database: str, silence: Silence, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        async with (
            running_replica(own_database, NEVER_SCANNING) as alone,
            open_env(alone, one_at_a_time=False) as env,
        ):
            await env.running("p", Hang(), Answer())
            await env.running("q")
            await env.client.call("p", b"1", accept_only=True)
            await env.asked("p", 2)
            silence.of = alone.engine.replica_id
            await env.points.wait("abandoned", key=env.key("p"))
            await env.client.call("q", b"1", accept_only=True)
            await env.points.wait("admitted", 2, key=env.key("q"))
            meanwhile = len(env.asked_for("q"))
            silence.end()
            await env.settled("q", 2)

        told = [record.getMessage() for record in caplog.records]
        assert meanwhile == 1
        assert env.points.count("scan_found") == 0
        assert told.index("lease lost: no heartbeat could be written") < told.index(
            "claiming steps again"
        )


@pytest.mark.parametrize(
    "fault",
    [cut_before(BEAT), cut_after(BEAT), stalled_before(BEAT), stalled_after(BEAT)],
    ids=repr,
)
async def test_a_heartbeat_on_a_broken_connection_is_followed_by_others_on_a_new_one(
    database: str, fault: Fault
) -> None:
    with running_proxy(database) as proxy:
        async with running_replica(proxy.conninfo) as replica:
            proxy.arm(fault)
            await fault.struck()
            written = replica.points.count("beat")
            await replica.points.wait("beat", written + 3)


async def test_before_the_first_heartbeat_a_replica_takes_nothing_in(
    second_replica: Replica, env: Env, database: str, silence: Silence
) -> None:
    await env.running("p")
    silence.of_all_but = second_replica.engine.replica_id
    async with (
        starting_replica(database) as entering,
        env.client_at(entering.address) as there,
    ):
        assert await asyncio.to_thread(silence.met.wait, PATIENCE_SECONDS)
        status = await refusal(there.call("p", b"early"))
        silence.end()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await entering.engine.serving.wait()
        answer = await there.call("p", b"1")

    assert (status.code, status.reason) == (StatusCode.UNAVAILABLE, "STORAGE_UNAVAILABLE")
    assert answer.response == b"1"
    assert len(env.asked_for("p")) == 2
