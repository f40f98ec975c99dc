"""Commands that read processes: get, trace, list."""

import dataclasses
from typing import Annotated, Literal

from rich.console import RenderableType
from rich.text import Text

from progressor.cli.input.engines import client_of
from progressor.cli.input.inputs import HistoryInput, bad_input, instant, json_object, option
from progressor.cli.input.options import DEFAULT_SCOPE, DEFAULT_TARGET, Scope, Target
from progressor.cli.output.output import (
    Output,
    facts,
    instant_text,
    one_line,
    payload_text,
    status_text,
    table,
)
from progressor.cli.processes.timeline import timeline
from progressor.cli.processes.why import cause_text, explanation_of
from progressor.sdk.values.processes import (
    Event,
    Process,
    ProcessStatus,
    Snapshot,
    TaskTrace,
    Wait,
    WaitCause,
)

_PAGE_MAX = 1000
_LIMIT_MAX = 1_000_000
_ALL = HistoryInput()

Status = Literal["init", "running", "error", "finished"]
Cause = Literal[
    "running",
    "timer",
    "run_at",
    "retry",
    "order",
    "behind_task",
    "gate",
    "no_free_worker",
    "no_replica",
    "presumed_dead",
    "overrun",
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What list prints; ``more`` says that the limit cut it."""

    processes: tuple[Process, ...]
    more: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """What trace prints; ``more`` says that the limit cut it."""

    tasks: tuple[TaskTrace, ...]
    more: bool


async def get(
    process_id: str,
    /,
    *,
    await_init: Annotated[bool, option("Wait until the process has left init.")] = False,
    history: HistoryInput = _ALL,
    target: Target = DEFAULT_TARGET,
) -> None:
    """Print a process, its history, its timer and what its tasks wait for."""
    async with client_of(target) as client:
        snapshot = await client.get(process_id, history=history.range(), await_init=await_init)
    Output(as_json=target.json).show(snapshot, *_people(snapshot))


async def trace(
    process_id: str,
    /,
    *,
    limit: Annotated[int, option("At most so many tasks, from the first.")] = _PAGE_MAX,
    target: Target = DEFAULT_TARGET,
) -> None:
    """Print the tasks of a process as a timeline, each with the events that it recorded."""
    _check_limit(limit)
    tasks: list[TaskTrace] = []
    token, more = "", True
    async with client_of(target) as client:
        while more and len(tasks) < limit:
            page_size = min(_PAGE_MAX, limit - len(tasks))
            page = await client.trace(process_id, page_size=page_size, page_token=token)
            tasks += page.tasks
            token = page.next_page_token
            more = bool(token)
    notes = [Text(f"… more behind the first {limit:,}", style="dim")] if more else []
    Output(as_json=target.json).show(Traced(tasks=tuple(tasks), more=more), timeline(tasks), *notes)


async def list_processes(  # noqa: PLR0913  # the wire's own filters, all named
    *,
    status: Annotated[tuple[Status, ...], option("Only of this status; may be repeated.")] = (),
    cause: Annotated[
        tuple[Cause, ...],
        option("Only of which the first task waits for this, see why; may be repeated."),
    ] = (),
    metadata: Annotated[
        str | None, option("Only those whose metadata contains all of this JSON object.")
    ] = None,
    created_from: Annotated[
        str | None, option("Only those created at or after it, as in 2026-01-31T12:00:00Z.")
    ] = None,
    created_to: Annotated[str | None, option("Only those created before it.")] = None,
    limit: Annotated[int, option("At most so many.")] = 100,
    scope: Scope = DEFAULT_SCOPE,
) -> None:
    """Print the processes of a namespace, or of all, newest first."""
    _check_limit(limit)
    processes: list[Process] = []
    async with client_of(scope) as client:
        found = client.list(
            statuses=[ProcessStatus(it) for it in status],
            causes=[WaitCause(it) for it in cause],
            metadata=json_object("--metadata", metadata),
            created_from=instant("--created-from", created_from),
            created_to=instant("--created-to", created_to),
            page_size=min(_PAGE_MAX, limit + 1),
            namespace=scope.namespace or "",
            all_namespaces=scope.namespace is None,
        )
        async for process in found:
            processes.append(process)
            if len(processes) > limit:
                break
    listed = Listed(processes=tuple(processes[:limit]), more=len(processes) > limit)
    notes = [Text(f"… more behind the first {limit:,}", style="dim")] if listed.more else []
    people = _processes(listed.processes, with_namespace=scope.namespace is None)
    Output(as_json=scope.json).show(listed, people, *notes)


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= _LIMIT_MAX:
        raise bad_input("--limit", f"{limit} is not in 1 .. {_LIMIT_MAX:,}")


def _people(snapshot: Snapshot) -> list[RenderableType]:
    process = snapshot.process
    shown: list[RenderableType] = [
        facts(
            {
                "process": f"{process.process_id} in {process.namespace}",
                "status": status_text(process.status),
                "detail": one_line(process.detail),
                "corrupted by": f"task {process.corrupted_by}" if process.corrupted_by else "",
                "created": instant_text(process.created_at),
                "status since": instant_text(process.status_changed_at),
                "metadata": ", ".join(f"{key}={it}" for key, it in process.metadata.items()),
                "state": payload_text(process.state),
                "result": payload_text(process.result),
                "events": f"{process.last_event_id:,}",
                "leads": _led_job(snapshot),
                "follows": _followed_job(snapshot),
                "timer": _timer(snapshot),
                "why": one_line(snapshot.explanation),
            }
        )
    ]
    if snapshot.waits:
        shown += ["", _waits(snapshot.waits)]
    if snapshot.history:
        shown += ["", _events(snapshot.history)]
    if snapshot.next_after is not None:
        shown.append(Text(f"… more with --after {snapshot.next_after}", style="dim"))
    return shown


def _timer(snapshot: Snapshot) -> str:
    timer = snapshot.timer
    if timer is None:
        return ""
    return f"{timer.type} at {instant_text(timer.due_at)}, {timer.status}, task {timer.task_id}"


def _led_job(snapshot: Snapshot) -> str:
    led = None if snapshot.job_role is None else snapshot.job_role.led
    if led is None:
        return ""
    left = f"{led.unfinished_count:,} of {led.node_count:,} nodes have not ended"
    return f"a job, of which {left}; see job get"


def _followed_job(snapshot: Snapshot) -> str:
    followed = None if snapshot.job_role is None else snapshot.job_role.followed
    if followed is None:
        return ""
    job = f"job {one_line(followed.job_id)} in {followed.namespace}"
    return f"{job}, as node {one_line(followed.node)}"


def _waits(waits: tuple[Wait, ...]) -> RenderableType:
    rows: list[list[str | Text]] = [
        [str(it.task_id), it.type, status_text(it.status), one_line(explanation_of(it))]
        for it in waits
    ]
    return table(("task", "type", "status", "why"), rows)


def _events(events: tuple[Event, ...]) -> RenderableType:
    rows = [
        [str(it.event_id), instant_text(it.occurred_at), str(it.task_id), payload_text(it.payload)]
        for it in events
    ]
    return table(("event", "at", "task", "payload"), rows)


def _processes(processes: tuple[Process, ...], *, with_namespace: bool) -> RenderableType:
    rows: list[list[str | Text]] = [
        [
            *([it.namespace] if with_namespace else []),
            it.process_id,
            status_text(it.status),
            instant_text(it.created_at),
            instant_text(it.status_changed_at),
            f"{it.last_event_id:,}",
            one_line(it.detail) if it.first_wait is None else cause_text(it.first_wait),
        ]
        for it in processes
    ]
    columns = ("process", "status", "created", "status since", "events", "why")
    return table(("namespace", *columns) if with_namespace else columns, rows)
