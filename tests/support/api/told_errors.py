"""Every error that the engine sends, with its gRPC code and its fields on the wire."""

import datetime as dt

from progressor import errors, job_errors

FAILURE = errors.StepFailure(broken_by=2, code=13, reason="NO_STOCK")
FAILURE_TOLD = {"broken_by": "2", "failure_code": "13", "failure_reason": "NO_STOCK"}
RETRY = dt.timedelta(milliseconds=1500)
TOLD = [
    (
        errors.NamespaceNotFoundError("n"),
        "NOT_FOUND",
        {"namespace": "n"},
    ),
    (
        errors.ProcessNotFoundError("n", "p"),
        "NOT_FOUND",
        {"namespace": "n", "process_id": "p"},
    ),
    (errors.EventNotFoundError("p", 9), "NOT_FOUND", {"process_id": "p", "event_id": "9"}),
    (errors.TaskNotFoundError("p", 9), "NOT_FOUND", {"process_id": "p", "task_id": "9"}),
    (
        errors.TaskNotFoundError("p", "k"),
        "NOT_FOUND",
        {"process_id": "p", "idempotency_key": "k"},
    ),
    (
        errors.ProcessAlreadyExistsError("n", "p"),
        "ALREADY_EXISTS",
        {"namespace": "n", "process_id": "p"},
    ),
    (errors.NamespaceAlreadyExistsError("n"), "ALREADY_EXISTS", {"namespace": "n"}),
    (errors.NamespaceNotEmptyError("n"), "FAILED_PRECONDITION", {"namespace": "n"}),
    (
        errors.NamespaceChangedError("n", 1, 2),
        "ABORTED",
        {"namespace": "n", "expected": "1", "actual": "2"},
    ),
    (errors.GateNotFoundError("n", "g"), "NOT_FOUND", {"namespace": "n", "gate": "g"}),
    (job_errors.JobNotFoundError("n", "j"), "NOT_FOUND", {"namespace": "n", "job_id": "j"}),
    (
        job_errors.JobNotFailedError("n", "j"),
        "FAILED_PRECONDITION",
        {"namespace": "n", "job_id": "j"},
    ),
    (job_errors.LedByEngineError("n", "j"), "UNIMPLEMENTED", {"namespace": "n", "job_id": "j"}),
    (job_errors.JobEndedError("n", "j"), "FAILED_PRECONDITION", {"namespace": "n", "job_id": "j"}),
    (errors.GateInUseError("n", "g"), "FAILED_PRECONDITION", {"namespace": "n", "gate": "g"}),
    (
        job_errors.ScheduleNotFoundError("n", "s"),
        "NOT_FOUND",
        {"namespace": "n", "schedule_id": "s"},
    ),
    (
        job_errors.ScheduleAlreadyExistsError("n", "s"),
        "ALREADY_EXISTS",
        {"namespace": "n", "schedule_id": "s"},
    ),
    (
        job_errors.ScheduleChangedError("s", 1, 2),
        "ABORTED",
        {"schedule_id": "s", "expected": "1", "actual": "2"},
    ),
    (
        errors.GateChangedError("g", 1, 2),
        "ABORTED",
        {"gate": "g", "expected": "1", "actual": "2"},
    ),
    (
        errors.TaskIsRunningError("p", 3),
        "FAILED_PRECONDITION",
        {"process_id": "p", "task_id": "3"},
    ),
    (
        errors.TaskHasEndedError("p", 3),
        "FAILED_PRECONDITION",
        {"process_id": "p", "task_id": "3"},
    ),
    (
        errors.IdempotencyKeyReusedError("p", "k"),
        "INVALID_ARGUMENT",
        {"process_id": "p", "idempotency_key": "k"},
    ),
    (
        errors.ProcessFailedError("p", "why", own=True, task_id=3, failure=FAILURE),
        "FAILED_PRECONDITION",
        {"process_id": "p", "detail": "why", "own": "true", "task_id": "3", **FAILURE_TOLD},
    ),
    (
        errors.ProcessFailedError("p", "why"),
        "FAILED_PRECONDITION",
        {"process_id": "p", "detail": "why", "own": "false"},
    ),
    (errors.ProcessIsRunningError("p"), "FAILED_PRECONDITION", {"process_id": "p"}),
    (errors.ProcessFinishedError("p"), "FAILED_PRECONDITION", {"process_id": "p"}),
    (
        errors.RepairFailedError("p", "why", 3, FAILURE),
        "FAILED_PRECONDITION",
        {"process_id": "p", "detail": "why", "own": "true", "task_id": "3", **FAILURE_TOLD},
    ),
    (
        errors.TaskFailedError("p", "why", 3, errors.StepFailure(code=14, reason="AWAY")),
        "FAILED_PRECONDITION",
        {
            "process_id": "p",
            "detail": "why",
            "own": "true",
            "task_id": "3",
            "failure_code": "14",
            "failure_reason": "AWAY",
        },
    ),
    (errors.ProcessRemovedError("p"), "ABORTED", {"process_id": "p"}),
    (errors.TaskCancelledError("p", 3), "ABORTED", {"process_id": "p", "task_id": "3"}),
    (errors.OverloadedError("callers", RETRY), "RESOURCE_EXHAUSTED", {"what": "callers"}),
    (errors.ShuttingDownError(RETRY), "UNAVAILABLE", {}),
    (errors.ReplicaStoppedError(RETRY), "UNAVAILABLE", {}),
    (errors.DeadlineExceededError(3), "DEADLINE_EXCEEDED", {"task_id": "3"}),
    (errors.DeadlineExceededError(None), "DEADLINE_EXCEEDED", {}),
    (errors.StorageUnavailableError("host=db", RETRY), "UNAVAILABLE", {}),
    (errors.StorageConflictError("deadlock", RETRY), "UNAVAILABLE", {}),
    (errors.StorageLockedError("its process is locked", RETRY), "UNAVAILABLE", {}),
    (errors.StorageReadOnlyError("it stands by", RETRY), "UNAVAILABLE", {}),
    (errors.StorageSchemaError("no such function", RETRY), "UNAVAILABLE", {}),
    (errors.StorageOverloadedError("1,000 wait", RETRY), "RESOURCE_EXHAUSTED", {}),
]
