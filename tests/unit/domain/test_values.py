"""Namespaces, keys, timers, replicas and shares: what follows from their values."""

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from progressor.domain.processes.event import NO_HISTORY, WHOLE_HISTORY, HistoryRange
from progressor.domain.processes.intent import SetTimer
from progressor.domain.processes.namespace import HistoryMode
from progressor.domain.processes.policy import RetryPolicy
from progressor.domain.processes.process import process_key
from progressor.domain.processes.task import TaskType
from progressor.domain.views.activity import even_share
from progressor.domain.views.replica import ReplicaState
from tests.support.builders import make_namespace, make_replica_view, seconds
from tests.support.clock import START

MICROSECOND = dt.timedelta(microseconds=1)
ASKED = HistoryRange(after=4, limit=2)


def test_a_task_type_without_a_policy_of_its_own_has_the_namespaces() -> None:
    special = RetryPolicy(attempts_max=1)
    namespace = make_namespace(retry_policies={TaskType.INIT: special})

    assert namespace.policy_for(TaskType.INIT) is special
    assert namespace.policy_for(TaskType.CALL) is namespace.retry_policy


@pytest.mark.parametrize(
    ("mode", "asked", "last_event_id", "expected"),
    [
        (HistoryMode.ALL, None, 10, WHOLE_HISTORY),
        (HistoryMode.LAST, None, 10, HistoryRange(after=7)),
        (HistoryMode.LAST, None, 2, WHOLE_HISTORY),
        (HistoryMode.NONE, None, 10, NO_HISTORY),
        (HistoryMode.NONE, ASKED, 10, ASKED),
    ],
)
def test_the_namespace_says_how_much_history_goes_with_a_task_that_does_not_ask(
    mode: HistoryMode, asked: HistoryRange | None, last_event_id: int, expected: HistoryRange
) -> None:
    namespace = make_namespace(history_mode=mode, history_last=3)

    assert namespace.history_for(asked, last_event_id=last_event_id) == expected


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


@pytest.mark.parametrize(
    ("age", "draining", "state"),
    [
        (seconds(0), False, ReplicaState.SERVING),
        (seconds(5), False, ReplicaState.SERVING),
        (seconds(5) + MICROSECOND, False, ReplicaState.SILENT),
        (seconds(0), True, ReplicaState.DRAINING),
        (seconds(5) + MICROSECOND, True, ReplicaState.SILENT),
        # PostgreSQL's clock was set back.
        (seconds(-1), False, ReplicaState.SERVING),
    ],
)
def test_a_replica_is_silent_when_its_heartbeat_is_older_than_its_lease_timeout(
    age: dt.timedelta, draining: bool, state: ReplicaState
) -> None:
    view = make_replica_view(heartbeat_age=age, lease_timeout=seconds(5), draining=draining)

    assert view.state is state


@given(st.lists(st.integers(0, 300), max_size=50), st.integers(0, 5_000))
def test_a_share_is_the_largest_that_is_enough_for_all(lengths: list[int], total: int) -> None:
    share = even_share(lengths, total)

    assert sum(min(it, share) for it in lengths) <= total
    is_whole = share >= max(lengths, default=0)
    assert is_whole or sum(min(it, share + 1) for it in lengths) > total
