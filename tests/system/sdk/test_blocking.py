"""A plain handler that outlasts the step timeout is alone on its process, whatever is asked."""

import asyncio
import datetime as dt
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from progressor.domain.processes.process import process_key
from progressor.sdk import (
    Limits,
    ProcessFailedError,
    Processor,
    RetryPolicy,
    Step,
)
from tests.support.engine.replica import Replica, running_replica

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATIENCE_SECONDS = 30.0
SOON = RetryPolicy(initial_interval=dt.timedelta(milliseconds=10), attempts_max=3)
TIMEOUT = dt.timedelta(milliseconds=300)


class Slow:
    """A processor whose call blocks a thread until it is released."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.released, self.ended = threading.Event(), threading.Event()
        self.count = 0
        self.processor: Processor[Any] = Processor("slow")
        self.processor.init(lambda _: None)
        self.processor.call(self._block)
        self.processor.repair(lambda _: "repaired")

    def _block(self, step: Step[Any]) -> int:
        self.count += 1
        self.entered.set()
        assert self.released.wait(timeout=PATIENCE_SECONDS)
        self.ended.set()
        return step.attempt


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database) as replica:
        yield replica


@pytest.mark.parametrize("streaming", [True, False])
async def test_its_process_breaks_by_the_timeout_and_no_second_attempt_was_begun(
    replica: Replica,
    streaming: bool,  # from the table
) -> None:
    slow = Slow()
    at_once = Limits(drain_timeout=dt.timedelta())
    name = f"slow-{streaming}".lower()
    async with (
        slow.processor.running("127.0.0.1:0", streaming=streaming, limits=at_once) as address,
        replica.namespace(name, address, retry_policy=SOON, step_timeout=TIMEOUT) as client,
    ):
        await client.start("p")
        with pytest.raises(ProcessFailedError) as caught:
            await client.call("p")
        begun = slow.count
        slow.released.set()
        assert await asyncio.to_thread(slow.ended.wait, timeout=PATIENCE_SECONDS)
        repaired = await client.repair("p")

    error = caught.value
    assert begun == 1
    assert error.detail == (
        f"step timeout of 0.3 s exceeded (attempt 1 of task {error.task_id} is still running), "
        "3 attempts"
    )
    assert error.failure_reason == "STILL_RUNNING"
    assert repaired.response == "repaired"


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_call_behind_a_cancelled_one_that_still_runs_waits_and_breaks_nothing(
    replica: Replica,
    streaming: bool,  # from the table
) -> None:
    slow = Slow()
    name = f"cancelled-{streaming}".lower()
    once = RetryPolicy(attempts_max=1)
    async with (
        slow.processor.running("127.0.0.1:0", streaming=streaming) as address,
        replica.namespace(name, address, retry_policy=once) as client,
    ):
        await client.start("p")
        cancelled = (await client.call("p", accept_only=True)).task_id
        assert await asyncio.to_thread(slow.entered.wait, timeout=PATIENCE_SECONDS)
        await client.cancel("p", task_id=cancelled)
        behind = (await client.call("p", accept_only=True)).task_id
        await replica.points.wait("settled", key=process_key(name, "p"), settlement="Retry")
        [wait] = (await client.get("p")).waits
        slow.released.set()
        answer = await client.await_task("p", task_id=behind)

    what = f"task {cancelled}, which was cancelled or given up, is still running, in attempt 1"
    assert what in wait.explanation
    assert "unreachable" not in wait.explanation
    assert (answer.response, slow.count) == (1, 2)
