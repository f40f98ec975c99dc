"""What a running step asks of the engine before its settlement: to keep a memo, and for more time.

A *memo* is the result of a part of a step that must not be done twice. Both are fenced by the lease
of the step: once that is lost, they change nothing.
"""

import dataclasses
import datetime as dt

from progressor.domain.processes.process import ProcessKey

MEMOS_MAX = 256
"""Memos of one task."""

MEMOS_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of all memos of one task: they must fit into a request, with its history."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepLease:
    """The lease under which a step runs."""

    key: ProcessKey
    task_id: int
    token: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Remember(StepLease):
    memo_key: str
    value: bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Extend(StepLease):
    """Moves the deadline to `by` from now; the step may take `longest` in all."""

    by: dt.timedelta
    longest: dt.timedelta
