"""A process rehearsed in memory does what the engine would do with it."""

import asyncio
import datetime as dt
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from progressor import errors
from progressor.example.order import Order, Pay, Reroute, Ship, namespace, orders
from progressor.example.warehouse import Pick, Warehouse, warehouses
from progressor.sdk import (
    Fail,
    HistoryRange,
    MessageKind,
    NamespaceConfig,
    Processor,
    ProcessStatus,
    Reject,
    Retry,
    RetryPolicy,
    Step,
    TaskError,
    TaskType,
)
from progressor.sdk.testing import Rehearsal
from progressor.sdk.testing.rehearsal import STARTS_AT
from tests.support.processor.rehearsed import processor_of

Handler = Callable[[Step[Any]], Any]


def nothing(_step: Step[Any]) -> None:
    """Do nothing."""


async def test_the_example_of_the_docstring() -> None:
    order = Rehearsal(orders)
    await order.start(Order(item="tea", price=42))
    await order.advance(0.4)

    assert order.events == [{"placed": "tea"}, {"reminded": 42}]


async def test_an_order_from_its_placing_to_its_shipping() -> None:
    order = Rehearsal(orders, "order-1", config=namespace("nowhere"))
    placed = await order.start(Order(item="tea", price=42))
    assert (placed.task_id, placed.response, placed.deduplicated) == (1, {"to_pay": 42}, False)
    assert list(order.timers) == ["reminder", "expiry"]
    with pytest.raises(errors.RejectedError, match="the price is 42, not 1") as raised:
        await order.call(Pay(amount=1))
    assert (raised.value.processor_reason, raised.value.code) == ("WRONG_AMOUNT", 9)
    assert await order.advance(dt.timedelta(seconds=1)) == 1
    await order.call(Pay(amount=42))
    assert order.timer is None
    await order.answer(order.messages[0], {"from": "north"})
    with pytest.raises(errors.ProcessFailedError, match="warehouse north is down"):
        await order.call(Ship())
    assert (order.status, order.detail) == (ProcessStatus.ERROR, "warehouse north is down")
    assert order.steps[-1].attempt_count == 3
    with pytest.raises(errors.ProcessFailedError):
        await order.call(Ship())
    await order.repair(Reroute(warehouse="south"))
    sold_out = TaskError(code=9, reason="OUT_OF_STOCK", message="there is no tea")
    await order.answer(order.messages[1], error=sold_out, rejected=True)
    shipped = await order.call(Ship(), response_type=dict[str, str])

    assert shipped.response == {"shipped_from": "south"}
    assert (order.status, order.result) == (ProcessStatus.FINISHED, {"shipped": True})
    assert order.state == Order(item="tea", price=42, paid=True, warehouse="south")
    assert [next(iter(it)) for it in order.events] == [
        "placed", "reminded", "paid", "picked", "rerouted", "not picked", "shipped",
    ]  # fmt: skip
    assert [it.event_id for it in order.history] == [1, 2, 3, 4, 5, 6, 7]
    assert [(it.kind, it.namespace, it.process_id, it.args, it.reply) for it in order.messages] == [
        (MessageKind.CALL, "warehouse", warehouse, {"item": "tea"}, "picked")
        for warehouse in ("north", "south")
    ]
    with pytest.raises(errors.ProcessFinishedError):
        await order.call(Ship())


async def test_a_warehouse_picks_what_it_has() -> None:
    warehouse = Rehearsal(warehouses, "north")
    await warehouse.start(Warehouse(stock={"tea": 1}))

    picked = await warehouse.call(Pick("tea"))

    assert picked.response == {"from": "north"}
    with pytest.raises(errors.RejectedError, match="there is no tea"):
        await warehouse.call(Pick("tea"))


async def test_nobody_pays_and_time_passes() -> None:
    order = Rehearsal(orders)
    await order.start(Order(item="cake", price=1, expire_after=60))

    assert await order.advance(59) == 1
    assert await order.advance(2) == 1
    assert order.now == STARTS_AT + dt.timedelta(seconds=61)
    assert order.history[-1].occurred_at == STARTS_AT + dt.timedelta(seconds=60.4)
    assert (order.result, order.timer) == ({"shipped": False}, None)


