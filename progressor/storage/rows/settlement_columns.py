"""The arrays of a batch of settlements, as ``settle_tasks.sql`` takes them."""

import datetime as dt
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, assert_never

from progressor.domain.processes.event import HistoryRange
from progressor.domain.processes.intent import (
    Complete,
    Intent,
    KeepTimer,
    RemoveProcess,
    SetTimer,
    TimerChange,
    UnsetTimer,
)
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.settlement import Break, Fail, Finish, Remove, Retry, Settlement
from progressor.domain.processes.task import TaskError, TaskType
from progressor.storage.postgres import arrays
from progressor.storage.rows import tasks as rows
from progressor.storage.rows.constraints import constraints_text

_NO_INTENT = Intent()
_KEEP = KeepTimer()


class Item(Protocol):
    """What is needed of a settlement to write."""

    @property
    def key(self) -> ProcessKey:
        """The process."""

    @property
    def token(self) -> int:
        """The fencing number of the lease."""

    @property
    def settlement(self) -> Settlement:
        """What is to be written."""

    @property
    def continues(self) -> bool:
        """Whether the worker goes on with what comes next."""

    @property
    def expires_after(self) -> dt.timedelta:
        """For how long, then."""

    @property
    def trace_context(self) -> Mapping[str, str]:
        """What goes with a timer that is set."""


Columns = dict[str, arrays.Column | None]


def columns(batch: Sequence[Item]) -> Columns:
    """Return the arrays of a batch; None where no item has a value: it costs next to nothing."""
    settlements = [entry.settlement for entry in batch]
    intents = [s.intent if isinstance(s, Finish) else _NO_INTENT for s in settlements]
    keys = [entry.key for entry in batch]
    return {
        "slot": arrays.Int2Column([key.slot for key in keys]),
        "namespace": arrays.TextColumn([key.namespace for key in keys]),
        "process_id": arrays.TextColumn([key.process_id for key in keys]),
        "token": arrays.Int8Column([entry.token for entry in batch]),
        "outcome": arrays.TextColumn([_outcome(s) for s in settlements]),
        "expires_after": _sparse(
            arrays.Float8Column,
            [e.expires_after.total_seconds() if e.continues else None for e in batch],
        ),
        "response": _sparse(arrays.ByteaColumn, [_response(s) for s in settlements]),
        "aux_state": _sparse(arrays.ByteaColumn, [intent.aux_state for intent in intents]),
        "metadata": _sparse(arrays.JsonbColumn, [_metadata(intent) for intent in intents]),
        "result": _sparse(
            arrays.ByteaColumn,
            [i.action.result if isinstance(i.action, Complete) else None for i in intents],
        ),
        **_retry_columns(settlements),
        **_error_columns(settlements),
        **_timer_columns(batch, intents),
        **_event_columns(intents),
    }


def _sparse(column: type[arrays.Column], values: list[Any]) -> arrays.Column | None:
    return None if values.count(None) == len(values) else column(values)


def _outcome(settlement: Settlement) -> str:
    match settlement:
        case Finish(intent):
            return "complete" if isinstance(intent.action, Complete) else "finish"
        case Fail():
            return "fail"
        case Retry():
            return "retry"
        case Break():
            return "break"
        case Remove():
            return "remove"
        case _:
            assert_never(settlement)


def _metadata(intent: Intent) -> bytes | None:
    # An empty object is a value: it overwrites.
    return None if intent.metadata is None else rows.json_text(intent.metadata) or b"{}"


def _retry_columns(settlements: Sequence[Settlement]) -> Columns:
    retries = [s if isinstance(s, Retry) else None for s in settlements]
    return {
        "retry_after": _sparse(
            arrays.Float8Column, [r and r.delay.total_seconds() for r in retries]
        ),
        "attempt_count": _sparse(arrays.Int4Column, [r and r.attempt_count for r in retries]),
    }


_NO_ERRORS: Columns = dict.fromkeys(
    ("error_code", "error_reason", "error_message", "error_rejected", "error_metadata")
)
_NO_TIMERS: Columns = dict.fromkeys((
    "timer", "timer_at", "timer_after", "timer_args", "timer_trace", "timer_timeout",
    "history_after", "history_limit", "history_backward",
))  # fmt: skip
_NO_EVENTS: Columns = dict.fromkeys(("events_until", "e_payload", "e_format_version", "e_metadata"))


