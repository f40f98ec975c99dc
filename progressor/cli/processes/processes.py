"""Commands about processes: those that read them, then those that change them."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from cyclopts.types import Int32, Int64
from rich.console import RenderableType
from rich.text import Text

from progressor.cli.input.filters import FilterInput
from progressor.cli.input.options import (
    PAGE_MAX,
    ConstraintsInput,
    EngineOptions,
    HistoryInput,
    NamespaceOptions,
    RequestInput,
    Scope,
    bad_input,
    check_limit,
    check_range,
    client_of,
    first,
    instant,
    json_bytes,
    json_object,
    option,
)
from progressor.cli.output import (
    Column,
    command_text,
    facts,
    instant_text,
    more_note,
    one_line,
    payload_text,
    show,
    status_text,
    table,
)
from progressor.cli.processes.failures import broken_text
from progressor.cli.processes.timeline import timeline
from progressor.domain.jobs.roles import JobRole
from progressor.domain.processes.event import NO_HISTORY
from progressor.sdk.values.processes import (
    Event,
    FailedRepair,
    FailureGroup,
    NewEvent,
    NewTimer,
    Process,
    ProcessStatus,
    Receipt,
    Reply,
    Snapshot,
    TaskReply,
    TaskTrace,
    TaskType,
    Timer,
    Wait,
    WaitCause,
)

_CAUSES = tuple(it for it in WaitCause if it is not WaitCause.UNSPECIFIED)
_TIMER_AFTER_MAX = 100 * 365 * 86_400

AcceptOnly = Annotated[
    bool, option("Return once the task is durable; `progressor await` prints its answer.")
]
TaskId = Annotated[Int64 | None, option("The id of the task.")]
BrokenBy = Literal["init", "call", "notify", "repair", "timeout", "remove"]
RequestKey = Annotated[str | None, option("The idempotency key of its request, instead of an id.")]


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


async def get(
    process_id: str,
    /,
    *,
    await_init: Annotated[bool, option("Wait until the init task has ended.")] = False,
    history: HistoryInput = HistoryInput(),
    options: NamespaceOptions = NamespaceOptions(),
) -> None:
    """Print a process, its history, its timers, what its tasks wait for, and replies to come."""
    async with client_of(options) as client:
        snapshot = await client.get(process_id, history=history.range(), await_init=await_init)
    show(snapshot, *_people(snapshot), as_json=options.json)


async def why(process_id: str, /, *, options: NamespaceOptions = NamespaceOptions()) -> None:
    """Explain what a process waits for: first its running or next task, then the tasks behind it.

    Prints each unfinished task with the cause of its wait; without such tasks, whether the process
    needs a repair. Then prints the replies that it waits for, and who waits for its own; and of a
    broken process how many others broke like it, and the command that retries them all.
    """
    async with client_of(options) as client:
        snapshot = await client.get(process_id, history=NO_HISTORY)
    replies = (*snapshot.awaited_replies, *snapshot.requested_replies)
    explanations = (
        snapshot.explanation,
        *(it.explanation for it in snapshot.waits),
        *(it.explanation for it in replies),
        *_like_it(snapshot.failure, options),
    )
    sentences = [*filter(None, explanations)]
    document = {
        "namespace": options.namespace,
        "process_id": process_id,
        "sentences": sentences,
        "waits": snapshot.waits,
        "awaited_replies": snapshot.awaited_replies,
        "requested_replies": snapshot.requested_replies,
        "failure": snapshot.failure,
        "failed_repair": snapshot.failed_repair,
    }
    shown = (command_text(it) if ": progressor " in it else it for it in map(one_line, sentences))
    show(document, *shown, as_json=options.json)


async def trace(
    process_id: str,
    /,
    *,
    limit: Annotated[int, option("The maximum number of tasks, from the first.")] = PAGE_MAX,
    options: NamespaceOptions = NamespaceOptions(),
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


async def list_processes(
    *,
    cause: Annotated[
        tuple[str, ...],
        option(
            "Only if their first task waits for this cause (see why); may be repeated: "
            f"{', '.join(_CAUSES)}."
        ),
    ] = (),
    processes: FilterInput = FilterInput(),
    limit: Annotated[int, option("The maximum number of processes.")] = 100,
    scope: Scope = Scope(),
) -> None:
    """Print the processes of one namespace or all, newest first."""
    check_limit(limit)
    async with client_of(scope) as client:
        listing = client.list(
            causes=[_cause(it) for it in cause],
            page_size=min(PAGE_MAX, limit + 1),
            **processes.options(scope.namespace),
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
    process, failure = snapshot.process, snapshot.failure
    shown: list[RenderableType] = [
        facts(
            {
                "process": f"{process.process_id} in {process.namespace}",
                "status": status_text(process.status),
                "detail": one_line(process.detail),
                "broken at": "" if process.broken_at is None else instant_text(process.broken_at),
                "failure": process.failure_id if failure is None else _group_text(failure),
                "broken by": f"task {process.corrupted_by}" if process.corrupted_by else "",
                "failed repair": _repair_text(snapshot.failed_repair),
                "created": instant_text(process.created_at),
                "status since": instant_text(process.status_changed_at),
                "metadata": ", ".join(f"{key}={it}" for key, it in process.metadata.items()),
                "state": payload_text(process.state),
                "state version": str(process.state_version or ""),
                "result": payload_text(process.result),
                "events": f"{process.last_event_id:,}",
                **dict(_in_jobs(snapshot.job_role)),
                "timer" if len(snapshot.timers) <= 1 else "timers": "\n".join(
                    _timer(it) for it in snapshot.timers.values()
                ),
                "why": one_line(snapshot.explanation),
            }
        )
    ]
    if snapshot.waits:
        shown += ["", table(_WAITS, snapshot.waits)]
    if replies := (*snapshot.awaited_replies, *snapshot.requested_replies):
        shown += ["", *(one_line(it.explanation) for it in replies)]
    if snapshot.history:
        shown += ["", table(_EVENTS, snapshot.history)]
    if snapshot.next_after is not None:
        shown.append(Text(f"… more with --after {snapshot.next_after}", style="dim"))
    return shown


def _group_text(group: FailureGroup) -> str:
    seen = f"first {instant_text(group.first_seen_at)}, last {instant_text(group.last_seen_at)}"
    return f"{one_line(group.failure_id)}: {broken_text(group)} in error now; seen {seen}"


def _repair_text(repair: FailedRepair | None) -> str:
    if repair is None:
        return ""
    failed = f"task {repair.task_id}, {instant_text(repair.failed_at)}"
    return f"{failed}: {one_line(repair.reason)}: {one_line(repair.message)}"


def _like_it(group: FailureGroup | None, engine: EngineOptions) -> Iterator[str]:
    """Yield how many processes broke like one, then the commands for all of them."""
    if group is None:
        return
    yield f"Group of failures {_group_text(group)}."
    chosen = f"-n {group.namespace} --failure {group.failure_id}{engine.again}"
    yield f"To list them: progressor list {chosen}"
    yield f"To retry them all: progressor bulk retry {chosen}"


def _timer(timer: Timer) -> str:
    name = f"{one_line(timer.name)}: " if timer.name else ""
    due = instant_text(timer.due_at)
    return f"{name}{timer.type} at {due}, {timer.status}, task {timer.task_id}"


def _in_jobs(role: JobRole | None) -> Iterator[tuple[str, str]]:
    if role is not None and role.led is not None:
        left = f"{role.led.unfinished_count:,} of {role.led.node_count:,} nodes have not ended"
        yield "leads", f"a job; {left}, see job get"
    if role is not None and role.followed is not None:
        job, node = one_line(role.followed.job_id), one_line(role.followed.node)
        yield "follows", f"job {job} in {role.followed.namespace}, as node {node}"


async def start(
    process_id: str,
    /,
    *,
    metadata: Annotated[str | None, option("The metadata of the process, a JSON object.")] = None,
    accept_only: AcceptOnly = False,
    request: RequestInput = RequestInput(),
    constraints: ConstraintsInput = ConstraintsInput(),
    options: NamespaceOptions = NamespaceOptions(),
) -> None:
    """Create a process, run its init task and print the processor's answer."""
    async with client_of(options) as client:
        answer = await client.start(
            process_id,
            **request.arguments(),
            constraints=constraints.constraints(),
            metadata=json_object("--metadata", metadata),
            accept_only=accept_only,
        )
    _show(answer, options)


