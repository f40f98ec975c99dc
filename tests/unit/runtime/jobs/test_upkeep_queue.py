"""The upkeep queue: what a replica has learned of jobs, kept until it is taken."""

from typing import Any, cast

import pytest

from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import TaskError
from progressor.runtime.core.due_queue import DueQueue
from progressor.runtime.core.effects import Aftermath
from progressor.runtime.jobs import upkeep_queue as module
from progressor.runtime.jobs.upkeep_queue import UpkeepQueue
from progressor.storage.rows.cancelled import Cancelled
from progressor.storage.rows.job_effects import JobNews, job_news
from tests.support.builders import make_cancelled, make_key, seconds
from tests.support.clock import START, ManualClock

ONE, OTHER = make_key("one"), make_key("other")


class HeardAftermath:
    """Notes whose tasks were cancelled, and why."""

    def __init__(self) -> None:
        self.told: list[tuple[Cancelled, str, str, bool]] = []

    def cancelled(
        self, task: Cancelled, *, namespace: str, error: TaskError | None, removed: bool
    ) -> None:
        assert error is not None
        self.told.append((task, namespace, error.reason, removed))


class Harness:
    """What a replica has heard, and those it tells."""

    def __init__(self) -> None:
        self.due_queue = DueQueue(clock=ManualClock(), horizon=seconds(5), size_max=10)
        self.aftermath = HeardAftermath()
        self.upkeep_queue = UpkeepQueue(self.due_queue, cast("Aftermath", self.aftermath))


def some_news(**fields: Any) -> JobNews:
    news: dict[str, Any] = {"at": START, "due": (), "untended": ()}
    return JobNews(**news | fields)


def test_what_is_due_is_due_at_once() -> None:
    harness = Harness()

    harness.upkeep_queue.heard(some_news(due=[(ONE, 7), (OTHER, 8)]))

    assert harness.due_queue.changed.is_set()
    assert harness.due_queue.wait_seconds() == pytest.approx(0, abs=0.01)
    assert not harness.upkeep_queue.changed.is_set()


def test_jobs_are_taken_once_the_oldest_first() -> None:
    upkeep_queue = Harness().upkeep_queue
    upkeep_queue.heard(some_news(untended=[OTHER]))
    upkeep_queue.heard(some_news(untended=[ONE, OTHER]))
    assert upkeep_queue.changed.is_set()

    taken = upkeep_queue.take()

    assert taken == (OTHER, ONE)
    assert not upkeep_queue.changed.is_set()
    assert upkeep_queue.take() == ()


def test_callers_of_a_stopped_process_are_told_why() -> None:
    harness, task = Harness(), make_cancelled()

    harness.upkeep_queue.heard(some_news(cancelled=[(ONE, task)]))

    assert harness.aftermath.told == [(task, ONE.namespace, "PROCESS_FAILED", False)]


def test_what_does_not_fit_is_left_to_the_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIZE_MAX", 2)
    upkeep_queue = Harness().upkeep_queue

    upkeep_queue.add(*(ProcessKey(0, "orders", f"p{number}") for number in range(3)))

    assert [key.process_id for key in upkeep_queue.take()] == ["p0", "p1"]


def test_effects_are_read_as_settlements_write_them() -> None:
    told = {
        "due": [[*_columns(ONE), 7]],
        "untended": [[*_columns(OTHER)]],
        "cancelled": [[*_columns(OTHER), [[9, "call", [3]]]]],
        "failed": [_columns(OTHER)],
    }

    news = job_news(START, told)

    assert (news.at, list(news.due), list(news.untended)) == (START, [(ONE, 7)], [OTHER])
    assert news.failed == [OTHER]
    ((key, task),) = news.cancelled
    assert (key, task.task_id, task.reply_to) == (OTHER, 9, (3,))


def _columns(key: ProcessKey) -> tuple[int, str, str]:
    return key.slot, key.namespace, key.process_id
