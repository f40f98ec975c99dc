"""Namespaces: which policy and which piece of history a task gets."""

import pytest

from progressor.domain.processes.event import NO_HISTORY, WHOLE_HISTORY, HistoryRange
from progressor.domain.processes.namespace import HistoryMode
from progressor.domain.processes.policy import RetryPolicy
from progressor.domain.processes.task import TaskType
from tests.support.builders import make_namespace


def test_a_task_type_without_a_policy_of_its_own_has_the_namespaces() -> None:
    special = RetryPolicy(attempts_max=1)
    namespace = make_namespace(retry_policies={TaskType.INIT: special})

    assert namespace.policy_for(TaskType.INIT) is special
    assert namespace.policy_for(TaskType.CALL) is namespace.retry_policy


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (HistoryMode.ALL, WHOLE_HISTORY),
        (HistoryMode.LAST, HistoryRange(after=7)),
        (HistoryMode.NONE, NO_HISTORY),
    ],
)
def test_the_namespace_says_how_much_history_goes_with_a_task(
    mode: HistoryMode, expected: HistoryRange
) -> None:
    namespace = make_namespace(history_mode=mode, history_last=3)

    assert namespace.history_for(None, last_event_id=10) == expected


def test_the_last_events_of_a_short_history_are_all_of_it() -> None:
    namespace = make_namespace(history_mode=HistoryMode.LAST, history_last=3)

    assert namespace.history_for(None, last_event_id=2) == WHOLE_HISTORY


def test_a_range_that_the_request_asks_for_overrides_the_namespace() -> None:
    asked = HistoryRange(after=4, limit=2)
    namespace = make_namespace(history_mode=HistoryMode.NONE)

    assert namespace.history_for(asked, last_event_id=10) is asked
