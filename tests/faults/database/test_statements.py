"""Every statement of the hot path and of the safety nets, with every fault in the middle of it.

An operation brings a process into a state, has a fault happen to the statement that it is about,
insists as a user does who got no answer, and asserts what the user relies on: what was acknowledged
happened once.

Each operation meets each fault, over streams and sessions in one half of the cells and over single
calls in the other, and one of the two stalls, which take long; with FAULTS_ALL=1 all of them over
both.
"""

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from progressor import errors
from progressor.sdk import NewEvent, NewTimer, RejectedError, RetryPolicy
from progressor.sdk.processor.links import Engine, ServiceLink, StepLink
from progressor.v1.processor_service_pb2 import Complete, RemoveProcess
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.replica import (
    Replica,
    answering,
    broken,
    refusal,
    timer,
    unavailable,
)
from tests.support.faults.env import (
    ALL_CELLS,
    ATTEMPT_SECONDS,
    UNCACHED,
    FaultEnv,
    insist,
    open_fault_env,
    was_answered,
)
from tests.support.faults.faults import FAULTS, STALLS
from tests.support.postgres.proxy import Proxy
from tests.support.processor.scripted import Answer, Hang, Step, reject

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETTINGS = UNCACHED
ADMIT_STARTS, ADMIT_REQUESTS = '"admit_starts"(', '"admit_requests"('
PUT, REMOVE, RECOVER = '"put_process"(', '"remove_process"(', '"recover_process"('
SETTLE = '"settle_tasks"('
STORE, EXTEND = '"store_memos"(', '"extend_leases"('
SOON = 0.1
INVALID_ARGUMENT = 3
PATIENT = RetryPolicy(
    initial_interval=dt.timedelta(milliseconds=10), coefficient=1.0, jitter=0.0, attempts_max=100
)
"""A fault of storage never spends the attempts of a step, but one that strikes often might."""

Play = Callable[[FaultEnv], Awaitable[None]]


# Requests.


async def fresh(env: FaultEnv) -> str:
    return env.fresh()


async def running(env: FaultEnv) -> str:
    return await env.fresh_running()


async def broken_by_a_call(env: FaultEnv) -> str:
    process_id = env.fresh()
    await env.broken(process_id)
    return process_id


Arrange = Callable[[FaultEnv], Awaitable[str]]


def with_a_key(rpc: str, task_type: str, text: str, arrange: Arrange) -> Play:
    """Return the operation of a request under a key, by which its answer is found again."""

    async def play(env: FaultEnv) -> None:
        process_id = await arrange(env)
        async with env.under(text):
            answer = await insist(getattr(env.client, rpc), process_id, b"1", idempotency_key="k")
            acknowledged = env.tasks(process_id, task_type)
        await env.at_rest()
        again = await env.client.await_task(process_id, idempotency_key="k")

        assert (again.task_id, again.response) == (answer.task_id, b"1")
        assert [args for args, _ in acknowledged] == [b"1"]
        assert env.tasks(process_id, task_type) == [(b"1", "finished")]
        assert (env.status(process_id), env.events(process_id)) == ("running", [b"1"])

    return play


def without_a_key(rpc: str, task_type: str, text: str, arrange: Arrange) -> Play:
    """Return the operation of a request that is sent once; a caller without an answer looks."""

    async def play(env: FaultEnv) -> None:
        process_id = await arrange(env)
        request = getattr(env.client, rpc)
        async with env.under(text):
            answered = await was_answered(request(process_id, b"1", timeout=ATTEMPT_SECONDS))
        await env.at_rest()
        # A statement that was stalled may reach PostgreSQL only now.
        await env.until(
            lambda: len(env.tasks(process_id, task_type)) == len(env.events(process_id))
        )

        assert env.events(process_id) in ([[b"1"]] if answered else [[], [b"1"]])

    return play


async def start_rejected(env: FaultEnv) -> None:
    """Start a process whose processor rejects it: its removal is what is lost."""
    process_id = env.fresh()
    env.processor.on_process(process_id, reject(INVALID_ARGUMENT, message="no"))
    async with env.under(SETTLE):
        with pytest.raises(RejectedError):
            await insist(env.client.start, process_id, b"1", timeout=10)
    await env.at_rest()

    assert env.status(process_id) is None


