"""What waits for a paused namespace: connections, messages, jobs, gates and callers."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from progressor import errors
from progressor.processor.reach import Reach
from progressor.sdk import Constraints, Graph, WaitCause
from progressor.v1.messages_pb2 import MESSAGE_KIND_CALL, MESSAGE_KIND_NOTIFY, Message
from progressor.v1.processor_service_pb2 import Complete
from tests.support.engine.replica import (
    Env,
    Replica,
    answering,
    open_env,
    refusal,
    unavailable,
)
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

MUTEX = Constraints(gates={"mutex": 1})
DONE = answering(complete=Complete(result=b"done"))


@pytest_asyncio.fixture(loop_scope="module")
async def env(second_replica: Replica) -> AsyncIterator[Env]:
    """Return what is paused."""
    async with open_env(second_replica) as env:
        yield env


@pytest_asyncio.fixture(loop_scope="module")
async def beside(second_replica: Replica) -> AsyncIterator[Env]:
    """Return what is not."""
    async with open_env(second_replica) as env:
        yield env


async def pause(env: Env, **fields: Any) -> None:
    await env.client.namespaces.pause(env.namespace, reason="why", **fields)


async def resume(env: Env) -> None:
    await env.client.namespaces.resume(env.namespace)


async def causes(env: Env, process_id: str) -> list[WaitCause]:
    return [wait.cause for wait in (await env.client.get(process_id)).waits]


async def test_the_end_of_a_pause_is_reported_to_what_counts_patience(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    monkeypatch.setattr(Reach, "resumed", lambda _, name: counted.append(name))
    await pause(env)
    await env.client.namespaces.resume(env.namespace)
    await env.points.wait("resumed", names=(env.namespace,))

    assert counted == [env.namespace]


async def test_a_step_that_has_waited_for_its_connection_is_not_sent_in_a_pause(env: Env) -> None:
    relay = env.processor.relay
    relay.passes.clear()
    started = await env.client.start("p", accept_only=True)
    await relay.came.wait()
    await pause(env)
    relay.passes.set()
    await env.settled("p")
    assert env.processor.requests == []
    await resume(env)
    await env.client.await_task("p", task_id=started.task_id)

    [request] = env.processor.requests
    assert request.task.attempt == 1


async def test_messages_to_a_paused_namespace_wait_in_their_order_and_so_do_replies(
    env: Env, beside: Env
) -> None:
    await env.running("receiver")
    there: dict[str, Any] = {"namespace": env.namespace, "process_id": "receiver"}
    beside.processor.on_process(
        "sender",
        answering(
            messages=[
                Message(kind=MESSAGE_KIND_NOTIFY, args=b"1", **there),
                Message(kind=MESSAGE_KIND_CALL, args=b"2", reply="asked", **there),
                Message(kind=MESSAGE_KIND_NOTIFY, args=b"3", **there),
            ]
        ),
        Answer(),
    )
    await pause(env, refuse=True)
    await beside.client.start("sender")
    waits: list[WaitCause] = []
    for count in itertools.count(1):
        await env.points.wait("messages", count, namespace=beside.namespace)
        waits = await causes(env, "receiver")
        if len(waits) == 3:
            break
    asked = len(env.asked_for("receiver"))
    await resume(env)
    await beside.asked("sender", 2)
    await env.asked("receiver", 4)

    assert (waits[0], asked) == (WaitCause.PAUSED, 1)
    assert [it.task.args for it in env.asked_for("receiver")][1:] == [b"1", b"2", b"3"]
    assert beside.asked_for("sender")[1].task.reply.response == b"2"


async def test_a_reply_waits_for_the_end_of_the_pause_of_its_sender(env: Env, beside: Env) -> None:
    await beside.running("receiver")
    message = Message(
        kind=MESSAGE_KIND_CALL, namespace=beside.namespace, process_id="receiver", reply="asked"
    )
    hang = Hang(response=answering(messages=[message]).response)
    env.processor.on_process("sender", hang, Answer())
    await env.client.start("sender", accept_only=True)
    await env.asked("sender")
    await pause(env)
    hang.released.set()
    await beside.asked("receiver", 2)
    await env.points.wait("messages", namespace=beside.namespace)
    waits, asked = await causes(env, "sender"), len(env.asked_for("sender"))
    await resume(env)
    await env.asked("sender", 2)

    assert (waits, asked) == ([WaitCause.PAUSED], 1)


async def test_a_node_in_a_paused_namespace_keeps_its_job_waiting(env: Env, beside: Env) -> None:
    for process_id in ("job/a", "job/c"):
        beside.processor.on_process(process_id, DONE)
    env.processor.on_process("job/b", DONE)
    graph = Graph()
    a = graph.node("a", b"")
    b = graph.node("b", b"", after=a, namespace=env.namespace)
    graph.node("c", b"", after=b)
    await pause(env, refuse=True)
    await beside.client.jobs.submit("job", graph)
    await beside.settled("job/a")
    waits, asked = await causes(env, "job/b"), len(env.processor.requests)
    await resume(env)
    await beside.client.result("job")

    assert (waits, asked) == ([WaitCause.PAUSED], 0)
    assert len(env.asked_for("job/b")) == len(beside.asked_for("job/c")) == 1


async def test_a_job_of_a_paused_namespace_starts_and_joins_once_resumed(env: Env) -> None:
    graph = Graph()
    graph.node("a", b"")
    hang = Hang(response=DONE.response)
    env.processor.on_process("job/a", hang)
    await pause(env)
    with pytest.raises(errors.DeadlineExceededError):
        await env.client.jobs.submit("job", graph, idempotency_key="k", timeout=0.2)
    await resume(env)
    await env.client.jobs.submit("job", graph, idempotency_key="k")
    await env.asked("job/a")
    await pause(env)
    hang.released.set()
    await env.settled("job/a")
    waits = await causes(env, "job")
    await resume(env)
    await env.client.result("job")

    assert waits == [WaitCause.PAUSED]
    assert len(env.processor.requests) == 1


async def test_a_gate_is_kept_and_passed_on_in_a_pause(env: Env) -> None:
    hang = Hang()
    for process_id in ("holder", "next"):
        await env.running(process_id, *([hang] if process_id == "holder" else []), Answer())
    await env.client.call("holder", constraints=MUTEX, accept_only=True)
    await env.asked("holder", 2)
    following = await env.client.call("next", constraints=MUTEX, accept_only=True)
    await pause(env)
    behind = await causes(env, "next")
    hang.released.set()
    await env.settled("holder", 2)
    first, asked = await causes(env, "next"), len(env.asked_for("next"))
    await resume(env)
    await env.client.await_task("next", task_id=following.task_id)

    assert (behind, first, asked) == ([WaitCause.GATE], [WaitCause.PAUSED], 1)


async def test_callers_wait_for_the_end_of_a_pause_or_of_their_time(env: Env) -> None:
    await env.running("p", Answer(), DONE)
    await pause(env)
    status = await refusal(env.client.call("p", b"first", timeout=0.2))
    async with asyncio.TaskGroup() as group:
        ending: asyncio.Task[object] = group.create_task(env.client.result("p"))
        calling = group.create_task(env.client.call("p", b"second"))
        await env.points.wait("process_awaited", key=env.key("p"))
        await env.points.wait("admitted", 3, key=env.key("p"))
        await resume(env)

    assert (status.reason, ending.result(), calling.result().response) == (
        "DEADLINE_EXCEEDED", b"done", None,
    )  # fmt: skip
    assert [it.task.args for it in env.asked_for("p")] == [b"", b"first", b"second"]


async def test_retries_and_timers_that_come_due_in_a_pause_run_once_resumed(env: Env) -> None:
    hang = Hang(response=unavailable().response)
    env.processor.on_process("retried", hang, Answer())
    await env.client.start("retried", accept_only=True)
    await env.timed("timed", Answer(), after=0.3)
    await env.asked("retried")
    await pause(env)
    hang.released.set()
    await env.settled("retried")
    while set(await causes(env, "retried") + await causes(env, "timed")) != {WaitCause.PAUSED}:
        await env.points.wait("beat", env.points.count("beat") + 1)
    asked = len(env.processor.requests)
    await resume(env)
    await env.asked("retried", 2)
    await env.asked("timed", 2)

    assert asked == 2
    assert [it.task.attempt for it in env.asked_for("retried")] == [1, 2]
