"""Commands that read processes: get, why, trace, list."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from rich.console import RenderableType
from rich.text import Text

from progressor.cli.input.inputs import (
    PAGE_MAX,
    HistoryInput,
    bad_input,
    check_limit,
    first,
    instant,
    json_object,
    option,
)
from progressor.cli.input.options import (
    DEFAULT_SCOPE,
    IN_DEFAULT_NAMESPACE,
    NamespaceOptions,
    Scope,
    client_of,
)
from progressor.cli.output.output import (
    Column,
    facts,
    instant_text,
    more_note,
    one_line,
    payload_text,
    show,
    status_text,
    table,
)
from progressor.cli.processes.timeline import timeline
from progressor.domain.jobs.roles import JobRole
from progressor.domain.processes.event import NO_HISTORY
from progressor.sdk.values.processes import (
    Event,
    Process,
    ProcessStatus,
    Snapshot,
    TaskTrace,
    Timer,
    Wait,
    WaitCause,
)

_ALL = HistoryInput()


def _why_text(process: Process) -> str:
    """Return why a process waits: its first cause only, or its detail."""
    if process.first_wait is None:
        return one_line(process.detail)
    return one_line(process.first_wait.explanation.partition(" It also ")[0])


_NAMESPACE_COLUMN: Mapping[str, Column[Process]] = {"namespace": lambda it: it.namespace}
_COLUMNS: Mapping[str, Column[Process]] = {
    "process": lambda it: it.process_id,
    "status": lambda it: status_text(it.status),
    "created": lambda it: instant_text(it.created_at),
    "status since": lambda it: instant_text(it.status_changed_at),
    "events": lambda it: f"{it.last_event_id:,}",
    "why": _why_text,
}
_WAITS: Mapping[str, Column[Wait]] = {
    "task": lambda it: str(it.task_id),
    "type": lambda it: it.type,
    "status": lambda it: status_text(it.status),
    "why": lambda it: one_line(it.explanation),
}
_EVENTS: Mapping[str, Column[Event]] = {
    "event": lambda it: str(it.event_id),
    "at": lambda it: instant_text(it.occurred_at),
    "task": lambda it: str(it.task_id),
    "payload": lambda it: payload_text(it.payload),
}

Status = Literal["init", "running", "error", "finished"]
_CAUSES = tuple(it for it in WaitCause if it is not WaitCause.UNSPECIFIED)


async def get(
    process_id: str,
    /,
    *,
    await_init: Annotated[bool, option("Wait until the init task has ended.")] = False,
    history: HistoryInput = _ALL,
    options: NamespaceOptions = IN_DEFAULT_NAMESPACE,
) -> None:
    """Print a process, its history, its timer, and what its tasks wait for."""
    async with client_of(options) as client:
        snapshot = await client.get(process_id, history=history.range(), await_init=await_init)
    show(snapshot, *_people(snapshot), as_json=options.json)


async def why(process_id: str, /, *, options: NamespaceOptions = IN_DEFAULT_NAMESPACE) -> None:
    """Explain what a process waits for: first its running or next task, then the tasks behind it.

    Prints each unfinished task with the cause of its wait; without such tasks, whether the process
    needs a repair.
    """
    async with client_of(options) as client:
        snapshot = await client.get(process_id, history=NO_HISTORY)
    explanations = (snapshot.explanation, *(wait.explanation for wait in snapshot.waits))
    sentences = [*filter(None, explanations)]
    document = {
        "namespace": options.namespace,
        "process_id": process_id,
        "sentences": sentences,
        "waits": snapshot.waits,
    }
    show(document, *map(one_line, sentences), as_json=options.json)


async def trace(
    process_id: str,
    /,
    *,
    limit: Annotated[int, option("The maximum number of tasks, from the first.")] = PAGE_MAX,
    options: NamespaceOptions = IN_DEFAULT_NAMESPACE,
) -> None:
    """Print the tasks of a process as a timeline, with the events that each recorded."""
    check_limit(limit)
    tasks: list[TaskTrace] = []
    token, more = "", True
    async with client_of(options) as client:
        while more and len(tasks) < limit:
            page_size = min(PAGE_MAX, limit - len(tasks))
            page = await client.trace(process_id, page_size=page_size, page_token=token)
            tasks += page.tasks
            token = page.next_page_token
            more = bool(token)
    document = {"tasks": tasks, "more": more}
    show(document, timeline(tasks), *more_note(limit, more=more), as_json=options.json)


async def list_processes(  # noqa: PLR0913  # the filters of List, all named
    *,
    status: Annotated[tuple[Status, ...], option("Only with this status; may be repeated.")] = (),
    cause: Annotated[
        tuple[str, ...],
        option(
            "Only if their first task waits for this cause (see why); may be repeated: "
            f"{', '.join(_CAUSES)}."
        ),
    ] = (),
    metadata: Annotated[
        str | None, option("Only if their metadata contains this JSON object.")
    ] = None,
    created_from: Annotated[
        str | None, option("Only if created at or after this instant, as in 2026-01-31T12:00:00Z.")
    ] = None,
    created_to: Annotated[str | None, option("Only if created before this instant.")] = None,
    limit: Annotated[int, option("The maximum number of processes.")] = 100,
    scope: Scope = DEFAULT_SCOPE,
) -> None:
    """Print the processes of one namespace or all, newest first."""
    check_limit(limit)
    async with client_of(scope) as client:
        listing = client.list(
            statuses=[ProcessStatus(it) for it in status],
            causes=[_cause(it) for it in cause],
            metadata=json_object("--metadata", metadata),
            created_from=instant("--created-from", created_from),
            created_to=instant("--created-to", created_to),
            page_size=min(PAGE_MAX, limit + 1),
            namespace=scope.namespace or "",
            all_namespaces=scope.namespace is None,
        )
        found, more = await first(limit, listing)
    columns = _COLUMNS if scope.namespace is not None else {**_NAMESPACE_COLUMN, **_COLUMNS}
    document = {"processes": found, "more": more}
    show(document, table(columns, found), *more_note(limit, more=more), as_json=scope.json)


def _cause(text: str) -> WaitCause:
    if text not in _CAUSES:
        raise bad_input("--cause", f"must be one of {', '.join(_CAUSES)}, got {text!r}")
    return WaitCause(text)


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
                **dict(_in_jobs(snapshot.job_role)),
                "timer": _timer(snapshot.timer),
                "why": one_line(snapshot.explanation),
            }
        )
    ]
    if snapshot.waits:
        shown += ["", table(_WAITS, snapshot.waits)]
    if snapshot.history:
        shown += ["", table(_EVENTS, snapshot.history)]
    if snapshot.next_after is not None:
        shown.append(Text(f"… more with --after {snapshot.next_after}", style="dim"))
    return shown


def _timer(timer: Timer | None) -> str:
    if timer is None:
        return ""
    return f"{timer.type} at {instant_text(timer.due_at)}, {timer.status}, task {timer.task_id}"


def _in_jobs(role: JobRole | None) -> Iterator[tuple[str, str]]:
    if role is not None and role.led is not None:
        left = f"{role.led.unfinished_count:,} of {role.led.node_count:,} nodes have not ended"
        yield "leads", f"a job; {left}, see job get"
    if role is not None and role.followed is not None:
        job, node = one_line(role.followed.job_id), one_line(role.followed.node)
        yield "follows", f"job {job} in {role.followed.namespace}, as node {node}"
