"""The queue of jobs that need upkeep, and the effects that fill it."""

import pytest

from progressor.domain.jobs.job import JobState
from progressor.domain.processes.process import ProcessKey
from progressor.runtime.effects import upkeep_queue as module
from progressor.runtime.effects.upkeep_queue import UpkeepQueue
from progressor.storage.rows.effects import JOB_HAS_ENDED, Effects, job_effects
from tests.support.builders import make_key

ONE, OTHER = make_key("one"), make_key("other")


def test_jobs_are_taken_once_the_oldest_first() -> None:
    queue = UpkeepQueue()
    queue.add(OTHER)
    queue.add(ONE, OTHER)
    assert queue.changed.is_set()

    taken = queue.take()

    assert taken == (OTHER, ONE)
    assert not queue.changed.is_set()
    assert queue.take() == ()


def test_adding_nothing_wakes_nobody() -> None:
    queue = UpkeepQueue()

    queue.add()

    assert not queue.changed.is_set()


def test_what_does_not_fit_is_left_to_the_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIZE_MAX", 2)
    queue = UpkeepQueue()

    queue.add(*(ProcessKey(0, "orders", f"p{number}") for number in range(3)))

    assert [key.process_id for key in queue.take()] == ["p0", "p1"]


def test_effects_are_read_as_settlements_write_them() -> None:
    effects = job_effects(
        {
            "due": [[*_columns(ONE), 7]],
            "upkeep": [[*_columns(OTHER)]],
            "cancelled": [[*_columns(OTHER), [[9, "call", [3]]]]],
            "failed": [_columns(OTHER)],
        }
    )

    assert (effects.due, effects.upkeep) == (((ONE, 7),), (OTHER,))
    assert effects.ended == ((OTHER, JobState.FAILED),)
    (each,) = effects.cancelled
    assert (each.namespace, each.error, each.removed) == (OTHER.namespace, JOB_HAS_ENDED, False)
    assert (each.task.task_id, each.task.reply_to) == (9, (3,))


@pytest.mark.parametrize("key", ["due", "upkeep", "cancelled", "failed"])
def test_effects_without_one_of_their_parts_are_read(key: str) -> None:
    nothing = dict.fromkeys(("due", "upkeep", "cancelled", "failed"))

    assert job_effects(nothing | {key: []}) == Effects()


def _columns(key: ProcessKey) -> tuple[int, str, str]:
    return key.slot, key.namespace, key.process_id
