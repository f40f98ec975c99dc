"""Answers to the messages of a process."""

import dataclasses
from typing import Any, Generic, TypeVar

from progressor.sdk.codec.codecs import Codec, decoded
from progressor.sdk.values.messages import MessageKind
from progressor.v1 import messages_pb2 as pb
from progressor.v1 import process_service_pb2, types_pb2
from progressor.wire.shapes import Shape

Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskError:
    """The error of a failed or rejected task; ``code`` is a gRPC status code."""

    code: int
    reason: str
    message: str


_ERROR = Shape(TaskError, types_pb2.TaskError)


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
        error=_ERROR.read(message.error) if is_error else None,
        rejected=message.rejected,
    )


def read_reply_if_any(
    message: process_service_pb2.TaskTrace, codec: Codec
) -> MessageReply[Any] | None:
    """Return what a task has brought if it is a reply; raise what the codec raises."""
    return read_reply(message.reply, codec, Any) if message.HasField("reply") else None
