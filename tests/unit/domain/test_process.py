"""Keys of processes, and timers that say when in one way only."""

import datetime as dt

import pytest

from progressor.domain.processes.intent import SetTimer
from progressor.domain.processes.process import process_key
from tests.support.builders import seconds
from tests.support.clock import START


@pytest.mark.parametrize(
    ("namespace", "process_id", "slot"),
    [("orders", "p1", 735), ("orders", "p2", 869), ("", "", 0)],
)
def test_the_slot_of_a_process_never_changes(namespace: str, process_id: str, slot: int) -> None:
    assert process_key(namespace, process_id).slot == slot


@pytest.mark.parametrize(
    ("at", "after"), [(None, None), (START, seconds(1))], ids=["neither", "both"]
)
def test_a_timer_with_not_exactly_one_time_is_refused(
    at: dt.datetime | None, after: dt.timedelta | None
) -> None:
    with pytest.raises(ValueError, match="exactly one of at and after"):
        SetTimer(at=at, after=after)
