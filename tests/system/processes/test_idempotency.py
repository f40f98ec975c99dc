"""An idempotency key means one thing: one execution and one answer, for as long as it lives."""

import asyncio
from collections.abc import Awaitable

import pytest
from grpc import StatusCode

from progressor.sdk import HistoryRange
from progressor.sdk import Reply as Answered
from progressor.v1.processor_service_pb2 import Complete
from tests.support.engine.replica import (
    Env,
    broken,
    refusal,
    response,
)
from tests.support.processor.scripted import Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALLERS = 100


async def at_once(requests: list[Awaitable[Answered]]) -> list[Answered]:
    """Send all of these at the same time and return their answers."""

    async def sent(request: Awaitable[Answered]) -> Answered:
        return await request

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(sent(request)) for request in requests]
    return [task.result() for task in tasks]


def first_and_rest(answers: list[Answered]) -> tuple[int, set[tuple[int, object]]]:
    """Return how many did the work, and the different answers."""
    worked = sum(not answer.deduplicated for answer in answers)
    return worked, {(answer.task_id, answer.response) for answer in answers}


class TestAHundredAtOnce:
    async def test_starts_are_one_execution_and_equal_answers(self, env: Env) -> None:
        answers = await at_once(
            [env.client.start("p", b"a", idempotency_key="k") for _ in range(CALLERS)]
        )

        worked, different = first_and_rest(answers)
        assert len(answers) == CALLERS
        assert (worked, len(different)) == (1, 1)
        assert answers[0].response == b"a"
        assert len(env.asked_for("p")) == 1
        assert (await env.client.get("p")).process.last_event_id == 1

    async def test_calls_are_one_execution_and_equal_answers(self, env: Env) -> None:
        await env.running("p")

        answers = await at_once(
            [env.client.call("p", b"a", idempotency_key="k") for _ in range(CALLERS)]
        )

        worked, different = first_and_rest(answers)
        assert (worked, len(different)) == (1, 1)
        assert len(env.asked_for("p")) == 2
        assert (await env.client.get("p")).process.last_event_id == 1

    async def test_calls_with_keys_of_their_own_are_as_many_executions(self, env: Env) -> None:
        await env.running("p")

        answers = await at_once(
            [env.client.call("p", b"a", idempotency_key=f"k{n}") for n in range(CALLERS)]
        )

        worked, different = first_and_rest(answers)
        assert (worked, len(different)) == (CALLERS, CALLERS)
        assert (await env.client.get("p")).process.last_event_id == CALLERS

    async def test_starts_without_a_key_are_one_execution_and_refusals(self, env: Env) -> None:
        async def outcome() -> str:
            try:
                await env.client.start("p", b"a")
            except Exception as error:  # noqa: BLE001  # which one is the claim
                return type(error).__name__
            return "started"

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(outcome()) for _ in range(CALLERS)]

        outcomes = [task.result() for task in tasks]
        assert outcomes.count("started") == 1
        assert outcomes.count("ProcessAlreadyExistsError") == CALLERS - 1


class TestTheSameRequest:
    async def test_joins_a_task_that_still_runs(self, env: Env) -> None:
        await env.running("p", hang := Hang())
        async with asyncio.TaskGroup() as group:
            first = group.create_task(env.client.call("p", b"a", idempotency_key="k"))
            await env.asked("p", 2)
            second = group.create_task(env.client.call("p", b"a", idempotency_key="k"))
            await env.points.wait("admitted", 3, key=env.key("p"))
            hang.released.set()

        assert (first.result().task_id, first.result().response) == (
            second.result().task_id,
            second.result().response,
        )
        assert (first.result().deduplicated, second.result().deduplicated) == (False, True)

    async def test_may_come_with_another_context(self, env: Env) -> None:
        await env.running("p")
        first = await env.client.call("p", b"a", idempotency_key="k", context={"trace": "1"})

        second = await env.client.call("p", b"a", idempotency_key="k", context={"trace": "2"})

        assert second.task_id == first.task_id

    async def test_after_accept_only_gets_the_answer(self, env: Env) -> None:
        await env.running("p")
        accepted = await env.client.call("p", b"a", idempotency_key="k", accept_only=True)

        answer = await env.client.call("p", b"a", idempotency_key="k")

        assert (answer.task_id, answer.response, answer.deduplicated) == (
            accepted.task_id,
            b"a",
            True,
        )

    async def test_that_broke_the_process_is_told_so_again(self, env: Env) -> None:
        await env.running("p", broken())
        first = await refusal(env.client.call("p", b"a", idempotency_key="k"))

        again = await refusal(env.client.call("p", b"a", idempotency_key="k"))

        assert again == first
        assert again.reason == "PROCESS_FAILED"

    async def test_that_was_cancelled_is_told_why_again(self, env: Env) -> None:
        hang, _ = await env.busy("p", answer=response(complete=Complete()))
        await env.client.call("p", b"a", idempotency_key="k", accept_only=True)
        hang.released.set()
        await env.settled("p", 2)

        status = await refusal(env.client.call("p", b"a", idempotency_key="k"))

        assert status.reason == "PROCESS_FINISHED"


