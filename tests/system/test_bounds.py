"""Bounds: what piles up in one place is refused there, stays in its place, and goes away again."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import psycopg
import pytest
import pytest_asyncio
from grpc import StatusCode

from progressor import errors
from progressor.api.session import sessions
from progressor.settings.sections import Database
from progressor.storage.postgres import pools
from progressor.storage.postgres.pools import connection_of, open_pools
from tests.support.processor import Hang
from tests.support.replica import QUIET, Replica, Stage, open_stage, refusal, running_replica
from tests.support.sessions import RawSession

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALLERS_MAX = 20
CROWD = 200
SETTINGS = {**QUIET, "replica.heartbeat_interval_seconds": "0.1"}

BOTH = pytest.mark.parametrize("session", [True, False], ids=["session", "unary"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database, SETTINGS) as replica:
        yield replica


@pytest.fixture(scope="module")
def eye(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest_asyncio.fixture(loop_scope="module", params=[True, False], ids=["session", "unary"])
async def hanging(
    request: pytest.FixtureRequest, replica: Replica
) -> AsyncIterator[tuple[Stage, Hang]]:
    """Return a namespace whose only worker hangs on the process ``p``, and what releases it."""
    async with open_stage(
        replica, session=request.param, worker_count_max=1, waiting_callers_max=CALLERS_MAX
    ) as stage:
        hang, _ = await stage.busy("p")
        yield stage, hang
        hang.released.set()


async def outcome(stage: Stage, number: int) -> str:
    """Call a process that hangs, and say how it ended."""
    try:
        await stage.client.call("p", b"%d" % number)
    except errors.ProgressorError as error:
        return error.reason
    return "ANSWERED"


async def in_hand(replica: Replica, eye: psycopg.Connection[Any]) -> tuple[int, int]:
    """Return how many steps and callers a replica tells of with a beat that is yet to come."""
    await replica.points.wait("beat", replica.points.count("beat") + 2)
    row = eye.execute(
        "SELECT step_count, caller_count FROM progressor.replicas WHERE replica_id = %s",
        [replica.engine.replica_id],
    ).fetchone()
    assert row is not None, "a replica that beats has a row"
    return int(row[0]), int(row[1])


class TestANamespaceThatHangs:
    async def test_lets_so_many_callers_wait_and_tells_the_others_to_come_back(
        self, hanging: tuple[Stage, Hang]
    ) -> None:
        stage, hang = hanging
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(outcome(stage, number)) for number in range(CROWD)]
            await stage.points.wait("admitted", 2 + CALLERS_MAX, key=stage.key("p"))
            status = await refusal(stage.client.call("p"))
            hang.released.set()

        ends = Counter(task.result() for task in calls)
        assert (status.code, status.reason) == (StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
        assert status.retry_after is not None
        assert ends.keys() <= {"ANSWERED", "OVERLOADED"}
        assert ends["ANSWERED"] >= CALLERS_MAX

    async def test_counts_those_who_await_a_task_among_its_callers(
        self, hanging: tuple[Stage, Hang]
    ) -> None:
        stage, hang = hanging
        accepted = await stage.client.call("p", accept_only=True)

        async def await_it() -> str:
            try:
                await stage.client.await_task("p", task_id=accepted.task_id)
            except errors.OverloadedError as error:
                return error.reason
            return "ANSWERED"

        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(await_it()) for _ in range(CROWD)]
            await stage.points.wait("awaited", CALLERS_MAX, key=stage.key("p"))
            hang.released.set()

        assert {task.result() for task in waits} <= {"ANSWERED", "OVERLOADED"}
        assert stage.points.count("awaited", key=stage.key("p")) >= CALLERS_MAX

    async def test_costs_the_callers_of_another_nothing(
        self, hanging: tuple[Stage, Hang], replica: Replica
    ) -> None:
        stage, hang = hanging
        async with asyncio.TaskGroup() as group:
            for number in range(CROWD):
                group.create_task(outcome(stage, number))
            await stage.points.wait("admitted", 2 + CALLERS_MAX, key=stage.key("p"))
            async with open_stage(replica, session=False) as other:
                await other.client.start("p", b"0")
                answers = [(await other.client.call("p", b"%d" % n)).response for n in range(20)]
            asked = len(stage.asked_for("p"))
            hang.released.set()

        assert answers == [b"%d" % number for number in range(20)]
        assert asked == 2, "its worker was busy all the time"

    async def test_leaves_nobody_behind_when_its_callers_have_given_up(
        self, hanging: tuple[Stage, Hang], replica: Replica, eye: psycopg.Connection[Any]
    ) -> None:
        stage, hang = hanging
        async with asyncio.TaskGroup() as group:
            calls = [
                group.create_task(refusal(stage.client.call("p", timeout=1.0)))
                for _ in range(CALLERS_MAX)
            ]
        waiting = await in_hand(replica, eye)
        async with asyncio.TaskGroup() as group:
            again = [group.create_task(outcome(stage, number)) for number in range(CALLERS_MAX)]
            # Those who gave up have left their tasks, whose turn it is first.
            await stage.points.wait("admitted", 2 + 2 * CALLERS_MAX, key=stage.key("p"))
            hang.released.set()

        # The engine or the client reports it, whichever is first.
        assert {task.result().code for task in calls} == {grpc.StatusCode.DEADLINE_EXCEEDED}
        assert waiting == (1, 0)
        assert {task.result() for task in again} == {"ANSWERED"}
        assert await in_hand(replica, eye) == (0, 0)


@BOTH
async def test_a_namespace_takes_no_more_of_the_processor_than_it_has_workers(
    replica: Replica, *, session: bool
) -> None:
    async with open_stage(replica, session=session, worker_count_max=3) as stage:
        hang = Hang()
        for number in range(CROWD):
            stage.processor.on_process(f"p{number}", hang)
        async with asyncio.TaskGroup() as group:
            for number in range(CROWD):
                group.create_task(stage.client.start(f"p{number}"))
            for number in range(CROWD):
                await stage.points.wait("admitted", key=stage.key(f"p{number}"))
            asked = len(stage.processor.requests)
            hang.released.set()

        assert asked <= 3
        assert len(stage.processor.requests) == CROWD


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
