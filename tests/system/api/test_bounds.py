"""Bounds: what piles up in one place is refused there, stays in its place, and goes away again."""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import psycopg
import pytest
import pytest_asyncio
from grpc import StatusCode

from progressor import errors
from progressor.api.server import sessions
from progressor.settings.sections import Database
from progressor.storage.postgres import pools
from progressor.storage.postgres.pools import connection_of, open_pools
from tests.support.engine.replica import (
    QUIET,
    Env,
    Replica,
    answering,
    open_env,
    refusal,
    running_replica,
    timer,
)
from tests.support.engine.sessions import RawSession
from tests.support.processor.scripted import Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALLERS_MAX = 20
CROWD = 200
SETTINGS = {**QUIET, "replica.heartbeat_interval_seconds": "0.1"}

BOTH = pytest.mark.parametrize("session", [True, False], ids=["session", "unary"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    """Return a replica that never scans: what finds no worker is taken as workers become free."""
    async with running_replica(database, SETTINGS) as replica:
        yield replica
        assert replica.points.count("scan_found") == 0


@pytest.fixture(scope="module")
def observer(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest_asyncio.fixture(loop_scope="module", params=[True, False], ids=["session", "unary"])
async def hanging(
    request: pytest.FixtureRequest, replica: Replica
) -> AsyncIterator[tuple[Env, Hang]]:
    """Return a namespace whose only worker hangs on the process ``p``, and what releases it."""
    async with open_env(
        replica, session=request.param, worker_count_max=1, waiting_callers_max=CALLERS_MAX
    ) as env:
        hang, _ = await env.busy("p")
        yield env, hang
        hang.released.set()


async def outcome(env: Env, number: int) -> str:
    """Call a process that hangs, and say how it ended."""
    try:
        await env.client.call("p", b"%d" % number)
    except errors.ProgressorError as error:
        return error.reason
    return "ANSWERED"


async def in_hand(replica: Replica, observer: psycopg.Connection[Any]) -> tuple[int, int]:
    """Return how many steps and callers a replica tells of with a beat that is yet to come."""
    await replica.points.wait("beat", replica.points.count("beat") + 2)
    row = observer.execute(
        "SELECT step_count, caller_count FROM progressor.replicas WHERE replica_id = %s",
        [replica.engine.replica_id],
    ).fetchone()
    assert row is not None, "a replica that beats has a row"
    return int(row[0]), int(row[1])


class TestANamespaceThatHangs:
    async def test_lets_so_many_callers_wait_and_tells_the_others_to_come_back(
        self, hanging: tuple[Env, Hang]
    ) -> None:
        env, hang = hanging
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(outcome(env, number)) for number in range(CROWD)]
            await env.points.wait("admitted", 2 + CALLERS_MAX, key=env.key("p"))
            status = await refusal(env.client.call("p"))
            hang.released.set()

        ends = Counter(task.result() for task in calls)
        assert (status.code, status.reason) == (StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
        assert status.retry_after is not None
        assert ends.keys() <= {"ANSWERED", "OVERLOADED"}
        assert ends["ANSWERED"] >= CALLERS_MAX

    async def test_counts_those_who_await_a_task_among_its_callers(
        self, hanging: tuple[Env, Hang]
    ) -> None:
        env, hang = hanging
        accepted = await env.client.call("p", accept_only=True)

        async def await_it() -> str:
            try:
                await env.client.await_task("p", task_id=accepted.task_id)
            except errors.OverloadedError as error:
                return error.reason
            return "ANSWERED"

        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(await_it()) for _ in range(CROWD)]
            await env.points.wait("awaited", CALLERS_MAX, key=env.key("p"))
            hang.released.set()

        assert {task.result() for task in waits} <= {"ANSWERED", "OVERLOADED"}
        assert env.points.count("awaited", key=env.key("p")) >= CALLERS_MAX

    async def test_costs_the_callers_of_another_nothing(
        self, hanging: tuple[Env, Hang], replica: Replica
    ) -> None:
        env, hang = hanging
        async with asyncio.TaskGroup() as group:
            for number in range(CROWD):
                group.create_task(outcome(env, number))
            await env.points.wait("admitted", 2 + CALLERS_MAX, key=env.key("p"))
            async with open_env(replica, session=False) as other:
                await other.client.start("p", b"0")
                answers = [(await other.client.call("p", b"%d" % n)).response for n in range(20)]
            asked = len(env.asked_for("p"))
            hang.released.set()

        assert answers == [b"%d" % number for number in range(20)]
        assert asked == 2, "its worker was busy all the time"

    async def test_leaves_nobody_behind_when_its_callers_have_given_up(
        self, hanging: tuple[Env, Hang], replica: Replica, observer: psycopg.Connection[Any]
    ) -> None:
        env, hang = hanging
        async with asyncio.TaskGroup() as group:
            calls = [
                group.create_task(refusal(env.client.call("p", timeout=1.0)))
                for _ in range(CALLERS_MAX)
            ]
        waiting = await in_hand(replica, observer)
        async with asyncio.TaskGroup() as group:
            again = [group.create_task(outcome(env, number)) for number in range(CALLERS_MAX)]
            # Those who gave up have left their tasks, whose turn it is first.
            await env.points.wait("admitted", 2 + 2 * CALLERS_MAX, key=env.key("p"))
            hang.released.set()

        # The engine or the client reports it, whichever is first.
        assert {task.result().code for task in calls} == {grpc.StatusCode.DEADLINE_EXCEEDED}
        assert waiting == (1, 0)
        assert {task.result() for task in again} == {"ANSWERED"}
        assert await in_hand(replica, observer) == (0, 0)


@BOTH
async def test_a_namespace_takes_no_more_of_the_processor_than_it_has_workers(
    replica: Replica, *, session: bool
) -> None:
    async with open_env(replica, session=session, worker_count_max=3) as env:
        hang = Hang()
        for number in range(CROWD):
            env.processor.on_process(f"p{number}", hang)
        async with asyncio.TaskGroup() as group:
            for number in range(CROWD):
                group.create_task(env.client.start(f"p{number}"))
            for number in range(CROWD):
                await env.points.wait("admitted", key=env.key(f"p{number}"))
            asked = len(env.processor.requests)
            hang.released.set()

        assert asked <= 3
        assert len(env.processor.requests) == CROWD


async def test_sessions_beyond_the_bound_are_told_to_come_back(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 0)
    async with grpc.aio.insecure_channel(replica.address) as channel, RawSession(channel) as late:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await late.read()

    assert raised.value.code() is StatusCode.RESOURCE_EXHAUSTED


async def test_those_who_wait_for_a_connection_are_so_many_and_no_more(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "WAITING_MAX", 2)
    opened = await open_pools(Database(dsn=database, scan_connections_max=1), database)

    async def borrow() -> bool:
        try:
            async with connection_of(opened.scan):
                return True
        except errors.StorageOverloadedError:
            return False

    try:
        async with asyncio.TaskGroup() as group, connection_of(opened.scan):
            tasks = [group.create_task(borrow()) for _ in range(5)]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await opened.close()

    assert Counter(task.result() for task in tasks) == {True: 2, False: 3}


@pytest_asyncio.fixture(loop_scope="module")
async def narrow(replica: Replica) -> AsyncIterator[Env]:
    async with open_env(replica, worker_count_max=2) as env:
        yield env


@pytest_asyncio.fixture(loop_scope="module")
async def stuck(narrow: Env) -> Hang:
    """Return what keeps both workers busy, with processes ``h0`` and ``h1``."""
    hang = Hang()
    for name in ("h0", "h1"):
        narrow.processor.on_process(name, hang)
        await narrow.client.start(name, accept_only=True)
    await narrow.asked("h0")
    await narrow.asked("h1")
    return hang


class TestMoreWorkThanWorkers:
    async def test_what_waits_for_a_worker_runs_the_oldest_first(
        self, narrow: Env, stuck: Hang
    ) -> None:
        names = [f"p{number}" for number in range(20)]
        for name in names:
            await narrow.client.start(name, accept_only=True)
        stuck.released.set()
        for name in names:
            await narrow.settled(name)

        ran = [it.process.process_id for it in narrow.processor.requests][2:]
        # Two workers at once: neighbours may arrive the other way round.
        assert all(abs(ran.index(name) - place) <= 2 for place, name in enumerate(names)), ran

    async def test_a_request_that_has_just_come_does_not_pass_those_that_wait(
        self, narrow: Env, stuck: Hang
    ) -> None:
        for name in ("first", "second"):
            await narrow.client.start(name, accept_only=True)
        async with asyncio.TaskGroup() as group:
            group.create_task(narrow.client.start("third"))
            await narrow.points.wait("admitted", key=narrow.key("third"))
            stuck.released.set()

        ran = [it.process.process_id for it in narrow.processor.requests]
        assert ran.index("first") < ran.index("third")

    async def test_timers_that_find_no_worker_run_later(
        self, narrow: Env, replica: Replica
    ) -> None:
        names = [f"p{number}" for number in range(10)]
        for name in names:
            await narrow.timed(name, answering(b"fired"), after=0.8)
        hang = Hang()
        for name in ("h0", "h1"):
            narrow.processor.on_process(name, hang)
            await narrow.client.start(name, accept_only=True)
        # A clock that this namespace's workers do not hold up.
        async with open_env(replica) as clock:
            clock.processor.on_process("c", answering(set_timer=timer(0.9)), answering())
            await clock.client.start("c")
            await clock.settled("c", 2)
        fired_before = [name for name in names if len(narrow.asked_for(name)) > 1]
        hang.released.set()
        for name in names:
            await narrow.settled(name, 2)

        assert fired_before == []

    async def test_calls_behind_a_step_need_no_worker_of_their_own(self, replica: Replica) -> None:
        async with open_env(replica, worker_count_max=1) as env:
            hang, _ = await env.busy("p")
            async with asyncio.TaskGroup() as group:
                calls = [group.create_task(env.client.call("p", b"1")) for _ in range(5)]
                await env.points.wait("admitted", 7, key=env.key("p"))
                hang.released.set()

            assert [call.result().response for call in calls] == [b"1"] * 5

    async def test_a_process_that_drives_itself_lets_others_have_their_turn(
        self, replica: Replica
    ) -> None:
        async with open_env(replica, worker_count_max=1) as env:
            env.processor.on_process("endless", answering(b"t", set_timer=timer()))
            await env.client.start("endless")

            answer = await env.client.start("p", b"1")

            assert answer.response == b"1"

    async def test_a_worker_count_can_be_raised_at_run_time(self, narrow: Env, stuck: Hang) -> None:
        config = await narrow.client.namespaces.get(narrow.namespace)
        await narrow.client.namespaces.update(
            dataclasses.replace(config, worker_count_max=3), fields=["worker_count_max"]
        )

        answer = await narrow.client.start("p", b"1")

        stuck.released.set()
        assert answer.response == b"1"


class TestWaitingCallers:
    @pytest_asyncio.fixture(loop_scope="module")
    async def crowded(self, replica: Replica) -> AsyncIterator[Env]:
        """Return a namespace in which two callers may wait, and do; ``p`` hangs."""
        async with open_env(replica, waiting_callers_max=2) as env:
            hang, _ = await env.busy("p")
            async with asyncio.TaskGroup() as group:
                for _ in range(2):
                    group.create_task(env.client.call("p", b"waits"))
                await env.points.wait("admitted", 4, key=env.key("p"))
                yield env
                hang.released.set()

    async def test_beyond_the_bound_leave_no_task(self, crowded: Env) -> None:
        before = (await crowded.client.trace("p")).tasks

        await refusal(crowded.client.call("p"))

        assert len((await crowded.client.trace("p")).tasks) == len(before)

    async def test_do_not_keep_out_those_who_do_not_wait(self, crowded: Env) -> None:
        assert (await crowded.client.notify("p")).task_id

    async def test_are_counted_as_callers_and_not_as_tasks(self, replica: Replica) -> None:
        async with open_env(replica, waiting_callers_max=3) as env:
            hang, _ = await env.busy("p")
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(env.client.call("p", b"1", idempotency_key="k"))
                await env.points.wait("admitted", 5, key=env.key("p"))
                status = await refusal(env.client.call("p", b"1", idempotency_key="k"))
                hang.released.set()

            assert status.reason == "OVERLOADED"
