"""Messages and replies as they should be: each becomes one task, in order, or is refused.

Each process has an outbox, in the order in which its messages and its replies were written; it
outlives the process. A reply is for the process that asked, not for a later one of its name.
"""

import collections
import dataclasses
import datetime as dt

from progressor.domain.processes.admission import Verdict, decide
from progressor.domain.processes.intent import Complete
from progressor.domain.processes.message import Message, MessageKind
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.settlement import Finish, Remove, Settlement, messages_of
from progressor.domain.processes.task import TaskStatus, TaskType
from tests.support.models.processes import Model, ModelProcess, ModelTask

Outcome = tuple[str, bytes | str]
"""("response", its bytes) or ("error", its reason)."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A message that wants a reply: its kind, who has sent it, by which task, its number there."""

    kind: MessageKind
    sender_id: str
    sender: ModelProcess
    task_id: int
    number: int


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """A message, or with an `outcome` the reply to one; ``asked`` None: no reply is wanted."""

    receiver_id: str
    sender: ModelProcess | None
    task_id: int
    number: int
    kind: MessageKind | None
    args: bytes = b""
    asked: Asked | None = None
    outcome: Outcome | None = None


class MessagesModel(Model):
    def __init__(self) -> None:
        super().__init__()
        self.outboxes: dict[str, list[Sent]] = collections.defaultdict(list)
        self.waiting: dict[ModelTask, tuple[Asked, ModelProcess]] = {}
        """The tasks of messages that are to be answered, with the processes that they are of."""
        self.results: dict[ModelProcess, bytes] = {}
        self.refused: list[tuple[ModelProcess, tuple[str, int, int, str]]] = []

    def settle(
        self, process_id: str, settlement: Settlement, *, continues: bool, now: dt.datetime
    ) -> ModelTask | None:
        process = self.processes[process_id]
        task = process.running
        assert task is not None, "nothing runs"
        for number, message in enumerate(messages_of(settlement), 1):
            self._send(process_id, process, task, number, message)
        match settlement:
            case Remove(response=response, error=error):
                task.response = response
                task.end(
                    TaskStatus.FINISHED if error is None else TaskStatus.ERROR,
                    None if error is None else error.reason,
                )
                is_rejected = error is not None and error.rejected
                self._answer(process_id, process, removes=True, rejected=is_rejected)
            case Finish(intent) if isinstance(intent.action, Complete):
                self.results[process] = intent.action.result
            case _:
                pass
        following = super().settle(process_id, settlement, continues=continues, now=now)
        self.answer()
        return following

    def remove(self, process_id: str) -> ModelProcess | None:
        process = self.processes.get(process_id)
        if process is not None:
            self._answer(process_id, process, removes=True)
        return super().remove(process_id)

    def answer(self) -> None:
        """Answer all messages whose tasks have ended."""
        for process_id, process in self.processes.items():
            self._answer(process_id, process)

    def deliver(self, sender_id: str, now: dt.datetime) -> tuple[str, str]:
        """Deliver the oldest message of an outbox; return its kind and its verdict."""
        sent = self.outboxes[sender_id].pop(0)
        verdict = self._admit(sent, now)
        if verdict in {"accepted", "held"}:
            return sent.kind or "reply", verdict
        if sent.asked is not None:
            reply = self._reply(sent.asked, ("error", verdict.upper()))
            self.outboxes[sent.receiver_id].append(reply)
        elif sent.outcome is None and self.processes.get(sender_id) is sent.sender is not None:
            row = sender_id, sent.task_id, sent.number, verdict.upper()
            self.refused.append((sent.sender, row))
        return sent.kind or "reply", verdict

    def message_rows(self) -> list[tuple[object, ...]]:
        return [
            (sender_id, sent.receiver_id, sent.kind or "reply", _content(sent))
            for sender_id, outbox in sorted(self.outboxes.items())
            for sent in outbox
        ]

    def request_rows(self) -> list[tuple[object, ...]]:
        return sorted(
            (task.task_id, asked.kind, asked.sender_id, asked.task_id, asked.number)
            for task, (asked, _) in self.waiting.items()
        )

    def refused_rows(self) -> list[tuple[object, ...]]:
        return sorted(row for sender, row in self.refused if self.processes.get(row[0]) is sender)

    def _send(
        self, process_id: str, process: ModelProcess, task: ModelTask, number: int, message: Message
    ) -> None:
        assert task.task_id is not None, "it was claimed"
        asked = None
        if message.reply is not None:
            asked = Asked(message.kind, process_id, process, task.task_id, number)
        sent = Sent(
            message.receiver.process_id, process, task.task_id, number, message.kind, message.args,
            asked,
        )  # fmt: skip
        self.outboxes[process_id].append(sent)

    def _admit(self, sent: Sent, now: dt.datetime) -> str:
        process = self.processes.get(sent.receiver_id)
        task_type = TaskType.REPLY if sent.kind is None else TaskType(_TYPES[sent.kind])
        if sent.kind is None and process is not sent.sender:
            process = None
        status = None if process is None else process.status
        verdict = decide(TaskType.CALL if sent.kind is None else task_type, status)
        task = ModelTask(task_id=None, task_type=task_type, args=_args(sent), is_acknowledged=True)
        if verdict is Verdict.ACCEPTED:
            self.accept(sent.receiver_id, task, run=False, now=now)
        elif verdict is Verdict.PROCESS_FAILED and process is not None:
            task.status = TaskStatus.BLOCKED
            process.held.append(process.add(task))
        else:
            return str(verdict)
        if sent.asked is not None:
            self.waiting[task] = sent.asked, self.processes[sent.receiver_id]
        return "held" if task.status is TaskStatus.BLOCKED else "accepted"

    def _answer(
        self,
        process_id: str,
        process: ModelProcess,
        *,
        removes: bool = False,
        rejected: bool = False,
    ) -> None:
        for task in process.tasks:
            asked, _ = self.waiting.get(task, (None, None))
            if asked is not None and (removes or self._has_ended(process, task, asked)):
                outcome = self._outcome(process, task, asked, rejected=rejected)
                self.outboxes[process_id].append(self._reply(asked, outcome))
                del self.waiting[task]

    @staticmethod
    def _has_ended(process: ModelProcess, task: ModelTask, asked: Asked) -> bool:
        if asked.kind is MessageKind.START:
            return process.status is ProcessStatus.FINISHED
        return task.has_ended and task is not process.broken_by

    def _outcome(
        self, process: ModelProcess, task: ModelTask, asked: Asked, *, rejected: bool
    ) -> Outcome:
        starts = asked.kind is MessageKind.START
        if starts and process.status is ProcessStatus.FINISHED:
            if process.detail is not None:
                return "error", "PROCESS_TERMINATED"
            return "response", self.results.get(process, b"")
        if not starts and task.status is TaskStatus.FINISHED:
            return "response", task.response or b""
        if task.has_ended and (rejected or not starts):
            return "error", task.error_reason or "TASK_CANCELLED"
        return "error", "PROCESS_REMOVED"

    @staticmethod
    def _reply(asked: Asked, outcome: Outcome) -> Sent:
        return Sent(
            asked.sender_id, asked.sender, asked.task_id, asked.number, None, outcome=outcome
        )


_TYPES = {MessageKind.START: "init", MessageKind.CALL: "call", MessageKind.NOTIFY: "notify"}


def _args(sent: Sent) -> bytes:
    return sent.args if sent.outcome is None else repr(_content(sent)).encode()


def _content(sent: Sent) -> tuple[object, ...]:
    if sent.outcome is None:
        return sent.task_id, sent.number, sent.args
    return sent.task_id, sent.number, sent.outcome
