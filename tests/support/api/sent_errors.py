"""Every error that the engine sends, with its gRPC code and its fields on the wire."""

import datetime as dt

from progressor import access_errors, errors, job_errors

FAILURE = errors.StepFailure(broken_by=2, code=13, reason="NO_STOCK")
RETRY = dt.timedelta(milliseconds=1500)
_FAILED = "broken_by=2 failure_code=13 failure_reason=NO_STOCK"
_ROWS: dict[str, list[tuple[errors.ProgressorError, str]]] = {
    "NOT_FOUND": [
        (errors.NamespaceNotFoundError("n"), "namespace=n"),
        (errors.ProcessNotFoundError("n", "p"), "namespace=n process_id=p"),
        (errors.EventNotFoundError("p", 9), "process_id=p event_id=9"),
        (errors.TaskNotFoundError("p", 9), "process_id=p task_id=9"),
        (errors.TaskNotFoundError("p", "k"), "process_id=p idempotency_key=k"),
        (errors.GateNotFoundError("n", "g"), "namespace=n gate=g"),
        (errors.OperationNotFoundError("o"), "operation_id=o"),
        (job_errors.JobNotFoundError("n", "j"), "namespace=n job_id=j"),
        (job_errors.ScheduleNotFoundError("n", "s"), "namespace=n schedule_id=s"),
        (
            access_errors.BindingNotFoundError("token:a", "caller", "n"),
            "principal=token:a role=caller namespace=n",
        ),
        (access_errors.TokenNotFoundError("t"), "token_id=t"),
    ],
    "UNAUTHENTICATED": [(access_errors.UnauthenticatedError(), "")],
    "PERMISSION_DENIED": [
        (
            access_errors.PermissionDeniedError("token:a", "call", "n"),
            "principal=token:a right=call namespace=n",
        ),
    ],
    "ALREADY_EXISTS": [
        (errors.ProcessAlreadyExistsError("n", "p"), "namespace=n process_id=p"),
        (errors.NamespaceAlreadyExistsError("n"), "namespace=n"),
        (errors.OperationAlreadyExistsError("o"), "operation_id=o"),
        (job_errors.ScheduleAlreadyExistsError("n", "s"), "namespace=n schedule_id=s"),
    ],
    "FAILED_PRECONDITION": [
        (errors.NamespaceNotEmptyError("n"), "namespace=n"),
        (access_errors.TooManyBindingsError(9), "count_max=9"),
        (access_errors.TooManyTokensError(9), "count_max=9"),
        (errors.NamespacePausedError("n", "why", RETRY), "namespace=n detail=why"),
        (job_errors.JobNotFailedError("n", "j"), "namespace=n job_id=j"),
        (job_errors.JobEndedError("n", "j"), "namespace=n job_id=j"),
        (errors.GateInUseError("n", "g"), "namespace=n gate=g"),
        (errors.TaskHasEndedError("p", 3), "process_id=p task_id=3"),
        (
            errors.ProcessFailedError("p", "why", own=True, task_id=3, failure=FAILURE),
            f"process_id=p detail=why own=true task_id=3 {_FAILED}",
        ),
        (errors.ProcessFailedError("p", "why"), "process_id=p detail=why own=false"),
        (errors.ProcessIsRunningError("p"), "process_id=p"),
        (errors.NothingToRetryError("p"), "process_id=p"),
        (errors.ProcessFinishedError("p"), "process_id=p"),
        (
            errors.RepairFailedError("p", "why", 3, FAILURE),
            f"process_id=p detail=why own=true task_id=3 {_FAILED}",
        ),
        (
            errors.TaskFailedError("p", "why", 3, errors.StepFailure(code=14, reason="AWAY")),
            "process_id=p detail=why own=true task_id=3 failure_code=14 failure_reason=AWAY",
        ),
    ],
    "ABORTED": [
        (errors.NamespaceChangedError("n", 1, 2), "namespace=n expected=1 actual=2"),
        (job_errors.ScheduleChangedError("s", 1, 2), "schedule_id=s expected=1 actual=2"),
        (errors.GateChangedError("g", 1, 2), "gate=g expected=1 actual=2"),
        (errors.ProcessRemovedError("p"), "process_id=p"),
        (errors.ProcessTerminatedError("p", "why"), "process_id=p detail=why"),
        (errors.TaskCancelledError("p", 3), "process_id=p task_id=3"),
        (errors.LeaseLostError("p", 3), "process_id=p task_id=3"),
    ],
    "UNIMPLEMENTED": [(job_errors.LedByEngineError("n", "j"), "namespace=n job_id=j")],
    "INVALID_ARGUMENT": [
        (errors.IdempotencyKeyReusedError("p", "k"), "process_id=p idempotency_key=k")
    ],
    "RESOURCE_EXHAUSTED": [
        (errors.OverloadedError("callers", RETRY), "what=callers"),
        (
            errors.QuotaExceededError("n", "starts_per_second", 9, RETRY),
            "namespace=n quota=starts_per_second limit=9",
        ),
        (errors.StorageOverloadedError("1,000 wait", RETRY), ""),
    ],
    "DEADLINE_EXCEEDED": [
        (errors.DeadlineExceededError(3), "task_id=3"),
        (errors.DeadlineExceededError(None), ""),
    ],
    "UNAVAILABLE": [
        (errors.ShuttingDownError(RETRY), ""),
        (errors.ReplicaStoppedError(RETRY), ""),
        (errors.StorageUnavailableError("host=db", RETRY), ""),
        (errors.StorageConflictError("deadlock", RETRY), ""),
        (errors.StorageLockedError("its process is locked", RETRY), ""),
        (errors.StorageReadOnlyError("it stands by", RETRY), ""),
        (errors.StorageLineageError(1, 2), ""),
        (errors.StorageIdentityError("this is the database of cell b"), ""),
        (errors.StorageSchemaError("no such function", RETRY), ""),
    ],
}
SENT_ERRORS = [
    (error, code, dict(field.split("=") for field in fields.split()))
    for code, rows in _ROWS.items()
    for error, fields in rows
]
