"""Invariants of admission."""

import dataclasses
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from progressor.domain.processes.admission import Import, Request, Verdict, decide
from progressor.domain.processes.event import Direction, HistoryRange
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.task import TaskType
from tests.support.builders import make_key

REQUESTED = (TaskType.INIT, TaskType.CALL, TaskType.NOTIFY, TaskType.REPAIR)
STATUSES = st.none() | st.sampled_from(ProcessStatus)
JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=3), JSON_VALUES, max_size=4)
RANGES = st.none() | st.builds(
    HistoryRange,
    after=st.integers(0, 3),
    limit=st.none() | st.integers(0, 3),
    direction=st.sampled_from(Direction),
)
REQUESTS = st.builds(
    Request,
    key=st.just(make_key()),
    task_type=st.sampled_from(REQUESTED),
    args=st.binary(max_size=3),
    history_range=RANGES,
    metadata=st.none() | OBJECTS,
)


def reordered(value: Any) -> Any:
    """Return an equal JSON value whose objects have their keys in another order."""
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return [reordered(each) for each in value] if isinstance(value, list) else value


def meaning(request: Request) -> str:
    """Return what makes a request this request and no other."""
    metadata = json.dumps(request.metadata or None, sort_keys=True)
    return repr((request.task_type, request.args, request.history_range, metadata))


@given(st.sampled_from(REQUESTED), STATUSES)
def test_a_process_accepts_exactly_the_requests_that_fit_its_status(
    task_type: TaskType, status: ProcessStatus | None
) -> None:
    fits = {
        None: {TaskType.INIT},
        ProcessStatus.INIT: {TaskType.CALL, TaskType.NOTIFY},
        ProcessStatus.RUNNING: {TaskType.CALL, TaskType.NOTIFY},
        ProcessStatus.ERROR: {TaskType.REPAIR},
        ProcessStatus.FINISHED: set(),
    }

    assert (decide(task_type, status) is Verdict.ACCEPTED) == (task_type in fits[status])


@given(REQUESTS, REQUESTS)
def test_fingerprints_are_equal_exactly_for_equal_requests(one: Request, other: Request) -> None:
    assert (one.fingerprint() == other.fingerprint()) == (meaning(one) == meaning(other))


@given(REQUESTS, OBJECTS)
def test_the_order_of_keys_means_nothing(request: Request, metadata: dict[str, Any]) -> None:
    one = dataclasses.replace(request, metadata=metadata)
    other = dataclasses.replace(request, metadata=reordered(metadata))

    assert one.fingerprint() == other.fingerprint()


@given(OBJECTS)
def test_the_order_of_keys_of_an_import_means_nothing(metadata: dict[str, Any]) -> None:
    one = Import(key=make_key(), status=ProcessStatus.RUNNING, metadata=metadata)
    other = dataclasses.replace(one, metadata=reordered(metadata))

    assert one.fingerprint() == other.fingerprint()
