"""A plain handler that outlasts the step timeout is alone on its process, whatever is asked."""

import asyncio
import datetime as dt
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

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
        self.released, self.ended = threading.Event(), threading.Event()
        self.count = 0
        self.processor: Processor[Any] = Processor("slow")
        self.processor.init(lambda _: None)
        self.processor.call(self._block)
        self.processor.repair(lambda _: "repaired")

    def _block(self, _step: Step[Any]) -> None:
        self.count += 1
        assert self.released.wait(timeout=PATIENCE_SECONDS)
        self.ended.set()


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