async def call(
    process_id: str,
    /,
    *,
    accept_only: AcceptOnly = False,
    request: RequestInput = RequestInput(),
    constraints: ConstraintsInput = ConstraintsInput(),
    options: NamespaceOptions = NamespaceOptions(),
) -> None:
    """Run a call on a process and print the processor's answer."""
    async with client_of(options) as client:
        answer = await client.call(
            process_id,
            **request.arguments(),
            constraints=constraints.constraints(),
            accept_only=accept_only,
        )
    _show(answer, options)


async def notify(
    process_id: str,
    /,
    *,
    request: RequestInput = RequestInput(),
    constraints: ConstraintsInput = ConstraintsInput(),
    options: NamespaceOptions = NamespaceOptions(),
) -> None:
    """Notify a process: send it a call without waiting for its response; print the id of its task.

    Returns once the task is durable. `progressor await` waits for its end.
    """
    async with client_of(options) as client:
        accepted = await client.notify(
            process_id, **request.arguments(), constraints=constraints.constraints()
        )
    _show(accepted, options)


async def repair(
    process_id: str,
    /,
    *,
    accept_only: AcceptOnly = False,
    request: RequestInput = RequestInput(),
    options: NamespaceOptions = NamespaceOptions(),
) -> None:
    """Ask the processor to repair a broken process, and print its answer."""
    async with client_of(options) as client:
        answer = await client.repair(process_id, **request.arguments(), accept_only=accept_only)
    _show(answer, options)