class TestAnotherRequest:
    @staticmethod
    def refused() -> tuple[StatusCode, str, str]:
        return StatusCode.INVALID_ARGUMENT, "IDEMPOTENCY_KEY_REUSED", "k"

    async def told(self, request: Awaitable[object]) -> tuple[StatusCode, str, str]:
        status = await refusal(request)
        return status.code, status.reason, status.metadata["idempotency_key"]

    async def test_with_other_args_is_refused_naming_the_key(self, env: Env) -> None:
        await env.running("p")
        await env.client.call("p", b"a", idempotency_key="k")

        told = await self.told(env.client.call("p", b"b", idempotency_key="k"))

        assert told == self.refused()
        assert len(env.asked_for("p")) == 2

    async def test_of_another_kind_is_refused(self, env: Env) -> None:
        await env.client.start("p", b"a", idempotency_key="k")

        told = await self.told(env.client.call("p", b"a", idempotency_key="k"))

        assert told == self.refused()

    async def test_that_starts_what_a_call_has_named_is_refused(self, env: Env) -> None:
        await env.running("p")
        await env.client.call("p", b"a", idempotency_key="k")

        told = await self.told(env.client.start("p", b"a", idempotency_key="k"))

        assert told == self.refused()

    async def test_with_another_range_of_history_is_refused(self, env: Env) -> None:
        await env.running("p")
        await env.client.call("p", b"a", idempotency_key="k")
        other = HistoryRange(limit=1)

        told = await self.told(env.client.call("p", b"a", history=other, idempotency_key="k"))

        assert told == self.refused()

    async def test_with_other_metadata_is_refused(self, env: Env) -> None:
        await env.client.start("p", metadata={"a": 1}, idempotency_key="k")

        told = await self.told(env.client.start("p", metadata={"a": 2}, idempotency_key="k"))

        assert told == self.refused()

    async def test_that_puts_something_else_is_refused(self, env: Env) -> None:
        await env.client.put("p", state=b"a", idempotency_key="k")

        told = await self.told(env.client.put("p", state=b"b", idempotency_key="k"))

        assert told == self.refused()

    async def test_among_a_hundred_at_once_only_one_of_the_two_runs(self, env: Env) -> None:
        await env.running("p")

        async def outcome(args: bytes) -> tuple[bytes, bool]:
            try:
                await env.client.call("p", args, idempotency_key="k")
            except Exception:  # noqa: BLE001  # whether there was one is the claim
                return args, False
            return args, True

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(outcome(b"ab"[n % 2 :][:1])) for n in range(CALLERS)]

        outcomes = {task.result() for task in tasks}
        assert outcomes in ({(b"a", True), (b"b", False)}, {(b"a", False), (b"b", True)})
        assert len(env.asked_for("p")) == 2


class TestScope:
    async def test_an_empty_key_makes_every_request_new(self, env: Env) -> None:
        await env.running("p")
        one = await env.client.call("p", b"a", idempotency_key="")
        other = await env.client.call("p", b"a", idempotency_key="")

        assert one.task_id != other.task_id
