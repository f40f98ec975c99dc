"""Tasks that will never run, as the functions in ``priv`` tell of them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from progressor.domain.processes.task import TaskType


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """A task that will never run, and the replicas where a caller may wait for it."""

    task_id: int
    task_type: TaskType
    reply_to: tuple[int, ...]


def cancelled(tasks: Sequence[Any] | None) -> tuple[Cancelled, ...]:
    """Return the cancelled tasks of a function's jsonb column."""
    return tuple(
        Cancelled(task_id=task_id, task_type=TaskType(task_type), reply_to=tuple(reply_to))
        for task_id, task_type, reply_to in tasks or ()
    )
