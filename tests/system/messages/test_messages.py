"""Messages from the steps of one processor to the processes of another, over gRPC."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from progressor import sdk
from progressor.domain.processes.process import process_key
from progressor.sdk import Client, Constraints, Fail, Processor, RefusedMessage, Sender, Step
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.reads import explained
from tests.support.engine.replica import Replica

pytestmark = pytest.mark.asyncio(loop_scope="module")

_NUMBERS = itertools.count()


class Warehouse:
    """A shop, whose orders send messages, and a warehouse, which notes what it gets."""

    def __init__(self, shop: str, warehouse: str) -> None:
        self.shop, self.warehouse = Processor(shop), Processor(warehouse)
        self.got: asyncio.Queue[tuple[str, str, Any]] = asyncio.Queue()
        self.is_broken = False
        for register in (self.warehouse.init, self.warehouse.call, self.warehouse.notify):
            register(self.note)
        self.shop.init(self.send)
        self.shop.call(self.send)
        self.shop.notify(self.note)

    def note(self, step: Step[Any]) -> None:
        if self.is_broken:
            raise Fail("out of order")
        self.got.put_nowait((step.process_id, step.type, step.args))

    def send(self, step: Step[Any]) -> None:
        """Send what the args list: kind, process, args and options, or an action."""
        for name, *rest in step.args or ():
            *args, options = rest or [{}]
            if "gate" in options:
                options["constraints"] = Constraints(gates={options.pop("gate"): 1})
            getattr(step, name)(*args, **options)

    async def receive(self, count: int) -> list[tuple[str, str, Any]]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return [await self.got.get() for _ in range(count)]


@pytest_asyncio.fixture(loop_scope="module")
async def parts(replica: Replica) -> AsyncIterator[tuple[Client, Client, Warehouse]]:
    number = next(_NUMBERS)
    parts = Warehouse(f"shop-{number}", f"warehouse-{number}")
    async with (
        sdk.running(parts.shop, parts.warehouse, bind="127.0.0.1:0") as target,
        replica.namespace(parts.shop.name, target) as shop,
        replica.namespace(parts.warehouse.name, target) as warehouse,
    ):
        yield shop, warehouse, parts


async def test_a_step_starts_notifies_and_calls_processes_of_another_namespace(
    parts: tuple[Client, Client, Warehouse],
) -> None:
    shop, warehouse, stock = parts
    there = {"namespace": warehouse.namespace}
    gated = there | {"gate": "door"}

    await shop.start("order", [
        ["start", "w", {"pick": 1}, there | {"metadata": {"of": "order"}}],
        ["notify", "w", "second", there],
        ["call", "w", "third", there | {"context": {"who": "order"}}],
        ["notify", "w", "fourth", gated],
    ])  # fmt: skip

    assert await stock.receive(4) == [
        ("w", "init", {"pick": 1}), ("w", "notify", "second"), ("w", "call", "third"),
        ("w", "notify", "fourth"),
    ]  # fmt: skip
    assert (await warehouse.get("w")).process.metadata == {"of": "order"}
    assert [it.context for it in (await warehouse.trace("w")).tasks][2] == {"who": "order"}


async def test_a_handler_learns_who_has_sent_a_message_and_who_has_answered(
    replica: Replica,
) -> None:
    number = next(_NUMBERS)
    shop, warehouse = Processor[Any](f"shop-{number}"), Processor[Any](f"warehouse-{number}")
    heard: asyncio.Queue[tuple[str, Sender | None]] = asyncio.Queue()
    shop.init(lambda step: step.call("w", namespace=warehouse.name, reply=""))

    def hear(step: Step[Any]) -> None:
        heard.put_nowait((step.type, step.sender))

    for register in (shop.reply, warehouse.init, warehouse.call):
        register(hear)
    async with (
        sdk.running(shop, warehouse, bind="127.0.0.1:0") as target,
        replica.namespace(shop.name, target) as orders,
        replica.namespace(warehouse.name, target) as stock,
    ):
        await stock.start("w")
        sent = await orders.start("order")
        async with asyncio.timeout(PATIENCE_SECONDS):
            found = [await heard.get() for _ in range(3)]
        await stock.call("w")
        found.append(heard.get_nowait())
        [init, answering, other] = (await stock.trace("w")).tasks
        [_, reply] = (await orders.trace("order")).tasks

    asks = Sender(namespace=shop.name, process_id="order", task_id=sent.task_id)
    answers = Sender(namespace=warehouse.name, process_id="w", task_id=answering.task_id)
    assert found == [("init", None), ("call", asks), ("reply", answers), ("call", None)]
    traced = [it.sender for it in (init, answering, other, reply)]
    assert traced == [None, asks, None, answers]


async def test_messages_to_oneself_and_in_the_last_step_are_delivered(
    parts: tuple[Client, Client, Warehouse],
) -> None:
    shop, warehouse, stock = parts
    there = {"namespace": warehouse.namespace}
    await warehouse.start("w")

    await shop.start("order", [["notify", "order", "mine", {}]])
    await shop.start("brief", [["notify", "w", "last", there], ["remove", {}]])
    await shop.start("other", [["notify", "w", "end", there], ["complete", {}]])

    assert sorted(await stock.receive(4), key=str) == [
        ("order", "notify", "mine"), ("w", "init", None), ("w", "notify", "end"),
        ("w", "notify", "last"),
    ]  # fmt: skip


async def test_a_broken_receiver_gets_its_messages_once_it_is_back(
    parts: tuple[Client, Client, Warehouse],
) -> None:
    shop, warehouse, stock = parts
    there = {"namespace": warehouse.namespace}
    await warehouse.start("w")
    stock.is_broken = True
    with pytest.raises(sdk.ProcessFailedError):
        await warehouse.call("w", "breaks it")

    await shop.start("order", [["notify", "w", n, there] for n in range(5)])
    stock.is_broken = False
    await shop.call("order", [["notify", "w", 5, there]])
    await warehouse.simple_repair("w")

    assert await stock.receive(7) == [
        ("w", "init", None), *(("w", "notify", n) for n in range(6))
    ]  # fmt: skip


async def test_a_refused_message_is_in_the_trace_and_in_the_metrics(
    replica: Replica, parts: tuple[Client, Client, Warehouse]
) -> None:
    shop, warehouse, _ = parts
    there = {"namespace": warehouse.namespace}

    await shop.start("order", [["notify", "nobody", None, there], ["start", "order", None, {}]])

    for verdict in ("process_not_found", "process_already_exists"):
        await replica.points.wait("messages", namespace=shop.namespace, verdict=verdict)
    [init] = (await shop.trace("order")).tasks
    assert init.refused_messages == (
        RefusedMessage(
            number=1, kind=sdk.MessageKind.NOTIFY, namespace=warehouse.namespace,
            process_id="nobody", reason="PROCESS_NOT_FOUND",
        ),
        RefusedMessage(
            number=2, kind=sdk.MessageKind.START, namespace=shop.namespace, process_id="order",
            reason="PROCESS_ALREADY_EXISTS",
        ),
    )  # fmt: skip


class Answers:
    """A shop that notes the replies to its messages, and a warehouse that answers."""

    def __init__(self, shop: str, warehouse: str) -> None:
        self.shop: Processor[Any] = Processor(shop)
        self.warehouse: Processor[Any] = Processor(warehouse)
        self.got: asyncio.Queue[tuple[str, sdk.MessageReply[Any]]] = asyncio.Queue()
        self.replies: list[sdk.MessageReply[Any]] = []
        self.is_broken = False
        self.shop.init(self.ask)
        self.shop.reply("picked")(self.picked)
        self.shop.reply(self.other)
        self.warehouse.init(self.respond)
        self.warehouse.call(self.respond)
        self.warehouse.notify(self.respond)

    def ask(self, step: Step[Any]) -> None:
        for kind, process_id, args, reply in step.args:
            send = getattr(step, kind)
            send(process_id, args, namespace=self.warehouse.name, reply=reply)

    def respond(self, step: Step[Any]) -> object:
        if self.is_broken:
            raise Fail("out of order")
        if step.args == "no":
            raise sdk.Reject("not here", reason="EMPTY")
        if step.args == "end":
            step.complete({"sold": 1})
        return step.args

    def picked(self, step: Step[Any]) -> None:
        self.got.put_nowait(("picked", step.reply))

    async def other(self, step: Step[Any]) -> None:
        self.got.put_nowait(("other", step.reply))

    async def receive(self, count: int) -> list[tuple[Any, ...]]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            got = [await self.got.get() for _ in range(count)]
        self.replies = sorted((reply for _, reply in got), key=lambda reply: reply.number)
        return sorted(
            (reply.number, handler, reply.kind, reply.process_id, reply.response,
             reply.error and reply.error.reason, reply.rejected)
            for handler, reply in got
        )  # fmt: skip


async def test_replies_reach_the_handlers_of_their_names(replica: Replica) -> None:
    number = next(_NUMBERS)
    parts = Answers(f"asking-{number}", f"asked-{number}")
    async with (
        sdk.running(parts.shop, parts.warehouse, bind="127.0.0.1:0") as target,
        replica.namespace(parts.shop.name, target) as shop,
        replica.namespace(parts.warehouse.name, target) as warehouse,
    ):
        await warehouse.start("w")
        await shop.start("order", [
            ["call", "w", {"pick": 1}, "picked"],
            ["call", "w", "no", "picked"],
            ["notify", "w", 3, "unnamed"],
            ["notify", "nobody", None, ""],
            ["start", "new", None, "picked"],
            ["start", "w", None, "picked"],
            ["call", "new", "end", ""],
        ])  # fmt: skip

        assert await parts.receive(7) == [
            (1, "picked", "call", "w", {"pick": 1}, None, False),
            (2, "picked", "call", "w", None, "EMPTY", True),
            (3, "other", "notify", "w", 3, None, False),
            (4, "other", "notify", "nobody", None, "PROCESS_NOT_FOUND", False),
            (5, "picked", "start", "new", {"sold": 1}, None, False),
            (6, "picked", "start", "w", None, "PROCESS_ALREADY_EXISTS", False),
            (7, "other", "call", "new", "end", None, False),
        ]
        _, *tasks = (await shop.trace("order")).tasks
        traced = sorted((it.reply for it in tasks if it.reply), key=lambda reply: reply.number)
        assert (traced, {it.args for it in tasks}) == (parts.replies, {None})
        await shop.start("second", [["start", "short", None, "picked"]])
        await replica.points.wait("settled", key=process_key(warehouse.namespace, "short"))
        await warehouse.remove("short")
        assert await parts.receive(1) == [
            (1, "picked", "start", "short", None, "PROCESS_REMOVED", False)
        ]
        assert replica.points.count("scan_found") == 0


async def test_why_names_the_reply_that_a_process_waits_for(
    replica: Replica, capfd: pytest.CaptureFixture[str]
) -> None:
    number = next(_NUMBERS)
    parts = Answers(f"asking-{number}", f"asked-{number}")
    async with (
        sdk.running(parts.shop, parts.warehouse, bind="127.0.0.1:0") as target,
        replica.namespace(parts.shop.name, target) as shop,
        replica.namespace(parts.warehouse.name, target) as warehouse,
    ):
        await warehouse.start("w")
        parts.is_broken = True
        sender = await shop.start("order", [["call", "w", "tea", "picked"]])
        await replica.points.wait("messages", namespace=shop.namespace, verdict="accepted")
        await replica.points.wait("settled", 2, key=process_key(warehouse.namespace, "w"))
        [awaited] = (await shop.get("order")).awaited_replies
        [requested] = (await warehouse.get("w")).requested_replies
        asks = await explained(replica, shop.namespace, "order", capfd)
        answers = await explained(replica, warehouse.namespace, "w", capfd)
        parts.is_broken = False
        retried = await warehouse.retry("w")
        assert await parts.receive(1) == [(1, "picked", "call", "w", "tea", None, False)]

        assert (awaited.task_id, awaited.receiver_task_id) == (sender.task_id, retried.task_id)
        assert (requested.process_id, requested.reply) == ("order", "picked")
        assert asks == [
            "The process has no task and no timer; it waits for replies to its messages.",
            awaited.explanation,
        ]
        assert awaited.explanation.startswith(
            f"The process waits for the reply 'picked' of {warehouse.namespace}/w "
            f"(call, sent by task {sender.task_id} at "
        )
        assert requested.explanation in answers
        assert requested.explanation.startswith(
            f"Process {shop.namespace}/order waits for the answer of task {retried.task_id} (call"
        )
        await replica.points.wait("settled", 2, key=process_key(shop.namespace, "order"))
        for client, process_id in ((shop, "order"), (warehouse, "w")):
            snapshot = await client.get(process_id)
            assert (snapshot.awaited_replies, snapshot.requested_replies) == ((), ())
            [sentence] = await explained(replica, client.namespace, process_id, capfd)
            assert sentence.startswith("The process waits for nothing")
