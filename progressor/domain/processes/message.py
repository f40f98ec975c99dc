"""Messages that a step sends to processes; they are delivered after its settlement, exactly once.

Of one sender, messages to one receiver are admitted in the order in which they were sent, each as a
task of the receiver::

    receiver            start                       notify, call
    does not exist      accepted                    refused
    init, running       refused                     accepted
    error               refused                     held, or refused where on_error = cancel
    finished            refused                     refused
"""

import dataclasses
import enum
from collections.abc import Mapping

from progressor.domain.gates.constraint import Constraints
from progressor.domain.processes.process import ProcessKey

MESSAGES_MAX = 100
"""Messages that one step may send."""

QUEUE_MAX = 10_000
"""Waiting tasks of a process with which it refuses messages."""


class MessageKind(enum.StrEnum):
    """What a message asks for, in the words of the table ``messages``."""

    START = "start"
    NOTIFY = "notify"
    CALL = "call"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """A process whose step has sent the message that became a task.

    ``task_id``: the task of that step. Of a reply: the process that answers, and its task that the
    message became.
    """

    namespace: str
    process_id: str
    task_id: int


@dataclasses.dataclass(frozen=True, slots=True)
class RefusedMessage:
    """A message that could not be delivered; ``number`` is its place in its step, from 1."""

    number: int
    kind: MessageKind
    namespace: str
    process_id: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message to a process. ``metadata`` only with a start.

    ``reply``: the name under which its sender wants the answer, "" included; None: it wants none.
    The answer is a task of type reply of the sender: the response or the error of the receiver's
    task once that has ended, or, to a start, the result of the process once that is finished, or
    why it never will be. The answer to a task that broke its process waits until the process is
    out of error, since the task may be run again.
    """

    kind: MessageKind
    receiver: ProcessKey
    args: bytes = b""
    caller_context: Mapping[str, str] = dataclasses.field(default_factory=dict)
    constraints: Constraints | None = None
    metadata: Mapping[str, object] | None = None
    reply: str | None = None
