"""All that the engine does for a user, with a fault in the middle: see `faults_requests`.

Here are claims, settlements, and what goes on by itself.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable

import pytest

from progressor.sdk import RejectedError
from progressor.v1.processor_service_pb2 import Complete, RemoveProcess
from tests.support.engine.replica import answering, broken, refusal, timer, unavailable
from tests.support.faults import requests
from tests.support.faults.faults import Make
from tests.support.faults.ground import Ground, insisted
from tests.support.faults.requests import running
from tests.support.processor.scripted import Answer, Hang, reject

_SETTLE = '"settle_tasks"('
_HISTORY = "AND event_id > "
_FIND_ZOMBIES = "'overrun'"
_SOON = 0.1
_INVALID_ARGUMENT = 3

Play = Callable[[Ground, Make], Awaitable[None]]


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """Something that the engine does, and what namespace it takes."""

    play: Play
    single_file: bool = False
    """Whether there is one worker, so that due tasks have to wait for it."""
    mortal: bool = False
    """Whether finished processes are deleted at once."""

    @property
    def name(self) -> str:
        """What it is called in a test."""
        return self.play.__name__


async def start_rejected(ground: Ground, make: Make) -> None:
    """Start a process whose processor refuses: its removal is what is lost."""
    process_id, client = ground.fresh(), ground.client
    ground.env.processor.on_process(process_id, reject(_INVALID_ARGUMENT, message="no"))
    async with ground.under(make, _SETTLE):
        with pytest.raises(RejectedError):
            await insisted(lambda: client.start(process_id, b"1", timeout=10))
    await ground.at_rest()

    assert ground.status(process_id) is None


async def timer_that_fires(ground: Ground, make: Make) -> None:
    """Claim a timer the moment that it is due."""
    process_id = ground.fresh()
    async with ground.under(make, '"claim_tasks"('):
        await ground.env.timed(process_id, answering(b"fired"), after=_SOON)
    await ground.at_rest()

    assert ground.events(process_id) == [b"fired"]


async def claim_of_a_backlog(ground: Ground, make: Make) -> None:
    """Claim what was due while the only worker was busy."""
    busy, waiting, env = ground.fresh(), await running(ground), ground.env
    hang, _ = await env.busy(busy)
    async with ground.under(make, '"claim_due"('):
        accepted = await ground.client.call(waiting, b"1", accept_only=True)
        hang.released.set()
    answer = await ground.client.await_task(waiting, task_id=accepted.task_id)
    await ground.at_rest()

    assert answer.response == b"1"
    assert ground.events(waiting) == [b"1"]


async def step_that_finishes(ground: Ground, make: Make) -> None:
    """Settle a call; its caller gets the answer, and no request is repeated."""
    process_id, client = await running(ground), ground.client
    async with ground.under(make, _SETTLE):
        answer = await client.call(process_id, b"1")
        events = ground.events(process_id)
    await ground.at_rest()

    assert (answer.response, events) == (b"1", [b"1"])
    assert ground.events(process_id) == [b"1"]


async def step_that_continues(ground: Ground, make: Make) -> None:
    """Settle a step that the next one follows in the same worker."""
    env, process_id = ground.env, ground.fresh()
    env.processor.on_process(
        process_id,
        answering(b"1", set_timer=timer()),
        answering(b"2", set_timer=timer()),
        answering(b"3"),
    )
    async with ground.under(make, _SETTLE):
        await ground.client.start(process_id)
    await ground.at_rest()

    assert ground.events(process_id) == [b"1", b"2", b"3"]


async def step_with_a_line_behind_it(ground: Ground, make: Make) -> None:
    """Settle a call with others in line, each with a caller."""
    env, process_id = ground.env, ground.fresh()
    hang, _ = await env.busy(process_id)
    async with asyncio.TaskGroup() as group:
        callers = []
        for number in range(3):
            asked = ground.client.call(process_id, b"%d" % number)
            callers.append(group.create_task(asked))
            await env.points.wait("admitted", number + 3, key=env.key(process_id))
        async with ground.under(make, _SETTLE):
            hang.released.set()
    await ground.at_rest()

    assert [caller.result().response for caller in callers] == [b"0", b"1", b"2"]
    assert ground.events(process_id) == [b"busy", b"0", b"1", b"2"]


async def step_that_sets_a_timer(ground: Ground, make: Make) -> None:
    """Settle a step that sets a timer, which fires without a notification of its time."""
    process_id, client = ground.fresh(), ground.client
    await ground.env.running(
        process_id, answering(b"set", set_timer=timer(_SOON)), answering(b"fired")
    )
    async with ground.under(make, _SETTLE):
        await client.call(process_id)
    await ground.at_rest()

    assert ground.events(process_id) == [b"set", b"fired"]


async def step_that_is_rejected(ground: Ground, make: Make) -> None:
    """Settle a refusal: the caller gets it, and the process is as it was."""
    process_id, client = ground.fresh(), ground.client
    await ground.env.running(process_id, reject(_INVALID_ARGUMENT, message="no"), Answer())
    async with ground.under(make, _SETTLE):
        with pytest.raises(RejectedError):
            await client.call(process_id, b"1")
    await client.call(process_id, b"2")

    assert ground.events(process_id) == [b"2"]


async def step_that_is_retried(ground: Ground, make: Make) -> None:
    """Settle a failure that is tried again."""
    process_id, client = ground.fresh(), ground.client
    await ground.env.running(process_id, unavailable(), Answer())
    async with ground.under(make, _SETTLE):
        answer = await client.call(process_id, b"1")
    await ground.at_rest()

    assert answer.response == b"1"
    assert ground.events(process_id) == [b"1"]


async def step_that_breaks(ground: Ground, make: Make) -> None:
    """Settle a failure that breaks the process; the waiting caller gets the error too."""
    process_id, client, env = ground.fresh(), ground.client, ground.env
    hang = Hang(response=broken().response)
    await env.running(process_id, hang, Answer())
    async with asyncio.TaskGroup() as group:
        first = group.create_task(refusal(client.call(process_id, b"1", timeout=20)))
        await env.asked(process_id, 2)
        second = group.create_task(refusal(client.call(process_id, b"2", timeout=20)))
        await env.points.wait("admitted", 3, key=env.key(process_id))
        async with ground.under(make, _SETTLE):
            hang.released.set()
    await ground.at_rest()

    assert [each.result().reason for each in (first, second)] == ["PROCESS_FAILED"] * 2
    assert ground.status(process_id) == "error"
    assert ground.events(process_id) == []


async def step_that_completes(ground: Ground, make: Make) -> None:
    """Settle the end of a process."""
    process_id, client = ground.fresh(), ground.client
    await ground.env.running(
        process_id, answering(b"end", complete=Complete(result=b"r"), response=b"bye")
    )
    async with ground.under(make, _SETTLE):
        answer = await client.call(process_id)
    await ground.at_rest()

    assert answer.response == b"bye"
    assert ground.status(process_id) == "finished"
    assert ground.events(process_id) == [b"end"]


async def step_that_removes(ground: Ground, make: Make) -> None:
    """Settle the removal of a process; the answer still reaches the caller."""
    process_id, client = ground.fresh(), ground.client
    await ground.env.running(process_id, answering(response=b"bye", remove=RemoveProcess()))
    async with ground.under(make, _SETTLE):
        answer = await client.call(process_id, timeout=20)
    await ground.at_rest()

    assert answer.response == b"bye"
    assert ground.status(process_id) is None


async def history_of_a_step(ground: Ground, make: Make) -> None:
    """Read the history for a step; the attempt that could not be made is not counted."""
    process_id, client = await running(ground), ground.client
    await client.call(process_id, b"1")
    async with ground.under(make, _HISTORY):
        answer = await client.call(process_id, b"2")
    await ground.at_rest()

    request = ground.env.asked_for(process_id)[-1]
    assert answer.response == b"2"
    assert [event.payload for event in request.history] == [b"1"]
    assert ground.events(process_id) == [b"1", b"2"]


async def heartbeat(ground: Ground, make: Make) -> None:
    """Renew the leases; what is in hand goes on, at the latest by another attempt."""
    process_id, client = ground.fresh(), ground.client
    hang, task_id = await ground.env.busy(process_id)
    async with ground.under(make, "INTO progressor.replicas"):
        pass
    hang.released.set()
    await client.await_task(process_id, task_id=task_id)
    await ground.at_rest()

    assert ground.events(process_id) == [b"busy"]


async def zombie_that_is_found(ground: Ground, make: Make) -> None:
    """Look for leases that are lost."""
    process_id = await zombie(ground, make, _FIND_ZOMBIES)
    await ground.at_rest()

    assert ground.events(process_id) == [b"busy"]


async def zombie_that_is_settled(ground: Ground, make: Make) -> None:
    """Hand a lost lease on."""
    process_id = await zombie(ground, make, _SETTLE)
    await ground.at_rest()

    assert ground.events(process_id) == [b"busy"]


async def retention(ground: Ground, make: Make) -> None:
    """Delete a finished process with all its rows."""
    process_id = ground.fresh()
    async with ground.under(make, '"delete_finished"('):
        await ground.env.finished(process_id)
    await ground.until(lambda: ground.status(process_id) is None)


async def zombie(ground: Ground, make: Make, text: str) -> str:
    """Have a call's lease be of a replica that is not there, and a fault happen at its rescue."""
    process_id = ground.fresh()
    hang, task_id = await ground.env.busy(process_id)
    async with ground.under(make, text):
        ground.observer.execute(
            "UPDATE progressor.running SET replica_id = 0 WHERE task_id = %s", [task_id]
        )
        await ground.env.asked(process_id, 3)
    await ground.client.await_task(process_id, task_id=task_id)
    hang.released.set()
    return process_id


OPERATIONS = (
    Operation(requests.start),
    Operation(requests.start_without_a_key),
    Operation(start_rejected),
    Operation(requests.call),
    Operation(requests.call_without_a_key),
    Operation(requests.calls_in_line),
    Operation(requests.notify),
    Operation(requests.repair),
    Operation(requests.simple_repair),
    Operation(requests.simple_repair_of_a_timer),
    Operation(requests.put),
    Operation(requests.put_without_a_key),
    Operation(requests.remove),
    Operation(requests.get),
    Operation(requests.await_task),
    Operation(timer_that_fires),
    Operation(claim_of_a_backlog, single_file=True),
    Operation(step_that_finishes),
    Operation(step_that_continues),
    Operation(step_with_a_line_behind_it),
    Operation(step_that_sets_a_timer),
    Operation(step_that_is_rejected),
    Operation(step_that_is_retried),
    Operation(step_that_breaks),
    Operation(step_that_completes),
    Operation(step_that_removes),
    Operation(history_of_a_step),
    Operation(heartbeat),
    Operation(zombie_that_is_found),
    Operation(zombie_that_is_settled),
    Operation(retention, mortal=True),
)
