"""A trace as a timeline: tasks in order, times since the first, events beneath.

::

      +0 ms  init #1  finished  in 12 ms
                      → {"price":42}
                      · 1 {"placed":"tea"}
                      ← {"to_pay":42}
    +412 ms  call #3  error  in 354 ms, 3 attempts, the last in 9 ms
                      → {"type":"ship"}
                      ✗ UNAVAILABLE WAREHOUSE_DOWN: warehouse north is down

A task with constraints also shows what it waited for: ``⧗ 2.10 s for its gates, 9 ms running``; one
that a message became shows the step that has sent it: ``from shop order-1, #12``.
"""

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
from rich.table import Table
from rich.text import Text

from progressor.cli.output import one_line, payload_text, status_text
from progressor.sdk.values.constraints import TimeSpent
from progressor.sdk.values.processes import TaskStatus, TaskTrace
from progressor.sdk.values.replies import MessageReply

_EVENTS_SHOWN = 20
_SHOWN_MIN = dt.timedelta(milliseconds=1)
_SECONDS_MAX = 600
_CODE_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


def timeline(tasks: Sequence[TaskTrace]) -> Table:
    """Return the tasks of one process as a timeline, in the order in which they began or ended."""
    shown = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    shown.add_column(justify="right", no_wrap=True, style="dim")
    shown.add_column(no_wrap=True)
    shown.add_column(overflow="fold")
    for task in sorted(tasks, key=_place):
        headline = Text.assemble(status_text(task.status), "  ", (_spent(task), "dim"))
        since = f"+{_span(_place(task) - tasks[0].created_at)}"
        name = task.timer_name or (task.reply.name if task.reply else "")
        name = f" {name}" if name else ""
        title = Text.assemble((task.type, "bold"), f"{name} #{task.task_id}")
        shown.add_row(since, title, headline)
        for line in _beneath(task):
            shown.add_row("", "", line)
    return shown


def _place(task: TaskTrace) -> dt.datetime:
    """Return when a task began; if it never did, when it was cancelled or is due."""
    if task.started_at is None:
        return task.finished_at or _due(task)
    # Only the last attempt has a time; the first one began when the task was due.
    return task.started_at if task.attempt_count <= 1 else _due(task)


def _due(task: TaskTrace) -> dt.datetime:
    return task.scheduled_at or task.created_at


def _spent(task: TaskTrace) -> str:
    if task.started_at is None:
        if task.status is TaskStatus.WAITING and task.scheduled_at is not None:
            return f"due {_span(task.scheduled_at - task.created_at)} after it was set"
        return "never started" if task.finished_at else ""
    if task.finished_at is None:
        return f"attempt {task.attempt_count}" if task.attempt_count > 1 else ""
    last = _span(task.finished_at - task.started_at)
    if task.attempt_count > 1:
        whole = _span(task.finished_at - _due(task))
        return f"in {whole}, {task.attempt_count} attempts, the last in {last}"
    waited = task.started_at - _due(task)
    late = f", {_span(waited)} after it was due" if waited > _SHOWN_MIN else ""
    return f"in {last}{late}"


def _beneath(task: TaskTrace) -> Iterator[Text]:
    if task.spent is not None:
        yield Text(f"⧗ {_parts(task.spent) or 'waited for nothing'}", style="dim")
    yield from _brought(task)
    for event in task.events[:_EVENTS_SHOWN]:
        yield Text.assemble((f"· {event.event_id} ", "cyan"), payload_text(event.payload))
    if len(task.events) > _EVENTS_SHOWN:
        yield Text(f"· … {len(task.events) - _EVENTS_SHOWN:,} more events", style="dim")
    if task.response:
        yield Text(f"← {payload_text(task.response)}")
    for message in task.refused_messages:
        receiver = f"{message.namespace} {message.process_id}"
        yield Text(f"✗ {message.kind} to {one_line(receiver)}: {message.reason}", style="red")
    if task.error is not None:
        code = _CODE_NAMES.get(task.error.code, str(task.error.code))
        words = " ".join(part for part in (code, task.error.reason) if part)
        yield Text(f"✗ {words}: {one_line(task.error.message)}", style="red")


def _brought(task: TaskTrace) -> Iterator[Text]:
    if task.reply is not None:
        yield Text(f"→ {_answer(task.reply)}")
        return
    if task.sender is not None:
        sender = f"{task.sender.namespace} {task.sender.process_id}"
        yield Text(f"from {one_line(sender)}, #{task.sender.task_id}", style="dim")
    if task.args:
        yield Text(f"→ {payload_text(task.args)}")


def _answer(reply: MessageReply[Any]) -> str:
    who = f"{one_line(f'{reply.namespace} {reply.process_id}')}, {reply.kind} of #{reply.task_id}"
    if reply.error is None:
        return f"{who}: {payload_text(reply.response)}"
    return f"{who}: ✗ {reply.error.reason}: {one_line(reply.error.message)}"


def _parts(spent: TimeSpent) -> str:
    """Return what a task with constraints spent its time on; parts below 1 ms are left out."""
    parts = {
        "for its instant": spent.time,
        "for its order": spent.order,
        "for its process": spent.process,
        "for its gates": spent.gates,
        "for a worker": spent.available,
        "running": spent.running,
    }
    return ", ".join(f"{_span(it)} {words}" for words, it in parts.items() if it >= _SHOWN_MIN)


def _span(span: dt.timedelta) -> str:
    seconds = span.total_seconds()
    if abs(seconds) < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if abs(seconds) < _SECONDS_MAX else str(span).partition(".")[0]