async def calls_in_line(env: FaultEnv) -> None:
    """Call a process that is busy: the line keeps its order, and goes on behind the step."""
    process_id = env.fresh()
    hang, _ = await env.busy(process_id)
    async with env.under(ADMIT_REQUESTS):
        for number in range(3):
            await insist(
                env.client.call,
                process_id,
                b"%d" % number,
                idempotency_key=f"k{number}",
                accept_only=True,
            )
    hang.released.set()
    await env.at_rest()

    assert env.events(process_id) == [b"busy", b"0", b"1", b"2"]


async def simple_repair(env: FaultEnv) -> None:
    """Resume a process that a call broke; a repeated request learns that it runs."""
    process_id = await broken_by_a_call(env)
    async with env.under(RECOVER):
        await insist(env.client.simple_repair, process_id, unless=(errors.ProcessIsRunningError,))

    assert env.status(process_id) == "running"


async def simple_repair_of_a_timer(env: FaultEnv) -> None:
    """Resume a process that a timer broke: the timer runs again, once."""
    process_id = env.fresh()
    await env.timed(process_id, broken(), answering(b"fired"), after=0)
    await env.until(lambda: env.status(process_id) == "error")
    async with env.under(RECOVER):
        await insist(env.client.simple_repair, process_id, unless=(errors.ProcessIsRunningError,))
    await env.until(lambda: env.events(process_id) != [])
    await env.at_rest()

    assert (env.status(process_id), env.events(process_id)) == ("running", [b"fired"])


async def put(env: FaultEnv) -> None:
    """Import a process with a history and a timer, which fires once."""
    process_id = env.fresh()
    env.processor.on_process(process_id, answering(b"fired"))
    async with env.under(PUT):
        accepted = await insist(
            env.client.put,
            process_id,
            history=[NewEvent(payload=b"e")],
            timer=NewTimer(after=SOON),
            idempotency_key="k",
        )
    await env.at_rest()

    again = await env.client.await_task(process_id, idempotency_key="k")
    assert again.task_id == accepted.task_id
    assert env.events(process_id) == [b"e", b"fired"]


async def put_without_a_key(env: FaultEnv) -> None:
    """Import a process; a repeated request learns that it exists."""
    process_id = env.fresh()
    env.processor.on_process(process_id, answering(b"fired"))
    async with env.under(PUT):
        await insist(
            env.client.put,
            process_id,
            timer=NewTimer(after=SOON),
            unless=(errors.ProcessAlreadyExistsError,),
        )
    await env.at_rest()

    assert env.events(process_id) == [b"fired"]


async def remove(env: FaultEnv) -> None:
    """Remove a process with a running step and a waiting caller, who gets an error."""
    process_id = env.fresh()
    hang, _ = await env.busy(process_id)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(refusal(env.client.call(process_id, b"2", timeout=20)))
        await env.points.wait("admitted", 3, key=env.key(process_id))
        async with env.under(REMOVE):
            await insist(env.client.remove, process_id, unless=(errors.ProcessNotFoundError,))
        hang.released.set()

    assert waiting.result().reason == "PROCESS_REMOVED"
    assert env.status(process_id) is None


async def get(env: FaultEnv) -> None:
    process_id = await env.fresh_running()
    await env.client.call(process_id, b"1")
    async with env.under('"read_processes"('):
        snapshot = await insist(env.client.get, process_id)

    assert [event.payload for event in snapshot.history] == [b"1"]


async def await_task(env: FaultEnv) -> None:
    """Wait for a task that another client requested."""
    process_id = env.fresh()
    hang, task_id = await env.busy(process_id)
    async with env.under('"await_task"(') as fault, asyncio.TaskGroup() as group:
        awaited = group.create_task(insist(env.client.await_task, process_id, task_id=task_id))
        await fault.struck()
        hang.released.set()

    assert awaited.result().response == b"busy"


async def cancel_what_runs(env: FaultEnv) -> None:
    """Cancel a call in its step: nothing of that is saved, and the next one runs."""
    process_id = env.fresh()
    hang, task_id = await env.busy(process_id)
    async with env.under('"cancel_task"('):
        await insist(
            env.client.cancel, process_id, task_id=task_id, unless=(errors.TaskHasEndedError,)
        )
    hang.released.set()
    await insist(env.client.call, process_id, b"2", timeout=10, idempotency_key="k")

    assert env.tasks(process_id) == [(b"busy", "cancelled"), (b"2", "finished")]
    assert env.events(process_id) == [b"2"]


