"""A process whose own code fails comes back with all that was acknowledged.

The user's cases: a handler raises, its fix is deployed, and the process goes on after a retry; a
payment that breaks a process is not the end of those behind it.
"""

import asyncio
import collections
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from grpc import StatusCode

from progressor import sdk
from progressor.domain.processes.process import process_key
from progressor.sdk import Client, Processor, ProcessStatus, Step, TaskStatus, WaitCause
from tests.support.engine.replica import Replica, refusal

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATIENCE_SECONDS = 30
_NUMBERS = itertools.count()


class Payments:
    """A processor of payments, with a bug for as long as `is_broken`."""

    def __init__(self) -> None:
        self.is_broken = True
        self.slow = asyncio.Event()
        self.is_slow = asyncio.Event()
        self.paid: collections.Counter[str] = collections.Counter()
        self.timers = 0
        self.processor = processor = Processor("payments")
        processor.init(self.open)
        processor.call(self.call)
        processor.notify(self.pay)
        processor.timeout(self.expire)

    async def open(self, step: Step[Any]) -> None:
        if step.args == "bad":
            self._stumble()
        step.set_timer(after=3600)

    async def call(self, step: Step[Any]) -> object:
        self._stumble()
        return step.args

    async def pay(self, step: Step[Any]) -> None:
        if step.args == "slow":
            self.is_slow.set()
            await self.slow.wait()
        if step.args == "raise":
            self._stumble()
        self.paid[step.args] += 1

    async def expire(self, step: Step[Any]) -> None:
        self.timers += 1
        step.complete()

    def _stumble(self) -> None:
        if self.is_broken:
            raise sdk.Fail("no such field", reason="KeyError")


@pytest_asyncio.fixture(loop_scope="module")
async def payments() -> Payments:
    return Payments()


@pytest_asyncio.fixture(loop_scope="module")
async def client(replica: Replica, payments: Payments) -> AsyncIterator[Client]:
    async with (
        payments.processor.running("127.0.0.1:0") as target,
        replica.namespace(f"payments-{next(_NUMBERS)}", target) as client,
    ):
        yield client


async def status_of(client: Client, process_id: str) -> ProcessStatus:
    return (await client.get(process_id)).process.status


async def test_every_notify_is_applied_exactly_once_after_a_retry(
    client: Client, payments: Payments
) -> None:
    await client.start("p")
    receipts = [
        await client.notify("p", args, idempotency_key=args)
        for args in ("slow", "raise", "pay-1", "pay-2", "pay-3")
    ]
    payments.slow.set()
    status = await refusal(client.await_task("p", task_id=receipts[1].task_id))
    assert status.reason == "PROCESS_FAILED"
    snapshot = await client.get("p")
    assert [wait.cause for wait in snapshot.waits] == [WaitCause.PROCESS_FAILED] * 4
    assert payments.paid == {"slow": 1}
    # The keys stand for work that is still to be done.
    assert (await client.notify("p", "pay-1", idempotency_key="pay-1")).deduplicated

    payments.is_broken = False
    retried = await client.retry("p")

    assert retried.task_id == receipts[1].task_id
    for receipt in receipts:
        await client.await_task("p", task_id=receipt.task_id)
    assert payments.paid == dict.fromkeys(("slow", "raise", "pay-1", "pay-2", "pay-3"), 1)
    snapshot = await client.get("p")
    assert snapshot.process.status is ProcessStatus.RUNNING
    assert snapshot.timer is not None


async def test_a_broken_call_is_answered_after_the_fix(client: Client, payments: Payments) -> None:
    await client.start("p")
    before = (await client.get("p")).timer
    status = await refusal(client.call("p", "a", idempotency_key="k"))
    assert status.metadata["own"] == "true"

    payments.is_broken = False
    retried = await client.retry("p")

    by_id = await client.await_task("p", task_id=retried.task_id)
    again = await client.call("p", "a", idempotency_key="k")
    assert (by_id.response, again.response, again.deduplicated) == ("a", "a", True)
    assert (await client.get("p")).timer == before


