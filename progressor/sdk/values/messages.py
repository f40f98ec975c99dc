"""Messages that a step sends to processes."""

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import TypedDict

from progressor.sdk.codec.codecs import Payload
from progressor.sdk.codec.wire import WireEnum, payload
from progressor.sdk.values.constraints import CONSTRAINTS, Constraints
from progressor.v1 import messages_pb2 as pb
from progressor.wire.shapes import UNSENT, Shape


class MessageKind(WireEnum):
    """What a message asks for. UNSPECIFIED: what only a newer SDK knows."""

    UNSPECIFIED = "unspecified"
    START = "start"
    NOTIFY = "notify"
    CALL = "call"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RefusedMessage:
    """A message that could not be delivered. ``number``: its place in its step, from 1."""

    number: int
    kind: MessageKind
    namespace: str
    process_id: str
    reason: str


REFUSED_MESSAGE = Shape(RefusedMessage, pb.RefusedMessage)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedReply:
    """A reply to a message that has not come yet.

    ``namespace`` and ``process_id`` name the other process: the receiver of the message in
    `Snapshot.awaited_replies`, its sender in `Snapshot.requested_replies`. ``task_id``: the task
    whose step sent the message. ``number``: the message's place in the step, from 1.
    ``receiver_task_id``: the task of the receiver that the message became; None: it was not
    delivered yet. ``explanation`` says everything in words.
    """

    reply: str
    kind: MessageKind
    namespace: str
    process_id: str
    task_id: int
    number: int
    sent_at: dt.datetime
    receiver_task_id: int | None
    explanation: str


AWAITED_REPLY = Shape(AwaitedReply, pb.AwaitedReply)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """A message of a step, as a rehearsal shows it.

    ``task_id``: the task whose step sent it. ``number``: its place in the step, from 1. They do not
    count in comparisons.
    """

    kind: MessageKind
    namespace: str
    process_id: str
    args: Payload = None
    context: Mapping[str, str] = dataclasses.field(default_factory=dict)
    constraints: Constraints | None = None
    reply: str | None = None
    task_id: int = dataclasses.field(default=0, compare=False)
    number: int = dataclasses.field(default=0, compare=False)


read_sent = Shape(
    SentMessage,
    pb.Message,
    args=payload("args"),
    context="caller_context",
    constraints=CONSTRAINTS,
    task_id=UNSENT,
    number=UNSENT,
).read


class MessageOptions(TypedDict, total=False):
    """Options of a message.

    ``namespace``: that of the receiver; default: the sender's. ``context``: pairs that its handler
    reads as `Step.context`. ``constraints``: what must hold before its task may run. ``reply``: the
    name of the reply handler that gets the answer, "" for the one without a name; default: no
    answer is sent. The answer to a start comes when the new process has ended.
    """

    namespace: str
    context: Mapping[str, str]
    constraints: Constraints
    reply: str
