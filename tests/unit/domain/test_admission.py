"""Admission: the table of requests and statuses, and what makes two requests the same."""

import dataclasses
import datetime as dt

import pytest

from progressor.domain.gates.constraint import Constraints
from progressor.domain.processes.admission import Import, Request, Verdict, decide
from progressor.domain.processes.event import HistoryRange, NewEvent
from progressor.domain.processes.intent import SetTimer
from progressor.domain.processes.process import Leadership, ProcessStatus
from progressor.domain.processes.task import TaskType
from tests.support.builders import make_key, make_request
from tests.support.clock import START
from tests.support.telemetry.spans import TRACED

INIT, RUNNING = ProcessStatus.INIT, ProcessStatus.RUNNING
ERROR, FINISHED = ProcessStatus.ERROR, ProcessStatus.FINISHED
EXISTS, NOT_FOUND = Verdict.PROCESS_ALREADY_EXISTS, Verdict.PROCESS_NOT_FOUND
TABLE = {
    (TaskType.INIT, None): Verdict.ACCEPTED,
    (TaskType.INIT, INIT): EXISTS,
    (TaskType.INIT, RUNNING): EXISTS,
    (TaskType.INIT, ERROR): EXISTS,
    (TaskType.INIT, FINISHED): EXISTS,
    (TaskType.REPAIR, None): NOT_FOUND,
    (TaskType.REPAIR, INIT): Verdict.PROCESS_IS_RUNNING,
    (TaskType.REPAIR, RUNNING): Verdict.PROCESS_IS_RUNNING,
    (TaskType.REPAIR, ERROR): Verdict.ACCEPTED,
    (TaskType.REPAIR, FINISHED): Verdict.PROCESS_FINISHED,
} | {
    (task_type, status): verdict
    for task_type in (TaskType.CALL, TaskType.NOTIFY)
    for status, verdict in (
        (None, NOT_FOUND),
        (INIT, Verdict.ACCEPTED),
        (RUNNING, Verdict.ACCEPTED),
        (ERROR, Verdict.PROCESS_FAILED),
        (FINISHED, Verdict.PROCESS_FINISHED),
    )
}
IMPORT = Import(key=make_key(), status=RUNNING)


@pytest.mark.parametrize(("met", "verdict"), TABLE.items())
def test_a_request_meets_what_the_table_says(
    met: tuple[TaskType, ProcessStatus | None], verdict: Verdict
) -> None:
    assert decide(*met) is verdict


@pytest.mark.parametrize(("met", "verdict"), TABLE.items())
def test_a_range_is_looked_at_only_where_the_request_would_be_accepted(
    met: tuple[TaskType, ProcessStatus | None], verdict: Verdict
) -> None:
    beyond = Verdict.EVENT_NOT_FOUND if verdict is Verdict.ACCEPTED else verdict

    assert decide(*met, after=3, last_event_id=3) is verdict
    assert decide(*met, after=4, last_event_id=3) is beyond


@pytest.mark.parametrize(
    "changes",
    [
        {"task_type": TaskType.NOTIFY},
        {"args": b"other"},
        {"history_range": HistoryRange(limit=1)},
        {"metadata": {"a": 1}},
        {"led_by": Leadership.ENGINE},
    ],
    ids=str,
)
def test_another_request_has_another_fingerprint(changes: dict[str, object]) -> None:
    changed = dataclasses.replace(make_request(), **changes)  # type: ignore[arg-type]

    assert changed.fingerprint() != make_request().fingerprint()


@pytest.mark.parametrize(
    ("request_", "fingerprint"),
    [
        (
            make_request(TaskType.INIT, args=b"args", metadata={"b": 1, "a": [2]}),
            "e147b8661c0ece383cd14afb2a300984",
        ),
        (
            make_request(args=b"args", history_range=HistoryRange(limit=3)),
            "889beb9325a318c12a9e7edc5025f4cf",
        ),
        (
            make_request(TaskType.NOTIFY, args=b"", constraints=Constraints(gates={"g": 2})),
            "67a026f091a4bb948e737bf9279014d3",
        ),
    ],
    ids=["start", "call", "notify"],
)
def test_what_another_release_has_kept_is_the_same_request(
    request_: Request, fingerprint: str
) -> None:
    assert request_.fingerprint().hex() == fingerprint


@pytest.mark.parametrize(
    "changes",
    [
        {"caller_context": {"tenant": "other"}},
        {"trace_context": {"traceparent": "other"}},
        {"waits": False},
        {"idempotency_key": "other"},
    ],
    ids=str,
)
def test_what_a_repetition_may_change_leaves_the_fingerprint(changes: dict[str, object]) -> None:
    changed = dataclasses.replace(make_request(), **changes)  # type: ignore[arg-type]

    assert changed.fingerprint() == make_request().fingerprint()


def test_the_order_of_metadata_does_not_make_another_request() -> None:
    one = make_request(TaskType.INIT, metadata={"a": 1, "b": [{"x": 1, "y": 2}]})
    other = make_request(TaskType.INIT, metadata={"b": [{"y": 2, "x": 1}], "a": 1})

    assert one.fingerprint() == other.fingerprint()


@pytest.mark.parametrize(
    "changes",
    [
        {"status": FINISHED, "result": b"done"},
        {"aux_state": b"other"},
        {"history": (NewEvent(payload=b"event"),)},
        {"timer": SetTimer(after=dt.timedelta(seconds=1))},
        {"created_at": START},
        {"metadata": {"a": 1}},
    ],
    ids=str,
)
def test_another_import_has_another_fingerprint(changes: dict[str, object]) -> None:
    changed = dataclasses.replace(IMPORT, **changes)  # type: ignore[arg-type]

    assert changed.fingerprint() != IMPORT.fingerprint()


def test_a_repetition_under_another_trace_is_the_same_import() -> None:
    repeated = dataclasses.replace(IMPORT, trace_context=TRACED)

    assert repeated.fingerprint() == IMPORT.fingerprint()
