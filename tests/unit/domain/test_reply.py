"""How the end of a task is reported to its caller."""

from typing import Any

import pytest

from progressor import errors
from progressor.domain.processes import reply
from progressor.domain.processes.reply import response_of
from progressor.domain.processes.task import TaskResult, TaskStatus, TaskType
from tests.support.builders import make_error, make_key, make_result

KEY = make_key()


def refused_with(error_class: type[errors.RequestError], **fields: Any) -> Any:
    result: TaskResult = make_result(**{"status": TaskStatus.ERROR} | fields)
    with pytest.raises(error_class) as caught:
        response_of(KEY, result)
    assert type(caught.value) is error_class
    return caught.value


def cancelled_with(error_class: type[errors.RequestError], **fields: Any) -> Any:
    return refused_with(error_class, status=TaskStatus.CANCELLED, error=make_error(**fields))


def test_a_task_gone_with_its_process_says_removed() -> None:
    assert refused_with(errors.ProcessRemovedError, removed=True).process_id == KEY.process_id


def test_a_reject_is_reported_in_the_processors_words() -> None:
    refusal = make_error(
        code=9, reason="CLOSED", message="no", rejected=True, metadata={"door": "north"}
    )

    error = refused_with(errors.RejectedError, error=refusal)

    assert (error.code, error.processor_reason, error.message) == (9, "CLOSED", "no")
    assert error.metadata == {"door": "north"}


@pytest.mark.parametrize(
    ("metadata", "broken_by"),
    [
        ({"broken_by": "5", "failure_code": "13", "failure_reason": "GONE"}, (5, 13, "GONE")),
        ({}, (None, None, None)),
    ],
    ids=["known", "unknown"],
)
def test_a_task_cancelled_because_the_process_broke_names_what_broke_it(
    metadata: dict[str, str], broken_by: tuple[int | None, ...]
) -> None:
    error = cancelled_with(
        errors.ProcessFailedError, reason=reply.PROCESS_FAILED, metadata=metadata
    )

    assert (error.own, error.detail, error.task_id) == (False, "it broke", 7)
    assert (error.broken_by, error.failure_code, error.failure_reason) == broken_by


@pytest.mark.parametrize(
    ("reason", "error_class"),
    [
        (reply.PROCESS_FINISHED, errors.ProcessFinishedError),
        (reply.PROCESS_IS_RUNNING, errors.ProcessIsRunningError),
        ("SOMETHING_ELSE", errors.TaskCancelledError),
    ],
)
def test_a_cancelled_task_says_why(reason: str, error_class: type[errors.RequestError]) -> None:
    cancelled_with(error_class, reason=reason)


@pytest.mark.parametrize(
    ("fields", "metadata", "error_class", "broken_by"),
    [
        ({"task_type": TaskType.REPAIR}, {"broken_by": "5"}, errors.RepairFailedError, 5),
        ({"task_type": TaskType.REPAIR}, {}, errors.RepairFailedError, None),
        ({}, {"alone": "true"}, errors.TaskFailedError, None),
        ({}, {}, errors.ProcessFailedError, 7),
    ],
)
def test_a_failed_task_says_what_it_did_to_its_process(
    fields: dict[str, Any],
    metadata: dict[str, str],
    error_class: type[errors.RequestError],
    broken_by: int | None,
) -> None:
    failed = make_error(code=13, reason="NO_STOCK", metadata=metadata)
    error = refused_with(error_class, error=failed, **fields)

    assert (error.own, error.detail, error.task_id) == (True, "it broke", 7)
    assert error.broken_by == broken_by
    assert (error.failure_code, error.failure_reason) == (13, "NO_STOCK")