def _error_columns(settlements: Sequence[Settlement]) -> Columns:
    failures = [error_of(settlement) for settlement in settlements]
    if not any(failures):
        return _NO_ERRORS
    return {
        "error_code": arrays.Int4Column(error and error.code for error in failures),
        "error_reason": arrays.TextColumn(error and error.reason for error in failures),
        "error_message": arrays.TextColumn(error and error.message for error in failures),
        "error_rejected": arrays.BoolColumn(error and error.rejected for error in failures),
        "error_metadata": arrays.JsonColumn(
            error and rows.json_text(error.metadata) for error in failures
        ),
    }


def _timer_columns(batch: Sequence[Item], intents: Sequence[Intent]) -> Columns:
    changes = [_timer_change(intent) for intent in intents]
    words = [_timer_word(change) for change in changes]
    if not any(words):
        return _NO_TIMERS
    timers = [change if isinstance(change, SetTimer) else None for change in changes]
    no_range: HistoryRange | None = None
    ranges = [rows.history_columns(timer.history_range if timer else no_range) for timer in timers]
    traces = [
        timer and rows.json_text(entry.trace_context)
        for entry, timer in zip(batch, timers, strict=True)
    ]
    timeouts = [timer and _span(timer.step_timeout) for timer in timers]
    return {
        "timer": arrays.TextColumn(words),
        "timer_at": _sparse(arrays.InstantColumn, [timer and timer.at for timer in timers]),
        "timer_after": _sparse(
            arrays.Float8Column, [timer and _span(timer.after) for timer in timers]
        ),
        "timer_args": _sparse(arrays.ByteaColumn, [timer and timer.args for timer in timers]),
        "timer_trace": _sparse(arrays.JsonColumn, traces),
        "timer_timeout": _sparse(arrays.Float8Column, timeouts),
        "history_after": _sparse(arrays.Int8Column, [after for after, _, _ in ranges]),
        "history_limit": _sparse(arrays.Int4Column, [limit for _, limit, _ in ranges]),
        "history_backward": _sparse(arrays.BoolColumn, [backward for _, _, backward in ranges]),
    }


def timer_constraints(batch: Sequence[Item]) -> arrays.Column | None:
    """Return those of the timers that are set; None where none has any."""
    changes = [
        _timer_change(entry.settlement.intent) if isinstance(entry.settlement, Finish) else _KEEP
        for entry in batch
    ]
    return _sparse(
        arrays.JsonColumn,
        [constraints_text(it.constraints) if isinstance(it, SetTimer) else None for it in changes],
    )


def _span(value: dt.timedelta | None) -> float | None:
    return None if value is None else value.total_seconds()


def _timer_change(intent: Intent) -> TimerChange:
    """Return what becomes of the timer; a process that has ended has none to set or to keep."""
    return _KEEP if isinstance(intent.action, Complete | RemoveProcess) else intent.timer


def _timer_word(change: TimerChange) -> str | None:
    match change:
        case KeepTimer():
            return None
        case SetTimer():
            return TaskType.REMOVE if change.remove else TaskType.TIMEOUT
        case UnsetTimer():
            return "unset"
        case _:
            assert_never(change)


def _event_columns(intents: Sequence[Intent]) -> Columns:
    events = [event for intent in intents for event in intent.events]
    if not events:
        return _NO_EVENTS
    counts = itertools.accumulate(len(intent.events) for intent in intents)
    versions = [event.format_version or None for event in events]
    metadata = [rows.json_text(event.metadata) for event in events]
    return {
        "events_until": arrays.Int4Column(counts),
        "e_payload": arrays.ByteaColumn([event.payload for event in events]),
        "e_format_version": _sparse(arrays.Int4Column, versions),
        "e_metadata": _sparse(arrays.JsonColumn, metadata),
    }


def error_of(settlement: Settlement) -> TaskError | None:
    """Return with what a task ends, or waits for its retry."""
    match settlement:
        case Fail(error) | Break(error):
            return error
        case Retry() | Remove():
            return settlement.error
        case Finish():
            return None
        case _:
            assert_never(settlement)


def _response(settlement: Settlement) -> bytes | None:
    match settlement:
        case Finish(intent):
            return intent.response
        case Remove():
            return settlement.response
        case Fail() | Retry() | Break():
            return None
        case _:
            assert_never(settlement)
