"""What the judge of bulk operations finds, of a sound run that something is made wrong with."""

import dataclasses
from typing import Any

import pytest

from tests.chaos.bulks import BulkNotes, Round, StoredBulks, broken_bulks, can_succeed

GOOD = next(name for name in map(str, range(99)) if can_succeed(name))
BAD = next(name for name in map(str, range(99)) if not can_succeed(name))
NOTES = BulkNotes(rounds=[Round(frozenset({GOOD, BAD}), ("one", "two"))])
SOUND = StoredBulks(
    operations={"one": "done", "two": "done"},
    items=(
        ("one", GOOD, "done", None),
        ("one", BAD, "done", None),
        ("two", GOOD, "skipped", "PROCESS_IS_RUNNING"),
        ("two", BAD, "skipped", "PROCESS_CHANGED"),
        ("two", BAD, "done", None),
    ),
    processes={GOOD: "running", BAD: "error"},
    failure_count=4,
)


def test_a_sound_run_is_found_to_be_sound() -> None:
    assert list(broken_bulks(SOUND, NOTES)) == []


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"operations": {"one": "done", "two": "running, not ended"}}, "two is running, not ended"),
        ({"operations": {"one": "done"}}, "two was acknowledged, and is lost"),
        ({"items": (*SOUND.items, ("two", BAD, None, None))}, f"two has 2 items for {BAD}"),
        (
            {"items": (*SOUND.items, ("three", "x", "failed", "INTERNAL"))},
            "three has failed x: INTERNAL",
        ),
        (
            {
                "items": SOUND.items[1:2],
                "failure_count": 3,
                "processes": {BAD: "error", "y": "error"},
            },
            f"{GOOD} was broken before ('one', 'two') began, which left it out",
        ),
        (
            {"items": (("three", GOOD, "done", None), *SOUND.items)},
            f"{GOOD} is running, and was retried 2 times",
        ),
        ({"processes": {GOOD: "error", BAD: "error"}}, f"{GOOD} is error, and was retried 1 times"),
        (
            {"failure_count": 3},
            "2 processes, retried 2 times without success, have broken 3 times",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_is_wrong_is_found(changed: dict[str, Any], found: str) -> None:
    assert found in list(broken_bulks(dataclasses.replace(SOUND, **changed), NOTES))


def test_an_operation_that_was_stopped_may_leave_processes_out() -> None:
    stopped = dataclasses.replace(
        SOUND,
        operations={"one": "stopped", "two": "done"},
        items=(),
        processes={GOOD: "error", BAD: "error"},
        failure_count=2,
    )

    assert list(broken_bulks(stopped, NOTES)) == []
