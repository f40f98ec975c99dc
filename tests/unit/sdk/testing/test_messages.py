"""A rehearsal shows the messages of a process, and answers them."""

import contextlib
import dataclasses
import datetime as dt
from typing import Any

import pytest

from progressor.sdk import (
    AwaitedReply,
    Constraints,
    MessageKind,
    MessageReply,
    Process,
    ProcessFailedError,
    Processor,
    ProcessStatus,
    Sender,
    SentMessage,
    Snapshot,
    Step,
    TaskError,
)
from progressor.sdk.testing import Rehearsal

NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def nothing(_step: Step[Any]) -> None:
    """Do nothing."""


def awaited(receiver_task_id: int | None = None) -> AwaitedReply:
    return AwaitedReply(
        reply="picked", kind=MessageKind.CALL, namespace="warehouse", process_id="w", task_id=7,
        number=2, sent_at=NOON, receiver_task_id=receiver_task_id, explanation="",
    )  # fmt: skip


async def test_a_rehearsal_shows_messages_and_answers_each_once() -> None:
    orders: Processor[Any] = Processor("orders")
    heard: list[tuple[Any, ...]] = []

    @orders.init
    def place(step: Step[Any]) -> None:
        step.call("w", {"pick": step.args}, namespace="warehouse", reply="picked")
        step.notify("log", context={"k": "v"}, constraints=Constraints(gates={"g": 1}))
        for _ in range(2):
            step.call("w", namespace="warehouse", reply="")
        step.start("else", reply="else")

    @orders.reply("picked")
    def picked(step: Step[Any]) -> None:
        heard.append(("picked", step.reply.number, step.reply_as(int).response, step.reply.error))

    @orders.reply
    def other(step: Step[Any]) -> None:
        heard.append((step.reply.name, step.reply.number, step.reply.error, step.reply.rejected))

    order = Rehearsal(orders)
    started = await order.start("tea")
    call, notify, *same, start = order.messages
    by_hand = SentMessage(
        kind=MessageKind.CALL, namespace="warehouse", process_id="w", args={"pick": "tea"},
        reply="picked",
    )  # fmt: skip
    error = TaskError(code=9, reason="EMPTY", message="no tea")

    refused: list[tuple[Any, dict[str, Any], str]] = [
        (notify, {}, "without reply="),
        (call, {"response": 3, "error": error}, "a response or an error, got both"),
        (call, {"rejected": True}, "a rejection must have an error"),
        (dataclasses.replace(call, process_id="v"), {}, "to 'v' was not sent by this process"),
    ]
    for message, wrong, words in refused:
        with pytest.raises(ValueError, match=words):
            await order.answer(message, **wrong)
    await order.answer(by_hand, 7)
    await order.answer(same[1], error=error, rejected=True)
    await order.answer(same[0])
    await order.answer(start)
    for message in (call, by_hand, same[0]):
        with pytest.raises(ValueError, match="the message to 'w' was already answered"):
            await order.answer(message, 7)

    assert (call, notify) == (
        by_hand,
        SentMessage(
            kind=MessageKind.NOTIFY, namespace="orders", process_id="log", context={"k": "v"},
            constraints=Constraints(gates={"g": 1}),
        ),
    )  # fmt: skip
    assert [(it.task_id, it.number) for it in (call, *same, start)] == [
        (started.task_id, number) for number in (1, 3, 4, 5)
    ]
    assert heard == [
        ("picked", 1, 7, None), ("", 4, error, True), ("", 3, None, False),
        ("else", 5, None, False),
    ]  # fmt: skip
    assert [it.type for it in order.steps] == ["init", *["reply"] * 4]


async def test_the_handlers_of_a_rehearsal_learn_who_has_sent_a_message() -> None:
    orders: Processor[Any] = Processor("orders")
    heard: list[Sender | None] = []

    def hear(step: Step[Any]) -> None:
        heard.append(step.sender)
        step.call("w", namespace="warehouse", reply="")

    for register in (orders.init, orders.call, orders.notify, orders.reply):
        register(hear)
    sender = Sender(namespace="shop", process_id="cart-1", task_id=7)
    order = Rehearsal(orders)

    await order.start(sender=sender)
    await order.call(sender=sender)
    await order.notify(sender=sender)
    await order.call()
    await order.answer(order.messages[0])
    await order.answer(awaited(receiver_task_id=9))

    *asked, answered, known = heard
    assert asked == [sender, sender, sender, None]
    assert answered is not None
    assert (answered.namespace, answered.process_id) == ("warehouse", "w")
    assert answered.task_id not in {it.task_id for it in order.steps}
    assert known == Sender(namespace="warehouse", process_id="w", task_id=9)


async def test_what_the_process_of_a_snapshot_waits_for_is_answered_once() -> None:
    orders: Processor[Any] = Processor("orders")
    heard: list[MessageReply[Any]] = []
    orders.reply(lambda step: heard.append(step.reply))
    asked = awaited()
    order = Rehearsal.from_snapshot(orders, Snapshot(
        process=Process(
            namespace="orders", process_id="p", status=ProcessStatus.RUNNING, detail="",
            corrupted_by=None, last_event_id=0, created_at=NOON, status_changed_at=NOON,
            previous_status=ProcessStatus.INIT, state=None, metadata={}, result=None,
        ),
        history=(), timer=None, waits=(), next_after=None, explanation="",
        awaited_replies=(asked,),
    ))  # fmt: skip

    await order.answer(asked, "tea")
    with pytest.raises(ValueError, match="already answered"):
        await order.answer(asked, "tea")

    assert [(it.name, it.task_id, it.number, it.response) for it in heard] == [
        ("picked", 7, 2, "tea")
    ]


@pytest.mark.parametrize("kind", ["start", "notify", "call"])
async def test_a_reply_without_a_handler_is_refused_in_the_step_that_asks_for_it(kind: str) -> None:
    orders: Processor[Any] = Processor("orders")
    orders.init(lambda step: getattr(step, kind)("w", reply=step.args))
    orders.reply("packed")(nothing)
    found = []

    for name in ("picked", "", "packed"):
        order = Rehearsal(orders)
        with contextlib.suppress(ProcessFailedError):
            await order.start(name)
        found.append((order.detail, len(order.messages)))

    missing = "processor 'orders' has no handler for the reply"
    general = "@processor.reply for all replies without one"
    assert found == [
        (f"{missing} 'picked': add one with @processor.reply(\"picked\"), or {general}", 0),
        (f"{missing} '': add one with {general}", 0),
        ("", 1),
    ]


def test_a_name_of_replies_has_one_handler() -> None:
    orders: Processor[Any] = Processor("orders")
    orders.reply("picked")(nothing)
    orders.reply(nothing)

    with pytest.raises(ValueError, match="already has a handler for the reply 'picked'"):
        orders.reply("picked")(nothing)
    with pytest.raises(ValueError, match="already has a handler for reply tasks"):
        orders.reply(nothing)
    with pytest.raises(ValueError, match="name of a reply must be at most 256 bytes, got 300"):
        orders.reply("x" * 300)