async def retry(process_id: str, /, *, options: NamespaceOptions = NamespaceOptions()) -> None:
    """Run the task that broke a process again, with all its attempts, and print its id."""
    async with client_of(options) as client:
        retried = await client.retry(process_id)
    again = "the join" if retried.task_id is None else f"task {retried.task_id}"
    show(retried, f"{again} runs again", as_json=options.json)


async def simple_repair(
    process_id: str, /, *, options: NamespaceOptions = NamespaceOptions()
) -> None:
    """Repair a broken process without a repair handler; a timer that broke it runs again."""
    async with client_of(options) as client:
        repaired = await client.simple_repair(process_id)
    again = "" if repaired.task_id is None else f"; task {repaired.task_id} runs again"
    show(repaired, f"{process_id} is running{again}", as_json=options.json)


async def await_task(
    process_id: str,
    /,
    *,
    task: TaskId = None,
    idempotency_key: RequestKey = None,
    options: NamespaceOptions = NamespaceOptions(),
) -> None:
    """Wait for a task; print its answer and exit as its request would have."""
    _check_task(task, idempotency_key)
    async with client_of(options) as client:
        answer = await client.await_task(process_id, task_id=task, idempotency_key=idempotency_key)
    _show(answer, options)


async def cancel(
    process_id: str,
    /,
    *,
    task: TaskId = None,
    idempotency_key: RequestKey = None,
    options: NamespaceOptions = NamespaceOptions(),
) -> None:
    """Cancel a task that has not ended; callers that wait for it get an error.

    The processor of a running task is notified, but may have acted. Cancelling an init task also
    deletes the process, unless it broke and is run again.
    """
    _check_task(task, idempotency_key)
    async with client_of(options) as client:
        task_id = await client.cancel(process_id, task_id=task, idempotency_key=idempotency_key)
    words = f"cancelled task {task_id} of {process_id}"
    show({"task_id": task_id}, words, as_json=options.json)