async def terminate(env: FaultEnv) -> None:
    """Terminate a process with a running step, while a caller waits for its end."""
    process_id = env.fresh()
    hang, _ = await env.busy(process_id)
    waiting = asyncio.ensure_future(refusal(env.client.result(process_id)))
    await env.points.wait("process_awaited", key=env.key(process_id))
    async with env.under('"halt_process"('):
        await insist(env.client.terminate, process_id, "why", unless=(errors.ProcessFinishedError,))
    hang.released.set()

    assert (await waiting).reason == "PROCESS_TERMINATED"
    assert (env.status(process_id), env.events(process_id)) == ("finished", [])


def await_the_end(text: str) -> Play:
    """Return the operation of waiting for the result of a process that is about to complete."""

    async def play(env: FaultEnv) -> None:
        process_id = env.fresh()
        await env.running(process_id, answering(complete=Complete(result=b"r")))
        async with env.under(text), asyncio.TaskGroup() as group:
            awaited = group.create_task(insist(env.client.result, process_id, timeout=20))
            await env.points.wait("process_awaited", key=env.key(process_id))
            await env.client.call(process_id)

        assert awaited.result() == b"r"

    return play


# Claims and settlements.


async def timer_that_fires(env: FaultEnv) -> None:
    """Claim a timer the moment that it is due."""
    process_id = env.fresh()
    async with env.under('"claim_tasks"('):
        await env.timed(process_id, answering(b"fired"), after=SOON)
    await env.at_rest()

    assert env.events(process_id) == [b"fired"]


async def claim_of_a_backlog(env: FaultEnv) -> None:
    """Claim what was due while the only worker was busy."""
    busy, waiting = env.fresh(), await env.fresh_running()
    hang, _ = await env.busy(busy)
    async with env.under('"claim_due"('):
        accepted = await env.client.call(waiting, b"1", accept_only=True)
        hang.released.set()
    answer = await env.client.await_task(waiting, task_id=accepted.task_id)
    await env.at_rest()

    assert (answer.response, env.events(waiting)) == (b"1", [b"1"])


def settlement_of(
    *steps: Step,
    events: list[bytes],
    response: bytes | None = b"1",
    status: str | None = "running",
    text: str = SETTLE,
) -> Play:
    """Return the operation that settles the first of these steps, which a call asks for."""

    async def play(env: FaultEnv) -> None:
        process_id = await env.fresh_running(*steps)
        async with env.under(text):
            answer = await env.client.call(process_id, b"1", timeout=20)
            at_once = env.events(process_id)
        await env.at_rest()

        assert answer.response == response
        # Once answered it is saved, though what follows by itself may come later.
        assert at_once == events[: len(at_once)]
        assert bool(at_once) == bool(events)
        assert (env.status(process_id), env.events(process_id)) == (status, events)

    return play


async def step_that_continues(env: FaultEnv) -> None:
    """Settle a step that the next one follows in the same worker."""
    process_id = env.fresh()
    env.processor.on_process(
        process_id,
        answering(b"1", set_timer=timer()),
        answering(b"2", set_timer=timer()),
        answering(b"3"),
    )
    async with env.under(SETTLE):
        await env.client.start(process_id)
    await env.at_rest()

    assert env.events(process_id) == [b"1", b"2", b"3"]


async def step_with_calls_behind_it(env: FaultEnv) -> None:
    """Settle a call with others in line, each with a caller."""
    process_id = env.fresh()
    hang, _ = await env.busy(process_id)
    async with asyncio.TaskGroup() as group:
        callers = []
        for number in range(3):
            callers.append(group.create_task(env.client.call(process_id, b"%d" % number)))
            await env.points.wait("admitted", number + 3, key=env.key(process_id))
        async with env.under(SETTLE):
            hang.released.set()
    await env.at_rest()

    assert [caller.result().response for caller in callers] == [b"0", b"1", b"2"]
    assert env.events(process_id) == [b"busy", b"0", b"1", b"2"]