async def test_a_refused_start_leaves_no_process() -> None:
    def refuse(_step: Step[Any]) -> None:
        raise Reject("no", code=grpc.StatusCode.INVALID_ARGUMENT, metadata={"field": "x"})

    process = Rehearsal(processor_of(init=refuse))
    with pytest.raises(errors.RejectedError) as raised:
        await process.start()

    assert (raised.value.code, raised.value.metadata) == (3, {"field": "x"})
    assert process.status is ProcessStatus.UNSPECIFIED
    assert [(it.type, it.rejected) for it in process.steps] == [(TaskType.INIT, True)]
    with pytest.raises(errors.ProcessNotFoundError):
        await process.call()


async def test_a_process_is_started_once() -> None:
    process = Rehearsal(processor_of(init=nothing))
    await process.start()

    with pytest.raises(errors.ProcessAlreadyExistsError):
        await process.start()


async def test_retries_move_the_clock_by_the_policy() -> None:
    tried: list[tuple[int, dt.datetime]] = []

    async def stumble(step: Step[Any]) -> str:
        tried.append((step.attempt, step.deadline))
        if step.attempt < 4:
            raise Retry("not yet", after=1.5 if step.attempt == 3 else None)
        return "at last"

    config = NamespaceConfig(
        name="n",
        processor_targets=(),
        retry_policies={
            "call": RetryPolicy(attempts_max=4, initial_interval=dt.timedelta(seconds=1))
        },
        step_timeout=dt.timedelta(seconds=10),
    )
    process = Rehearsal(processor_of(init=nothing, call=stumble), config=config)
    await process.start()

    assert (await process.call()).response == "at last"
    seconds = [(at - STARTS_AT).total_seconds() for _, at in tried]
    assert [it for it, _ in tried] == [1, 2, 3, 4]
    assert seconds == [10, 11, 13, 17]


@pytest.mark.parametrize("is_alone", [False, True])
async def test_an_exhausted_call_breaks_the_process_unless_it_fails_alone(is_alone: bool) -> None:
    def stumble(_step: Step[Any]) -> None:
        raise Retry("never")

    config = NamespaceConfig(
        name="n", processor_targets=(), exhausted_call_fails_alone=is_alone,
        retry_policy=RetryPolicy(attempts_max=1),
    )  # fmt: skip
    process = Rehearsal(processor_of(init=nothing, call=stumble), config=config)
    await process.start()
    expected = errors.TaskFailedError if is_alone else errors.ProcessFailedError

    with pytest.raises(expected, match="never"):
        await process.call()
    assert process.status is (ProcessStatus.RUNNING if is_alone else ProcessStatus.ERROR)


async def test_a_timer_that_is_tried_again_stays_a_timer() -> None:
    def tick(step: Step[Any]) -> None:
        if step.attempt == 1:
            raise Retry("not yet", after=7)
        step.unset_timer()

    process = Rehearsal(
        processor_of(init=lambda step: step.set_timer(at=STARTS_AT + dt.timedelta(1)), timeout=tick)
    )
    await process.start()
    await process.run_timer()
    assert process.timer is not None
    assert process.timer.due_at == STARTS_AT + dt.timedelta(days=1, seconds=7)
    assert [it.type for it in process.steps] == [TaskType.INIT]
    await process.run_timer()

    assert process.timer is None
    assert process.steps[-1].attempt_count == 2


def _with_timers(step: Step[Any]) -> None:
    for hours, name in enumerate(("a", "b", "c"), 1):
        step.set_timer(name, after=hours * 3600, args=name)


async def test_timers_run_by_their_instants_or_up_to_the_one_of_a_name() -> None:
    process = Rehearsal(processor_of(init=_with_timers, timeout=lambda step: step.timer_name))
    await process.start()
    assert list(process.timers) == ["a", "b", "c"]
    assert process.timer == process.timers["a"]

    await process.run_timer("b")
    assert [it.timer_name for it in process.steps] == ["", "a", "b"]
    assert process.now == STARTS_AT + dt.timedelta(hours=2)
    assert await process.advance(3600) == 1

    assert [it.response for it in process.steps] == [None, "a", "b", "c"]
    with pytest.raises(ValueError, match="has no timer 'c' to run"):
        await process.run_timer("c")


