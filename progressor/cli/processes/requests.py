"""Commands that ask for a task, or about one: start, call, …, await, cancel."""

from typing import Annotated

from cyclopts.types import Int64
from rich.text import Text

from progressor.cli.input.engines import client_of
from progressor.cli.input.inputs import (
    ConstraintsInput,
    RequestInput,
    bad_input,
    json_object,
    option,
)
from progressor.cli.input.options import DEFAULT_TARGET, Target
from progressor.cli.output.output import Output, facts, payload_text
from progressor.sdk.values.processes import Accepted, Answer, TaskAnswer

_NO_INPUT = RequestInput()
_UNCONSTRAINED = ConstraintsInput()

AcceptOnly = Annotated[
    bool, option("Return once the task is durable; `progressor await` fetches the answer.")
]


async def start(
    process_id: str,
    /,
    *,
    metadata: Annotated[str | None, option("A JSON object, its metadata from the start.")] = None,
    accept_only: AcceptOnly = False,
    request: RequestInput = _NO_INPUT,
    constraints: ConstraintsInput = _UNCONSTRAINED,
    target: Target = DEFAULT_TARGET,
) -> None:
    """Create a process, run its init task and print the processor's answer."""
    async with client_of(target) as client:
        answer = await client.start(
            process_id,
            request.payload(),
            idempotency_key=request.idempotency_key,
            context=request.caller_context(),
            history=request.history(),
            constraints=constraints.constraints(),
            metadata=json_object("--metadata", metadata),
            accept_only=accept_only,
        )
    _show(answer, target)


async def call(
    process_id: str,
    /,
    *,
    accept_only: AcceptOnly = False,
    request: RequestInput = _NO_INPUT,
    constraints: ConstraintsInput = _UNCONSTRAINED,
    target: Target = DEFAULT_TARGET,
) -> None:
    """Run a call on a process and print the processor's answer."""
    async with client_of(target) as client:
        answer = await client.call(
            process_id,
            request.payload(),
            idempotency_key=request.idempotency_key,
            context=request.caller_context(),
            history=request.history(),
            constraints=constraints.constraints(),
            accept_only=accept_only,
        )
    _show(answer, target)


async def notify(
    process_id: str,
    /,
    *,
    request: RequestInput = _NO_INPUT,
    constraints: ConstraintsInput = _UNCONSTRAINED,
    target: Target = DEFAULT_TARGET,
) -> None:
    """Leave a call without an answer with a process."""
    async with client_of(target) as client:
        accepted = await client.notify(
            process_id,
            request.payload(),
            idempotency_key=request.idempotency_key,
            context=request.caller_context(),
            history=request.history(),
            constraints=constraints.constraints(),
        )
    _show(accepted, target)


async def repair(
    process_id: str,
    /,
    *,
    accept_only: AcceptOnly = False,
    request: RequestInput = _NO_INPUT,
    target: Target = DEFAULT_TARGET,
) -> None:
    """Ask the processor to bring a broken process back, and print its answer."""
    async with client_of(target) as client:
        answer = await client.repair(
            process_id,
            request.payload(),
            idempotency_key=request.idempotency_key,
            context=request.caller_context(),
            history=request.history(),
            accept_only=accept_only,
        )
    _show(answer, target)


async def simple_repair(process_id: str, /, *, target: Target = DEFAULT_TARGET) -> None:
    """Bring a broken process back without asking; a timer that broke it runs again."""
    async with client_of(target) as client:
        repaired = await client.simple_repair(process_id)
    again = "" if repaired.task_id is None else f"; task {repaired.task_id} runs again"
    Output(as_json=target.json).show(repaired, Text(f"{process_id} is running{again}"))


async def await_task(
    process_id: str,
    /,
    *,
    task: Annotated[Int64 | None, option("The id of the task.")] = None,
    idempotency_key: Annotated[str | None, option("The request's key, in place of an id.")] = None,
    target: Target = DEFAULT_TARGET,
) -> None:
    """Wait for a task and end as the request that made it would have ended."""
    _check_task(task, idempotency_key)
    async with client_of(target) as client:
        answer = await client.await_task(process_id, task_id=task, idempotency_key=idempotency_key)
    _show(answer, target)


async def cancel(
    process_id: str,
    /,
    *,
    task: Annotated[Int64 | None, option("The id of the task.")] = None,
    idempotency_key: Annotated[str | None, option("The request's key, in place of an id.")] = None,
    target: Target = DEFAULT_TARGET,
) -> None:
    """Cancel a task that waits or is available; who waits for its answer is told.

    Cancelling an init task also deletes the process, which was never started.
    """
    _check_task(task, idempotency_key)
    async with client_of(target) as client:
        task_id = await client.cancel(process_id, task_id=task, idempotency_key=idempotency_key)
    words = f"task {task_id} of {process_id} is cancelled"
    Output(as_json=target.json).show({"task_id": task_id}, Text(words))


def _check_task(task: int | None, idempotency_key: str | None) -> None:
    if (task is None) == (idempotency_key is None):
        raise bad_input("--task", "either --task or --idempotency-key must be given")


def _show(result: Answer | Accepted | TaskAnswer, target: Target) -> None:
    response = "" if isinstance(result, Accepted) else payload_text(result.response)
    repeated = not isinstance(result, TaskAnswer) and result.deduplicated
    pairs = {
        "task": str(result.task_id),
        "response": response,
        "deduplicated": "an earlier request with this key did the work" if repeated else "",
    }
    Output(as_json=target.json).show(result, facts(pairs))
