"""Commands that create a task, wait for one or cancel one: start, call, …, await, cancel."""

from typing import Annotated

from cyclopts.types import Int64

from progressor.cli.input.engines import client_of
from progressor.cli.input.inputs import (
    NO_REQUEST,
    UNCONSTRAINED,
    ConstraintsInput,
    RequestInput,
    bad_input,
    json_object,
    option,
)
from progressor.cli.input.options import IN_DEFAULT_NAMESPACE, NamespaceOptions
from progressor.cli.output.output import facts, payload_text, show
from progressor.sdk.values.processes import Receipt, Reply, TaskReply

AcceptOnly = Annotated[
    bool, option("Return once the task is durable; `progressor await` prints its answer.")
]
TaskId = Annotated[Int64 | None, option("The id of the task.")]
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
            request.payload(),
            **request.options(),
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
            request.payload(),
            **request.options(),
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
            process_id,
            request.payload(),
            **request.options(),
            constraints=constraints.constraints(),
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
        answer = await client.repair(
            process_id,
            request.payload(),
            **request.options(),
            accept_only=accept_only,
        )
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
