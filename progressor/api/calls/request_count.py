"""The count of requests: how each ended, and why.

A namespace is named once it is known to exist, by the first request that got past the look for it:
names that anybody may invent would be labels without end.
"""

from progressor import errors, job_errors
from progressor.telemetry.instruments import OVERFLOW
from progressor.telemetry.metrics.registry import Metrics

NAMESPACES_MAX = 250
"""Namespaces that are named; what is beyond goes under OVERFLOW."""

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
_BEHIND_THE_LOOK = (
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
        """Count a request that succeeded."""
        self._requests.add(1, (self._name(request, exists=True), method, _OK, ""))

    def refused(self, method: str, request: object, error: errors.ProgressorError) -> None:
        """Count a request that ended with an error; `request` may be none that can be read."""
        name = self._name(request, exists=isinstance(error, _BEHIND_THE_LOOK))
        self._requests.add(1, (name, method, outcome_of(error), error.reason))

    def broke(self, method: str, request: object) -> None:
        """Count a request that a bug of ours has ended."""
        reason = errors.ProgressorError.reason
        self._requests.add(1, (self._name(request, exists=False), method, _BROKEN, reason))

    def left(self, method: str, request: object) -> None:
        """Count a request whose caller did not wait for the answer."""
        self._requests.add(1, (self._name(request, exists=False), method, _LEFT, ""))

    def _name(self, request: object, *, exists: bool) -> str:
        name = getattr(request, "namespace", "")
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
