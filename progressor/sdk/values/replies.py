"""Answers to the messages of a process."""

import dataclasses
from typing import Any, Generic, TypeVar

from progressor.sdk.codec.codecs import Codec, decoded
from progressor.sdk.values.messages import MessageKind
from progressor.sdk.values.processes import TaskError, read_task_error
from progressor.v1 import messages_pb2 as pb

Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MessageReply(Generic[Value]):
    """The answer to a message: a response, or an error.

    To a start, ``response`` is the result of the finished process. ``namespace`` and ``process_id``
    are those of who answers; ``task_id`` is the task that sent the message, ``number`` the
    message's place in its step, from 1. ``rejected``: the error is a rejection by a handler.
    """

    name: str
    kind: MessageKind
    namespace: str
    process_id: str
    task_id: int
    number: int
    response: Value | None = None
    error: TaskError | None = None
    rejected: bool = False


def read_reply(message: pb.MessageReply, codec: Codec, kind: Any) -> MessageReply[Any]:  # noqa: ANN401  # a type form
    """Return a message as a reply; raise ValueError if the response is not a `kind`."""
    is_error = message.HasField("error")
    return MessageReply(
        name=message.name,
        kind=MessageKind.from_number(message.kind),
        namespace=message.namespace,
        process_id=message.process_id,
        task_id=message.task_id,
        number=message.number,
        response=None if is_error else decoded(codec, message.response, kind),
        error=read_task_error(message.error) if is_error else None,
        rejected=message.rejected,
    )