async def step_that_is_rejected(env: FaultEnv) -> None:
    """Settle a reject: the caller gets it, and the process is as it was."""
    process_id = await env.fresh_running(reject(INVALID_ARGUMENT, message="no"), Answer())
    async with env.under(SETTLE):
        with pytest.raises(RejectedError):
            await env.client.call(process_id, b"1")
    await env.client.call(process_id, b"2")

    assert env.events(process_id) == [b"2"]


async def step_that_breaks(env: FaultEnv) -> None:
    """Settle a failure that breaks the process; the waiting caller gets the error too."""
    hang = Hang(response=broken().response)
    process_id = await env.fresh_running(hang, Answer())
    async with asyncio.TaskGroup() as group:
        first = group.create_task(refusal(env.client.call(process_id, b"1", timeout=20)))
        await env.asked(process_id, 2)
        second = group.create_task(refusal(env.client.call(process_id, b"2", timeout=20)))
        await env.points.wait("admitted", 3, key=env.key(process_id))
        async with env.under(SETTLE):
            hang.released.set()
    await env.at_rest()

    assert [each.result().reason for each in (first, second)] == ["PROCESS_FAILED"] * 2
    assert (env.status(process_id), env.events(process_id)) == ("error", [])


async def history_of_a_step(env: FaultEnv) -> None:
    """Read the history for a step; the attempt that could not be made is not counted."""
    process_id = await env.fresh_running()
    await env.client.call(process_id, b"1")
    async with env.under("AND event_id > "):
        answer = await env.client.call(process_id, b"2")
    await env.at_rest()

    request = env.asked_for(process_id)[-1]
    assert answer.response == b"2"
    assert [event.payload for event in request.history] == [b"1"]
    assert env.events(process_id) == [b"1", b"2"]


# What goes on by itself.


async def heartbeat(env: FaultEnv) -> None:
    """Renew the leases; what is in hand goes on, at the latest by another attempt."""
    process_id = env.fresh()
    hang, task_id = await env.busy(process_id)
    async with env.under("INTO progressor.replicas"):
        pass
    hang.released.set()
    await env.client.await_task(process_id, task_id=task_id)
    await env.at_rest()

    assert env.events(process_id) == [b"busy"]


def zombie_under(text: str) -> Play:
    """Return the operation that collects the lease of a replica that is not there."""

    async def play(env: FaultEnv) -> None:
        process_id = env.fresh()
        hang, task_id = await env.busy(process_id)
        async with env.under(text):
            env.observer.execute(
                "UPDATE progressor.running SET replica_id = 0 WHERE task_id = %s", [task_id]
            )
            await env.asked(process_id, 3)
        await env.client.await_task(process_id, task_id=task_id)
        hang.released.set()
        await env.at_rest()

        assert env.events(process_id) == [b"busy"]

    return play


def running_step(text: str, ask: Callable[[StepLink], Awaitable[object]]) -> Play:
    """Return the operation of what a step asks for while it runs, as the SDK repeats it."""

    async def play(env: FaultEnv) -> None:
        process_id = env.fresh()
        hang, task_id = await env.busy(process_id)
        *_, request = env.asked_for(process_id)
        engine = Engine(env.replica.address)
        link = ServiceLink(engine, request)
        await link.remember("early", b"e")
        async with env.under(text), asyncio.timeout(PATIENCE_SECONDS):
            await ask(link)
        found = [await link.remember(key, b"other") for key in ("early", "k")]
        await engine.close()
        hang.released.set()
        await env.client.await_task(process_id, task_id=task_id)
        await env.at_rest()

        assert found == [b"e", b"v" if text == STORE else None]
        assert env.status(process_id) == "running"

    return play


async def retention(env: FaultEnv) -> None:
    """Delete a finished process with all its rows."""
    process_id = env.fresh()
    async with env.under('"delete_finished"('):
        await env.finished(process_id)
    await env.until(lambda: env.status(process_id) is None)


