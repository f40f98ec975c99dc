"""Each cause of a task with constraints, produced for real: removing that alone lets it run.

What the processor was asked tells whether a task ran; Get, List and `progressor why` name its
cause.
"""

import asyncio
import dataclasses
import datetime as dt
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from progressor.cli.main import main
from progressor.sdk import (
    Constraints,
    TaskStatus,
    TaskTrace,
    WaitCause,
)
from tests.support.engine.reads import named, said
from tests.support.engine.replica import (
    Env,
    Replica,
    open_env,
    running_replica,
)
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

MUTEX = Constraints(gates={"g": 1})
ENDED = {TaskStatus.FINISHED, TaskStatus.ERROR, TaskStatus.CANCELLED}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database) as replica:
        yield replica


def soon(seconds: float = 2) -> dt.datetime:
    return dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)


async def accepted(env: Env, process_id: str, constraints: Constraints | None) -> int:
    """Start a process whose init task has constraints, and return the task."""
    answer = await env.client.start(process_id, accept_only=True, constraints=constraints)
    return answer.task_id


async def holding(env: Env, process_id: str, constraints: Constraints = MUTEX) -> Hang:
    """Start a process that holds its gates until it is released."""
    hang = Hang()
    env.processor.on_process(process_id, hang, Answer())
    await accepted(env, process_id, constraints)
    await env.asked(process_id)
    return hang


async def looked(replica: Replica) -> None:
    """Wait until whatever scans would find has been found."""
    scans = replica.points.count("beat")
    await replica.points.wait("beat", scans + 4)


async def whole_life(env: Env, process_id: str) -> list[TaskTrace]:
    """Return the trace of a process; where the time of each task went is all of its life."""
    tasks = list((await env.client.trace(process_id)).tasks)
    for task in tasks:
        assert (task.spent is not None) == (
            task.constraints is not None and task.status in ENDED
        ), task
        if task.spent is not None:
            assert task.finished_at is not None
            assert whole(task.spent) == task.finished_at - task.created_at
    return tasks


def whole(spent: Any) -> dt.timedelta:
    """Return all parts together."""
    parts = (getattr(spent, field.name) for field in dataclasses.fields(spent))
    return sum(parts, dt.timedelta())


class TestAFullGate:
    async def test_is_waited_for_until_it_is_left(
        self, env: Env, replica: Replica, capfd: pytest.CaptureFixture[str]
    ) -> None:
        hang = await holding(env, "h")
        first = await accepted(env, "p", MUTEX)
        await accepted(env, "q", MUTEX)
        wait = await named(env, "p", WaitCause.GATE)
        other = await named(env, "q", WaitCause.GATE)
        [line] = await said(env, "p", capfd)
        await looked(replica)
        asked = [len(env.asked_for(it)) for it in "pq"]
        hang.released.set()
        await env.settled("p")
        await env.settled("q")

        assert asked == [0, 0]
        [gate], [behind] = wait.gates, other.gates
        assert (gate.gate, gate.capacity, gate.held) == ("g", 1, 1)
        assert [it.process_id for it in gate.holders] == ["h"]
        assert (gate.position, gate.waiting_count, behind.position) == (1, 2, 2)
        assert wait.spent is not None
        assert wait.spent.gates > dt.timedelta()
        assert line.startswith(
            f"Task {first} (init) waits for gate g, as number 1 of 2 in line, which is full: "
            f"1 of 1 held, by task {gate.holders[0].task_id} of process h since "
        )


