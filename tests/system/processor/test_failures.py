"""Processors that are down, slow, dying or talking nonsense: what becomes of the step, either way.

Either way: by a stream, and by a call of its own.
"""

import asyncio
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2
from google.rpc.error_details_pb2 import (
    RetryInfo,
)
from grpc import StatusCode

from progressor.sdk import ProcessStatus, RetryPolicy, TaskTrace
from progressor.v1.processor_service_pb2 import (
    ProcessResponse,
    Reject,
)
from tests.support.engine.replica import (
    NOW_AND_THEN,
    Env,
    Replica,
    answering,
    open_env,
    refusal,
)
from tests.support.processor.scripted import Answer, Drop, Garble, Hang, Refuse, Step

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1024 * 1024
HOUR = 3600


@pytest.fixture(params=["by a stream", "by a call"])
def streaming(request: pytest.FixtureRequest) -> bool:
    """Tell whether processors take streams."""
    return bool(request.param == "by a stream")


@pytest_asyncio.fixture(loop_scope="module")
async def env(replica: Replica, streaming: bool) -> AsyncIterator[Env]:
    async with open_env(replica, streaming=streaming, retry_policy=NOW_AND_THEN) as env:
        yield env


async def last_task(env: Env) -> TaskTrace:
    return (await env.client.trace("p")).tasks[-1]


async def why_it_broke(env: Env, *steps: Step) -> tuple[str, str]:
    """Call a process that is served by these steps; return reason and message of its failure."""
    await env.running("p", *steps)
    status = await refusal(env.client.call("p"))
    assert status.reason == "PROCESS_FAILED"
    error = (await last_task(env)).error
    assert error is not None
    return error.reason, error.message


class TestDown:
    async def test_is_tried_again_and_breaks_once_the_attempts_are_spent(self, env: Env) -> None:
        await env.processor.stop()

        status = await refusal(env.client.start("p"))

        task = await last_task(env)
        assert status.reason == "PROCESS_FAILED"
        assert task.attempt_count == 3
        assert task.error is not None
        assert task.error.reason == "PROCESSOR_UNAVAILABLE"

    async def test_is_found_when_it_comes_back(
        self,
        replica: Replica,
        streaming: bool,
    ) -> None:
        async with open_env(replica, streaming=streaming) as env:
            await env.processor.stop()
            async with asyncio.TaskGroup() as group:
                started = group.create_task(env.client.start("p", b"1"))
                await env.settled("p", settlement="Retry")
                await env.processor.restart()

            assert started.result().response == b"1"


def _retry(seconds: int) -> Any:
    return RetryInfo(retry_delay=Duration(seconds=seconds))


class TestDying:
    async def test_in_the_middle_of_a_call_is_tried_again(self, env: Env) -> None:
        await env.running("p", Drop(), Answer())

        answer = await env.client.call("p", b"1")

        assert answer.response == b"1"
        assert (await last_task(env)).attempt_count == 2


class TestSlow:
    async def test_past_the_step_timeout_is_tried_again_and_then_breaks(
        self, replica: Replica
    ) -> None:
        quick = dt.timedelta(milliseconds=400)
        async with open_env(replica, step_timeout=quick, retry_policy=NOW_AND_THEN) as env:
            reason, message = await why_it_broke(env, Hang())

            assert reason == "STEP_TIMEOUT"
            assert message == "step timeout of 0.4 s exceeded, 3 attempts"
            assert (await last_task(env)).attempt_count == 3

    async def test_does_not_hold_up_its_neighbours(self, env: Env) -> None:
        hang, _ = await env.busy("p")

        answer = await env.client.start("q", b"1")

        hang.released.set()
        assert answer.response == b"1"


NONSENSE: dict[str, tuple[Step, str]] = {
    "garbage": (Garble(), "response"),
    "an event that is too large": (answering(b"e", b"x" * (3 * MIB)), "events[1].payload"),
}  # fmt: skip


@pytest.mark.parametrize("nonsense", NONSENSE)
async def test_an_answer_breaks_the_process_naming_the_field_that_has(
    env: Env, nonsense: str
) -> None:
    step, field = NONSENSE[nonsense]

    reason, message = await why_it_broke(env, step)

    assert reason == "INVALID_ANSWER"
    assert message.startswith(f"{field}: ")
    process = (await env.client.get("p")).process
    assert (process.status, process.detail) == (ProcessStatus.ERROR, message)
    assert process.last_event_id == 0


async def test_an_answer_that_no_message_holds_breaks_the_process(
    env: Env,
    streaming: bool,
) -> None:
    reason, _ = await why_it_broke(env, Garble(bytes(65 * MIB)))

    assert reason == "MESSAGE_TOO_LARGE"
    # On a stream the first attempt is the end of the stream, and the second is made alone.
    assert (await last_task(env)).attempt_count == (2 if streaming else 1)


async def test_nonsense_about_one_process_does_not_touch_another_in_the_same_moment(
    env: Env,
) -> None:
    names = [f"good-{number}" for number in range(10)]
    for name in names:
        await env.running(name)
    await env.running("p", Garble())

    async with asyncio.TaskGroup() as group:
        good = [group.create_task(env.client.call(name, b"1")) for name in names]
        bad = group.create_task(refusal(env.client.call("p")))

    assert [task.result().response for task in good] == [b"1"] * 10
    assert bad.result().reason == "PROCESS_FAILED"


class TestAStatus:
    async def test_says_when_to_ask_again(self, env: Env) -> None:
        await env.running("p", Refuse(StatusCode.UNAVAILABLE, "later", (_retry(HOUR),)))
        await env.client.call("p", accept_only=True)
        await env.settled("p", 2)

        (wait,) = (await env.client.get("p")).waits
        started_at = (await last_task(env)).started_at
        assert started_at is not None
        assert wait.until is not None
        assert wait.until >= started_at + dt.timedelta(seconds=HOUR)


async def test_a_server_without_a_processor_counts_as_unreachable(replica: Replica) -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    soon = RetryPolicy(initial_interval=dt.timedelta(milliseconds=1), attempts_max=3)
    async with open_env(
        replica, processor_targets=(f"127.0.0.1:{port}",), retry_policy=soon
    ) as env:
        status = await refusal(env.client.start("p"))
        task = await last_task(env)
    await server.stop(None)

    assert (status.reason, task.attempt_count) == ("PROCESS_FAILED", 3)
    assert task.error is not None
    assert task.error.reason == "PROCESSOR_UNAVAILABLE"
    assert "the target does not serve this namespace: UNIMPLEMENTED" in task.error.message


@pytest.mark.parametrize("code", [0, code_pb2.UNKNOWN])
async def test_a_reject_without_a_code_is_of_unknown_status_and_breaks_nothing(
    env: Env, code: int
) -> None:
    await env.running("p", Answer(ProcessResponse(reject=Reject(code=code, message="no"))))

    status = await refusal(env.client.call("p"))

    process = (await env.client.get("p")).process
    assert (status.code, status.message) == (StatusCode.UNKNOWN, "no")
    assert process.status is ProcessStatus.RUNNING


async def test_the_processor_of_a_namespace_can_be_moved_at_run_time(
    env: Env, replica: Replica
) -> None:
    async with open_env(replica) as other:
        await env.running("p")
        config = await env.client.namespaces.get(env.namespace)
        moved = dataclasses.replace(config, processor_targets=(other.processor.target,))
        await env.client.namespaces.update(moved, fields=["processor_targets"])

        await env.client.call("p", b"1")

        assert len(other.asked_for("p")) == 1
