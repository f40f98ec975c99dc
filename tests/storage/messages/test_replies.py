"""A reply comes once: when the task of the message, or the started process, has ended."""

import base64
import datetime as dt
import json
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import psycopg
import pytest

from progressor.domain.processes.intent import Complete, Failed, Rejected, RemoveProcess
from progressor.domain.processes.message import Message, MessageKind
from progressor.domain.processes.process import ProcessKey, process_key
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.storage.steps.messages import Messages
from tests.support.storage.constrained import on
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.store import (
    BROKEN,
    NO_TIME,
    Store,
    a_request,
    fresh_key,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECOND = dt.timedelta(seconds=1)
NO = Rejected(code=9, reason="NO", message="no", metadata={"why": "so"})


@pytest.fixture(autouse=True)
def invariants(store: Store, observer: psycopg.Connection[Any]) -> Iterator[None]:
    yield
    assert broken_invariants(observer, now=store.clock.now()) == {}


async def deliver(store: Store, *senders: ProcessKey) -> list[str]:
    verdicts: list[str] = []
    remaining: tuple[ProcessKey, ...] = senders
    while remaining:
        delivery, effects = await Messages(store.context).deliver(remaining)
        store.effects.apply(effects)
        verdicts += [it.verdict for it in delivery.delivered]
        remaining = delivery.remaining
    return verdicts


async def asked(store: Store, kind: MessageKind, receiver: ProcessKey, **fields: Any) -> ProcessKey:
    """Return a process that has sent a message and wants the reply "r"."""
    message = Message(kind=kind, receiver=receiver, reply="r", **fields)
    init = await store.start(fresh_key())
    await store.settled(init, success(messages=(message,)), continues=False)
    await deliver(store, init.key)
    return init.key


async def replies_to(store: Store, key: ProcessKey) -> list[dict[str, Any]]:
    """Return what the replies to a process say besides its message."""
    found = []
    init, *traced = await store.processes.trace(key, after=0, limit=100)
    for task in traced:
        if task.task_type is TaskType.REPLY:
            reply = json.loads(task.args)
            assert (reply.pop("name"), reply.pop("number")) == ("r", 1)
            assert reply.pop("task_id") == init.task_id
            if "response" in reply:
                reply["response"] = base64.b64decode(reply["response"])
            found.append(reply)
    return found


async def senders_to(store: Store, key: ProcessKey) -> list[int | None]:
    """Return the tasks that have answered a process."""
    traced = await store.processes.trace(key, after=0, limit=100)
    replies = [it for it in traced if it.task_type is TaskType.REPLY]
    said_by = [json.loads(it.args)["process_id"] for it in replies if it.sender]
    assert said_by == [it.sender.process_id for it in replies if it.sender]
    return [it.sender.task_id if it.sender else None for it in replies]


def said(receiver: ProcessKey, kind: MessageKind, **outcome: Any) -> dict[str, Any]:
    return {
        "kind": kind, "namespace": receiver.namespace, "process_id": receiver.process_id, **outcome
    }  # fmt: skip


def error(code: int, reason: str, message: str, **fields: Any) -> dict[str, Any]:
    fields = {"rejected": False, "metadata": {}} | fields
    return {"error": {"code": code, "reason": reason, "message": message, **fields}}


Ending = Callable[[Store, ProcessKey, RunningTask], Coroutine[Any, Any, object]]


def settled_by(*outcomes: Any) -> Ending:
    """Return an ending: the task is settled, run again after each break, and settled again."""

    async def end(store: Store, key: ProcessKey, task: RunningTask) -> None:
        first, *others = outcomes
        await store.settled(task, first, continues=False)
        for outcome in others:
            await store.recover(key, retries=True)
            [claimed] = await store.claim(key, task.task_id)
            await store.settled(claimed.task, outcome, continues=False)

    return end


async def repaired(store: Store, key: ProcessKey, task: RunningTask) -> None:
    await store.settled(task, BROKEN, continues=False)
    await store.recover(key)


async def broken_and_removed(store: Store, key: ProcessKey, task: RunningTask) -> None:
    await store.settled(task, BROKEN, continues=False)
    await removed(store, key, task)


async def removed(store: Store, key: ProcessKey, _task: RunningTask) -> None:
    await store.remove(key)


async def terminated(store: Store, key: ProcessKey, _task: RunningTask) -> None:
    await store.terminate(key, "no need")


async def cancelled(store: Store, key: ProcessKey, task: RunningTask) -> None:
    await store.cancel(key, task.task_id)


FAILED = error(13, "BUG", "it broke")
GONE = error(10, "PROCESS_REMOVED", "the process was removed")
ALONE = Failed(code=14, reason="BUSY", message="busy", retryable=False)


@pytest.mark.parametrize("kind", [MessageKind.CALL, MessageKind.NOTIFY])
@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        (settled_by(success(response=b"yes")), {"response": b"yes"}),
        (settled_by(success(Complete(b"end"), response=b"yes")), {"response": b"yes"}),
        (settled_by(success(RemoveProcess(), response=b"yes")), {"response": b"yes"}),
        (settled_by(NO), error(9, "NO", "no", rejected=True, metadata={"why": "so"})),
        (settled_by(BROKEN), None),
        (settled_by(BROKEN, BROKEN), None),
        (settled_by(BROKEN, success(response=b"yes")), {"response": b"yes"}),
        (settled_by(BROKEN, NO), error(9, "NO", "no", rejected=True, metadata={"why": "so"})),
        (repaired, FAILED),
        (broken_and_removed, FAILED),
        (removed, GONE),
        (
            terminated,
            error(9, "PROCESS_FINISHED", "no need (it ran: its processor may have acted)"),
        ),
        (
            cancelled,
            error(
                10, "TASK_CANCELLED",
                "cancelled by request while it ran: its processor may have acted",
            ),
        ),
    ],
)  # fmt: skip
async def test_the_task_of_a_message_is_answered_once_it_has_ended(
    store: Store, kind: MessageKind, ending: Ending, outcome: dict[str, Any] | None
) -> None:
    receiver = await store.ready()
    sender = await asked(store, kind, receiver)
    [claimed] = [it for it in await store.claim_due() if it.task.key == receiver]
    assert await replies_to(store, sender) == []

    await ending(store, receiver, claimed.task)

    await deliver(store, receiver)
    expected = [] if outcome is None else [said(receiver, kind, **outcome)]
    assert await replies_to(store, sender) == expected
    assert await senders_to(store, sender) == [claimed.task.task_id for _ in expected]
    assert await deliver(store, receiver) == []


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        (settled_by(success(response=b"yes")), None),
        (settled_by(success(Complete(b"end"), response=b"yes")), {"response": b"end"}),
        (settled_by(NO), error(9, "NO", "no", rejected=True, metadata={"why": "so"})),
        (settled_by(BROKEN), None),
        (settled_by(BROKEN, success(Complete(b"end"))), {"response": b"end"}),
        (removed, GONE),
        (broken_and_removed, GONE),
        (terminated, error(9, "PROCESS_TERMINATED", "no need")),
        (settled_by(success(RemoveProcess(), response=b"yes")), GONE),
    ],
)  # fmt: skip
async def test_a_start_is_answered_once_the_process_has_ended(
    store: Store, ending: Ending, outcome: dict[str, Any] | None
) -> None:
    started = fresh_key()
    sender = await asked(store, MessageKind.START, started)
    [claimed] = await store.claim_due()

    await ending(store, started, claimed.task)

    await deliver(store, started)
    expected = [] if outcome is None else [said(started, MessageKind.START, **outcome)]
    assert await replies_to(store, sender) == expected
    assert await senders_to(store, sender) == [claimed.task.task_id for _ in expected]