OPERATIONS: Mapping[str, Play] = {
    "start": with_a_key("start", "init", ADMIT_STARTS, fresh),
    "start without a key": without_a_key("start", "init", ADMIT_STARTS, fresh),
    "start rejected": start_rejected,
    "call": with_a_key("call", "call", ADMIT_REQUESTS, running),
    "call without a key": without_a_key("call", "call", ADMIT_REQUESTS, running),
    "calls in line": calls_in_line,
    "notify": with_a_key("notify", "notify", ADMIT_REQUESTS, running),
    "repair": with_a_key("repair", "repair", ADMIT_REQUESTS, broken_by_a_call),
    "simple repair": simple_repair,
    "simple repair of a timer": simple_repair_of_a_timer,
    "put": put,
    "put without a key": put_without_a_key,
    "remove": remove,
    "get": get,
    "await task": await_task,
    "cancel what runs": cancel_what_runs,
    "terminate": terminate,
    "await the end": await_the_end('"await_process"('),
    "read the end": await_the_end('"read_ends"('),
    "timer that fires": timer_that_fires,
    "claim of a backlog": claim_of_a_backlog,
    "step that finishes": settlement_of(Answer(), events=[b"1"]),
    "step that continues": step_that_continues,
    "step with calls behind it": step_with_calls_behind_it,
    "step that sets a timer": settlement_of(
        answering(b"set", set_timer=timer(SOON)),
        answering(b"fired"),
        response=None,
        events=[b"set", b"fired"],
    ),
    "step that is rejected": step_that_is_rejected,
    "step that is retried": settlement_of(unavailable(), Answer(), events=[b"1"]),
    "step that breaks": step_that_breaks,
    "step that completes": settlement_of(
        answering(b"end", complete=Complete(result=b"r"), response=b"bye"),
        response=b"bye",
        status="finished",
        events=[b"end"],
    ),
    "step that removes": settlement_of(
        answering(response=b"bye", remove=RemoveProcess()),
        response=b"bye",
        status=None,
        events=[],
    ),
    "step that remembers": running_step(STORE, lambda link: link.remember("k", b"v")),
    "step that extends": running_step(EXTEND, lambda link: link.extend(dt.timedelta(seconds=90))),
    "history of a step": history_of_a_step,
    "heartbeat": heartbeat,
    "zombie that is found": zombie_under("'overrun'"),
    "zombie that is settled": zombie_under(SETTLE),
    "retention": retention,
}

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "claim of a backlog": {"worker_count_max": 1},
    "retention": {"finished_process_retention": dt.timedelta(milliseconds=1)},
}
"""What of its namespace an operation needs: one worker, so that due tasks have to wait for it, or
that finished processes are deleted at once."""


def is_chosen(row: int, fault: str, *, unary: bool) -> bool:
    """Whether a cell is among those that are always played."""
    if fault in STALLS and fault != STALLS[row % 2]:
        return False
    turn = row // 2 if fault in STALLS else row + list(FAULTS).index(fault)
    return unary == bool(turn % 2)


CELLS = [
    pytest.param(operation, fault, unary, id=f"{operation}, {fault}{', unary' * unary}")
    for row, operation in enumerate(OPERATIONS)
    for fault in FAULTS
    for unary in (False, True)
    if ALL_CELLS or is_chosen(row, fault, unary=unary)
]

EnvFor = Callable[[str, bool], Awaitable[FaultEnv]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def env_for(
    proxy: Proxy, behind: Replica, observer: psycopg.Connection[Any]
) -> AsyncIterator[EnvFor]:
    """Return what opens an environment for an operation, once for all that need one like it."""
    opened: dict[tuple[str, bool], FaultEnv] = {}
    async with contextlib.AsyncExitStack() as stack:

        async def env_for(operation: str, unary: bool) -> FaultEnv:
            key = (operation if operation in OPTIONS else "", unary)
            if key not in opened:
                options = {"retry_policy": PATIENT, **OPTIONS.get(operation, {})}
                env = open_fault_env(
                    proxy, behind, observer, streaming=not unary, session=not unary, **options
                )
                opened[key] = await stack.enter_async_context(env)
            return opened[key]

        yield env_for


@pytest.mark.matrix
@pytest.mark.parametrize(("operation", "fault", "unary"), CELLS)
async def test_a_fault_in_the_middle_loses_nothing_and_does_nothing_twice(
    env_for: EnvFor, operation: str, fault: str, unary: bool
) -> None:
    async with (await env_for(operation, unary)).cell(fault) as env:
        await OPERATIONS[operation](env)