class TestAFreeWorker:
    async def test_is_all_that_an_available_task_waits_for(
        self, replica: Replica, capfd: pytest.CaptureFixture[str]
    ) -> None:
        async with open_env(replica, worker_count_max=1) as env:
            hang = await holding(env, "h", Constraints(gates={"other": 1}))
            task_id = await accepted(env, "p", MUTEX)
            wait = await named(env, "p", WaitCause.NO_FREE_WORKER, lambda it: it.busy_count == 1)
            [line] = await said(env, "p", capfd)
            await looked(replica)
            asked = len(env.asked_for("p"))
            traced = (await env.client.trace("p")).tasks[0].status
            hang.released.set()
            await env.settled("p")
            [task] = await whole_life(env, "p")

        assert asked == 0
        assert (wait.task_id, wait.status, traced) == (
            task_id, TaskStatus.AVAILABLE, TaskStatus.AVAILABLE,
        )  # fmt: skip
        assert (wait.gates, wait.order) == ((), None)
        assert line.endswith("and no worker is free: 1 of 1 are busy.")
        assert task.spent is not None
        assert task.spent.available > dt.timedelta()


class TestTwoCauses:
    async def test_removing_the_first_leaves_the_second(
        self, env: Env, capfd: pytest.CaptureFixture[str]
    ) -> None:
        hang = await holding(env, "h")
        await accepted(env, "small", Constraints(order=("o", "1"), run_at=soon(3600)))
        await accepted(env, "p", Constraints(order=("o", "2"), gates={"g": 1}))
        both = await named(env, "p", WaitCause.ORDER)
        [line] = await said(env, "p", capfd)
        await env.client.remove("small")
        left = await named(env, "p", WaitCause.GATE)
        asked = len(env.asked_for("p"))
        hang.released.set()
        await env.settled("p")

        assert asked == 0
        assert both.order is not None
        assert [it.position for it in both.gates] == [None]
        assert " Besides, it waits for gate g, which is full: 1 of 1 held, by task " in line
        assert (left.order, [it.position for it in left.gates]) == (None, [1])
        [task] = await whole_life(env, "p")
        assert task.spent is not None
        assert min(task.spent.order, task.spent.gates) > dt.timedelta()


class TestAListOfCauses:
    async def test_has_those_whose_first_task_waits_so(
        self, env: Env, capfd: pytest.CaptureFixture[str]
    ) -> None:
        hang = await holding(env, "h")
        await accepted(env, "gated", MUTEX)
        await accepted(env, "later", Constraints(run_at=soon(3600)))
        await env.running("idle")
        one = [it.process_id async for it in env.client.list(causes=[WaitCause.GATE])]
        both = [
            it.process_id
            async for it in env.client.list(causes=[WaitCause.GATE, WaitCause.RUN_AT], page_size=1)
        ]
        where = ["--namespace", env.namespace, "--address", env.replica.address]
        capfd.readouterr()
        code = await asyncio.to_thread(main, ["list", *where, "--cause", "gate", "--json"])
        told = json.loads(capfd.readouterr().out)
        hang.released.set()
        await env.settled("gated")

        assert (one, both) == (["gated"], ["later", "gated"])
        assert code == 0
        assert [it["process_id"] for it in told["processes"]] == ["gated"]


async def test_where_the_time_went_is_the_whole_life_after_a_cancel_too(env: Env) -> None:
    hang = await holding(env, "h")
    await env.running("p")
    waiting = await env.client.call("p", accept_only=True, constraints=MUTEX)
    later = Constraints(run_at=soon(3600), gates={"g": 1})
    early = await env.client.call("p", accept_only=True, constraints=later)
    await named(env, "p", WaitCause.GATE)
    for task in (waiting, early):
        await env.client.cancel("p", task_id=task.task_id)
    tasks = await whole_life(env, "p")
    afterwards = await env.client.get("p")
    hang.released.set()
    await env.settled("h")

    assert [it.status for it in tasks[1:]] == [TaskStatus.CANCELLED] * 2
    assert afterwards.waits == ()
    spent = [it.spent for it in tasks[1:]]
    assert spent[0] is not None
    assert spent[1] is not None
    assert spent[0].gates == whole(spent[0]) > dt.timedelta()
    assert spent[1].time == whole(spent[1]) > dt.timedelta()
