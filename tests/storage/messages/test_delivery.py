"""Messages of steps are admitted by their receivers exactly once, in order, whatever happens."""

import asyncio
import collections
import dataclasses
import datetime as dt
import itertools
import random
from typing import Any

import psycopg
import pytest

from progressor import errors
from progressor.domain.processes.intent import Complete, Outcome, RemoveProcess
from progressor.domain.processes.message import Message, MessageKind, Sender
from progressor.domain.processes.process import ProcessKey, process_key
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.storage.steps.messages import Deferred, Messages
from tests.support.clock import ManualClock
from tests.support.storage.constrained import on
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.store import (
    Store,
    a_request,
    connect,
    fresh_key,
    lent,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOTIFY, CALL, START = MessageKind.NOTIFY, MessageKind.CALL, MessageKind.START


def to(receiver: ProcessKey, args: str = "", kind: MessageKind = NOTIFY, **fields: Any) -> Message:
    return Message(kind=kind, receiver=receiver, args=args.encode(), **fields)


async def sent(store: Store, *messages: Message, outcome: Outcome | None = None) -> ProcessKey:
    """Return a new process that has sent messages in its first step."""
    key = fresh_key()
    await store.settled(
        await store.start(key), outcome or success(messages=messages), continues=False
    )
    return key


async def deliver(store: Store, *senders: ProcessKey, **options: Any) -> dict[str, int]:
    """Deliver all that senders have sent; return the number of messages by verdict."""
    counts: collections.Counter[str] = collections.Counter()
    remaining: tuple[ProcessKey, ...] = senders
    while remaining:
        delivery, effects = await Messages(store.context).deliver(remaining, **options)
        store.effects.apply(effects)
        for it in delivery.delivered:
            counts[it.verdict] += it.message_count
        remaining = delivery.remaining
    return dict(counts)


async def tasks_of(store: Store, key: ProcessKey) -> list[tuple[str, str]]:
    """Return the requests to a process by their ids: type and args."""
    traced = await store.processes.trace(key, after=0, limit=1000)
    return [(it.task_type, it.args.decode()) for it in traced if it.task_type != "init"]


@pytest.fixture(autouse=True)
def invariants(store: Store, observer: psycopg.Connection[Any]) -> Any:
    yield
    assert broken_invariants(observer, now=store.clock.now()) == {}


async def test_messages_are_tasks_of_their_receivers_in_order_and_due(store: Store) -> None:
    one, two = await store.ready(), await store.ready()
    new = fresh_key()
    start = to(new, "4", START, metadata={"a": 1})
    sender = await sent(store, to(one, "1"), to(two, "2"), to(one, "3", CALL), start, to(new, "5"))
    store.reported.clear()

    counts = await deliver(store, sender)

    assert counts == {"accepted": 5}
    assert await tasks_of(store, one) == [("notify", "1"), ("call", "3")]
    assert await tasks_of(store, two) == [("notify", "2")]
    view = await store.processes.get(new)
    assert (view.process.status, view.process.metadata) == ("init", {"a": 1})
    assert await tasks_of(store, new) == [("notify", "5")]
    due = {key for effects in store.reported for key, _ in effects.due}
    assert due == {one, two, new}


@pytest.mark.parametrize("kind", [START, NOTIFY, CALL])
@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize(
    ("status", "starts", "requests"),
    [
        ("missing", "accepted", "process_not_found"),
        ("unknown", "namespace_not_found", "namespace_not_found"),
        ("init", "process_already_exists", "accepted"),
        ("running", "process_already_exists", "accepted"),
        ("error", "process_already_exists", "held"),
        ("finished", "process_already_exists", "process_finished"),
    ],
)
async def test_what_becomes_of_a_message_by_the_status_of_its_receiver(
    store: Store,
    status: str,
    starts: str,
    requests: str,
    kind: MessageKind,
    is_gated: bool,
) -> None:
    receiver = fresh_key() if status != "unknown" else process_key("nowhere", "p")
    if status == "init":
        await store.admit(a_request(receiver, TaskType.INIT), run=False)
    elif status == "error":
        await store.broken(receiver)
    elif status in {"running", "finished"}:
        answer = success(Complete()) if status == "finished" else None
        await store.started(receiver, answer)
    sender = await sent(
        store,
        to(receiver, kind=kind, constraints=on("g") if is_gated else None),
        to(await store.ready()),
    )

    counts = await deliver(store, sender)

    verdict = starts if kind is START else requests
    assert collections.Counter(counts) == collections.Counter((verdict, "accepted"))
    [task] = await store.processes.trace(sender, after=0, limit=10)
    refused = [] if verdict in {"accepted", "held"} else [(1, kind, receiver, verdict.upper())]
    assert [
        (it.number, it.kind, process_key(it.namespace, it.process_id), it.reason)
        for it in task.refused_messages
    ] == refused


async def test_a_task_knows_the_step_that_has_sent_it(store: Store) -> None:
    idle, busy, broken, new = (await store.ready(), fresh_key(), fresh_key(), fresh_key())
    await store.broken(broken)
    init = await store.start(busy)
    await store.admit(a_request(busy, args=b"client"))
    gate, receivers = on("g", capacity=5), (idle, busy, broken)
    sender = await sent(
        store,
        *(to(it, "message", constraints=gated) for gated in (None, gate) for it in receivers),
        to(new, "message", START),
        to(fresh_key(), "message", START, constraints=gate),
    )
    [step] = await store.processes.trace(sender, after=0, limit=10)
    await deliver(store, sender)

    await store.recover(broken)
    following: RunningTask | None = init
    ran = []
    while following is not None:
        ran.append(following)
        following = (await store.settled(following)).next
    while claimed := await store.claim_due():
        ran += [it.task for it in claimed]
        for it in claimed:
            await store.settled(it.task, continues=False)

    told = Sender(namespace=sender.namespace, process_id=sender.process_id, task_id=step.task_id)
    senders = {it.task_id: told if it.args == b"message" else None for it in ran}
    assert collections.Counter(senders.values()) == {None: 2, told: 8}
    assert {it.task_id: it.sender for it in ran} == senders
    for key in (*receivers, new):
        for task in await store.processes.trace(key, after=0, limit=10):
            assert task.sender == (told if task.args == b"message" else None)


async def test_messages_with_constraints_are_held_in_a_call_of_their_own(store: Store) -> None:
    """Both kinds lock their gates in the order of names, which holds within one admission only."""
    broken = fresh_key()
    await store.broken(broken)
    sender = await sent(
        store,
        to(await store.ready(), "1", constraints=on("z")),
        to(broken, "2", constraints=on("a")),
    )

    first, effects = await Messages(store.context).deliver((sender,))
    store.effects.apply(effects)
    second, _ = await Messages(store.context).deliver(first.remaining)

    assert [it.verdict for it in first.delivered] == ["accepted"]
    assert first.remaining == (sender,)
    assert [it.verdict for it in second.delivered] == ["held"]
    assert second.remaining == ()


async def test_messages_to_a_process_in_error_run_in_order_once_it_is_back(store: Store) -> None:
    receiver = fresh_key()
    await store.broken(receiver)
    sender = await sent(store, to(receiver, "1"), to(receiver, "2", CALL))
    await deliver(store, sender)
    assert await store.claim_due() == []

    await store.recover(receiver)

    ran = []
    [claimed] = await store.claim_due()
    following: RunningTask | None = claimed.task
    while following is not None:
        ran.append(following.args)
        following = (await store.settled(following)).next
    assert ran == [b"1", b"2"]


async def test_a_message_that_names_a_missing_gate_is_refused_alone(store: Store) -> None:
    receiver = await store.ready()
    missing = dataclasses.replace(on("g"), gates={"no such": None})
    sender = await sent(
        store, to(receiver, "1", constraints=missing), to(receiver, "2", constraints=on("g"))
    )

    assert await deliver(store, sender) == {"gate_not_found": 1, "accepted": 1}
    assert await tasks_of(store, receiver) == [("notify", "2")]


async def test_a_receiver_with_too_many_waiting_tasks_refuses_messages(store: Store) -> None:
    receiver = await store.ready()
    for _ in range(3):
        await store.admit(a_request(receiver, TaskType.NOTIFY, waits=False), run=False)
    sender = await sent(store, to(receiver), to(receiver, kind=CALL), to(await store.ready()))

    assert await deliver(store, sender, queue_max=4) == {"accepted": 3}
    again = await sent(
        store, to(receiver), to(receiver, constraints=on("g")), to(await store.ready())
    )
    assert await deliver(store, again, queue_max=4) == {"overloaded": 2, "accepted": 1}


async def test_messages_outlive_their_sender(store: Store) -> None:
    receiver = await store.ready()
    parting = success(RemoveProcess(), messages=(to(receiver, "1"), to(fresh_key(), "2")))
    sender = await sent(store, outcome=parting)

    assert await deliver(store, sender) == {"accepted": 1, "process_not_found": 1}
    assert await tasks_of(store, receiver) == [("notify", "1")]


async def test_a_step_that_lost_its_lease_sends_nothing(store: Store) -> None:
    receiver = await store.ready()
    task = await store.start(fresh_key())
    await store.settled(task, success(messages=(to(receiver, "1"),)), continues=False)

    await store.settle(task, success(messages=(to(receiver, "2"),)))

    assert await deliver(store, task.key) == {"accepted": 1}
    assert await tasks_of(store, receiver) == [("notify", "1")]


async def test_a_process_may_send_messages_to_itself(store: Store) -> None:
    task = await store.start(fresh_key())
    await store.settled(
        task, success(messages=(to(task.key, "1"), to(task.key, "2"))), continues=False
    )

    assert await deliver(store, task.key) == {"accepted": 2}
    assert await tasks_of(store, task.key) == [("notify", "1"), ("notify", "2")]


async def test_a_locked_receiver_delays_only_its_own_messages(store: Store, database: str) -> None:
    receiver, free = await store.ready(), await store.ready()
    sender = await sent(store, to(receiver, "1"))
    other = await sent(store, to(free, "2"))
    async with await connect(database) as holder, holder.transaction():
        await holder.execute(
            "SELECT FROM progressor.processes WHERE process_id = %s FOR UPDATE",
            (receiver.process_id,),
        )
        with pytest.raises(errors.StorageLockedError):
            await Messages(store.context).deliver([sender])
        assert await deliver(store, other) == {"accepted": 1}

    assert await deliver(store, sender) == {"accepted": 1}


async def test_a_deferred_message_keeps_back_only_the_later_ones_to_its_receiver(
    store: Store, clock: ManualClock
) -> None:
    messages, (one, two) = Messages(store.context), [await store.ready() for _ in range(2)]
    init = await store.start(fresh_key())
    sender, minute = init.key, dt.timedelta(minutes=1)
    outcome = success(messages=(to(one, "1"), to(two, "2"), to(one, "3")))
    await store.settled(init, outcome, continues=False)
    found = Deferred(init.task_id, 1, one.namespace, one.process_id)

    assert await messages.defer(sender, at_least=minute, at_most=60 * minute) == found
    later = await store.run_task(a_request(sender))
    await store.settled(later, success(messages=(to(one, "4"), to(two, "5"))), continues=False)
    assert await deliver(store, sender) == {"accepted": 2}
    clock.advance(minute)
    assert [await messages.find_overdue(age=0 * minute, limit=10)] == [(sender,)]

    clock.advance(9 * minute)
    assert await messages.defer(sender, at_least=minute, at_most=60 * minute) == found
    clock.advance(9 * minute)
    assert await messages.defer(sender, at_least=minute, at_most=minute) is None
    assert await deliver(store, sender) == {}
    clock.advance(minute)
    assert await deliver(store, sender) == {"accepted": 3}
    assert await tasks_of(store, one) == [("notify", "1"), ("notify", "3"), ("notify", "4")]


@pytest.mark.parametrize(("bytes_max", "batches"), [(1, [1, 1, 1]), (8, [2, 1]), (12, [3])])
async def test_a_batch_is_bounded_in_bytes_but_has_a_message(
    store: Store, bytes_max: int, batches: list[int]
) -> None:
    receivers = [await store.ready() for _ in range(3)]
    sender = await sent(store, *(to(receiver, "args") for receiver in receivers))

    messages = Messages(store.context)
    found = [(await messages.deliver([sender], bytes_max=bytes_max))[0] for _ in batches]

    assert [[it.message_count for it in each.delivered] for each in found] == [[n] for n in batches]
    assert [each.remaining for each in found] == [(sender,)] * (len(batches) - 1) + [()]
    assert [await tasks_of(store, it) for it in receivers] == [[("notify", "args")]] * 3


async def test_a_refusal_is_noted_even_if_the_sender_was_locked(
    store: Store, database: str
) -> None:
    sender = await sent(store, to(fresh_key()))
    async with await connect(database) as holder, holder.transaction():
        await holder.execute(
            "SELECT FROM progressor.processes WHERE process_id = %s FOR UPDATE",
            (sender.process_id,),
        )
        with pytest.raises(errors.StorageLockedError):
            await Messages(store.context).deliver([sender])

    assert await deliver(store, sender) == {"process_not_found": 1}
    [task] = await store.processes.trace(sender, after=0, limit=10)
    assert [it.reason for it in task.refused_messages] == ["PROCESS_NOT_FOUND"]


async def test_a_message_whose_predecessor_is_being_delivered_stays(
    store: Store, database: str
) -> None:
    receiver = fresh_key()
    init = await store.start(fresh_key())
    await store.settled(init, success(messages=(to(receiver, "1", START),)), continues=False)
    async with await connect(database) as slow:
        context = dataclasses.replace(store.context, pool=lent(slow))
        async with slow.transaction():
            await Messages(context).deliver([init.key])
            call = await store.run_task(a_request(init.key))
            await store.settled(call, success(messages=(to(receiver, "2"),)), continues=False)

            delivery, _ = await Messages(store.context).deliver([init.key])
            assert (delivery.delivered, delivery.remaining) == ((), (init.key,))

    assert await deliver(store, init.key) == {"accepted": 1}
    assert await tasks_of(store, receiver) == [("notify", "2")]


async def crashing(
    store: Store, database: str, senders: list[ProcessKey], dice: random.Random
) -> None:
    """Deliver what senders have, as a replica that dies now and then before its commit."""
    async with await connect(database) as connection:
        context = dataclasses.replace(store.context, pool=lent(connection))
        remaining = senders
        while remaining:
            dice.shuffle(remaining)
            dies = dice.random() < 0.3
            try:
                async with connection.transaction(force_rollback=dies):
                    limit = dice.randint(1, 9)
                    delivery, _ = await Messages(context).deliver(remaining, limit=limit)
            except errors.StorageLockedError:
                continue
            if dies:
                continue
            if not delivery.delivered:
                await asyncio.sleep(0.001)
            remaining = [*delivery.remaining]


@pytest.mark.parametrize("seed", range(2))
async def test_each_message_is_applied_once_and_in_order_by_replicas_that_crash(
    store: Store, other: Store, database: str, seed: int
) -> None:
    """Two replicas deliver at once while senders go on, and undo what they did."""
    dice = random.Random(seed)
    receivers = [await store.ready() for _ in range(3)]
    senders = [await store.ready() for _ in range(6)]
    expected: dict[ProcessKey, dict[ProcessKey, list[str]]] = {
        receiver: collections.defaultdict(list) for receiver in receivers
    }
    numbers = itertools.count()

    async def send(sender: ProcessKey) -> None:
        for _ in range(4):
            task = await store.run_task(a_request(sender))
            messages = []
            for receiver in dice.choices(receivers, k=dice.randint(1, 6)):
                args = f"{sender.process_id} {next(numbers)}"
                expected[receiver][sender].append(args)
                constraints = on("g") if dice.random() < 0.2 else None
                messages.append(
                    to(receiver, args, dice.choice((NOTIFY, CALL)), constraints=constraints)
                )
            await store.settled(task, success(messages=tuple(messages)), continues=False)

    async with asyncio.TaskGroup() as group:
        for sender in senders:
            group.create_task(send(sender))
        for each in (store, other):
            group.create_task(crashing(each, database, [*senders], random.Random(dice.random())))
    await crashing(store, database, [*senders], dice)

    for receiver in receivers:
        arrived = collections.defaultdict(list)
        for _, args in await tasks_of(store, receiver):
            arrived[args.split()[0]].append(args)
        assert arrived == {
            sender.process_id: sent for sender, sent in expected[receiver].items() if sent
        }
