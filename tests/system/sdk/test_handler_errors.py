"""An exception in a handler: tried again by the policy; then, and only then, the process breaks."""

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from progressor import errors
from progressor.sdk import Fail, Processor, RetryPolicy, Step
from progressor.sdk.values.processes import TaskStatus
from tests.support.engine.replica import Replica

pytestmark = pytest.mark.asyncio(loop_scope="module")

ATTEMPTS_MAX = RetryPolicy().attempts_max
SOON = RetryPolicy(
    initial_interval=dt.timedelta(milliseconds=1), coefficient=1.0, jitter=0.0,
    attempts_max=ATTEMPTS_MAX,
)  # fmt: skip


def faulty(error: Exception, *, failures: int) -> Processor[Any]:
    """Return a processor whose calls raise an error in the first attempts."""
    processor: Processor[Any] = Processor("faulty", release="1.4.2")

    @processor.init
    def begin(_step: Step[Any]) -> None: ...

    @processor.call
    def work(step: Step[Any]) -> int:
        if step.attempt <= failures:
            raise error
        return step.attempt

    return processor


@pytest.mark.parametrize("error", [KeyError("sku"), TimeoutError("of the bank")], ids=repr)
async def test_a_handler_that_raises_twice_succeeds_at_its_third_attempt(
    replica: Replica, tmp_path: Path, error: Exception
) -> None:
    name = f"twice-{type(error).__name__.lower()}"
    async with (
        faulty(error, failures=2).running(f"unix:{tmp_path}/socket") as target,
        replica.namespace(name, target, retry_policy=SOON) as client,
    ):
        await client.start("p")

        answer = await client.call("p")

        assert answer.response == 3


@pytest.mark.parametrize(
    ("error", "attempts"),
    [(KeyError("sku"), ATTEMPTS_MAX), (TimeoutError("slow"), ATTEMPTS_MAX), (Fail("no"), 1)],
    ids=repr,
)
async def test_a_handler_that_always_raises_breaks_after_the_last_attempt_and_fail_at_once(
    replica: Replica, tmp_path: Path, error: Exception, attempts: int
) -> None:
    name = f"always-{type(error).__name__.lower()}"
    async with (
        faulty(error, failures=ATTEMPTS_MAX).running(f"unix:{tmp_path}/socket") as target,
        replica.namespace(name, target, retry_policy=SOON) as client,
    ):
        await client.start("p")

        with pytest.raises(errors.ProcessFailedError):
            await client.call("p")

        task = (await client.trace("p")).tasks[-1]
        assert (task.status, task.attempt_count) == (TaskStatus.ERROR, attempts)
        (group,) = [it async for it in client.failures()]
        (process,) = [it async for it in client.list()]
        assert (group.release, group.broken_count, group.failure_id) == (
            "1.4.2", 1, process.failure_id,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("release", "error", "message"),
    [
        (1.4, TypeError, "processor 'faulty': release must be a str, got 1.4"),
        ("x" * 65, ValueError, "processor 'faulty': release must be at most 64 bytes, got 65"),
    ],
)
async def test_a_release_is_a_short_text(
    release: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{message}$"):
        Processor("faulty", release=release)


async def test_ten_attempts_are_the_default() -> None:
    assert ATTEMPTS_MAX == 10
