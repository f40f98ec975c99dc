"""The line of the log that a settlement writes: one where the state of its process has changed."""

import logging
from typing import Any

import pytest

from progressor.domain.processes.intent import Complete, Intent
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.settlement import Break, Fail, Finish, Remove, Retry, Settlement
from progressor.runtime.effects import changes
from tests.support.builders import make_entry, make_error, make_process, make_success, seconds

ERROR = make_error()
DONE = Finish(make_success().intent)
COMPLETED = Finish(Intent(action=Complete()))
RETRY = Retry(delay=seconds(1), attempt_count=1, error=ERROR)
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}


def told(caplog: pytest.LogCaptureFixture, settlement: Settlement, **fields: Any) -> list[Any]:
    """Return the records of a settlement."""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        changes.log_settlement(make_entry(settlement=settlement, **fields))
    return list(caplog.records)


@pytest.mark.parametrize(
    ("settlement", "before", "event"),
    [
        (DONE, ProcessStatus.INIT, "process runs"),
        (DONE, ProcessStatus.ERROR, "process repaired"),
        (COMPLETED, ProcessStatus.INIT, "process finished"),
        (COMPLETED, ProcessStatus.RUNNING, "process finished"),
        (COMPLETED, ProcessStatus.ERROR, "process finished"),
        (Break(ERROR), ProcessStatus.INIT, "process broke"),
        (Break(ERROR), ProcessStatus.RUNNING, "process broke"),
        (Remove(), ProcessStatus.RUNNING, "process removed"),
        (Remove(error=ERROR), ProcessStatus.INIT, "process removed"),
    ],
)
def test_a_change_of_state_is_one_log_line(
    caplog: pytest.LogCaptureFixture,
    settlement: Settlement,
    before: ProcessStatus,
    event: str,
) -> None:
    [record] = told(caplog, settlement, process=make_process(status=before))

    level = "WARNING" if event == "process broke" else "INFO"
    assert (record.getMessage(), record.levelname) == (event, level)


@pytest.mark.parametrize(
    ("settlement", "before"),
    [
        (DONE, ProcessStatus.RUNNING),
        (Fail(ERROR), ProcessStatus.RUNNING),
        (Fail(ERROR), ProcessStatus.ERROR),
        (RETRY, ProcessStatus.INIT),
    ],
)
def test_a_step_that_changes_no_state_writes_none(
    caplog: pytest.LogCaptureFixture, settlement: Settlement, before: ProcessStatus
) -> None:
    assert told(caplog, settlement, process=make_process(status=before)) == []


def test_a_line_has_ids_a_reason_and_the_trace_and_none_of_the_processors_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    entry = make_entry(settlement=Break(ERROR))
    [record] = told(caplog, Break(ERROR), trace_context=TRACE)

    assert (record.namespace, record.process_id) == (entry.key.namespace, entry.key.process_id)
    assert (record.task_id, record.task_type, record.attempt) == (
        entry.task_id, str(entry.task_type), entry.attempt,
    )  # fmt: skip
    assert (record.reason, record.trace_id) == (ERROR.reason, "0af7651916cd43dd8448eb211c80319c")
    assert ERROR.message not in str(vars(record))
