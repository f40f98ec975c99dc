"""A rehearsal shows the messages of a process, and answers them."""

import dataclasses
from typing import Any

import pytest

from progressor.sdk import (
    Constraints,
    MessageKind,
    Processor,
    SentMessage,
    Step,
    TaskError,
)
from progressor.sdk.testing import Rehearsal


def nothing(_step: Step[Any]) -> None:
    """Do nothing."""


async def test_a_rehearsal_shows_messages_and_answers_them() -> None:
    orders: Processor[Any] = Processor("orders")
    heard: list[tuple[str, Any, Any, bool]] = []

    @orders.init
    def place(step: Step[Any]) -> None:
        step.call("w", {"pick": step.args}, namespace="warehouse", reply="picked")
        step.notify("log", context={"k": "v"}, constraints=Constraints(gates={"g": 1}))

    @orders.reply("picked")
    def picked(step: Step[Any]) -> None:
        heard.append(("picked", step.reply_as(int).response, step.reply.error, step.reply.rejected))

    @orders.reply
    def other(step: Step[Any]) -> None:
        heard.append((step.reply.name, None, None, False))

    order = Rehearsal(orders)
    await order.start("tea")
    call, notify = order.messages

    await order.answer(call, 7)
    error = TaskError(code=9, reason="EMPTY", message="no tea")
    await order.answer(call, error=error, rejected=True)
    await order.answer(dataclasses.replace(call, reply="else"))

    assert (call, notify) == (
        SentMessage(
            kind=MessageKind.CALL, namespace="warehouse", process_id="w", args={"pick": "tea"},
            reply="picked",
        ),
        SentMessage(
            kind=MessageKind.NOTIFY, namespace="orders", process_id="log", context={"k": "v"},
            constraints=Constraints(gates={"g": 1}),
        ),
    )  # fmt: skip
    assert heard == [
        ("picked", 7, None, False), ("picked", None, error, True), ("else", None, None, False),
    ]  # fmt: skip
    assert [it.type for it in order.steps] == ["init", "reply", "reply", "reply"]
    with pytest.raises(ValueError, match="without reply="):
        await order.answer(notify)


def test_a_name_of_replies_has_one_handler() -> None:
    orders: Processor[Any] = Processor("orders")
    orders.reply("picked")(nothing)
    orders.reply(nothing)

    with pytest.raises(ValueError, match="already has a handler for the reply 'picked'"):
        orders.reply("picked")(nothing)
    with pytest.raises(ValueError, match="already has a handler for reply tasks"):
        orders.reply(nothing)
