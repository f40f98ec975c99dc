"""Admission: the table of requests and statuses, and what makes two requests the same."""

import dataclasses
import datetime as dt
from typing import Any

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


@pytest.mark.parametrize(("met", "verdict"), TABLE.items())
def test_a_request_meets_what_the_table_says(
    met: tuple[TaskType, ProcessStatus | None], verdict: Verdict
) -> None:
    beyond = Verdict.EVENT_NOT_FOUND if verdict is Verdict.ACCEPTED else verdict

    assert decide(*met) is decide(*met, after=3, last_event_id=3) is verdict
    assert decide(*met, after=4, last_event_id=3) is beyond


CALL, START_IT = (
    make_request(),
    make_request(TaskType.INIT, metadata={"a": 1, "b": [{"x": 1, "y": 2}]}),
)
IMPORT = Import(key=make_key(), status=RUNNING)


@pytest.mark.parametrize(
    ("request_", "changes", "is_same"),
    [
        (CALL, {"task_type": TaskType.NOTIFY}, False),
        (CALL, {"args": b"other"}, False),
        (CALL, {"history_range": HistoryRange(limit=1)}, False),
        (CALL, {"metadata": {"a": 1}}, False),
        (CALL, {"led_by": Leadership.ENGINE}, False),
        (CALL, {"caller_context": {"tenant": "other"}}, True),
        (CALL, {"trace_context": {"traceparent": "other"}}, True),
        (CALL, {"waits": False}, True),
        (CALL, {"idempotency_key": "other"}, True),
        (START_IT, {"metadata": {"b": [{"y": 2, "x": 1}], "a": 1}}, True),
        (IMPORT, {"status": FINISHED, "result": b"done"}, False),
        (IMPORT, {"aux_state": b"other"}, False),
        (IMPORT, {"history": (NewEvent(payload=b"event"),)}, False),
        (IMPORT, {"timer": SetTimer(after=dt.timedelta(seconds=1))}, False),
        (IMPORT, {"created_at": START}, False),
        (IMPORT, {"metadata": {"a": 1}}, False),
        (IMPORT, {"trace_context": TRACED}, True),
    ],
    ids=lambda it: str(it) if isinstance(it, dict | bool) else type(it).__name__,
)
def test_another_request_has_another_fingerprint_and_a_repetition_the_same(
    request_: Request | Import, changes: dict[str, Any], is_same: bool
) -> None:
    changed = dataclasses.replace(request_, **changes)

    assert (changed.fingerprint() == request_.fingerprint()) is is_same


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
