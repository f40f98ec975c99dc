"""The errors of jobs and schedules: branches of the tree in ``errors``."""

from progressor.errors import NotFoundError, StateError

LED_BY_ENGINE = "the engine leads this job; use JobService"


class JobNotFoundError(NotFoundError):
    """No process of this id in the namespace, or one that leads no job."""

    reason = "JOB_NOT_FOUND"

    def __init__(self, namespace: str, job_id: str) -> None:
        self.namespace, self.job_id = namespace, job_id
        super().__init__(f"job {job_id!r} does not exist in namespace {namespace!r}")


class JobNotFailedError(StateError):
    """A retry of a job that has not failed."""

    reason = "JOB_NOT_FAILED"

    def __init__(self, namespace: str, job_id: str) -> None:
        self.namespace, self.job_id = namespace, job_id
        super().__init__(f"job {job_id!r} of namespace {namespace!r} has not failed")


class JobEndedError(StateError):
    """A cancellation of a job that has ended already."""

    reason = "JOB_ENDED"

    def __init__(self, namespace: str, job_id: str) -> None:
        self.namespace, self.job_id = namespace, job_id
        super().__init__(f"job {job_id!r} of namespace {namespace!r} has ended")


class LedByEngineError(StateError):
    """A request to the leader of a job that the engine leads."""

    reason = "LED_BY_ENGINE"

    def __init__(self, namespace: str, job_id: str) -> None:
        self.namespace, self.job_id = namespace, job_id
        super().__init__(f"job {job_id!r} of namespace {namespace!r}: {LED_BY_ENGINE}")


class ScheduleNotFoundError(NotFoundError):
    """No schedule of this id in the namespace."""

    reason = "SCHEDULE_NOT_FOUND"

    def __init__(self, namespace: str, schedule_id: str) -> None:
        self.namespace, self.schedule_id = namespace, schedule_id
        super().__init__(f"schedule {schedule_id!r} does not exist in namespace {namespace!r}")


class ScheduleAlreadyExistsError(StateError):
    """Creation of a schedule whose id is taken."""

    reason = "SCHEDULE_ALREADY_EXISTS"

    def __init__(self, namespace: str, schedule_id: str) -> None:
        self.namespace, self.schedule_id = namespace, schedule_id
        super().__init__(f"schedule {schedule_id!r} already exists in namespace {namespace!r}")


class ScheduleChangedError(StateError):
    """A change that expected another revision of the schedule."""

    reason = "SCHEDULE_CHANGED"

    def __init__(self, schedule_id: str, expected: int, actual: int) -> None:
        self.schedule_id, self.expected, self.actual = schedule_id, expected, actual
        super().__init__(f"schedule {schedule_id!r} is at revision {actual}, not {expected}")
