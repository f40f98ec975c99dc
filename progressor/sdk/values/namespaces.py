"""The configuration of a namespace, and its form on the wire."""

import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.field_mask_pb2 import FieldMask

from progressor.domain.processes.policy import Pause, RetryPolicy
from progressor.domain.quotas.quotas import NO_QUOTAS, Quotas
from progressor.sdk.codec.wire import WireEnum
from progressor.v1 import namespace_service_pb2 as pb
from progressor.wire.shapes import Field, Shape

_SET_BY_THE_ENGINE = ("created_at", "updated_at", "revision", "pause", "cell")


class ZombiePolicy(WireEnum):
    """What happens to a task whose replica is presumed dead, or whose step overran."""

    UNSPECIFIED = "unspecified"
    RETRY = "retry"
    FAIL = "fail"


class OnError(WireEnum):
    """What becomes of what waits on a process that breaks.

    HOLD: timers and acknowledged requests are held until it comes back. CANCEL: all is cancelled.
    """

    UNSPECIFIED = "unspecified"
    HOLD = "hold"
    CANCEL = "cancel"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceConfig:
    """The configuration of a namespace; namespace_service.proto documents the range of each field.

    ``retry_policies`` are by task type ("init", "call", "notify", "repair", "timeout", "join").
    ``history_last`` is how many events the processor receives with a task: None all, n the last n,
    0 none. A retention of None: forever;
    an ``unreachable_patience`` of None: no limit. ``cell`` is where the namespace is created; "":
    where the engine chooses. The engine sets the last four fields; ``pause`` None: the namespace is
    not paused.
    """

    name: str
    processor_targets: tuple[str, ...]
    step_timeout: dt.timedelta = dt.timedelta(seconds=30)
    retry_policy: RetryPolicy = dataclasses.field(default_factory=RetryPolicy)
    retry_policies: Mapping[str, RetryPolicy] = dataclasses.field(default_factory=dict)
    exhausted_call_fails_alone: bool = False
    on_error: OnError = OnError.HOLD
    zombie_policy: ZombiePolicy = ZombiePolicy.RETRY
    worker_count_max: int = 1000
    history_last: int | None = None
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

    def policy_for(self, task_type: str) -> RetryPolicy:
        """Return the retry policy of a task type."""
        return self.retry_policies.get(task_type, self.retry_policy)


def namespace_mask(fields: Iterable[str] | None) -> FieldMask:
    """Return the update mask of the named `fields` of NamespaceConfig; None: of all of them."""
    known = [
        field.name
        for field in dataclasses.fields(NamespaceConfig)
        if field.name != "name" and field.name not in _SET_BY_THE_ENGINE
    ]
    chosen = known if fields is None else list(fields)
    for name in chosen:
        if name not in known:
            message = f"cannot update field {name!r} of a namespace: must be one of {known}"
            raise ValueError(message)
    return FieldMask(paths=["history" if name == "history_last" else name for name in chosen])


def _history_last(message: pb.Namespace, _path: str, _context: object) -> int | None:
    match message.history.WhichOneof("mode"):
        case "last":
            return message.history.last
        case "none":
            return 0
        case _:
            return None


def _write_history(config: NamespaceConfig) -> pb.HistoryPolicy:
    if config.history_last is None:
        return pb.HistoryPolicy(all=True)
    last = config.history_last
    return pb.HistoryPolicy(last=last) if last else pb.HistoryPolicy(none=True)


def _leave(_message: pb.Namespace, _value: Any, _context: object) -> None:  # noqa: ANN401  # of any field
    """Write nothing."""


_POLICY = Shape(RetryPolicy, pb.RetryPolicy)
_NAMESPACE = Shape(
    NamespaceConfig,
    pb.Namespace,
    history_last=Field(read=_history_last, write=_leave),
    created_at=Field(write=_leave),
    updated_at=Field(write=_leave),
    revision=Field(write=_leave),
    pause=Field(write=_leave),
)

policy_to_wire = _POLICY.message
policy_from_wire = _POLICY.read
namespace_from_wire = _NAMESPACE.read


def namespace_to_wire(config: NamespaceConfig) -> pb.Namespace:
    """Return `config` as a message with every field but those that the engine sets."""
    message = _NAMESPACE.message(config)
    message.history.CopyFrom(_write_history(config))
    return message
