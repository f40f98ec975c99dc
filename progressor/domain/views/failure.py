"""Groups of failures as people see them: what has broken processes, and how many are broken now."""

import dataclasses
import datetime as dt

from progressor.domain.processes.task import TaskType

BROKEN_COUNT_MAX = 100_000
"""Up to which the broken processes of a group are counted."""

Place = tuple[int, dt.datetime, str]
"""Where a group stands in a list: its broken processes, when it was seen last, its id."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Failures of one namespace with the same reason, normalized message, task type and release.

    ``failure_count`` is how often it broke a process, ``broken_count`` how many processes it has
    broken that are in error now, at most BROKEN_COUNT_MAX. ``task_type`` None: no task broke them.
    """

    namespace: str
    failure_id: str
    reason: str
    message: str
    task_type: TaskType | None
    release: str
    first_seen_at: dt.datetime
    last_seen_at: dt.datetime
    failure_count: int
    broken_count: int
    sample_process_id: str

    @property
    def place(self) -> Place:
        return self.broken_count, self.last_seen_at, self.failure_id


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FailedRepair:
    """The last repair that has failed since its process broke; ``code`` is a gRPC status code."""

    task_id: int
    failed_at: dt.datetime
    code: int
    reason: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """What Get adds to a process in error; ``failure`` None: its group is kept no longer."""

    failure: FailureGroup | None = None
    failed_repair: FailedRepair | None = None


NOT_BROKEN = Broken()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FailureQuery:
    """Which groups are asked for; ``namespace`` "" and ``failure_id`` "": all.

    ``seen``: only those of these namespaces; None: of any.

    ``broken_only``: only those with a process that is broken now. ``page_size`` is 1 .. 1,001: a
    page, and one more to see whether it is the last.
    """

    namespace: str = ""
    failure_id: str = ""
    broken_only: bool = False
    page_size: int = 100
    before: Place | None = None
    seen: tuple[str, ...] | None = None
