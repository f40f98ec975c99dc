"""Real processes die, freeze and stall: of engines and of processors, by calls and by streams."""

import asyncio
import contextlib
import datetime as dt
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from progressor import app
from progressor.sdk import BYTES, Client, NamespaceConfig, RetryPolicy, ZombiePolicy
from tests.support.clock import SkewedClock
from tests.support.faults_ground import asked_twice, until
from tests.support.faults_processor import STREAM, UNARY, processor_process
from tests.support.laws import broken_laws
from tests.support.points import PATIENCE_SECONDS
from tests.support.processor import Answer, Hang
from tests.support.proxy import Proxy
from tests.support.replica import (
    NOW_AND_THEN,
    Replica,
    ReplicaProcess,
    Stage,
    answering,
    open_stage,
    response,
    running_process,
    running_replica,
    timer,
    unavailable,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

Row = tuple[Any, ...]

CROWD = 50
LEASE_AND_SCANS = 5.0
"""Lease timeout (1 s) and a few scans (0.2 s each), with patience for a busy machine."""

streams_and_calls = pytest.mark.parametrize("streaming", [True, False], ids=["streams", "calls"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def survivor(database: str) -> AsyncIterator[Replica]:
    """Return a replica that stays, and scans."""
    async with running_replica(database) as replica:
        yield replica


@contextlib.asynccontextmanager
async def at_work(stage: Stage, directory: Path, names: list[str]) -> AsyncIterator[ReplicaProcess]:
    """Run a replica that has a call on each of these processes in hand; it is killed in the end."""
    for name in names:
        stage.processor.on_process(name, answering(), Hang(), Answer())
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(stage.client.start(name))
    async with (
        running_process(stage.replica.engine.dsn, directory) as victim,
        stage.client_at(victim.address) as there,
    ):
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(there.call(name, b"1", accept_only=True))
        await stage.processor.received(2 * len(names), seconds=PATIENCE_SECONDS)
        yield victim


def rows_of(eye: psycopg.Connection[Any], stage: Stage, what: str) -> list[Row]:
    """Return columns of the calls of a stage, with their processes, in order."""
    return eye.execute(
        f"SELECT {what} FROM progressor.tasks t"  # noqa: S608  a constant of a test
        " JOIN progressor.processes p USING (slot, namespace, process_id)"
        " WHERE t.namespace = %s AND t.task_type = 'call' ORDER BY t.task_id",
        [stage.namespace],
    ).fetchall()


class TestAnEngineIsKilled:
    """kill -9 between claim and settlement, with fifty processes at work."""

    @streams_and_calls
    async def test_all_its_steps_go_on_elsewhere_within_the_lease_and_none_is_broken(
        self,
        survivor: Replica,
        eye: psycopg.Connection[Any],
        tmp_path: Path,
        streaming: bool,
    ) -> None:
        names = [f"p{number}" for number in range(CROWD)]
        async with open_stage(survivor, one_at_a_time=False, streaming=streaming) as stage:
            async with at_work(stage, tmp_path, names) as victim:
                victim.kill()
                killed_at = time.monotonic()
                for name in names:
                    await stage.settled(name, 2)
                took = time.monotonic() - killed_at

            assert took < LEASE_AND_SCANS
            assert (
                rows_of(eye, stage, "p.status::text, t.status::text, t.attempt_count")
                == [("running", "finished", 2)] * CROWD
            )
            assert rows_of(eye, stage, "p.last_event_id") == [(1,)] * CROWD
            assert asked_twice(stage) == []
            assert broken_laws(eye) == {}

    @streams_and_calls
    async def test_all_its_processes_end_as_zombies_where_the_policy_says_fail(
        self,
        survivor: Replica,
        eye: psycopg.Connection[Any],
        tmp_path: Path,
        streaming: bool,
    ) -> None:
        names = [f"p{number}" for number in range(CROWD)]
        async with open_stage(
            survivor,
            one_at_a_time=False,
            streaming=streaming,
            zombie_policy=ZombiePolicy.FAIL,
        ) as stage:
            async with at_work(stage, tmp_path, names) as victim:
                before = survivor.points.count("zombie_collected")
                victim.kill()
                await survivor.points.wait("zombie_collected", before + CROWD)

            assert (
                rows_of(
                    eye,
                    stage,
                    "p.status::text, p.detail, p.corrupted_by = t.task_id, t.status::text,"
                    " t.error_reason, t.attempt_count, p.last_event_id",
                )
                == [("error", "zombie detected", True, "error", "ZOMBIE", 1, 0)] * CROWD
            )
            assert broken_laws(eye) == {}


class TestAnEngineIsFrozen:
    """SIGSTOP past the lease, while another takes over; then SIGCONT."""

    @streams_and_calls
    async def test_what_it_settles_late_changes_nothing_and_it_serves_again(
        self,
        survivor: Replica,
        eye: psycopg.Connection[Any],
        tmp_path: Path,
        streaming: bool,
    ) -> None:
        late = Hang(response=response(b"late", aux_state=b"late", response=b"late"))
        async with open_stage(survivor, one_at_a_time=False, streaming=streaming) as stage:
            await stage.running("p", late, answering(b"in time", response=b"in time"), Answer())
            async with (
                running_process(survivor.engine.dsn, tmp_path) as frozen,
                stage.client_at(frozen.address) as there,
            ):
                accepted = await there.call("p", b"1", accept_only=True)
                await stage.asked("p", 2)
                [(token_then,)] = rows_of(eye, stage, "t.token")
                frozen.freeze()
                # It is answered while it cannot hear it, and hears of it first thing after.
                late.released.set()
                answer = await stage.client.await_task("p", task_id=accepted.task_id)
                before = rows_of(eye, stage, "t::text, p::text")
                frozen.thaw()
                again = await there.call("p", b"2", timeout=PATIENCE_SECONDS)

            [(token, attempt), _] = rows_of(eye, stage, "t.token, t.attempt_count")
            after = rows_of(eye, stage, "t::text")
            assert (answer.response, again.response) == (b"in time", b"2")
            assert (attempt, token > token_then) == (2, True)
            assert after[0] == before[0][:1]
            assert events_of(eye, stage) == [b"in time", b"2"]
            assert broken_laws(eye) == {}


def events_of(eye: psycopg.Connection[Any], stage: Stage) -> list[bytes]:
    """Return the events of a stage, in order."""
    found = eye.execute(
        "SELECT payload FROM progressor.events WHERE namespace = %s ORDER BY process_id, event_id",
        [stage.namespace],
    ).fetchall()
    return [row[0] for row in found]


class TestAnEngineDrainsWithoutItsDatabase:
    @pytest.fixture
    def hasty(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have an engine that leaves wait half a second for PostgreSQL."""
        monkeypatch.setattr(app, "_FLUSH_TIMEOUT", dt.timedelta(seconds=0.5))

    @pytest.mark.usefixtures("hasty")
    @pytest.mark.parametrize("away", [Proxy.refuse, Proxy.stall], ids=["refused", "stalled"])
    async def test_it_leaves_in_time_and_its_steps_go_on_elsewhere(
        self,
        survivor: Replica,
        eye: psycopg.Connection[Any],
        proxy: Proxy,
        away: Callable[[Proxy], None],
    ) -> None:
        settings = {
            "server.drain_timeout_seconds": "0.5",
            "database.connect_timeout_seconds": "1",
            "database.statement_timeout_seconds": "1",
        }
        async with open_stage(survivor, one_at_a_time=False) as stage:
            await stage.running("p", hang := Hang(), Answer())
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    async with running_replica(proxy.conninfo, settings) as leaving:
                        async with stage.client_at(leaving.address) as there:
                            accepted = await there.call("p", b"1", accept_only=True)
                        await stage.asked("p", 2)
                        away(proxy)
                        hang.released.set()
                        await leaving.points.wait("answered", key=stage.key("p"))
            finally:
                proxy.restore()
            answer = await stage.client.await_task("p", task_id=accepted.task_id)

            assert answer.response == b"1"
            assert events_of(eye, stage) == [b"1"]
            assert asked_twice(stage) == []
            assert broken_laws(eye) == {}


class TestAProcessorIsKilled:
    @pytest.mark.parametrize("mode", [STREAM, UNARY])
    async def test_its_steps_are_asked_for_again_once_it_is_back(
        self, survivor: Replica, eye: psycopg.Connection[Any], tmp_path: Path, mode: str
    ) -> None:
        address = f"unix:{tmp_path}/processor.sock"
        namespace = f"killed-{mode}"
        policy = RetryPolicy(
            initial_interval=dt.timedelta(milliseconds=50), coefficient=1.0, attempts_max=1000
        )
        config = NamespaceConfig(name=namespace, processor_targets=(address,), retry_policy=policy)
        async with Client(
            survivor.address, namespace=namespace, codec=BYTES, timeout=PATIENCE_SECONDS
        ) as client:
            await client.create_namespace(config)
            async with processor_process(address, mode, tmp_path) as dying:
                for number in range(10):
                    await client.start(f"p{number}")
                async with asyncio.TaskGroup() as group:
                    calls = [
                        group.create_task(client.call(f"p{number}", b"%d" % number))
                        for number in range(9)
                    ]
                    calls.append(group.create_task(client.call("p9", b"die")))
                    await dying.wait()
                    async with processor_process(address, mode, tmp_path):
                        await asyncio.wait(calls)

            answers = [call.result().response for call in calls]
            assert answers == [*(b"%d" % number for number in range(9)), b"die"]
            counts = eye.execute(
                "SELECT process_id, count(*) FROM progressor.events WHERE namespace = %s"
                " GROUP BY process_id ORDER BY process_id",
                [namespace],
            ).fetchall()
            assert counts == [(f"p{number}", 1) for number in range(10)]
            assert broken_laws(eye) == {}


class TestAnEventLoopIsHeldUp:
    async def test_for_longer_than_the_lease_its_heart_beats_on_and_nobody_takes_over(
        self, survivor: Replica, eye: psycopg.Connection[Any], tmp_path: Path
    ) -> None:
        async with open_stage(survivor) as stage:
            await stage.running("p")

            def hold_up(point: str, facts: dict[str, object]) -> None:
                if point == "answered" and facts["key"] == stage.key("p"):
                    # Twice the lease, in the way of everything else on the loop.
                    time.sleep(2.0)

            async with running_process(survivor.engine.dsn, tmp_path):
                survivor.points.observers.add(hold_up)
                try:
                    answer = await stage.client.call("p", b"1")
                finally:
                    survivor.points.observers._observers.remove(hold_up)

            assert answer.response == b"1"
            assert rows_of(eye, stage, "t.status::text, t.attempt_count") == [("finished", 1)]
            assert events_of(eye, stage) == [b"1"]
            assert broken_laws(eye) == {}


class TestReplicasWhoseClocksAreHoursApart:
    @pytest.fixture
    def own_eye(self, own_database: str) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(own_database, autocommit=True) as connection:
            yield connection

    async def test_share_processes_timers_and_retries_as_if_they_were_not(
        self, own_database: str, own_eye: psycopg.Connection[Any]
    ) -> None:
        hour = dt.timedelta(hours=1)
        async with (
            running_replica(own_database, clock=SkewedClock(hour)) as ahead,
            running_replica(own_database, clock=SkewedClock(-hour)) as behind,
            open_stage(ahead, retry_policy=NOW_AND_THEN) as stage,
            stage.client_at(behind.address) as there,
        ):
            stage.processor.on_process(
                "p",
                answering(b"started", set_timer=timer(0.2)),
                unavailable(),
                answering(b"fired"),
                Answer(),
            )
            begun_at = time.monotonic()
            await there.start("p")
            await until(ahead.points, lambda: events_of(own_eye, stage) == [b"started", b"fired"])
            took = time.monotonic() - begun_at
            answers = [
                (await client.call("p", b"%d" % number)).response
                for number, client in enumerate((stage.client, there, stage.client, there))
            ]

            assert took < LEASE_AND_SCANS
            assert answers == [b"0", b"1", b"2", b"3"]
            assert events_of(own_eye, stage) == [b"started", b"fired", *answers]
            for replica in (ahead, behind):
                assert replica.points.count("zombie_collected") == 0
                assert replica.points.count("abandoned") == 0
            assert broken_laws(own_eye) == {}
