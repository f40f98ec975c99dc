"""The delivery of messages: at once, again where it has to, and never stopped by one sender."""

import asyncio
from typing import Any

import pytest

from progressor import errors
from progressor.domain.processes.message import MessageKind
from progressor.domain.processes.process import ProcessKey
from progressor.runtime import messages
from progressor.runtime.messages import LOCKED_DELAY, REFUSED_DELAY, MessageDelivery
from progressor.storage.processes.messages import Delivered, Delivery, Messages
from progressor.storage.rows.effects import Effects
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
    assert [due.task_id for due in post.due_queue.take_due(2)] == [7]
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
    post = Post(AWAY, AWAY, delivered("accepted"))

    await post.run(ONE, OTHER)

    assert post.tried == [(ONE, OTHER)] * 3


@pytest.mark.parametrize(("error", "delay"), [(LOCKED, LOCKED_DELAY), (REFUSED, REFUSED_DELAY)])
async def test_a_sender_at_fault_is_deferred_and_the_others_are_not(error: Any, delay: Any) -> None:
    post = Post(error, error, delivered("accepted"))

    await post.run(ONE, OTHER)

    assert post.tried == [(ONE, OTHER), (ONE,), (OTHER,)]
    post.messages.defer.assert_awaited_once_with(ONE, delay=delay)


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
