"""Messages in a chaos run: what steps send, what their receivers do, and what must be true then.

The processes of the clients send messages to receivers in a namespace of their own, which only
these change. A step that sends messages lists them in its event. Each has an id that no other
attempt gives. So, at the end,

- a message of a step that was saved is a task of its receiver, once, or was refused because there
  was no such receiver, or went with a receiver that was removed;
- a message of a step that was not saved is nowhere;
- messages of one sender to one receiver have task ids in the order in which they were sent, and
  tasks without constraints run in the order of their ids;
- the state of a receiver counts each of its finished tasks once;
- each message for which a reply was wanted has one, which is right, unless its sender has ended.

Of senders that were removed only the messages are left: that none is there twice, and their order.
"""

import asyncio
import base64
import collections
import contextlib
import dataclasses
import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg

from progressor import errors
from progressor.sdk import Client, Constraints, Fail, ProcessStatus, Reject, Retry, Step, TaskType

NAMESPACE = "chaos-messages"

LASTING = ("m1", "m2", "m3", "m4")
REMOVABLE = ("r1", "r2")
"""Receivers that `MessageClient` removes and starts again."""

_NOWHERE = "nowhere"
_SHARE = 0.2
_MESSAGES_MAX = 4
_STALL_SECONDS = 60.0
_GATE = "received"
_TO = {**dict.fromkeys(LASTING, 10.0), **dict.fromkeys(REMOVABLE, 4.0), _NOWHERE: 1.0}
_KINDS = {"notify": 50.0, "call": 40.0, "start": 10.0}
_ERRORS = {"reject": "REJECTED", "fail": "FAILED"}
_DEEDS = {"done": 90.0, "reject": 4.0, "flaky": 4.0, "fail": 1.0, "stall": 0.1}

_SENDERS = """
    SELECT p.process_id, p.status::text, e.event_id, e.task_id, e.payload
    FROM progressor.processes p
    JOIN progressor.events e USING (slot, namespace, process_id)
    WHERE p.namespace = %s ORDER BY p.process_id, e.event_id"""
_TASKS = """
    SELECT t.process_id, t.task_id, t.status::text, t.args, t.response, t.error_reason,
        t.constraints IS NOT NULL, t.task_type::text
    FROM progressor.tasks t WHERE t.namespace = %s ORDER BY t.task_id"""
_REPLIES = """
    SELECT process_id, args FROM progressor.tasks
    WHERE namespace = %s AND task_type = 'reply'"""
_REFUSED = """
    SELECT process_id, task_id, number, reason FROM progressor.refused_messages
    WHERE namespace = %s"""
_COUNTS = "SELECT process_id, aux_state FROM progressor.processes WHERE namespace = %s"
_BROKEN = """
    SELECT process_id FROM progressor.processes WHERE namespace = %s AND status = 'error'"""

Place = tuple[str, int, int]
"""Of a message: its sender, the task that sent it, and its number there."""


def draw(chosen: random.Random) -> dict[str, Any]:
    """Return what an order says of the messages that are to be sent; most say nothing."""
    if chosen.random() >= _SHARE:
        return {}
    return {"send": [_draw_one(chosen) for _ in range(chosen.randint(1, _MESSAGES_MAX))]}


def _draw_one(chosen: random.Random) -> dict[str, Any]:
    kind, to, deed = (
        chosen.choices(list(weights), list(weights.values()))[0]
        for weights in (_KINDS, _TO, _DEEDS)
    )
    if kind == "start" and deed == "fail":
        deed = "reject"  # One that a repair lets run would never end.
    wanted = {"kind": kind, "to": to, "do": deed, "reply": chosen.random() < 0.5}
    return {**wanted, "gated": True} if chosen.random() < 0.1 else wanted


