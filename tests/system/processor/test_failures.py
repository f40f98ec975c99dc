"""Processors that are down, slow, dying or talking nonsense, and what becomes of the process.

Either way: by a stream, and by a call of its own.
"""

import asyncio
import dataclasses
import datetime as dt
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo

from progressor.sdk import ProcessStatus, RetryPolicy, TaskTrace
from tests.support.engine.replica import (
    NOW_AND_THEN,
    Env,
    Replica,
    answering,
    open_env,
    refusal,
)
from tests.support.processor.scripted import Answer, Drop, Garble, Hang, Refuse, Step, fail

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.parametrize("streaming", [True, False], ids=["by a stream", "by a call"]),
]

MIB = 1024 * 1024
HOUR = 3600
SHORT = dt.timedelta(milliseconds=400)


ONCE = RetryPolicy(attempts_max=1)


async def last_task(env: Env) -> TaskTrace:
    return (await env.client.trace("p")).tasks[-1]


@pytest.mark.parametrize(
    ("step", "options", "told", "attempt_counts"),
    [
        (Garble(), {}, ("INVALID_ANSWER", "response: "), (1, 1)),
        (answering(b"e", b"x" * (3 * MIB)), {}, ("INVALID_ANSWER", "events[1].payload: "), (1, 1)),
        (Hang(), {"step_timeout": SHORT},
         ("STEP_TIMEOUT", "step timeout of 0.4 s exceeded, 3 attempts"), (3, 3)),
        # On a stream the first attempt is the end of the stream, and the second is made alone.
        (Garble(bytes(65 * MIB)), {}, ("MESSAGE_TOO_LARGE", ""), (2, 1)),
    ],
    ids=["garbage", "an event that is too large", "silence", "an answer that no message holds"],
)  # fmt: skip
async def test_what_a_processor_does_wrong_breaks_the_process_which_says_why(
    replica: Replica,
    streaming: bool,
    step: Step,
    options: dict[str, Any],
    told: tuple[str, str],
    attempt_counts: tuple[int, int],
) -> None:
    reason, beginning = told
    async with open_env(replica, streaming=streaming, retry_policy=NOW_AND_THEN, **options) as env:
        await env.running("p", step)
        status = await refusal(env.client.call("p"))
        task = await last_task(env)
        process = (await env.client.get("p")).process

    assert status.reason == "PROCESS_FAILED"
    assert task.error is not None
    assert task.error.reason == reason
    assert task.error.message.startswith(beginning)
    assert task.attempt_count == attempt_counts[not streaming]
    assert (process.status, process.detail) == (ProcessStatus.ERROR, task.error.message)
    assert process.last_event_id == 0


async def test_a_processor_that_is_down_breaks_nothing_and_costs_no_attempt(
    replica: Replica, streaming: bool
) -> None:
    async with open_env(replica, streaming=streaming, retry_policy=ONCE) as env:
        await env.processor.stop()
        async with asyncio.TaskGroup() as group:
            first = group.create_task(env.client.start("p", b"1"))
            await env.settled("p", settlement="Retry")
            waiting = await last_task(env)
            # The second is not even tried.
            second = group.create_task(env.client.start("q", b"2"))
            await env.points.wait("admitted", 1, key=env.key("q"))
            tried = env.points.count("claimed", key=env.key("q"))
            await env.processor.restart()
        task = await last_task(env)

    assert tried == 0
    assert (waiting.attempt_count, waiting.error and waiting.error.reason) == (
        0, "PROCESSOR_UNAVAILABLE",
    )  # fmt: skip
    assert (first.result().response, second.result().response) == (b"1", b"2")
    assert task.attempt_count == 1


async def test_a_processor_that_is_away_for_longer_than_the_patience_breaks_the_process(
    replica: Replica, streaming: bool
) -> None:
    patience = dt.timedelta(seconds=0.3)
    async with open_env(replica, streaming=streaming, unreachable_patience=patience) as env:
        await env.processor.stop()
        status = await refusal(env.client.start("p"))
        task = await last_task(env)

    assert status.reason == "PROCESS_FAILED"
    assert task.error is not None
    assert task.error.reason == "PROCESSOR_UNAVAILABLE"
    assert task.error.message.startswith("the processor has been unreachable for 0.")


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED])
async def test_a_processor_that_refuses_a_step_is_asked_again_without_counting(
    replica: Replica, streaming: bool, code: grpc.StatusCode
) -> None:
    refused = fail(code.value[0])
    async with open_env(replica, streaming=streaming, retry_policy=ONCE) as env:
        await env.running("p", refused, refused, Answer())

        assert (await env.client.call("p", b"1")).response == b"1"
        assert (await last_task(env)).attempt_count == 1


