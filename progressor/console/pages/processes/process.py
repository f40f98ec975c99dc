"""One process: why it waits, what it is, what it has done."""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from progressor import errors
from progressor.console.actions import processes
from progressor.console.actions.action import invalid
from progressor.console.pages.page import Page
from progressor.console.visits.visit import Ask
from progressor.console.words.words import mark
from progressor.domain.access.rights import Right
from progressor.domain.processes.event import NO_HISTORY, Direction, HistoryRange
from progressor.sdk.values.processes import Snapshot, TaskTrace

EVENTS_SHOWN = 15
TASKS_SHOWN = 25
"""With payloads of some hundred bytes each, a page is below 100 kB."""
_CHAIN_MAX = 4
_ID_DIGITS_MAX = 18

IDLE_MIN = dt.timedelta(minutes=1)
"""From how long on a page says that nothing ran between two tasks."""


class Row(NamedTuple):
    """A task of the timeline; ``idle``: for how long nothing ran before it, if that is long."""

    task: TaskTrace
    idle: dt.timedelta | None


async def _load(ask: Ask) -> Mapping[str, Any]:
    namespace, wanted = ask.place["namespace"], _range_of(ask)
    snapshot = await ask.client.get(ask.name, namespace=namespace, history=wanted)
    trace = await ask.client.trace(
        ask.name,
        namespace=namespace,
        page_size=TASKS_SHOWN,
        page_token=ask.one("tasks"),
        newest_first=True,
    )
    events = sorted(snapshot.history, key=lambda it: -it.event_id)
    return {
        "snapshot": snapshot,
        "process": snapshot.process,
        "events": events,
        "newer": events and events[0].event_id < snapshot.process.last_event_id,
        "older": events and events[-1].event_id > 1,
        "rows": rows_of(trace.tasks),
        "following": trace.next_page_token,
        "chain": await _chain(ask, snapshot),
        "may_operate": ask.may(Right.OPERATE, namespace),
        "sees_payloads": ask.sees_payloads(namespace),
    }


def _range_of(ask: Ask) -> HistoryRange:
    """Return the range of events in the address of a page: the newest without one."""
    for name, direction in (
        ("events_before", Direction.BACKWARD),
        ("events_after", Direction.FORWARD),
    ):
        if text := ask.one(name):
            if not (text.isascii() and text.isdecimal() and len(text) <= _ID_DIGITS_MAX):
                raise invalid(name, f"must be the id of an event, got {text!r}")
            return HistoryRange(after=int(text), limit=EVENTS_SHOWN, direction=direction)
    return HistoryRange(limit=EVENTS_SHOWN, direction=Direction.BACKWARD)


def rows_of(tasks: Sequence[TaskTrace]) -> list[Row]:
    """Return tasks, the newest first as they come, each with the idle time before it."""
    found: list[Row] = []
    ended: dt.datetime | None = None
    for task in reversed(tasks):
        # The start is that of the last attempt; between attempts a process is not idle.
        begun = task.created_at if task.attempt_count > 1 else task.started_at or task.created_at
        idle = None if ended is None else begun - ended
        found.append(Row(task, idle if idle is not None and idle >= IDLE_MIN else None))
        if task.finished_at is not None:
            ended = task.finished_at if ended is None else max(ended, task.finished_at)
    return found[::-1]


async def _chain(ask: Ask, snapshot: Snapshot[Any]) -> list[Snapshot[Any]]:
    """Return the processes that a process waits for, directly and indirectly, the next one first.

    Of several, the first that it waits for. It ends before what the visitor may not read.
    """
    found: list[Snapshot[Any]] = []
    seen = {(snapshot.process.namespace, snapshot.process.process_id)}
    while (key := _awaited(snapshot)) is not None and key not in seen and len(found) < _CHAIN_MAX:
        seen.add(key)
        namespace, process_id = key
        try:
            snapshot = await ask.client.get(
                process_id, namespace=namespace, history=NO_HISTORY, without_state=True
            )
        except errors.ProgressorError:
            break
        found.append(snapshot)
    return found


def _awaited(snapshot: Snapshot[Any]) -> tuple[str, str] | None:
    """Return the process that another one waits for; None: it waits for none."""
    own = snapshot.process.process_id
    for wait in snapshot.waits[:1]:
        if wait.order is not None:
            return snapshot.process.namespace, wait.order.process_id
        for gate in wait.gates:
            if holder := next((it for it in gate.holders if it.process_id != own), None):
                return snapshot.process.namespace, holder.process_id
    for reply in snapshot.awaited_replies[:1]:
        return reply.namespace, reply.process_id
    return None


PAGE = Page(
    path="/processes/{namespace}/{name:path}",
    template="processes/process.html",
    section="processes",
    title=mark("Process"),
    load=_load,
    actions=processes.ACTIONS,
)
