"""The delivery of messages: at once, again where it has to, and never stopped by one sender."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from progressor import errors
from progressor.domain.processes.message import MessageKind
from progressor.domain.processes.process import ProcessKey
from progressor.runtime import messages
from progressor.runtime.messages import FAILED_DELAYS, LOCKED_DELAY, MessageDelivery
from progressor.storage.postgres.rows.effects import Effects
from progressor.storage.steps.messages import Deferred, Delivered, Delivery, Messages
from tests.support.builders import make_key
from tests.support.runtime.harness import make_dispatcher, running
from tests.support.runtime.stubs import stub
from tests.support.runtime.virtual_time import settled
from tests.support.telemetry.measured import counted

ONE, OTHER = make_key("one"), make_key("other")
AWAY = errors.StorageUnavailableError("away")
LOCKED = errors.StorageLockedError("locked")
REFUSED = errors.StorageRefusedError("refused")


def delivered(*verdicts: str, remaining: tuple[ProcessKey, ...] = (), **effects: Any) -> Any:
    counts = tuple(Delivered("orders", MessageKind.NOTIFY, it, 2) for it in verdicts)
    return Delivery(delivered=counts, remaining=remaining), Effects(**effects)


class Post:
    def __init__(self, *answers: Any, overdue: tuple[ProcessKey, ...] = ()) -> None:
        self.messages = stub(Messages, deliver=list(answers), find_overdue=overdue, defer=None)
        dispatcher = make_dispatcher()
        self.metrics, self.queue = dispatcher.context.metrics, dispatcher.message_queue
        self.due_queue = dispatcher.due_queue
        self.delivery = MessageDelivery(
            messages=self.messages, effects=dispatcher, context=dispatcher.context
        )

    @property
    def tried(self) -> list[tuple[ProcessKey, ...]]:
        return [call.args[0] for call in self.messages.deliver.await_args_list]

    async def run(self, *senders: ProcessKey) -> None:
        async with running(self.delivery.run):
            self.queue.add(*senders)
            await asyncio.sleep(10)


async def test_all_senders_are_looked_at_at_once_and_those_with_more_again() -> None:
    post = Post(
        delivered("accepted", "held", remaining=(OTHER,), due=((ONE, 7),)), delivered("gone")
    )

    await post.run(ONE, OTHER)

    assert post.tried == [(ONE, OTHER), (OTHER,)]
    assert [each.due.task_id for each in post.due_queue.take_due(2)] == [7]
    assert counted(post.metrics.messages_delivered) == {
        ("orders", "notify", "no"): 2, ("orders", "notify", "yes"): 2,
    }  # fmt: skip
    assert counted(post.metrics.messages_refused) == {("orders", "notify", "GONE"): 2}


async def test_a_sender_that_others_deliver_for_is_tried_again_later() -> None:
    nothing = delivered(remaining=(ONE,))
    post = Post(nothing, nothing, delivered("accepted"))

    await post.run(ONE)

    assert post.tried == [(ONE,)] * 3


async def test_nothing_is_lost_while_postgresql_is_away() -> None:
    post = Post(AWAY, AWAY, delivered("accepted"), delivered("accepted"))

    await post.run(ONE, OTHER)

    assert post.tried == [(ONE, OTHER), (ONE,), (OTHER,), (ONE,)]


class Outbox:
    """Messages by their senders, of which one fails whatever it is delivered with."""

    def __init__(self, error: Exception, waiting: dict[ProcessKey, list[str]]) -> None:
        self.error, self.waiting, self.delivered = error, waiting, list[str]()
        self.post = Post()
        self.messages = self.post.messages
        self.messages.deliver.side_effect = self.deliver
        self.messages.defer.side_effect = self.defer

    async def deliver(self, senders: Sequence[ProcessKey], *, limit: int) -> Any:
        listed = [(key, it) for key in senders for it in self.waiting[key]][:limit]
        if "at fault" in (it for _, it in listed):
            raise self.error
        for key, it in listed:
            self.waiting[key].remove(it)
            self.delivered.append(it)
        return delivered("accepted", remaining=tuple(key for key in senders if self.waiting[key]))

    async def defer(self, sender: ProcessKey, **_: Any) -> Deferred:
        assert self.waiting[sender].pop(0) == "at fault"
        return Deferred(7, 1, "orders", "receiver")


@pytest.mark.parametrize(
    ("error", "level", "at_least", "at_most"),
    [
        (LOCKED, logging.INFO, LOCKED_DELAY, LOCKED_DELAY),
        (REFUSED, logging.ERROR, *FAILED_DELAYS),
        (AWAY, logging.ERROR, *FAILED_DELAYS),
    ],
)
async def test_a_message_at_fault_is_deferred_and_all_others_are_delivered(
    error: Any, level: int, at_least: Any, at_most: Any, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = {make_key(f"{n}"): [f"{n} {place}" for place in range(9)] for n in range(5)}
    waiting[make_key("3")].insert(4, "at fault")
    expected = {it for each in waiting.values() for it in each} - {"at fault"}
    outbox = Outbox(error, waiting)

    with caplog.at_level(logging.INFO):
        await outbox.post.run(*waiting)

    assert sorted(outbox.delivered) == sorted(expected)
    outbox.messages.defer.assert_awaited_once_with(
        make_key("3"), at_least=at_least, at_most=at_most
    )
    [record] = [it for it in caplog.records if it.message == "message deferred"]
    assert record.levelno == level
    assert {"process_id": "3", "task_id": 7, "number": 1, "receiver_id": "receiver"}.items() <= (
        vars(record).items()
    )
    assert len(outbox.post.tried) < 25


async def test_nothing_is_deferred_while_postgresql_is_away() -> None:
    post = Post(*[AWAY] * 20, delivered("accepted"))
    post.messages.find_overdue.side_effect = AWAY

    await post.run(ONE)

    assert post.messages.defer.await_count == 0
    assert post.tried == [(ONE,)] * 21


async def test_many_senders_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "SENDERS_MAX", 1)
    post = Post(delivered("accepted"), delivered("accepted"))

    await post.run(ONE, OTHER)

    assert post.tried == [(ONE,), (OTHER,)]


async def test_the_scan_finds_what_a_dead_replica_has_left() -> None:
    post = Post(delivered("accepted"), overdue=(ONE,))
    async with running(post.delivery.run):
        await post.delivery.scan()
        await settled()

    assert post.tried == [(ONE,)]
    assert counted(post.metrics.messages_scan_found) == {("orders",): 1}


async def test_a_replica_that_ends_delivers_what_is_queued() -> None:
    post = Post(delivered("accepted", remaining=(ONE,)), delivered("accepted"))
    post.queue.add(ONE)

    await post.delivery.flush()

    assert post.tried == [(ONE,)] * 2