def send(step: Step[Any], element: str, wanted: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Send messages, and return what the event of the step says of them."""
    first = step.history[0].payload["id"] if step.history else element
    sent = []
    for number, each in enumerate(wanted, 1):
        message_id = f"{element}.{step.token}/{number}"
        to = f"s-{message_id}" if each["kind"] == "start" else each["to"]
        args = {
            "id": message_id,
            "do": each["do"],
            "from": step.process_id,
            "first": first,
            "at": [len(step.history), number],
        }
        # The methods of a step have the names of these kinds.
        getattr(step, each["kind"])(
            to,
            args,
            namespace=NAMESPACE,
            **({"reply": "answer"} if each["reply"] else {}),
            **({"constraints": Constraints(gates={_GATE: 2})} if each.get("gated") else {}),
        )
        sent.append({**each, "id": message_id, "to": to})
    return sent


async def receive(step: Step[Any]) -> dict[str, Any]:
    order = step.args
    if step.attempt == 1 and order["do"] == "stall":
        await asyncio.sleep(_STALL_SECONDS)
    if step.attempt == 1 and order["do"] == "flaky":
        raise Retry("not now")
    if order["do"] == "reject":
        raise Reject(order["id"], reason=_ERRORS["reject"])
    if order["do"] == "fail" and step.status is not ProcessStatus.ERROR:
        raise Fail(order["id"], reason=_ERRORS["fail"])
    step.state = (step.state or 0) + 1
    answer = {"id": order["id"], "count": step.state}
    if step.type is TaskType.INIT and order["from"]:
        step.complete(answer)
    return answer


async def start(client: Client, receiver: str) -> None:
    """Start a receiver of messages."""
    await client.start(
        receiver, {"id": receiver, "do": "done", "from": ""}, namespace=NAMESPACE, timeout=5.0
    )


async def repair_all(connection: psycopg.AsyncConnection[Any], client: Client) -> None:
    """Repair the receivers in error, so that what they hold is done and their senders answered."""
    for (receiver,) in await (await connection.execute(_BROKEN, [NAMESPACE])).fetchall():
        with contextlib.suppress(errors.RequestError):
            await client.simple_repair(receiver, namespace=NAMESPACE)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A message of a step that was saved, as its event has it.

    ``is_open``: its sender has not ended. ``first`` is the first element of the sender.
    """

    message_id: str
    place: Place
    first: str
    receiver: str
    kind: str = "notify"
    deed: str = "done"
    wants_reply: bool = False
    is_open: bool = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A task of a receiver; ``at``: how many events its sender had, and its number in the step.

    ``count`` is the receiver's after the task; None: it has not finished.
    """

    message_id: str
    receiver: str
    task_id: int
    sender: str = ""
    first: str = ""
    at: tuple[int, int] = (0, 0)
    count: int | None = None
    error: str = ""
    is_gated: bool = False
    task_type: str = "notify"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessages:
    """What the database has of messages.

    ``firsts`` are the first elements of the senders that are there, ``counts`` the states of the
    receivers; ``replies`` have the id in a response, or the reason of an error.
    """

    firsts: Mapping[str, str]
    sent: Sequence[Sent]
    received: Sequence[Received]
    counts: Mapping[str, int]
    refused: Sequence[tuple[Place, str]] = ()
    replies: Sequence[tuple[Place, str]] = ()


def read_messages(conninfo: str, senders: str) -> StoredMessages:
    """Read the messages of processes in the namespace `senders`."""
    firsts: dict[str, str] = {}
    sent: list[Sent] = []
    with psycopg.connect(conninfo) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        for process_id, status, _, task_id, payload in connection.execute(_SENDERS, [senders]):
            event = json.loads(payload)
            first = firsts.setdefault(process_id, event["id"])
            sent += [
                Sent(
                    message_id=each["id"],
                    place=(process_id, task_id, number),
                    first=first,
                    receiver=each["to"],
                    kind=each["kind"],
                    deed=each["do"],
                    wants_reply=each["reply"],
                    is_open=status != "finished",
                )
                for number, each in enumerate(event.get("sent", ()), 1)
            ]
        return StoredMessages(
            firsts=firsts,
            sent=sent,
            received=[_received(row) for row in connection.execute(_TASKS, [NAMESPACE])],
            counts={
                row[0]: json.loads(row[1] or b"0") or 0
                for row in connection.execute(_COUNTS, [NAMESPACE])
            },
            refused=[
                ((row[0], row[1], row[2]), row[3])
                for row in connection.execute(_REFUSED, [senders])
            ],
            replies=[_reply(*row) for row in connection.execute(_REPLIES, [senders])],
        )


def _received(row: tuple[Any, ...]) -> Received:
    receiver, task_id, status, args, response, reason, is_gated, task_type = row
    order = json.loads(args)
    return Received(
        message_id=order["id"],
        receiver=receiver,
        task_id=task_id,
        sender=order["from"],
        first=order.get("first", ""),
        at=tuple(order.get("at", (0, 0))),
        count=json.loads(response or b"{}").get("count", 0) if status == "finished" else None,
        error=reason or "",
        is_gated=is_gated,
        task_type=task_type,
    )


def _reply(process_id: str, args: bytes) -> tuple[Place, str]:
    reply = json.loads(args)
    if "error" in reply:
        word = reply["error"]["reason"]
    else:
        word = json.loads(base64.b64decode(reply["response"]))["id"]
    return (process_id, reply["task_id"], reply["number"]), word


def count(stored: StoredMessages) -> dict[str, int]:
    """Return the number of messages by the type of the task that they became, and of replies."""
    types = collections.Counter(each.task_type for each in stored.received if each.sender)
    return {**types, "reply": len(stored.replies)}


def broken_messages(stored: StoredMessages) -> Iterator[str]:
    """Yield what is wrong with messages."""
    yield from _not_once(stored)
    yield from _wrongly_refused(stored)
    yield from _wrong_replies(stored)
    by_receiver: dict[str, list[Received]] = collections.defaultdict(list)
    for each in stored.received:
        by_receiver[each.receiver].append(each)
    for receiver, tasks in by_receiver.items():
        yield from _out_of_order(receiver, sorted(tasks, key=lambda each: each.task_id))
        counted = sorted(each.count for each in tasks if each.count is not None)
        if counted != list(range(1, stored.counts.get(receiver, 0) + 1)):
            state = stored.counts.get(receiver)
            yield f"{receiver}: {len(counted)} tasks have finished, its state says {state}"


def _not_once(stored: StoredMessages) -> Iterator[str]:
    times = collections.Counter(each.message_id for each in stored.received)
    for message_id, count in times.items():
        if count > 1:
            yield f"{message_id} was received {count} times"
    ended = times.keys() | {place for place, _ in stored.refused}
    for message in stored.sent:
        if not ended & {message.message_id, message.place} and not _leaves_nothing(message):
            yield f"{message.message_id} to {message.receiver} was sent, and is lost"
    known = {each.message_id for each in stored.sent}
    for each in stored.received:
        is_there = each.sender and stored.firsts.get(each.sender) == each.first
        if is_there and each.message_id not in known:
            yield f"{each.message_id} was received, and is of no step that was saved"


def _wrongly_refused(stored: StoredMessages) -> Iterator[str]:
    received = {each.message_id for each in stored.received}
    refused: dict[Place, list[str]] = collections.defaultdict(list)
    for place, reason in stored.refused:
        refused[place].append(reason)
    for message in stored.sent:
        reasons = refused.pop(message.place, [])
        if reasons and (message.message_id in received or message.wants_reply):
            yield f"{message.message_id} was refused and noted, and received or answered as well"
        for reason in reasons:
            if message.receiver in LASTING or reason != "PROCESS_NOT_FOUND":
                yield f"{message.message_id} to {message.receiver} was refused: {reason}"
    for place, reasons in refused.items():
        yield f"a message of no step that was saved was refused: {place} {reasons}"


def _leaves_nothing(message: Sent) -> bool:
    """Whether a message may have been applied, or answered, without a task that is there."""
    if message.kind == "start":
        return message.deed == "reject"
    return message.receiver in REMOVABLE or (message.wants_reply and message.receiver == _NOWHERE)


def _wrong_replies(stored: StoredMessages) -> Iterator[str]:
    replies: dict[Place, list[str]] = collections.defaultdict(list)
    for place, word in stored.replies:
        replies[place].append(word)
    tasks = {each.message_id: each for each in stored.received}
    for message in stored.sent:
        words = replies.pop(message.place, [])
        if len(words) > message.wants_reply:
            yield f"{message.message_id} has {len(words)} replies, wanted: {message.wants_reply}"
        if not words and message.wants_reply and message.is_open:
            yield f"{message.message_id} to {message.receiver} has no reply"
        right = _right_replies(message, tasks.get(message.message_id))
        for word in words:
            if word not in right:
                yield f"{message.message_id} was answered by {word}, and not by {sorted(right)}"
    for place, words in replies.items():
        yield f"a message of no step that was saved was answered: {place} {words}"


def _right_replies(message: Sent, task: Received | None) -> set[str]:
    if task is not None:
        return {task.error or message.message_id}
    if message.kind == "start":
        return {_ERRORS["reject"]} if message.deed == "reject" else set()
    if message.receiver in REMOVABLE:
        own = _ERRORS.get(message.deed, message.message_id)
        # One that breaks its receiver succeeds if it is run again.
        return {own, message.message_id, "PROCESS_NOT_FOUND", "PROCESS_REMOVED"}
    return {"PROCESS_NOT_FOUND"} if message.receiver == _NOWHERE else set()


def _out_of_order(receiver: str, tasks: Sequence[Received]) -> Iterator[str]:
    """Yield which tasks of a receiver, in the order of their ids, were sent or run in another."""
    by_sender: dict[tuple[str, str], list[Received]] = collections.defaultdict(list)
    for each in tasks:
        by_sender[each.sender, each.first].append(each)
    for of_sender in by_sender.values():
        for one, two in itertools.pairwise(of_sender):
            if two.at < one.at:
                yield f"{receiver}: {one.message_id} came before {two.message_id}, sent earlier"
    run = [each for each in tasks if each.count is not None and not each.is_gated]
    for one, two in itertools.pairwise(run):
        if (two.count or 0) < (one.count or 0):
            yield f"{receiver}: {two.message_id} was run before {one.message_id}, received earlier"