async def test_timers_are_held_while_the_process_is_in_error() -> None:
    def stumble(step: Step[Any]) -> None:
        if step.timer_name == "a" and step.status != "error":
            raise Fail("a")

    process = Rehearsal(processor_of(init=_with_timers, timeout=stumble, repair=nothing))
    await process.start()
    await process.advance(2 * 3600)
    assert (process.status, list(process.timers)) == (ProcessStatus.ERROR, ["b", "c"])

    await process.retry()

    assert (process.status, list(process.timers)) == (ProcessStatus.RUNNING, ["b", "c"])
    assert await process.advance() == 1


async def test_a_timer_may_remove_the_process() -> None:
    process = Rehearsal(processor_of(init=lambda step: step.set_timer(after=3, remove=True)))
    await process.start()
    assert process.timer is not None
    assert process.timer.remove
    await process.advance(3)

    assert process.status is ProcessStatus.UNSPECIFIED
    with pytest.raises(ValueError, match="no timer"):
        await process.run_timer()


async def test_a_step_may_remove_the_process_and_still_answer() -> None:
    def go(step: Step[Any]) -> str:
        step.remove()
        return "gone"

    process = Rehearsal(processor_of(init=nothing, call=go))
    await process.start(metadata={"team": "x"})
    assert process.metadata == {"team": "x"}

    assert (await process.call()).response == "gone"
    assert (process.status, process.metadata, process.state) == (
        ProcessStatus.UNSPECIFIED,
        {},
        None,
    )
    await process.start()
    await process.remove()
    assert process.status is ProcessStatus.UNSPECIFIED


async def test_a_process_is_terminated_in_any_status_for_a_reason() -> None:
    def fail(_: Step[Any]) -> None:
        raise Fail("no such field")

    process = Rehearsal(processor_of(init=lambda step: step.set_timer(after=3), call=fail))
    await process.start()
    with pytest.raises(errors.ProcessFailedError):
        await process.call()
    with pytest.raises(ValueError, match="reason"):
        await process.terminate(" ")

    await process.terminate("the customer is gone")

    assert (process.status, process.detail, process.timer, process.result) == (
        ProcessStatus.FINISHED, "the customer is gone", None, None,
    )  # fmt: skip
    for refused in (process.call, process.retry, lambda: process.terminate("again")):
        with pytest.raises(errors.ProcessFinishedError):
            await refused()


async def test_timers_without_an_end_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("progressor.sdk.testing.rehearsal.TIMERS_MAX", 5)

    def spin(step: Step[Any]) -> None:
        step.set_timer()

    process = Rehearsal(processor_of(init=spin, timeout=spin))
    await process.start()

    with pytest.raises(RuntimeError, match="5 timers have run"):
        await process.advance()


@pytest.mark.parametrize(
    ("last", "asked", "seen"),
    [
        (None, None, [1, 2, 3]),
        (2, None, [2, 3]),
        (0, None, []),
        (None, HistoryRange(after=1), [2, 3]),
        (None, HistoryRange.last(2), [3, 2]),
        (None, HistoryRange(after=1, limit=1), [2]),
    ],
)
async def test_history_comes_as_the_namespace_or_the_timer_says(
    last: int | None, asked: HistoryRange | None, seen: list[int]
) -> None:
    found: list[int] = []

    def begin(step: Step[Any]) -> None:
        for number in range(3):
            step.emit(number, metadata={"n": number})
        step.metadata = {"kind": "x"}
        step.set_timer(history=asked)

    def look(step: Step[Any]) -> None:
        found.extend(it.event_id for it in step.history)
        assert step.last_event_id == 3

    config = NamespaceConfig(name="n", processor_targets=(), history_last=last)
    process = Rehearsal(processor_of(init=begin, timeout=look), config=config)
    await process.start()
    await process.advance()

    assert found == seen
    assert process.metadata == {"kind": "x"}


async def test_a_step_shows_its_caller() -> None:
    def look(step: Step[Any]) -> Any:
        return [step.namespace, step.process_id, dict(step.context), step.task_id, step.args]

    process = Rehearsal(processor_of(init=nothing, call=look), "p-9")
    await process.start()

    assert (await process.call([1], context={"user": "ann"})).response == [
        "jobs", "p-9", {"user": "ann"}, 2, [1],
    ]  # fmt: skip


