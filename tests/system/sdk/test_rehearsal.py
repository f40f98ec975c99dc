"""A process rehearsed in memory goes the way that it goes on a whole engine, request by request."""

import asyncio
import contextlib
import datetime as dt
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from progressor import errors
from progressor.sdk import (
    Client,
    Fail,
    NamespaceConfig,
    Processor,
    Reject,
    Retry,
    RetryPolicy,
    Step,
    TaskStatus,
    TaskType,
)
from progressor.sdk.testing import Rehearsal
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.replica import Replica

pytestmark = pytest.mark.asyncio(loop_scope="module")

SEEDS = range(8)
REQUESTS = 25
POLICY = RetryPolicy(
    initial_interval=dt.timedelta(milliseconds=5), coefficient=1.0, jitter=0.0, attempts_max=2
)


def _raise(error: Exception) -> NoReturn:
    raise error


DEEDS: dict[str, tuple[float, Callable[[Step[Any]], object]]] = {
    "emit": (6, lambda step: step.emit({"by": step.type})),
    "state": (4, lambda step: setattr(step, "state", (step.state or 0) + 1)),
    "metadata": (3, lambda step: setattr(step, "metadata", {"events": step.last_event_id})),
    "reject": (2, lambda _: _raise(Reject("no", reason="NOT_NOW", metadata={"a": "b"}))),
    "fail": (2, lambda _: _raise(Fail("broken"))),
    "bug": (1, lambda _: _raise(ZeroDivisionError("oh"))),
    "retry once": (2, lambda step: step.attempt > 1 or _raise(Retry("not yet"))),
    "retry": (1, lambda _: _raise(Retry("never", reason="NEVER"))),
    "timer now": (3, lambda step: step.set_timer(args="tick")),
    "timer that fails": (2, lambda step: step.set_timer(args="fail")),
    "timer far": (3, lambda step: step.set_timer(after=3600)),
    "timer that retries": (2, lambda step: step.set_timer(args="retry")),
    "no timer": (2, lambda step: step.unset_timer()),
    "named now": (2, lambda step: step.set_timer("now", args="tick")),
    "named that fails": (1, lambda step: step.set_timer("fails", args="fail")),
    "named that retries": (1, lambda step: step.set_timer("retries", args="retry")),
    "named far": (2, lambda step: step.set_timer("far", after=3600)),
    "no named": (1, lambda step: step.unset_timer("far")),
    "complete": (0.3, lambda step: step.complete({"events": step.last_event_id})),
    "remove": (0.2, lambda step: step.remove()),
}
"""The instructions of a step, and how likely each is: mostly what lets the process live on."""


def moody() -> Processor[Any]:
    """Return a processor that does what its requests say."""
    processor = Processor("moody")

    def do(step: Step[Any]) -> Any:
        for deed in step.args or []:
            DEEDS[deed][1](step)
        return [step.type, step.status, step.last_event_id, len(step.history), step.state]

    for take in (processor.init, processor.call, processor.notify, processor.repair):
        take(do)

    @processor.timeout
    def tick(step: Step[Any]) -> None:
        step.emit(["tick", step.attempt, step.timer_name])
        if step.args == "fail" and step.status != "error":
            raise Fail("at the timer")
        if step.args == "retry" and step.attempt == 1:
            raise Retry("not yet")

    return processor


def drawn(chance: random.Random) -> tuple[str, list[str]]:
    """Return a request, and what its step is to do."""
    request = chance.choice(["call"] * 4 + ["notify", "repair", "repair", "simple_repair"])
    weights = [it for it, _ in DEEDS.values()]
    deeds = chance.choices(list(DEEDS), weights, k=chance.randint(0, 3))
    return request, deeds


async def asked(who: Client | Rehearsal[Any], process_id: str, request: str, deeds: Any) -> Any:
    """Return what a request came to, in terms that both can tell."""
    where = (process_id,) if isinstance(who, Client) else ()
    args = () if request == "simple_repair" else (deeds,)
    try:
        answer = await getattr(who, request)(*where, *args)
    except errors.RejectedError as error:
        return [type(error), error.message, error.code, error.processor_reason, error.metadata]
    except (errors.ProcessFailedError, errors.RepairFailedError) as error:
        return [type(error), error.detail]
    except (errors.StateError, errors.ProcessNotFoundError) as error:
        return type(error)
    return answer.response if request in {"start", "call", "repair"} else None


async def settled(client: Client, process_id: str) -> None:
    """Wait until nothing of a process is at work, or due."""
    while True:
        try:
            tasks = (await client.trace(process_id, page_size=1000)).tasks
        except errors.ProcessNotFoundError:
            return
        now = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1)
        left = [
            it.task_id
            for it in tasks
            if it.status in {TaskStatus.WAITING, TaskStatus.RUNNING}
            and (
                it.type is not TaskType.TIMEOUT or it.scheduled_at is None or it.scheduled_at < now
            )
        ]
        if not left:
            return
        # A timer that waits for its retry is held if another one breaks the process.
        ended = (errors.StateError, errors.NotFoundError, errors.RejectedError)
        with contextlib.suppress(*ended, errors.DeadlineExceededError):
            await client.await_task(process_id, task_id=left[0], timeout=0.5)


async def seen(client: Client, process_id: str) -> Any:
    """Return what there is of a process on the engine."""
    try:
        got = await client.get(process_id)
    except errors.ProcessNotFoundError:
        return None
    return fields_of(got.process, [it.payload for it in got.history], got.timers)


def rehearsed(process: Rehearsal[Any]) -> Any:
    """Return the same of a rehearsal."""
    if process.status == "unspecified":
        return None
    return fields_of(process, process.events, process.timers)


def fields_of(process: Any, events: list[Any], timers: Iterable[str]) -> dict[str, Any]:
    names = ("status", "detail", "state", "metadata", "result")
    fields = {it: getattr(process, it) for it in names}
    return fields | {"events": events, "timers": sorted(timers)}


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_rehearsal_goes_as_the_engine_does(
    replica: Replica, tmp_path: Path, seed: int
) -> None:
    chance, processor = random.Random(seed), moody()
    name = f"moody-{seed}"
    config = NamespaceConfig(name=name, processor_targets=(), retry_policy=POLICY)
    process = Rehearsal(processor, "p", config=config)
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        processor.running(f"unix:{tmp_path}/processor.sock") as target,
        replica.namespace(name, target, retry_policy=POLICY) as client,
    ):
        for number in range(REQUESTS):
            request, deeds = drawn(chance)
            if process.status in {"unspecified", "finished"} and chance.random() < 0.8:
                if process.status == "finished":
                    await process.remove()
                    await client.remove("p")
                request = "start"
            ours = await asked(process, "p", request, deeds)
            # A timer that was due while a call was tried again is due now.
            await process.advance(1)
            theirs = await asked(client, "p", request, deeds)
            await settled(client, "p")
            assert (number, request, deeds, theirs) == (number, request, deeds, ours)
            assert (number, request, deeds, await seen(client, "p")) == (
                number, request, deeds, rehearsed(process),
            )  # fmt: skip
