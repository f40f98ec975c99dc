"""Commands that change a process: start, call, …, await, cancel, put, remove."""

from typing import Annotated, Literal

from cyclopts.types import Int64

from progressor.cli.input.inputs import (
    NO_REQUEST,
    UNCONSTRAINED,
    ConstraintsInput,
    RequestInput,
    bad_input,
    check_range,
    instant,
    json_bytes,
    json_object,
    option,
)
from progressor.cli.input.options import IN_DEFAULT_NAMESPACE, NamespaceOptions, client_of
from progressor.cli.output.output import facts, payload_text, show
from progressor.sdk.values.processes import (
    NewEvent,
    NewTimer,
    ProcessStatus,
    Receipt,
    Reply,
    TaskReply,
    TaskType,
)

_TIMER_AFTER_MAX = 100 * 365 * 86_400

AcceptOnly = Annotated[
    bool, option("Return once the task is durable; `progressor await` prints its answer.")
]
TaskId = Annotated[Int64 | None, option("The id of the task.")]
BrokenBy = Literal["init", "call", "notify", "repair", "timeout", "remove"]
RequestKey = Annotated[str | None, option("The idempotency key of its request, instead of an id.")]


async def start(
    process_id: str,
    /,
    *,
    metadata: Annotated[str | None, option("The metadata of the process, a JSON object.")] = None,
    accept_only: AcceptOnly = False,
    request: RequestInput = NO_REQUEST,
    constraints: ConstraintsInput = UNCONSTRAINED,
    options: NamespaceOptions = IN_DEFAULT_NAMESPACE,
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
    request: RequestInput = NO_REQUEST,
    constraints: ConstraintsInput = UNCONSTRAINED,
    options: NamespaceOptions = IN_DEFAULT_NAMESPACE,
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
    request: RequestInput = NO_REQUEST,
    constraints: ConstraintsInput = UNCONSTRAINED,
    options: NamespaceOptions = IN_DEFAULT_NAMESPACE,
) -> None:
    """Run a call on a process without waiting for its answer."""
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
    request: RequestInput = NO_REQUEST,
    options: NamespaceOptions = IN_DEFAULT_NAMESPACE,
) -> None:
    """Ask the processor to repair a broken process, and print its answer."""
    async with client_of(options) as client:
        answer = await client.repair(process_id, **request.arguments(), accept_only=accept_only)
    _show(answer, options)


async def simple_repair(
    process_id: str, /, *, options: NamespaceOptions = IN_DEFAULT_NAMESPACE
) -> None:
    """Repair a broken process without its processor; if a timer broke it, the timer runs again."""
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
    options: NamespaceOptions = IN_DEFAULT_NAMESPACE,
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
    options: NamespaceOptions = IN_DEFAULT_NAMESPACE,
) -> None:
    """Cancel a task that is waiting or available; callers that wait for it get an error.

    Cancelling an init task also deletes the process, which was never started.
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
    status: Literal["running", "error", "finished"] = "running",
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
    detail: Annotated[str, option("Why it is in status error.")] = "",
    corrupted_by: Annotated[
        BrokenBy | None,
        option("The type of the task that broke it; simple-repair runs a timer again."),
    ] = None,
    result: Annotated[str | None, option("The result that it finished with, JSON.")] = None,
    idempotency_key: Annotated[str, option("Makes the request safe to repeat.")] = "",
    options: NamespaceOptions = IN_DEFAULT_NAMESPACE,
) -> None:
    """Import a process in a given state, without its processor."""
    async with client_of(options) as client:
        accepted = await client.put(
            process_id,
            status=ProcessStatus(status),
            state=_optional_json("--state", state),
            metadata=json_object("--metadata", metadata),
            history=[NewEvent(payload=json_bytes("--event", text)) for text in event],
            timer=_timer(timer_after, timer_at),
            detail=detail,
            result=_optional_json("--result", result),
            corrupted_by_type=TaskType(corrupted_by or "unspecified"),
            idempotency_key=idempotency_key,
        )
    words = f"imported {process_id}, {status}; its task is {accepted.task_id}"
    show(accepted, words, as_json=options.json)


async def remove(process_id: str, /, *, options: NamespaceOptions = IN_DEFAULT_NAMESPACE) -> None:
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


def _timer(after: float | None, at: str | None) -> NewTimer | None:
    if after is None and at is None:
        return None
    if after is not None and at is not None:
        raise bad_input("--timer-at", "only one of --timer-after and --timer-at can be given")
    if after is not None:
        check_range("--timer-after", after, 0, _TIMER_AFTER_MAX)
    return NewTimer(after=after, at=instant("--timer-at", at))
