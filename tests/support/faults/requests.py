"""What the engine does for a user, each with a fault in the middle and what must hold afterwards.

An operation brings a process into a state, has a fault happen to the statement that the operation
is about, insists as a user does who was not told, and asserts what the user relies on: what was
acknowledged happened once.

Here are the requests; `faults_operations` has the rest, and the list of all.
"""

import asyncio
import contextlib
from collections.abc import Awaitable

from progressor import errors
from progressor.sdk import NewEvent, NewTimer
from tests.support.engine.replica import answering, broken, refusal
from tests.support.faults.faults import Make
from tests.support.faults.ground import ATTEMPT_SECONDS, UNKNOWN, Ground, insisted

_ADMIT_STARTS = '"admit_starts"('
_ADMIT_REQUESTS = '"admit_requests"('
_SOON = 0.1


async def start(ground: Ground, make: Make) -> None:
    """Start a process; the key finds the answer again."""
    process_id, client = ground.fresh(), ground.client
    async with ground.under(make, _ADMIT_STARTS):
        answer = await insisted(
            lambda: client.start(process_id, b"1", idempotency_key="k", timeout=ATTEMPT_SECONDS)
        )
    await ground.at_rest()
    again = await client.start(process_id, b"1", idempotency_key="k")

    assert (again.task_id, again.response) == (answer.task_id, answer.response)
    assert answer.response == b"1"
    assert ground.events(process_id) == [b"1"]


async def start_without_a_key(ground: Ground, make: Make) -> None:
    """Start a process once; who was not told asks whether it is there."""
    process_id, client = ground.fresh(), ground.client
    async with ground.under(make, _ADMIT_STARTS):
        told = await told_or_not(client.start(process_id, b"1", timeout=ATTEMPT_SECONDS))
    await ground.at_rest()

    assert ground.events(process_id) in ([[b"1"]] if told else [[], [b"1"]])


async def call(ground: Ground, make: Make) -> None:
    """Call a process; the key finds the answer again."""
    process_id, client = await running(ground), ground.client
    async with ground.under(make, _ADMIT_REQUESTS):
        answer = await insisted(
            lambda: client.call(process_id, b"1", idempotency_key="k", timeout=ATTEMPT_SECONDS)
        )
    await ground.at_rest()
    again = await client.await_task(process_id, idempotency_key="k")

    assert (again.task_id, again.response) == (answer.task_id, b"1")
    assert ground.tasks(process_id) == [(b"1", "finished")]
    assert ground.events(process_id) == [b"1"]


async def call_without_a_key(ground: Ground, make: Make) -> None:
    """Call a process once; who was not told cannot know, and it happened once at most."""
    process_id, client = await running(ground), ground.client
    async with ground.under(make, _ADMIT_REQUESTS):
        told = await told_or_not(client.call(process_id, b"1", timeout=ATTEMPT_SECONDS))
    await ground.at_rest()
    # A statement that was stalled may reach PostgreSQL only now.
    await ground.until(lambda: len(ground.tasks(process_id)) == len(ground.events(process_id)))

    assert ground.events(process_id) in ([[b"1"]] if told else [[], [b"1"]])


async def calls_in_line(ground: Ground, make: Make) -> None:
    """Call a process that is busy: the line keeps its order, and goes on behind the step."""
    env, client = ground.env, ground.client
    process_id = ground.fresh()
    hang, _ = await env.busy(process_id)
    async with ground.under(make, _ADMIT_REQUESTS):
        for number in range(3):

            async def attempt(number: int = number) -> None:
                await client.call(
                    process_id,
                    b"%d" % number,
                    idempotency_key=f"k{number}",
                    accept_only=True,
                    timeout=ATTEMPT_SECONDS,
                )

            await insisted(attempt)
    hang.released.set()
    await ground.at_rest()

    assert ground.events(process_id) == [b"busy", b"0", b"1", b"2"]


async def notify(ground: Ground, make: Make) -> None:
    """Notify a process: once acknowledged, it is carried out once."""
    process_id, client = await running(ground), ground.client
    async with ground.under(make, _ADMIT_REQUESTS):
        accepted = await insisted(
            lambda: client.notify(process_id, b"1", idempotency_key="k", timeout=ATTEMPT_SECONDS)
        )
        notified = [args for args, _ in ground.tasks(process_id, "notify")]
    await ground.at_rest()

    assert (await client.await_task(process_id, idempotency_key="k")).task_id == accepted.task_id
    assert notified == [b"1"]
    assert ground.tasks(process_id, "notify") == [(b"1", "finished")]
    assert ground.events(process_id) == [b"1"]


async def repair(ground: Ground, make: Make) -> None:
    """Repair a broken process; the key finds the answer again."""
    process_id, client = ground.fresh(), ground.client
    await ground.env.broken(process_id)
    async with ground.under(make, _ADMIT_REQUESTS):
        await insisted(
            lambda: client.repair(process_id, b"1", idempotency_key="k", timeout=ATTEMPT_SECONDS)
        )
    await ground.at_rest()

    assert ground.status(process_id) == "running"
    assert ground.events(process_id) == [b"1"]


