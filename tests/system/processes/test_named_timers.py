"""Named timers from end to end: a reminder and an expiry beside each other."""

import itertools
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from progressor.sdk import (
    Client,
    Fail,
    NewTimer,
    Processor,
    ProcessStatus,
    Step,
    TaskStatus,
    TaskType,
)
from tests.support.engine.replica import Replica, refusal

pytestmark = pytest.mark.asyncio(loop_scope="module")

_NUMBERS = itertools.count()
orders = Processor("orders", state=list[str])


@orders.init
async def place(step: Step[list[str]]) -> None:
    """Set what the args say: seconds by name, "" for the timer without a name."""
    step.state = []
    for name, seconds in step.args_as(dict[str, float]).items():
        step.set_timer(name, after=seconds, args=f"{name} of {step.process_id}")


@orders.call
async def change(step: Step[list[str]]) -> list[str]:
    """Unset the timers of the args, and break if there is none."""
    if not step.args:
        raise Fail("nothing to do", reason="NOTHING")
    for name in step.args_as(list[str]):
        step.unset_timer(name)
    return step.state


@orders.timeout("expiry")
async def expire(step: Step[list[str]]) -> None:
    """End the order."""
    step.complete([*step.state, "expired"])


@orders.timeout
async def tick(step: Step[list[str]]) -> None:
    """Note which timer it was."""
    step.state = [*step.state, f"{step.timer_name}: {step.args}"]


@pytest_asyncio.fixture(loop_scope="module")
async def client(replica: Replica) -> AsyncIterator[Client]:
    async with (
        orders.running("127.0.0.1:0") as target,
        replica.namespace(f"orders-{next(_NUMBERS)}", target) as client,
    ):
        yield client


async def await_timer(client: Client, process_id: str, name: str) -> None:
    tasks = (await client.trace(process_id)).tasks
    [task_id] = [it.task_id for it in tasks if it.timer_name == name]
    await client.await_task(process_id, task_id=task_id)


async def test_each_fires_at_its_instant_and_runs_its_handler(client: Client) -> None:
    await client.start("p", {"expiry": 0.2, "reminder": 0.1, "": 0.0, "far": 3600})

    await await_timer(client, "p", "expiry")

    process = (await client.get("p")).process
    noted = [":  of p", "reminder: reminder of p", "expired"]
    assert (process.status, process.result) == (ProcessStatus.FINISHED, noted)
    traced = {it.timer_name: it.status for it in (await client.trace("p")).tasks[1:]}
    ended = dict.fromkeys(("", "reminder", "expiry"), TaskStatus.FINISHED)
    assert traced == ended | {"far": TaskStatus.CANCELLED}


async def test_get_and_why_name_them(client: Client) -> None:
    await client.start("p", {"expiry": 7200, "reminder": 3600, "": 5400})

    snapshot = await client.get("p")

    assert list(snapshot.timers) == ["reminder", "", "expiry"]
    assert snapshot.timer == snapshot.timers["reminder"]
    statuses = [it.status for it in snapshot.timers.values()]
    assert statuses == [TaskStatus.WAITING, TaskStatus.BLOCKED, TaskStatus.BLOCKED]
    assert [wait.timer_name for wait in snapshot.waits] == ["reminder", "", "expiry"]
    first = snapshot.waits[0].explanation
    assert first.startswith(
        f"Task {snapshot.timer.task_id} (timeout 'reminder') is a timer, until "
    )
    assert (await client.call("p", ["reminder", "other"])).response == []
    assert list((await client.get("p")).timers) == ["", "expiry"]


async def test_they_survive_that_the_process_breaks(client: Client) -> None:
    await client.start("p", {"expiry": 3600, "reminder": 0.3})
    before = (await client.get("p")).timers
    status = await refusal(client.call("p"))
    assert status.reason == "PROCESS_FAILED"
    held = (await client.get("p")).timers
    assert {it: held[it].due_at for it in held} == {it: before[it].due_at for it in before}

    await client.simple_repair("p")

    await await_timer(client, "p", "reminder")
    snapshot = await client.get("p", state_type=list[str])
    assert snapshot.process.state == ["reminder: reminder of p"]
    assert snapshot.timers == {"expiry": before["expiry"]} | {"expiry": snapshot.timers["expiry"]}


async def test_an_import_brings_them(client: Client) -> None:
    timers = {"reminder": NewTimer(after=0, args="x"), "expiry": NewTimer(after=3600)}

    await client.put("p", state=[], timer=NewTimer(after=1800, remove=True), timers=timers)

    await await_timer(client, "p", "reminder")
    snapshot = await client.get("p", state_type=list[str])
    assert (snapshot.process.state, list(snapshot.timers)) == (["reminder: x"], ["", "expiry"])
    assert snapshot.timers[""].type is TaskType.REMOVE


async def test_more_than_a_process_can_have_break_it_and_nothing_is_written(
    client: Client,
) -> None:
    full = {str(number): 3600.0 for number in range(32)}

    status = await refusal(client.start("p", {**full, "": 3600}))

    assert (status.reason, status.metadata["failure_reason"]) == (
        "PROCESS_FAILED",
        "INVALID_ANSWER",
    )
    assert "more than 32 timers" in status.message
    assert (await client.get("p")).timers == {}
