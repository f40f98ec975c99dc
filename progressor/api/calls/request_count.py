"""The count of requests: how each ended, and why, with the namespaces that exist as labels."""

from progressor import errors, job_errors
from progressor.telemetry.instruments import OVERFLOW
from progressor.telemetry.metrics.registry import Metrics

NAMESPACES_MAX = 250
"""Namespaces with a label of their own; the others count as OVERFLOW."""

_OK, _LEFT, _BROKEN = "ok", "cancelled", "internal"

_FAILURES = (
    errors.RejectedError,
    errors.ProcessFailedError,
    errors.RepairFailedError,
    errors.TaskFailedError,
)
_TRY_LATER = (
    errors.OverloadedError,
    errors.ShuttingDownError,
    errors.ReplicaStoppedError,
    errors.DeadlineExceededError,
    errors.StorageUnavailableError,
)
_AFTER_LOOKUP = (
    errors.RejectedError,
    errors.StateError,
    errors.ProcessNotFoundError,
    errors.EventNotFoundError,
    errors.TaskNotFoundError,
    errors.GateNotFoundError,
    job_errors.JobNotFoundError,
    job_errors.ScheduleNotFoundError,
)


class RequestCount:
    """Counts requests, unary ones and those of sessions alike."""

    def __init__(self, metrics: Metrics) -> None:
        self._requests = metrics.requests
        self._namespaces: set[str] = set()

    def answered(self, method: str, request: object) -> None:
        self._requests.add(1, (self._name(request, exists=True), method, _OK, ""))

    def refused(self, method: str, request: object, error: errors.ProgressorError) -> None:
        """Count a request that ended with an error; `request` may be malformed."""
        name = self._name(request, exists=isinstance(error, _AFTER_LOOKUP))
        self._requests.add(1, (name, method, outcome_of(error), error.reason))

    def broke(self, method: str, request: object) -> None:
        reason = errors.ProgressorError.reason
        self._requests.add(1, (self._name(request, exists=False), method, _BROKEN, reason))

    def left(self, method: str, request: object) -> None:
        self._requests.add(1, (self._name(request, exists=False), method, _LEFT, ""))

    def _name(self, request: object, *, exists: bool) -> str:
        name = getattr(request, "namespace", None)
        if name is None:
            name = getattr(getattr(request, "filter", None), "namespace", "")
        # In the requests of operators the field is a whole namespace.
        if not isinstance(name, str):
            return ""
        if name in self._namespaces or not name:
            return name
        if not exists:
            return ""
        if len(self._namespaces) >= NAMESPACES_MAX:
            return OVERFLOW
        self._namespaces.add(name)
        return name


def outcome_of(error: errors.ProgressorError) -> str:
    """Return who must act: the caller (refused), the processor's owners (failed), or no one."""
    if isinstance(error, _FAILURES):
        return "failed"
    if isinstance(error, _TRY_LATER):
        return "unavailable"
    return "refused" if isinstance(error, errors.RequestError) else _BROKEN