async def test_a_process_that_ends_answers_all_that_waits_there(store: Store) -> None:
    receiver = await store.ready()
    running = await store.run_task(a_request(receiver))
    one = await asked(store, MessageKind.CALL, receiver)
    two = await asked(store, MessageKind.NOTIFY, receiver, constraints=on("g"))

    await store.settled(running, success(Complete()), continues=False)

    await deliver(store, receiver)
    ended = error(9, "PROCESS_FINISHED", "")
    assert await replies_to(store, one) == [said(receiver, MessageKind.CALL, **ended)]
    assert await replies_to(store, two) == [said(receiver, MessageKind.NOTIFY, **ended)]


async def test_a_message_in_line_of_a_process_that_breaks_is_answered_after_it_is_back(
    store: Store,
) -> None:
    receiver = await store.ready()
    running = await store.run_task(a_request(receiver))
    sender = await asked(store, MessageKind.CALL, receiver)

    await store.settled(running, BROKEN, continues=False)
    await store.recover(receiver)
    [claimed] = await store.claim_due()
    await store.settled(claimed.task, success(response=b"yes"), continues=False)

    await deliver(store, receiver)
    assert await replies_to(store, sender) == [said(receiver, MessageKind.CALL, response=b"yes")]


@pytest.mark.parametrize("kind", [MessageKind.CALL, MessageKind.NOTIFY, MessageKind.START])
async def test_a_refused_message_is_answered_with_the_error(
    store: Store, kind: MessageKind
) -> None:
    receiver = process_key("nowhere", "p")
    sender = await asked(store, kind, receiver)

    assert await deliver(store, receiver) == ["accepted"]
    refused = error(5, "NAMESPACE_NOT_FOUND", "the message was refused")
    assert await replies_to(store, sender) == [said(receiver, kind, **refused)]
    assert await senders_to(store, sender) == [None]
    [init, _] = await store.processes.trace(sender, after=0, limit=10)
    assert init.refused_messages == ()


