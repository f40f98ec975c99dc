"""What a rehearsal shows of tasks that have ended."""

import dataclasses
import datetime as dt

from progressor.sdk.codec.codecs import Payload
from progressor.sdk.values.processes import TaskType
from progressor.sdk.values.replies import TaskError


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
