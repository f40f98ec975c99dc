"""Quotas of a namespace: what is over them is refused or waits, and nothing else is."""

import asyncio
import datetime as dt
import itertools
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from grpc import StatusCode

from progressor import errors
from progressor.domain.processes.task import TaskType
from progressor.sdk import Quotas, WaitCause
from tests.support.engine.points import eventually
from tests.support.engine.replica import Env, Replica, open_env, refusal, running_replica

pytestmark = pytest.mark.asyncio(loop_scope="module")

NO_RETRY = 9.0
"""The timeout of requests that the client does not repeat: it is asked to wait for longer."""

MUCH = bytes(1000)
"""What uses up a quota of ten bytes per second for long."""


@pytest_asyncio.fixture(params=[True, False], ids=["session", "unary"], loop_scope="module")
async def limited(request: pytest.FixtureRequest, second_replica: Replica) -> AsyncIterator[Env]:
    quotas = Quotas(bytes_per_second=10)
    async with open_env(second_replica, session=request.param, quotas=quotas) as env:
        yield env


async def test_over_a_rate_a_request_is_refused_with_a_time_and_nothing_is_written(
    limited: Env,
) -> None:
    await limited.client.start("first", MUCH)

    status = await refusal(limited.client.start("second", b"more", timeout=NO_RETRY))

    assert (status.code, status.reason) == (StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
    assert status.metadata["namespace"] == limited.namespace
    assert (status.metadata["quota"], status.metadata["limit"]) == ("bytes_per_second", "10")
    assert status.retry_after is not None
    assert dt.timedelta(seconds=5) < status.retry_after <= dt.timedelta(seconds=11)
    with pytest.raises(errors.ProcessNotFoundError):
        await limited.client.get("second")


async def test_a_repeated_request_is_answered_though_the_quota_is_used_up(limited: Env) -> None:
    first = await limited.client.start("first", MUCH, idempotency_key="key")

    for _ in range(3):
        again = await limited.client.start("first", MUCH, idempotency_key="key", timeout=NO_RETRY)
        assert (again.task_id, again.deduplicated) == (first.task_id, True)
    with pytest.raises(errors.QuotaExceededError):
        await limited.client.start("second", MUCH, idempotency_key="key", timeout=NO_RETRY)


async def test_what_costs_nothing_of_a_quota_is_not_limited(limited: Env) -> None:
    await limited.client.start("first", MUCH)

    for _ in range(5):
        await limited.client.call("first")

    assert len(limited.asked_for("first")) == 6


@pytest.mark.parametrize("session", [True, False], ids=["session", "unary"])
async def test_the_client_waits_as_long_as_it_is_told(
    second_replica: Replica, session: bool
) -> None:
    quotas = Quotas(starts_per_second=1)
    async with open_env(second_replica, session=session, quotas=quotas) as env:
        begun_at = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(env.client.start(f"p{number}"))

        assert time.monotonic() - begun_at > 1.5


async def test_calls_and_notifies_share_a_rate(second_replica: Replica) -> None:
    async with open_env(second_replica, quotas=Quotas(calls_per_second=1)) as env:
        await env.client.start("p")

        async def refused_quota(number: int) -> str:
            send = env.client.call if number % 2 else env.client.notify
            try:
                await send("p", timeout=NO_RETRY)
            except errors.QuotaExceededError as error:
                return error.quota
            return ""

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(refused_quota(number)) for number in range(30)]

        assert {task.result() for task in tasks} == {"", "calls_per_second"}


async def test_no_two_replicas_together_open_one_process_too_many(
    database: str, second_replica: Replica
) -> None:
    limit, wanted = 30, 100
    async with (
        running_replica(database, {"replica.name": "third"}) as third,
        open_env(second_replica, one_at_a_time=False, quotas=Quotas(open_processes=limit)) as env,
        env.client_at(third.address) as there,
    ):
        clients = itertools.cycle([env.client, there])

        async def refused_quota(number: int) -> str:
            try:
                await next(clients).start(f"p{number}", timeout=NO_RETRY)
            except errors.QuotaExceededError as error:
                return error.quota
            return ""

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(refused_quota(number)) for number in range(wanted)]
        opened = [number for number, task in enumerate(tasks) if not task.result()]
        repeated = await refusal(env.client.start(f"p{opened[0]}", timeout=NO_RETRY))
        await env.client.terminate(f"p{opened[0]}", "to make room")
        await env.client.start("one more")
        last = await refusal(there.start("too many", timeout=NO_RETRY))

        assert len(opened) == limit
        assert repeated.reason == "PROCESS_ALREADY_EXISTS"
        assert last.metadata["quota"] == "open_processes"


async def test_a_start_whose_process_is_gone_is_answered_though_none_may_open(
    second_replica: Replica,
) -> None:
    async with open_env(second_replica, quotas=Quotas(open_processes=1)) as env:
        first = await env.client.start("gone", idempotency_key="key")
        await env.client.remove("gone")
        await env.client.start("open")

        again = await env.client.start("gone", idempotency_key="key", timeout=NO_RETRY)
        other = await refusal(env.client.start("gone", idempotency_key="2", timeout=NO_RETRY))

        assert (again.task_id, again.deduplicated) == (first.task_id, True)
        assert other.metadata["quota"] == "open_processes"


@pytest.mark.parametrize("after", [0.0, 0.3], ids=["at once", "later"])
async def test_timers_fire_no_faster_than_their_quota_and_calls_pass_them(
    second_replica: Replica, after: float
) -> None:
    rate, count = 20, 60
    quotas = Quotas(timers_per_second=rate)
    async with open_env(second_replica, one_at_a_time=False, quotas=quotas) as env:
        begun_at = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(env.timed(f"p{number}", after=after))
        waiting = count - sum(len(env.asked_for(f"p{number}")) > 1 for number in range(count))
        for number in range(count):
            await env.client.call(f"p{number}")
        for number in range(count):
            await env.settled(f"p{number}", task_type=TaskType.TIMEOUT)
        seconds = time.monotonic() - begun_at

        assert waiting
        # A second's worth may fire at once.
        assert seconds > (count / rate - 1) * 0.9


async def test_a_timer_that_waits_for_its_quota_says_so(second_replica: Replica) -> None:
    async with open_env(
        second_replica, one_at_a_time=False, quotas=Quotas(timers_per_second=1)
    ) as env:
        for number in range(20):
            await env.timed(f"p{number}", after=0.1)

        async def held() -> list[str]:
            pages = env.client.list(causes=[WaitCause.QUOTA])
            return [it.first_wait.explanation async for it in pages if it.first_wait is not None]

        explanations = await eventually(held)

        assert f"update {env.namespace} --set quotas.timers_per_second=N." in explanations[0]
