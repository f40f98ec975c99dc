"""What a settlement tells of jobs besides its outcomes: what is due at once, and what to tend."""

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from progressor.domain.process import ProcessKey
from progressor.storage.cancelled import Cancelled, cancelled


@dataclasses.dataclass(frozen=True, slots=True)
class JobNews:
    """What came due `at`, by PostgreSQL's clock, and what is left to do.

    ``untended`` are leaders whose jobs want tending, ``cancelled`` tasks of followers that were
    stopped with their job.
    """

    at: dt.datetime
    due: Sequence[tuple[ProcessKey, int]]
    untended: Sequence[ProcessKey]
    cancelled: Sequence[tuple[ProcessKey, Cancelled]] = ()


OnJobs = Callable[[JobNews], None]


def tell_no_job(_news: JobNews) -> None:
    """Leave it to the scans."""


def job_news(at: dt.datetime, told: Mapping[str, Any]) -> JobNews:
    """Return what the jsonb of ``priv/functions/settle_job_tasks.sql`` tells."""
    return JobNews(
        at=at,
        due=[(ProcessKey(*key), task_id) for *key, task_id in told["due"] or ()],
        untended=[ProcessKey(*key) for key in told["untended"] or ()],
        cancelled=[
            (ProcessKey(*key), task)
            for *key, tasks in told["cancelled"] or ()
            for task in cancelled(tasks)
        ],
    )