async def test_a_start_that_broke_is_started_by_a_retry(client: Client, payments: Payments) -> None:
    await refusal(client.start("p", "bad"))
    assert await status_of(client, "p") is ProcessStatus.ERROR

    payments.is_broken = False
    retried = await client.retry("p")
    await client.await_task("p", task_id=retried.task_id)

    assert await status_of(client, "p") is ProcessStatus.RUNNING


async def test_a_caller_who_waited_may_send_the_same_request_again(
    client: Client, payments: Payments, replica: Replica
) -> None:
    await client.start("p")
    await client.notify("p", "slow")
    async with asyncio.timeout(PATIENCE_SECONDS):
        await payments.is_slow.wait()
    await client.notify("p", "raise")
    waiting = asyncio.ensure_future(refusal(client.call("p", "a", idempotency_key="k")))
    await replica.points.wait("admitted", 4, key=process_key(client.namespace, "p"))
    payments.slow.set()
    status = await waiting
    assert (status.reason, status.metadata["own"]) == ("PROCESS_FAILED", "false")

    payments.is_broken = False
    retried = await client.retry("p")
    await client.await_task("p", task_id=retried.task_id)
    again = await client.call("p", "a", idempotency_key="k")

    assert (again.response, again.deduplicated) == ("a", False)


async def test_a_retry_that_fails_again_leaves_the_process_as_it_was(client: Client) -> None:
    await client.start("p")
    await refusal(client.call("p", "a"))
    retried = await client.retry("p")

    status = await refusal(client.await_task("p", task_id=retried.task_id))

    assert status.metadata["own"] == "true"
    snapshot = await client.get("p")
    assert snapshot.process.corrupted_by == retried.task_id
    assert snapshot.timer is not None
    assert [wait.cause for wait in snapshot.waits] == [WaitCause.PROCESS_FAILED]


async def test_a_simple_repair_leaves_the_task_behind_and_releases_the_others(
    client: Client, payments: Payments
) -> None:
    await client.start("p")
    await client.notify("p", "slow")
    async with asyncio.timeout(PATIENCE_SECONDS):
        await payments.is_slow.wait()
    broken = await client.notify("p", "raise")
    paid = await client.notify("p", "pay-1")
    payments.slow.set()
    await refusal(client.await_task("p", task_id=broken.task_id))

    await client.simple_repair("p")
    await client.await_task("p", task_id=paid.task_id)

    assert payments.paid == {"slow": 1, "pay-1": 1}
    tasks = {task.task_id: task.status for task in (await client.trace("p")).tasks}
    assert tasks[broken.task_id] is TaskStatus.ERROR


async def test_with_on_error_cancel_all_that_waits_is_cancelled(
    replica: Replica, payments: Payments
) -> None:
    async with (
        payments.processor.running("127.0.0.1:0") as target,
        replica.namespace("ancestor", target, on_error=sdk.OnError.CANCEL) as client,
    ):
        await client.start("p")
        await client.notify("p", "slow")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await payments.is_slow.wait()
        await client.notify("p", "raise")
        paid = await client.notify("p", "pay-1", idempotency_key="k")
        payments.slow.set()

        status = await refusal(client.await_task("p", task_id=paid.task_id))

        assert (status.reason, status.metadata["own"]) == ("PROCESS_FAILED", "false")
        snapshot = await client.get("p")
        assert (snapshot.timer, snapshot.waits) == (None, ())


async def test_a_process_that_no_task_broke_is_not_retried(client: Client) -> None:
    await client.put("p", status=ProcessStatus.ERROR, detail="imported")

    status = await refusal(client.retry("p"))

    assert (status.code, status.reason) == (StatusCode.FAILED_PRECONDITION, "NOTHING_TO_RETRY")
