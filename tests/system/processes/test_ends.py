"""What a client ends: a running task, a process; and how the end of a process reaches who waits.

Two replicas that never scan: A runs the steps. What B is asked reaches A and its processor by
notifications alone.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from progressor import errors
from progressor.runtime.effects import ends, replies
from progressor.sdk import Client, Fail, Processor, ProcessStatus, Step, TaskStatus, WaitCause
from tests.support.engine.replica import QUIET, Replica, refusal, running_replica

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATIENCE_SECONDS = 30
LARGE = "x" * 1_100_000
"""More than goes over a stream."""

_NUMBERS = itertools.count()


class Orders:
    """A processor whose steps hang on request, and note when they are stopped."""

    def __init__(self) -> None:
        self.is_broken = True
        self.hangs_on = "hang"
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self.stopped: asyncio.Queue[str] = asyncio.Queue()
        self.done: list[str] = []
        self.processor = processor = Processor("orders")
        for declare in (processor.init, processor.call, processor.notify, processor.repair):
            declare(self.work)
        processor.timeout(self.expire)

    async def work(self, step: Step[Any]) -> object:
        match step.args:
            case str(args) if args.startswith((self.hangs_on, "hang", "x")):
                await self.hang(args[:4])
            case "fail" if self.is_broken:
                raise Fail("no such field", reason="KeyError")
            case "complete":
                step.complete([1, 2])
            case "remove":
                step.remove()
            case "soon":
                step.set_timer(after=0)
            case None:
                step.set_timer(after=3600)
            case _:
                self.done.append(step.args)
        return step.args

    async def expire(self, _: Step[Any]) -> None:
        await self.hang("timeout")

    async def hang(self, what: str) -> None:
        self.begun.put_nowait(what)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.stopped.put_nowait(what)
            raise


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(database: str) -> AsyncIterator[tuple[Replica, Replica]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replies, "_SAFETY_SECONDS", 3600.0)
        patch.setattr(ends, "SAFETY_SECONDS", 3600.0)
        async with running_replica(database, QUIET) as a, running_replica(database, QUIET) as b:
            yield a, b
            assert [each.points.count("scan_found") for each in (a, b)] == [0, 0]


@pytest_asyncio.fixture(loop_scope="module")
async def orders() -> Orders:
    return Orders()


@pytest_asyncio.fixture(loop_scope="module")
async def on_a(pair: tuple[Replica, Replica], orders: Orders) -> AsyncIterator[Client]:
    async with (
        orders.processor.running("127.0.0.1:0") as target,
        pair[0].namespace(f"ends-{next(_NUMBERS)}", target) as client,
    ):
        yield client
        async for process in client.list():
            with contextlib.suppress(errors.ProcessNotFoundError):
                await client.remove(process.process_id)


@pytest_asyncio.fixture(loop_scope="module")
async def on_b(pair: tuple[Replica, Replica], on_a: Client) -> AsyncIterator[Client]:
    async with Client(pair[1].address, namespace=on_a.namespace) as client:
        yield client


async def soon(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await awaitable


async def hanging(orders: Orders, client: Client, args: str = "hang") -> int:
    """Have a call of the process hang, and return its task."""
    receipt = await client.call("p", args, accept_only=True, idempotency_key="k")
    await soon(orders.begun.get())
    return receipt.task_id


@pytest.mark.parametrize("args", ["hang", LARGE], ids=["stream", "call"])
@pytest.mark.parametrize("by", ["on_a", "on_b"])
async def test_a_cancelled_call_is_stopped_and_the_process_goes_on(
    on_a: Client, on_b: Client, orders: Orders, args: str, by: str
) -> None:
    await on_a.start("p")
    timer = (await on_a.get("p")).timer
    task_id = await hanging(orders, on_a, args)
    waiting = asyncio.ensure_future(refusal(on_a.call("p", args, idempotency_key="k")))
    behind = await on_a.notify("p", "next")

    assert await {"on_a": on_a, "on_b": on_b}[by].cancel("p", task_id=task_id) == task_id

    assert await soon(orders.stopped.get()) == args[:4]
    assert (await soon(waiting)).reason == "TASK_CANCELLED"
    await on_a.await_task("p", task_id=behind.task_id)
    snapshot = await on_a.get("p")
    assert (snapshot.process.status, orders.done) == (ProcessStatus.RUNNING, ["next"])
    assert (snapshot.timer, snapshot.waits[0].cause) == (timer, WaitCause.TIMER)
    [record] = [task for task in (await on_a.trace("p")).tasks if task.task_id == task_id]
    assert (record.status, record.error and record.error.message) == (
        TaskStatus.CANCELLED, "cancelled by request while it ran: its processor may have acted",
    )  # fmt: skip
    # Its step had begun, so its key is not free.
    assert (await refusal(on_a.call("p", args, idempotency_key="k"))).reason == "TASK_CANCELLED"
    assert (await refusal(on_a.cancel("p", task_id=task_id))).reason == "TASK_HAS_ENDED"


async def test_with_a_cancelled_start_its_process_is_gone(
    on_a: Client, on_b: Client, orders: Orders
) -> None:
    waiting = asyncio.ensure_future(refusal(on_a.start("p", "hang", idempotency_key="k")))
    await soon(orders.begun.get())

    await on_b.cancel("p", idempotency_key="k")

    assert await soon(orders.stopped.get()) == "hang"
    assert (await soon(waiting)).reason == "PROCESS_REMOVED"
    assert (await refusal(on_a.get("p"))).reason == "PROCESS_NOT_FOUND"
    again = await refusal(on_a.start("p", "hang", idempotency_key="k"))
    assert again.reason == "PROCESS_REMOVED"


async def test_with_a_cancelled_timer_the_process_has_none(on_a: Client, orders: Orders) -> None:
    await on_a.start("p", "soon")
    await soon(orders.begun.get())
    [running] = (await on_a.get("p")).waits

    await on_a.cancel("p", task_id=running.task_id)

    assert await soon(orders.stopped.get()) == "timeout"
    snapshot = await on_a.get("p")
    assert snapshot.process.status is ProcessStatus.RUNNING
    assert (snapshot.timer, snapshot.waits) == (None, ())


@pytest.mark.parametrize("comes_back", ["repair", "retry"])
async def test_a_cancelled_comeback_leaves_the_process_in_error(
    on_a: Client, orders: Orders, comes_back: str
) -> None:
    await on_a.start("p")
    await refusal(on_a.call("p", "fail"))
    held = await on_a.get("p")
    if comes_back == "repair":
        task_id = (await on_a.repair("p", "hang", accept_only=True)).task_id
    else:
        orders.hangs_on = "fail"
        task_id = (await on_a.retry("p")).task_id or 0
    await soon(orders.begun.get())

    await on_a.cancel("p", task_id=task_id)

    assert await soon(orders.stopped.get()) == ("hang" if comes_back == "repair" else "fail")
    assert await on_a.get("p") == held


@pytest.mark.parametrize("by", ["on_a", "on_b"])
async def test_a_terminated_process_is_finished_and_keeps_its_record(
    on_a: Client, on_b: Client, orders: Orders, by: str
) -> None:
    await on_a.start("p")
    await hanging(orders, on_a)
    own = asyncio.ensure_future(refusal(on_a.call("p", "hang", idempotency_key="k")))
    behind = await on_a.notify("p", "next")
    client = {"on_a": on_a, "on_b": on_b}[by]

    await client.terminate("p", "the customer is gone")

    assert await soon(orders.stopped.get()) == "hang"
    assert (await soon(own)).reason == "PROCESS_FINISHED"
    assert (await refusal(on_b.await_task("p", task_id=behind.task_id))).reason == (
        "PROCESS_FINISHED"
    )
    process = (await on_a.get("p")).process
    assert (process.status, process.detail) == (ProcessStatus.FINISHED, "the customer is gone")
    assert [it.detail async for it in on_b.list()] == ["the customer is gone"]
    trace = (await on_a.trace("p")).tasks
    assert [task.status for task in trace] == [TaskStatus.FINISHED] + [TaskStatus.CANCELLED] * 3
    assert {task.error.message for task in trace if task.error} == {
        "the customer is gone",
        "the customer is gone (it ran: its processor may have acted)",
    }
    assert (await refusal(client.terminate("p", "again"))).reason == "PROCESS_FINISHED"
    assert (await refusal(client.call("p"))).reason == "PROCESS_FINISHED"


async def test_a_process_in_error_is_terminated_with_all_that_it_holds(
    on_a: Client, orders: Orders
) -> None:
    await on_a.start("p")
    await hanging(orders, on_a)
    failing = await on_a.notify("p", "fail")
    held = await on_a.notify("p", "next")
    await on_a.cancel("p", idempotency_key="k")
    await refusal(on_a.await_task("p", task_id=failing.task_id))

    await on_a.terminate("p", "beyond repair")

    assert (await refusal(on_a.await_task("p", task_id=held.task_id))).reason == "PROCESS_FINISHED"
    snapshot = await on_a.get("p")
    assert (snapshot.process.detail, snapshot.waits, snapshot.timer) == ("beyond repair", (), None)


@pytest.mark.parametrize(
    ("reason", "fault"),
    [
        ("", "must not be empty"),
        (" \n", "must not be empty"),
        ("x" * 1025, "must be at most 1024 bytes, got 1025"),
        ("a\0b", "must not contain a NUL character"),
    ],
)
async def test_a_reason_to_terminate_is_checked(on_a: Client, reason: str, fault: str) -> None:
    await on_a.start("p")

    with pytest.raises(errors.InvalidRequestError) as caught:
        await on_a.terminate("p", reason)

    assert [(it.field, it.description) for it in caught.value.violations] == [("reason", fault)]
    assert (await on_a.get("p")).process.status is ProcessStatus.RUNNING


async def awaited(pair: tuple[Replica, Replica], client: Client, **options: Any) -> Any:
    """Have a client wait on B for the end of the process."""
    count = pair[1].points.count("process_awaited")
    waiting = asyncio.ensure_future(client.result("p", **options))
    await pair[1].points.wait("process_awaited", count + 1)
    return waiting


ENDS: dict[str, tuple[Callable[[Client], Awaitable[Any]], object]] = {
    "complete": (lambda client: client.call("p", "complete"), [1, 2]),
    "break": (lambda client: refusal(client.call("p", "fail")), errors.ProcessFailedError),
    "terminate": (lambda client: client.terminate("p", "why"), errors.ProcessTerminatedError),
    "remove": (lambda client: client.remove("p"), errors.ProcessRemovedError),
    "remove by a step": (lambda client: client.call("p", "remove"), errors.ProcessRemovedError),
}


@pytest.mark.parametrize("end", ENDS)
async def test_the_end_reaches_who_waits_in_another_replica_and_who_comes_later(
    pair: tuple[Replica, Replica], on_a: Client, on_b: Client, end: str
) -> None:
    do, expected = ENDS[end]
    await on_a.start("p")
    waiting = await awaited(pair, on_b, type=list[int])
    await on_a.call("p", "more")
    assert not waiting.done()

    await do(on_a)

    for result in (waiting, on_a.result("p", type=list[int])):
        if isinstance(expected, type):
            gone = end.startswith("remove") and result is not waiting
            with pytest.raises(errors.ProcessNotFoundError if gone else expected) as caught:
                await soon(result)
            assert getattr(caught.value, "detail", "why") in {"why", "no such field"}
        else:
            assert await soon(result) == expected


async def test_the_failure_says_which_step_broke_the_process(on_a: Client) -> None:
    await on_a.start("p")
    status = await refusal(on_a.call("p", "fail"))

    with pytest.raises(errors.ProcessFailedError) as caught:
        await on_a.result("p")

    assert vars(caught.value) == {
        "process_id": "p", "own": False, "task_id": None, "detail": "no such field",
        "broken_by": int(status.metadata["task_id"]), "failure_reason": "KeyError",
        "failure_code": int(status.metadata["failure_code"]),
    }  # fmt: skip


async def test_who_waits_until_it_is_finished_waits_through_errors(
    pair: tuple[Replica, Replica], on_a: Client, on_b: Client, orders: Orders
) -> None:
    await on_a.start("p")
    patient = await awaited(pair, on_b, until_finished=True)
    impatient = await awaited(pair, on_b)

    await refusal(on_a.call("p", "fail"))
    with pytest.raises(errors.ProcessFailedError):
        await soon(impatient)
    orders.is_broken = False
    retried = await on_a.retry("p")
    await on_a.await_task("p", task_id=retried.task_id)
    await on_a.call("p", "complete")

    assert await soon(patient) == [1, 2]


async def test_a_process_that_is_being_repaired_has_not_ended(
    pair: tuple[Replica, Replica], on_a: Client, on_b: Client, orders: Orders
) -> None:
    await on_a.start("p")
    await refusal(on_a.call("p", "fail"))
    repair = await on_a.repair("p", "hang", accept_only=True)
    await soon(orders.begun.get())
    waiting = await awaited(pair, on_b)

    await on_a.cancel("p", task_id=repair.task_id)

    with pytest.raises(errors.ProcessFailedError):
        await soon(waiting)


async def test_a_wait_ends_with_its_timeout(on_a: Client) -> None:
    await on_a.start("p")

    with pytest.raises(errors.DeadlineExceededError, match=r"^process 'p' had not ended when"):
        await on_a.result("p", timeout=0.2)
