"""The replies that a process waits for, and those that others wait for, as Get reads them."""

import datetime as dt
from typing import Any

import pytest

from progressor.domain.processes.intent import Complete
from progressor.domain.processes.message import Message, MessageKind
from progressor.domain.processes.process import ProcessKey, process_key
from progressor.domain.processes.task import RunningTask
from progressor.domain.views.process import AwaitedReply
from progressor.storage.processes.processes import WAITS_MAX
from progressor.storage.steps.messages import Messages
from tests.support.storage.store import BROKEN, Store, a_request, fresh_key, success

pytestmark = pytest.mark.asyncio(loop_scope="module")


def a_message(kind: MessageKind, receiver: ProcessKey, reply: str | None) -> Message:
    return Message(kind=kind, receiver=receiver, reply=reply)


async def deliver(store: Store, sender: ProcessKey) -> None:
    remaining: tuple[ProcessKey, ...] = (sender,)
    while remaining:
        delivery, effects = await Messages(store.context).deliver(remaining)
        store.effects.apply(effects)
        remaining = delivery.remaining


async def sent(store: Store, *messages: Message) -> RunningTask:
    """Return the init task of a process, whose step sent messages."""
    init = await store.start(fresh_key())
    await store.settled(init, success(messages=messages), continues=False)
    return init


async def replies(
    store: Store, key: ProcessKey
) -> tuple[tuple[AwaitedReply, ...], tuple[AwaitedReply, ...]]:
    found = (await store.processes.get(key)).replies
    return found.awaited, found.requested


async def test_a_reply_is_awaited_from_its_settlement_to_the_answer(store: Store) -> None:
    receiver, started = await store.ready(), fresh_key()
    init = await sent(
        store,
        a_message(MessageKind.CALL, receiver, "picked"),
        a_message(MessageKind.NOTIFY, receiver, None),
        a_message(MessageKind.START, started, ""),
        a_message(MessageKind.CALL, process_key("nowhere", "p"), "refused"),
    )
    sent_at = store.clock.now()

    def awaited(
        number: int, reply: str, kind: MessageKind, other: ProcessKey, task_id: int | None = None
    ) -> AwaitedReply:
        return AwaitedReply(
            reply=reply, kind=kind, namespace=other.namespace, process_id=other.process_id,
            task_id=init.task_id, number=number, sent_at=sent_at, receiver_task_id=task_id,
        )  # fmt: skip

    assert await replies(store, init.key) == (
        (
            awaited(1, "picked", MessageKind.CALL, receiver),
            awaited(3, "", MessageKind.START, started),
            awaited(4, "refused", MessageKind.CALL, process_key("nowhere", "p")),
        ),
        (),
    )
    store.clock.advance(dt.timedelta(seconds=5))
    await deliver(store, init.key)
    claimed = {(it.task.key, it.task.task_type): it.task for it in await store.claim_due()}
    [call] = [task for (key, _), task in claimed.items() if key == receiver]
    [begun] = [task for (key, _), task in claimed.items() if key == started]
    picked = awaited(1, "picked", MessageKind.CALL, receiver, call.task_id)
    ended = awaited(3, "", MessageKind.START, started, begun.task_id)
    assert await replies(store, init.key) == ((picked, ended), ())
    assert await replies(store, receiver) == (
        (), (awaited(1, "picked", MessageKind.CALL, init.key, call.task_id),),
    )  # fmt: skip
    assert await replies(store, started) == (
        (), (awaited(3, "", MessageKind.START, init.key, begun.task_id),),
    )  # fmt: skip

    # A task that broke its process may be run again, and is not answered.
    await store.settled(call, BROKEN, continues=False)
    assert await replies(store, init.key) == ((picked, ended), ())
    await store.recover(receiver)
    await store.settled(begun, success(Complete(b"end")), continues=False)

    for key in (init.key, receiver, started):
        assert await replies(store, key) == ((), ())


@pytest.mark.parametrize("ending", ["removed", "started again", "finished"])
async def test_a_sender_that_has_ended_waits_for_nothing(store: Store, ending: str) -> None:
    receiver = await store.ready()
    init = await sent(store, a_message(MessageKind.CALL, receiver, "r"))
    await deliver(store, init.key)
    # A second message is not delivered before the sender ends.
    more = success(messages=(a_message(MessageKind.CALL, receiver, "r"),))
    await store.settled(await store.run_task(a_request(init.key)), more, continues=False)
    assert [len(it) for it in await replies(store, init.key)] == [2, 0]

    if ending == "finished":
        await store.terminate(init.key, "no need")
    else:
        await store.remove(init.key)
    if ending == "started again":
        await store.started(init.key)

    assert await replies(store, receiver) == ((), ())
    if ending != "removed":
        assert await replies(store, init.key) == ((), ())


async def test_a_process_with_many_shows_the_first_of_them(store: Store) -> None:
    receiver = await store.ready()
    calls = success(messages=(a_message(MessageKind.CALL, receiver, "r"),) * 60)
    init = await store.start(fresh_key())
    await store.settled(init, calls, continues=False)
    await deliver(store, init.key)
    task = await store.run_task(a_request(init.key))
    await store.settled(task, calls, continues=False)

    awaited, _ = await replies(store, init.key)

    def place(it: AwaitedReply) -> tuple[Any, ...]:
        return it.task_id, it.number, it.receiver_task_id is None

    assert list(map(place, awaited)) == [
        *((init.task_id, number, False) for number in range(1, 61)),
        *((task.task_id, number, True) for number in range(1, WAITS_MAX - 60 + 1)),
    ]
    await deliver(store, init.key)
    assert [len(it) for it in await replies(store, receiver)] == [0, WAITS_MAX]