async def simple_repair(ground: Ground, make: Make) -> None:
    """Resume a process that a call broke; a repeated request learns that it runs."""
    process_id = ground.fresh()
    await ground.env.broken(process_id)
    async with ground.under(make, '"simple_repair"('):
        await simply_repaired(ground, process_id)

    assert ground.status(process_id) == "running"


async def simple_repair_of_a_timer(ground: Ground, make: Make) -> None:
    """Bring a process back that a timer broke: the timer runs again, once."""
    process_id, env = ground.fresh(), ground.env
    await env.timed(process_id, broken(), answering(b"fired"), after=0)
    await ground.until(lambda: ground.status(process_id) == "error")
    async with ground.under(make, '"simple_repair"('):
        await simply_repaired(ground, process_id)
    await ground.until(lambda: ground.events(process_id) != [])
    await ground.at_rest()

    assert ground.status(process_id) == "running"
    assert ground.events(process_id) == [b"fired"]


async def put(ground: Ground, make: Make) -> None:
    """Import a process with a history and a timer, which fires once."""
    process_id, client = ground.fresh(), ground.client
    ground.env.processor.on_process(process_id, answering(b"fired"))
    async with ground.under(make, '"put_process"('):
        accepted = await insisted(
            lambda: client.put(
                process_id,
                history=[NewEvent(payload=b"e")],
                timer=NewTimer(after=_SOON),
                idempotency_key="k",
                timeout=ATTEMPT_SECONDS,
            )
        )
    await ground.at_rest()

    assert (await client.await_task(process_id, idempotency_key="k")).task_id == accepted.task_id
    assert ground.events(process_id) == [b"e", b"fired"]


async def put_without_a_key(ground: Ground, make: Make) -> None:
    """Import a process; a repeated request learns that it exists."""
    process_id, client = ground.fresh(), ground.client
    ground.env.processor.on_process(process_id, answering(b"fired"))

    async def attempt() -> None:
        with contextlib.suppress(errors.ProcessAlreadyExistsError):
            await client.put(process_id, timer=NewTimer(after=_SOON), timeout=ATTEMPT_SECONDS)

    async with ground.under(make, '"put_process"('):
        await insisted(attempt)
    await ground.at_rest()

    assert ground.events(process_id) == [b"fired"]


async def remove(ground: Ground, make: Make) -> None:
    """Remove a process with a running step and a waiting caller, who gets an error."""
    process_id, client, env = ground.fresh(), ground.client, ground.env
    hang, _ = await env.busy(process_id)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(refusal(client.call(process_id, b"2", timeout=20)))
        await env.points.wait("admitted", 3, key=env.key(process_id))
        async with ground.under(make, '"remove_process"('):
            await removed(ground, process_id)
        hang.released.set()

    assert waiting.result().reason == "PROCESS_REMOVED"
    assert ground.status(process_id) is None


async def get(ground: Ground, make: Make) -> None:
    """Read a process with its history."""
    process_id, client = await running(ground), ground.client
    await client.call(process_id, b"1")
    async with ground.under(make, '"read_processes"('):
        snapshot = await insisted(lambda: client.get(process_id, timeout=ATTEMPT_SECONDS))

    assert [event.payload for event in snapshot.history] == [b"1"]


async def await_task(ground: Ground, make: Make) -> None:
    """Wait for a task that another client requested."""
    process_id, client = ground.fresh(), ground.client
    hang, task_id = await ground.env.busy(process_id)
    async with ground.under(make, '"await_task"(') as fault, asyncio.TaskGroup() as group:
        awaited = group.create_task(
            insisted(
                lambda: client.await_task(process_id, task_id=task_id, timeout=ATTEMPT_SECONDS)
            )
        )
        await fault.struck()
        hang.released.set()

    assert awaited.result().response == b"busy"


async def running(ground: Ground) -> str:
    """Bring a process into running whose processor echoes, and return its id."""
    process_id = ground.fresh()
    await ground.env.running(process_id)
    return process_id


async def simply_repaired(ground: Ground, process_id: str) -> None:
    """Ask for a simple repair until it is said to be done."""

    async def attempt() -> None:
        with contextlib.suppress(errors.ProcessIsRunningError):
            await ground.client.simple_repair(process_id, timeout=ATTEMPT_SECONDS)

    await insisted(attempt)


async def removed(ground: Ground, process_id: str) -> None:
    """Ask for the removal of a process until it is said to be gone."""

    async def attempt() -> None:
        with contextlib.suppress(errors.ProcessNotFoundError):
            await ground.client.remove(process_id, timeout=ATTEMPT_SECONDS)

    await insisted(attempt)


async def told_or_not(request: Awaitable[object]) -> bool:
    """Send a request once, and tell whether its caller was told what became of it."""
    try:
        await request
    except UNKNOWN:
        return False
    return True
