"""What writes tell of jobs besides what they were asked for, and who hears of it."""

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from progressor.domain.jobs.job import JobState
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import TaskError
from progressor.storage.rows.cancelled import Cancelled, cancelled


@dataclasses.dataclass(frozen=True, slots=True)
class JobNews:
    """What a settlement has brought about: what came due `at`, by PostgreSQL's clock, and the rest.

    ``untended`` are leaders whose jobs want tending, ``cancelled`` tasks of processes that were
    stopped with their job, ``failed`` the leaders of jobs that were failed as a whole.
    """

    at: dt.datetime
    due: Sequence[tuple[ProcessKey, int]]
    untended: Sequence[ProcessKey]
    cancelled: Sequence[tuple[ProcessKey, Cancelled]] = ()
    failed: Sequence[ProcessKey] = ()


OnJobs = Callable[[JobNews], None]
OnCancelled = Callable[[ProcessKey, Cancelled, TaskError], None]
OnUntended = Callable[[ProcessKey], None]
OnEnded = Callable[[ProcessKey, JobState], None]


def tell_no_job(_news: JobNews) -> None:
    """Leave it to the scans."""


def tell_nobody(_key: ProcessKey, _task: Cancelled, _error: TaskError) -> None:
    """Leave callers to the slow round."""


def count_none(_key: ProcessKey, _state: JobState) -> None:
    """Leave uncounted that a job has ended."""


def leave_to_the_scan(_key: ProcessKey) -> None:
    """Leave to the scan what is to be tended."""


def keys_of(rows: Sequence[Sequence[Any]] | None) -> list[ProcessKey]:
    """Return the keys of a jsonb column."""
    return [ProcessKey(*key) for key in rows or ()]


def cancelled_of(rows: Sequence[Sequence[Any]] | None) -> list[tuple[ProcessKey, Cancelled]]:
    """Return the cancelled tasks of a jsonb column, with the keys of their processes."""
    return [(ProcessKey(*key), task) for *key, tasks in rows or () for task in cancelled(tasks)]


def job_news(at: dt.datetime, told: Mapping[str, Any]) -> JobNews:
    """Return what the jsonb of ``priv/functions/settlement/settle_job_tasks.sql`` tells."""
    return JobNews(
        at=at,
        due=[(ProcessKey(*key), task_id) for *key, task_id in told["due"] or ()],
        untended=keys_of(told["untended"]),
        cancelled=cancelled_of(told["cancelled"]),
        failed=keys_of(told["failed"]),
    )
