"""A namespace: processes that share a processor, policies and limits."""

import dataclasses
import datetime as dt
import enum
import re
from collections.abc import Mapping
from typing import assert_never

from progressor.domain.processes.event import NO_HISTORY, WHOLE_HISTORY, HistoryRange
from progressor.domain.processes.policy import OnError, Pause, RetryPolicy, ZombiePolicy
from progressor.domain.processes.task import TaskType
from progressor.domain.quotas.quotas import NO_QUOTAS, Quotas

PAYLOAD_BYTES_CEILING = 16 * 1024 * 1024
"""No namespace may allow larger payloads: a message carries several, and must fit gRPC's."""

TURN_CEILING = 256
"""No namespace may allow longer turns: the results of one wait for its last step."""

_NAME = re.compile(r"[a-z0-9._-]{1,64}")
_HOST_AND_PORT = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):([0-9]{1,5})")
_UNIX_PATH = re.compile(r"unix:/[^\x00-\x1f\x7f]{1,106}")  # sun_path holds 107 bytes
_PORT_MAX = 65_535


class HistoryMode(enum.StrEnum):
    """How much of its history goes to the processor with a task."""

    ALL = "all"
    LAST = "last"
    NONE = "none"


def is_namespace_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def is_target(target: str) -> bool:
    """Return whether a text is ``host:port`` or ``unix:/path``, where a processor may listen."""
    if (found := _HOST_AND_PORT.fullmatch(target)) is not None:
        return 1 <= int(found[1]) <= _PORT_MAX
    return _UNIX_PATH.fullmatch(target) is not None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """The configuration of a namespace; see namespace_service.proto for each field's meaning."""

    name: str
    processor_targets: tuple[str, ...]
    step_timeout: dt.timedelta = dt.timedelta(seconds=30)
    retry_policy: RetryPolicy = dataclasses.field(default_factory=RetryPolicy)
    retry_policies: Mapping[TaskType, RetryPolicy] = dataclasses.field(default_factory=dict)
    exhausted_call_fails_alone: bool = False
    on_error: OnError = OnError.HOLD
    zombie_policy: ZombiePolicy = ZombiePolicy.RETRY
    worker_count_max: int = 1000
    history_mode: HistoryMode = HistoryMode.ALL
    history_last: int = 0
    finished_process_retention: dt.timedelta | None = None
    task_retention: dt.timedelta | None = None
    payload_bytes_max: int = 2 * 1024 * 1024
    waiting_callers_max: int = 20_000
    unreachable_patience: dt.timedelta | None = None
    step_timeout_max: dt.timedelta = dt.timedelta(hours=1)
    processor_credentials: str = ""
    turn_max: int = 1
    quotas: Quotas = NO_QUOTAS
    cell: str = ""
    created_at: dt.datetime | None = None
    updated_at: dt.datetime | None = None
    revision: int = 0
    pause: Pause | None = None

    def policy_for(self, task_type: TaskType) -> RetryPolicy:
        return self.retry_policies.get(task_type, self.retry_policy)

    @property
    def history_kept(self) -> int | None:
        """How many of the last events of a process its next step will ask for; None: all."""
        match self.history_mode:
            case HistoryMode.ALL:
                return None
            case HistoryMode.LAST:
                return self.history_last
            case HistoryMode.NONE:
                return 0
            case _:
                assert_never(self.history_mode)

    def history_for(self, asked: HistoryRange | None, *, last_event_id: int) -> HistoryRange:
        """Return the range of history that goes with a task which asked for `asked`."""
        if asked is not None:
            return asked
        if self.history_mode is HistoryMode.NONE:
            return NO_HISTORY
        kept = self.history_kept
        return WHOLE_HISTORY if kept is None else HistoryRange(after=max(0, last_event_id - kept))
