"""Rows become values: how the columns of a row meet the fields of a type."""

import datetime as dt
from typing import NamedTuple

import pytest

from progressor.domain.gates.gate import GateHolder
from progressor.domain.processes.event import Direction, Event, HistoryRange
from progressor.domain.processes.process import (
    NO_OPTIONS,
    Leadership,
    Part,
    Process,
    ProcessKey,
    ProcessStatus,
)
from progressor.domain.processes.task import TaskError, TaskResult, TaskStatus, TaskType
from progressor.domain.schedules.schedule import CronTimes, IntervalTimes, Timing
from progressor.storage.postgres.rows.records import reader
from tests.support.clock import START

RESULT = ("task_id", "task_type", "task_status", "response", "error_code", "error_reason",
          "error_message", "error_rejected", "error_metadata")  # fmt: skip
SECOND = dt.timedelta(seconds=1)


class Place(NamedTuple):
    slot: int
    name: str = "none"


def test_a_field_takes_the_column_of_its_name_wherever_it_is() -> None:
    assert reader(Place, ("name", "slot"))(("a", 1)) == Place(slot=1, name="a")
    assert reader(Place, ("slot",))((1,)) == Place(slot=1)


def test_a_field_without_a_column_or_a_default_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"Place: no columns of \['slot'\]"):
        reader(Place, ("name",))


def test_a_column_that_no_field_takes_is_refused_where_all_must_be_read() -> None:
    with pytest.raises(AssertionError, match=r"Place does not read \['more'\]"):
        reader(Place, ("slot", "more"), whole=True)


@pytest.mark.parametrize("spelled", [str, str.encode], ids=["text", "bytes"])
def test_a_nested_value_takes_columns_with_its_name_in_front(spelled: object) -> None:
    read = reader(TaskResult, RESULT, prefix="task_")
    word = spelled  # of an enum
    assert callable(word)

    ended = read((1, word("call"), word("error"), None, 5, None, "m", True, {"k": "v"}))

    error = TaskError(code=5, reason="", message="m", rejected=True, metadata={"k": "v"})
    assert ended == TaskResult(
        task_id=1, task_type=TaskType.CALL, status=TaskStatus.ERROR, error=error
    )


def test_a_column_with_the_outer_name_goes_before_one_without() -> None:
    class Ended(NamedTuple):
        message: str
        error: TaskError | None

    read = reader(Ended, ("message", "code", "error_code", "error_reason", "error_message"))

    assert read(("outer", 1, 2, "r", "inner")) == Ended(
        "outer", TaskError(code=2, reason="r", message="inner")
    )


def test_a_nested_value_is_none_where_its_first_column_is_null() -> None:
    read = reader(TaskResult, RESULT, prefix="task_")

    ended = read((1, "call", "finished", b"r", None, None, None, None, None))

    assert (ended.response, ended.error) == (b"r", None)


def test_a_process_is_read_with_what_the_caller_adds() -> None:
    columns = ("process_status", "previous_status", "detail", "aux_state", "metadata",
               "corrupted_by", "created_at", "status_changed_at", "last_event_id", "init_task_id",
               "part")  # fmt: skip
    key = ProcessKey(1, "n", "p")
    part = ["engine", 2, "n", "l", 4, None]

    found = reader(Process, columns, "key", prefix="process_")(
        (b"init", None, None, b"", None, None, START, START, 0, 9, part), key
    )

    assert found == Process(
        key=key, status=ProcessStatus.INIT, previous_status=None, detail=None, aux_state=b"",
        metadata=None, corrupted_by=None, created_at=START, status_changed_at=START,
        last_event_id=0, init_task_id=9,
        part=Part(led_by=Leadership.ENGINE, leader=ProcessKey(2, "n", "l"), node=4,
                  options=NO_OPTIONS),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ((None, None, None), None),
        ((None, 2, True), HistoryRange(limit=2, direction=Direction.BACKWARD)),
        ((3, None, False), HistoryRange(after=3)),
    ],
)
def test_a_history_range_is_made_of_three_columns(
    row: tuple[object, ...], expected: HistoryRange | None
) -> None:
    class Wanted(NamedTuple):
        history_range: HistoryRange | None

    columns = ("history_after", "history_limit", "history_backward")

    assert reader(Wanted, columns)(row).history_range == expected


def test_times_are_of_a_clock_or_an_interval() -> None:
    columns = ("cron", "time_zone", "every", "anchor", "jitter")

    assert reader(Timing, columns)(("* * * * *", "UTC", None, None, SECOND)) == Timing(
        times=CronTimes("* * * * *", "UTC"), jitter=SECOND
    )
    assert reader(Timing, columns)((None, None, SECOND, START, SECOND)) == Timing(
        times=IntervalTimes(SECOND, START), jitter=SECOND
    )


def test_json_arrays_are_read_by_position_and_their_instants_from_microseconds() -> None:
    class Held(NamedTuple):
        holders: tuple[GateHolder, ...]

    [holder] = reader(Held, ("holders",))(([["p", 1, 1_000_000, "task", False]],)).holders

    assert holder.held_at == dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
    assert reader(Held, ("holders",))((None,)).holders == ()


def test_durations_come_as_seconds_or_as_intervals() -> None:
    class Lasted(NamedTuple):
        lasted: dt.timedelta
        offset: dt.timedelta | None

    read = reader(Lasted, ("lasted", "offset"))

    assert read((1.0, None)) == Lasted(SECOND, None)
    assert read((SECOND, 1.0)) == Lasted(SECOND, SECOND)


def test_the_value_of_an_only_column_stands_for_itself() -> None:
    assert reader(int, ("count",))((3,)) == 3
    with pytest.raises(AssertionError, match="are not one column"):
        reader(int, ("one", "two"))


def test_structs_are_read_too() -> None:
    columns = ("event_id", "occurred_at", "payload", "format_version", "metadata", "task_id")

    event = reader(Event, columns)((1, START, b"p", 0, None, 2))

    assert event == Event(1, START, b"p", 0, None, 2)