@pytest.mark.parametrize("task_type", ["timeout", "join"])
async def test_nobody_can_refuse_what_has_no_caller(task_type: str) -> None:
    def refuse(_step: Step[Any]) -> None:
        raise Reject("no")

    handlers: dict[str, Any] = {"init": lambda step: step.set_timer(), task_type: refuse}
    process = Rehearsal(processor_of(**handlers))
    await process.start()
    await (process.run_timer() if task_type == "timeout" else process.join([]))

    assert process.status is ProcessStatus.ERROR
    assert process.detail == f"reject: a {task_type} has no caller to refuse"


async def test_a_retry_runs_what_broke_the_process_and_its_timer_is_held_until_then() -> None:
    works = False
    processor = Processor("orders")

    @processor.init
    async def start(step: Step[Any]) -> None:
        step.set_timer(after=60)

    @processor.call
    async def call(_: Step[Any]) -> str:
        if not works:
            raise Fail("no such field")
        return "done"

    @processor.timeout
    async def expire(step: Step[Any]) -> None:
        step.complete()

    order = Rehearsal(processor)
    await order.start()
    with pytest.raises(errors.ProcessFailedError):
        await order.call()

    assert order.timer is not None
    assert await order.advance(90) == 0
    with pytest.raises(errors.ProcessFailedError):
        await order.run_timer()
    works = True
    await order.retry()
    assert (order.status, order.steps[-1].response) == (ProcessStatus.RUNNING, "done")
    assert await order.advance() == 1
    assert order.status is ProcessStatus.FINISHED


async def test_a_timer_that_is_run_again_is_tried_until_it_succeeds() -> None:
    attempts = []

    def tick(step: Step[Any]) -> None:
        attempts.append(step.attempt)
        if len(attempts) == 1:
            raise Fail("no such field")
        if len(attempts) < 4:
            raise Retry("not yet")
        step.complete("rung")

    process = Rehearsal(processor_of(init=lambda step: step.set_timer(after=60), timeout=tick))
    await process.start()
    await process.advance(60)
    assert process.status is ProcessStatus.ERROR

    await process.retry()

    assert attempts == [1, 1, 2, 3]
    assert (process.status, process.result) == (ProcessStatus.FINISHED, "rung")


async def test_rehearsals_of_one_process_id_at_once_do_not_disturb_each_other() -> None:
    processor: Processor[Any] = Processor("orders")
    both_run = asyncio.Barrier(2)

    @processor.init
    async def begin(step: Step[Any]) -> int:
        await both_run.wait()
        return step.attempt

    found = await asyncio.gather(*(Rehearsal(processor).start() for _ in range(2)))

    assert [it.response for it in found] == [1, 1]


async def test_blocking_requests_in_an_async_handler_are_refused_as_by_the_engine() -> None:
    processor: Processor[Any] = Processor("orders")

    @processor.init
    async def begin(step: Step[Any]) -> None:
        step.blocking.once("a", pytest.fail, "it ran")

    with pytest.raises(errors.ProcessFailedError, match="is for plain handlers"):
        await Rehearsal(processor).start()


def _more_timers(step: Step[Any]) -> None:
    for number in range(32):
        step.set_timer(f"{step.type} {number}")


LARGE = "x" * 3_000_000


@pytest.mark.parametrize(
    ("handler", "field"),
    [
        (lambda _: LARGE, "response"),
        (lambda step: step.emit(LARGE), r"events\[0\].payload"),
        (lambda step: step.complete(LARGE), "complete.result"),
        (lambda step: setattr(step, "state", LARGE), "aux_state"),
        (lambda step: step.notify("x", LARGE), r"messages\[0\].args"),
        (lambda step: step.set_timer(after=-5), "set_timer.after"),
        (lambda step: step.set_timer("x", after=10**12), r"timers\[0\].set.after"),
        (lambda step: step.set_timer("x", step_timeout=0), r"timers\[0\].set.step_timeout"),
        (_more_timers, "timers: the process would have more than 32 timers"),
    ],
)
async def test_an_answer_that_the_engine_refuses_breaks_the_process_at_once(
    handler: Handler, field: str
) -> None:
    processor: Processor[Any] = Processor("orders")
    processor.init(lambda step: step.set_timer("one more", after=60))
    processor.call(handler)
    rehearsal = Rehearsal(processor)
    await rehearsal.start()

    with pytest.raises(errors.ProcessFailedError, match=f": {field}") as caught:
        await rehearsal.call()

    assert (caught.value.failure_reason, rehearsal.steps[-1].attempt_count) == ("INVALID_ANSWER", 1)
