"""Logs each change of a process's state, at info; a process that breaks, at warning.

======================  ==========================================================================
line                    the process
======================  ==========================================================================
``process runs``        has left init: its first step succeeded
``process broke``       is in error; by which task, and for what reason
``process repaired``    is out of error, by a repair or by the timer that broke it
``process finished``    has its result
``process removed``     is gone, with all its rows
======================  ==========================================================================

What a request does without a step (SimpleRepair, Remove, and Put: ``process imported``) its
servicer logs in the same words.

The lines have ids and reasons but no text of users, which may be payload. A step that changes no
state logs nothing. Under load repeated lines are counted (``telemetry/logs/repetition.py``): 10 µs
for one that is held back, 23 for one that is written (2026-11-21, 2-core reference machine).
"""

import logging
from typing import assert_never

from progressor.domain.processes.intent import Complete
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.settlement import Break, Fail, Finish, Remove, Retry
from progressor.domain.processes.task import TaskError
from progressor.storage.processes.settlements import Entry
from progressor.telemetry.logs import fields as log_fields

_log = logging.getLogger(__name__)


def log_settlement(entry: Entry) -> None:
    """Log the change that a settlement made to its process, if any."""
    level = logging.WARNING if isinstance(entry.settlement, Break) else logging.INFO
    if _changes_nothing(entry) or not _log.isEnabledFor(level):
        return
    change, error = _change(entry)
    if change:
        facts = log_fields.of_process(entry.key, entry.trace_context)
        facts |= {"task_id": entry.task_id, "task_type": str(entry.task_type)}
        if error is not None:
            facts |= {"attempt": entry.attempt, "reason": error.reason}
        _log.log(level, change, extra=facts)


def _changes_nothing(entry: Entry) -> bool:
    """Whether this is the usual case: a step that succeeded and leaves its process running.

    This check costs 0.2 µs, the whole of `_change` 0.5.
    """
    process, settlement = entry.process, entry.settlement
    return (
        process is not None
        and process.status is ProcessStatus.RUNNING
        and isinstance(settlement, Finish)
        and not isinstance(settlement.intent.action, Complete)
    )


def _change(entry: Entry) -> tuple[str, TaskError | None]:
    """Return the line, "" if the state is unchanged, and the error that broke the process."""
    match entry.settlement:
        case Finish(intent):
            if isinstance(intent.action, Complete):
                return "process finished", None
            before = None if entry.process is None else entry.process.status
            if before is ProcessStatus.INIT:
                return "process runs", None
            return ("process repaired" if before is ProcessStatus.ERROR else ""), None
        case Break(error):
            return "process broke", error
        case Remove(error=error):
            return "process removed", error
        case Fail() | Retry():
            return "", None
        case _:
            assert_never(entry.settlement)