async def put(  # noqa: PLR0913  # the parts of a process, all named
    process_id: str,
    /,
    *,
    status: Annotated[Literal["running", "error", "finished"], option("Its status.")] = "running",
    state: Annotated[str | None, option("Its state, JSON.")] = None,
    metadata: Annotated[str | None, option("Its metadata, a JSON object.")] = None,
    event: Annotated[
        tuple[str, ...], option("An event of its history, JSON; may be repeated.")
    ] = (),
    timer_after: Annotated[
        float | None, option("Set a timer that is due after this number of seconds.")
    ] = None,
    timer_at: Annotated[
        str | None, option("Set a timer that is due at this instant, as in 2026-01-31T12:00:00Z.")
    ] = None,
    named_timer: Annotated[
        tuple[str, ...],
        option(
            "Set a timer with a name, as in reminder=60, in seconds, or "
            "reminder=2026-01-31T12:00:00Z; may be repeated."
        ),
    ] = (),
    detail: Annotated[str, option("Why it is in status error.")] = "",
    broken_by: Annotated[
        BrokenBy | None,
        option("The type of the task that broke it; simple-repair runs a timer again."),
    ] = None,
    result: Annotated[str | None, option("The result that it finished with, JSON.")] = None,
    idempotency_key: Annotated[str, option("Makes the request safe to repeat.")] = "",
    state_version: Annotated[Int32, option("The version of its state; 0: none.")] = 0,
    options: NamespaceOptions = NamespaceOptions(),
) -> None:
    """Import a process in a given state, without its processor."""
    async with client_of(options) as client:
        accepted = await client.put(
            process_id,
            status=ProcessStatus(status),
            state=_optional_json("--state", state),
            metadata=json_object("--metadata", metadata),
            history=[NewEvent(payload=json_bytes("--event", text)) for text in event],
            timer=_new_timer(timer_after, timer_at),
            timers=dict(map(_named_timer, named_timer)),
            detail=detail,
            result=_optional_json("--result", result),
            corrupted_by_type=TaskType(broken_by or "unspecified"),
            idempotency_key=idempotency_key,
            state_version=state_version,
        )
    words = f"imported {process_id}, {status}; its task is {accepted.task_id}"
    show(accepted, words, as_json=options.json)


async def terminate(
    process_id: str,
    /,
    *,
    reason: Annotated[str, option("Why; it is kept as the detail of the process.")],
    options: NamespaceOptions = NamespaceOptions(),
) -> None:
    """End a process in any status as finished, and keep its record.

    What waits on it is cancelled, and a running step is stopped; its processor may have acted.
    """
    async with client_of(options) as client:
        await client.terminate(process_id, reason)
    document = {"terminated": process_id, "reason": reason}
    show(document, f"terminated {process_id}: {one_line(reason)}", as_json=options.json)


async def result(
    process_id: str,
    /,
    *,
    until_finished: Annotated[
        bool, option("Keep waiting while the process is in error, instead of failing.")
    ] = False,
    options: NamespaceOptions = NamespaceOptions(),
) -> None:
    """Wait for a process to complete, and print its result.

    It fails if the process is in error, terminated or removed. --timeout limits the wait.
    """
    async with client_of(options) as client:
        found: bytes | None = await client.result(process_id, until_finished=until_finished)
    show({"result": found}, payload_text(found), as_json=options.json)


async def remove(process_id: str, /, *, options: NamespaceOptions = NamespaceOptions()) -> None:
    """Delete a process in any status with all its data."""
    async with client_of(options) as client:
        await client.remove(process_id)
    show({"removed": process_id}, f"removed {process_id}", as_json=options.json)


def _check_task(task: int | None, idempotency_key: str | None) -> None:
    if (task is None) == (idempotency_key is None):
        raise bad_input("--task", "one of --task and --idempotency-key must be given")


def _show(result: Reply | Receipt | TaskReply, options: NamespaceOptions) -> None:
    response = "" if isinstance(result, Receipt) else payload_text(result.response)
    repeated = not isinstance(result, TaskReply) and result.deduplicated
    pairs = {
        "task": str(result.task_id),
        "response": response,
        "deduplicated": "yes, by an earlier request with this key" if repeated else "",
    }
    show(result, facts(pairs), as_json=options.json)


def _optional_json(option: str, text: str | None) -> bytes | None:
    return None if text is None else json_bytes(option, text)


def _new_timer(after: float | None, at: str | None) -> NewTimer | None:
    if after is None and at is None:
        return None
    if after is not None and at is not None:
        raise bad_input("--timer-at", "only one of --timer-after and --timer-at can be given")
    if after is not None:
        check_range("--timer-after", after, 0, _TIMER_AFTER_MAX)
    return NewTimer(after=after, at=instant("--timer-at", at))


def _named_timer(text: str) -> tuple[str, NewTimer]:
    name, _, due = text.rpartition("=")
    if not name:
        raise bad_input("--named-timer", f"must be NAME=SECONDS or NAME=INSTANT, got {text!r}")
    try:
        after = float(due)
    except ValueError:
        return name, NewTimer(at=instant("--named-timer", due))
    check_range("--named-timer", after, 0, _TIMER_AFTER_MAX)
    return name, NewTimer(after=after)