async def test_a_processor_that_comes_back_is_found(replica: Replica, streaming: bool) -> None:
    async with open_env(replica, streaming=streaming) as env:
        await env.processor.stop()
        async with asyncio.TaskGroup() as group:
            started = group.create_task(env.client.start("p", b"1"))
            await env.settled("p", settlement="Retry")
            await env.processor.restart()

        assert started.result().response == b"1"


async def test_a_processor_that_dies_in_the_middle_of_a_call_is_asked_again(
    replica: Replica, streaming: bool
) -> None:
    async with open_env(replica, streaming=streaming, retry_policy=NOW_AND_THEN) as env:
        await env.running("p", Drop(), Answer())

        assert (await env.client.call("p", b"1")).response == b"1"
        assert (await last_task(env)).attempt_count == 2


async def test_a_process_that_hangs_does_not_hold_up_its_neighbours(
    replica: Replica, streaming: bool
) -> None:
    async with open_env(replica, streaming=streaming) as env:
        hang, _ = await env.busy("p")

        answer = await env.client.start("q", b"1")

        hang.released.set()
        assert answer.response == b"1"


async def test_nonsense_about_one_process_does_not_touch_another_in_the_same_moment(
    replica: Replica, streaming: bool
) -> None:
    names = [f"good-{number}" for number in range(10)]
    async with open_env(replica, streaming=streaming) as env:
        for name in names:
            await env.running(name)
        await env.running("p", Garble())
        async with asyncio.TaskGroup() as group:
            good = [group.create_task(env.client.call(name, b"1")) for name in names]
            bad = group.create_task(refusal(env.client.call("p")))

    assert [task.result().response for task in good] == [b"1"] * 10
    assert bad.result().reason == "PROCESS_FAILED"


async def test_a_status_says_when_to_ask_again(replica: Replica, streaming: bool) -> None:
    later = RetryInfo(retry_delay=Duration(seconds=HOUR))
    async with open_env(replica, streaming=streaming, retry_policy=NOW_AND_THEN) as env:
        await env.running("p", Refuse(grpc.StatusCode.UNAVAILABLE, "later", (later,)))
        await env.client.call("p", accept_only=True)
        await env.settled("p", 2)
        (wait,) = (await env.client.get("p")).waits
        started_at = (await last_task(env)).started_at

    assert started_at is not None
    assert wait.until is not None
    assert wait.until >= started_at + dt.timedelta(seconds=HOUR)


async def test_the_processor_of_a_namespace_can_be_moved_at_run_time(
    replica: Replica, streaming: bool
) -> None:
    async with open_env(replica, streaming=streaming) as env, open_env(replica) as other:
        await env.running("p")
        config = await env.client.namespaces.get(env.namespace)
        moved = dataclasses.replace(config, processor_targets=(other.processor.target,))
        await env.client.namespaces.update(moved, fields=["processor_targets"])

        await env.client.call("p", b"1")

        assert len(other.asked_for("p")) == 1


async def test_a_server_without_a_processor_counts_as_unreachable(
    replica: Replica, streaming: bool
) -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    soon = RetryPolicy(initial_interval=dt.timedelta(milliseconds=1), attempts_max=3)
    async with open_env(
        replica,
        streaming=streaming,
        processor_targets=(f"127.0.0.1:{port}",),
        retry_policy=soon,
    ) as env:
        await env.client.start("p", accept_only=True)
        await env.settled("p", 5, settlement="Retry")
        task = await last_task(env)
    await server.stop(None)

    assert task.attempt_count == 0
    assert task.error is not None
    assert task.error.reason == "PROCESSOR_UNAVAILABLE"
    assert "the target does not serve this namespace: UNIMPLEMENTED" in task.error.message