@pytest.mark.parametrize("returns", [False, True])
async def test_a_reply_to_a_process_that_is_gone_is_dropped(
    store: Store,
    returns: bool,
) -> None:
    receiver = await store.ready()
    sender = await asked(store, MessageKind.CALL, receiver)
    [claimed] = await store.claim_due()
    await store.remove(sender)
    if returns:
        await store.started(sender)

    await store.settled(claimed.task, success(response=b"yes"), continues=False)

    assert await deliver(store, receiver) == ["process_not_found"]
    if returns:
        assert await replies_to(store, sender) == []


async def test_a_reply_waits_for_a_sender_in_error(store: Store) -> None:
    receiver = await store.ready()
    sender = await asked(store, MessageKind.CALL, receiver)
    [claimed] = await store.claim_due()
    await store.settled(await store.run_task(a_request(sender)), BROKEN, continues=False)

    await store.settled(claimed.task, success(response=b"yes"), continues=False)

    assert await deliver(store, receiver) == ["held"]
    await store.recover(sender)
    [claimed] = await store.claim_due()
    assert claimed.task.task_type is TaskType.REPLY


async def test_who_has_answered_pays_for_it_no_longer(
    store: Store, observer: psycopg.Connection[Any]
) -> None:
    receiver = await store.ready()
    one, two = [await asked(store, MessageKind.CALL, receiver) for _ in range(2)]
    flags = []
    store.reported.clear()
    [claimed] = await store.claim_due()
    task: RunningTask | None = claimed.task
    while task is not None:
        task = (await store.settled(task)).next
        row = observer.execute(
            "SELECT has_reply_requests FROM progressor.processes WHERE process_id = %s",
            (receiver.process_id,),
        ).fetchone()
        flags.append(row and row[0])

    assert flags == [True, False]
    senders = {key for effects in store.reported for key in effects.senders}
    assert senders == {receiver}
    await deliver(store, receiver)
    assert [len(await replies_to(store, it)) for it in (one, two)] == [1, 1]


async def test_a_reply_and_what_is_behind_it_do_not_wait_for_all_timers(store: Store) -> None:
    timers = [await store.timed(NO_TIME) for _ in range(5)]
    store.clock.advance(SECOND)
    receiver = await store.ready()
    key = await asked(store, MessageKind.NOTIFY, receiver)
    [notify] = [
        each
        for each in await store.claim_due(limit=2, requests_first=True)
        if each.task.key == receiver
    ]
    await store.settled(notify.task, continues=False)
    await deliver(store, receiver)

    claimed = await store.claim_due(limit=2, requests_first=True)

    assert [it.task.task_type for it in claimed if it.task.key == key] == [TaskType.REPLY]
    assert len(timers) > 2 * len(claimed)
