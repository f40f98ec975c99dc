"""The messages of a process in a rehearsal, and the answers to them."""

import dataclasses
from collections.abc import Iterable, Sequence

from progressor.sdk.codec.codecs import Codec, Payload
from progressor.sdk.values.messages import AwaitedReply, SentMessage, read_sent
from progressor.sdk.values.replies import TaskError
from progressor.v1 import messages_pb2


class Messages:
    """What a process has sent, in order; each message is answered once."""

    def __init__(self, codec: Codec) -> None:
        self.sent: list[SentMessage] = []
        self._codec = codec
        # By task and number; also those of a snapshot.
        self._answered: set[tuple[int, int]] = set()

    def add(
        self, messages: Iterable[messages_pb2.Message], *, namespace: str, task_id: int
    ) -> None:
        """Add the messages of a step; `namespace` is that of the process."""
        for number, message in enumerate(messages, 1):
            message.namespace = message.namespace or namespace
            sent = read_sent(message, "", self._codec)
            self.sent.append(dataclasses.replace(sent, task_id=task_id, number=number))

    def answer(
        self,
        message: SentMessage | AwaitedReply,
        response: Payload,
        error: TaskError | None,
        *,
        rejected: bool,
    ) -> messages_pb2.MessageReply:
        """Return the answer to a message, which is then answered; see `Rehearsal.answer`."""
        message = self._unanswered(message)
        problem = None
        if message.reply is None:
            problem = f"the message to {message.process_id!r} was sent without reply="
        elif error is not None and response is not None:
            problem = "an answer must be a response or an error, got both"
        elif rejected and error is None:
            problem = "a rejection must have an error: answer(message, error=..., rejected=True)"
        if problem is not None:
            raise ValueError(problem)
        reply = messages_pb2.MessageReply(
            name=message.reply or "",
            kind=message.kind.number,
            namespace=message.namespace,
            process_id=message.process_id,
            task_id=message.task_id,
            number=message.number,
            rejected=rejected,
        )
        if error is None:
            reply.response = self._codec.encode(response)
        else:
            reply.error.code, reply.error.reason = error.code, error.reason
            reply.error.message = error.message
        self._answered.add((message.task_id, message.number))
        return reply

    def _unanswered(self, message: SentMessage | AwaitedReply) -> SentMessage | AwaitedReply:
        """Return a message that was not answered, with its task and number."""
        found: Sequence[SentMessage | AwaitedReply] = (message,)
        if isinstance(message, SentMessage):
            # One that the test has written itself has no number, and equals one that was sent.
            place = (message.task_id, message.number)
            found = [it for it in self.sent if it == message]
            found = [it for it in found if not message.number or place == (it.task_id, it.number)]
        left = [it for it in found if (it.task_id, it.number) not in self._answered]
        if not left:
            what = "was already answered" if found else "was not sent by this process"
            problem = f"the message to {message.process_id!r} {what}"
            raise ValueError(problem)
        return left[0]
