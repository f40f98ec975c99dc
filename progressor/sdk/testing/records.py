"""The tasks of a rehearsal, and what it shows of those that have ended."""

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence

from progressor.domain.processes import task as domain
from progressor.domain.processes.message import Sender
from progressor.domain.processes.process import ProcessKey
from progressor.sdk.codec.codecs import Payload
from progressor.sdk.values.jobs import NodeOutcome
from progressor.sdk.values.processes import TaskType
from progressor.sdk.values.replies import TaskError
from progressor.v1 import messages_pb2, types_pb2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TakenStep:
    """A task of a rehearsal that has ended, with a response or an error.

    ``rejected``: the error is a rejection by the handler, not a failure. ``timer_name``: that of
    the timer that ran.
    """

    task_id: int
    type: TaskType
    ended_at: dt.datetime
    attempt_count: int
    response: Payload
    error: TaskError | None
    rejected: bool
    timer_name: str = ""


@dataclasses.dataclass(slots=True, kw_only=True)
class Task:
    """A task, and, once it has ended, how; `attempt` counts up."""

    key: ProcessKey
    task_id: int
    task_type: domain.TaskType
    args: bytes
    scheduled_at: dt.datetime
    started_at: dt.datetime
    tried_for: dt.timedelta = dt.timedelta()
    context: Mapping[str, str] = dataclasses.field(default_factory=dict)
    trace_context: Mapping[str, str] = dataclasses.field(default_factory=dict)
    nodes: Sequence[NodeOutcome] = ()
    reply: messages_pb2.MessageReply | None = None
    history_range: types_pb2.HistoryRange | None = None
    memos: dict[str, bytes] = dataclasses.field(default_factory=dict)
    attempt: int = 1
    broken_by: int | None = None
    response: bytes = b""
    error: domain.TaskError | None = None
    timer_name: str = ""
    sender: Sender | None = None
