"""Actions on one process."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from progressor import errors
from progressor.console.actions.action import Action, Done, Entered, Field, invalid
from progressor.console.rendering.payloads import payload_text
from progressor.console.visits.visit import Links
from progressor.console.words.words import mark
from progressor.domain.access.rights import Right
from progressor.sdk.values.processes import ProcessStatus, Reply

_TASK_ID_MAX = 2**63 - 1
_RESPONSE_CHARACTERS = 2_000


ARGS = Field(
    name="args",
    label=mark("Args"),
    kind="lines",
    help=mark("JSON, sent to the processor as it is; empty for none."),
)
_KEY = Field(name="idempotency_key", label="", kind="key")
_REASON = Field(name="reason", label=mark("Reason"), is_required=True)


def _words(command: str, *options: tuple[str, str]) -> Callable[[Entered], tuple[str, ...]]:
    """Return what builds ``command ID -n NAMESPACE``, with options whose fields are filled in."""

    def build(entered: Entered) -> tuple[str, ...]:
        given = [
            word
            for option, field in options
            if (text := entered.text(field))
            for word in (option, text)
        ]
        return (*command.split(), entered.name, "-n", entered.namespace, *given)

    return build


def _in(*statuses: ProcessStatus) -> Callable[[Mapping[str, Any]], bool]:
    """Return whether a process is in one of these statuses."""
    return lambda facts: facts["process"].status in statuses


_IS_ALIVE = _in(ProcessStatus.INIT, ProcessStatus.RUNNING)
_IS_BROKEN = _in(ProcessStatus.ERROR)
_HAS_NOT_ENDED = _in(ProcessStatus.INIT, ProcessStatus.RUNNING, ProcessStatus.ERROR)


def args_of(entered: Entered) -> bytes:
    """Return the args in a form, as they are.

    Raises:
        InvalidRequestError: They are not JSON.
    """
    text = entered.text("args").encode()
    if text:
        try:
            msgspec.json.decode(text, type=msgspec.Raw)
        except (msgspec.DecodeError, RecursionError) as error:
            raise invalid("args", f"is not JSON: {error}") from error
    return text


async def _answered(request: Awaitable[Reply[Any]]) -> Done:
    """Return what to say of a request that waits for its answer."""
    try:
        reply = await request
    except errors.DeadlineExceededError:
        return Done(mark("The request was accepted, and has not been answered yet."))
    text = payload_text(reply.response, _RESPONSE_CHARACTERS)
    if not text:
        return Done(mark("Task %(task)s was carried out."), {"task": str(reply.task_id)})
    return Done(
        mark("Task %(task)s was answered: %(response)s"),
        {"task": str(reply.task_id), "response": text},
    )


async def _call(entered: Entered) -> Done:
    return await _answered(
        entered.ask.client.call(
            entered.name,
            args_of(entered),
            idempotency_key=entered.text("idempotency_key"),
            namespace=entered.namespace,
        )
    )


async def _notify(entered: Entered) -> Done:
    receipt = await entered.ask.client.notify(
        entered.name,
        args_of(entered),
        idempotency_key=entered.text("idempotency_key"),
        namespace=entered.namespace,
    )
    return Done(mark("The notification became task %(task)s."), {"task": str(receipt.task_id)})


async def _repair(entered: Entered) -> Done:
    return await _answered(
        entered.ask.client.repair(
            entered.name,
            args_of(entered),
            idempotency_key=entered.text("idempotency_key"),
            namespace=entered.namespace,
        )
    )


async def _retry(entered: Entered) -> Done:
    await entered.ask.client.retry(entered.name, namespace=entered.namespace)
    return Done(mark("The task that broke the process runs again."))


async def _simple_repair(entered: Entered) -> Done:
    done = await entered.ask.client.simple_repair(entered.name, namespace=entered.namespace)
    if done.task_id is None:
        return Done(mark("The process is running again."))
    return Done(mark("The process is running again, with task %(task)s."), _task(done.task_id))


async def _cancel(entered: Entered) -> Done:
    task_id = await entered.ask.client.cancel(
        entered.name,
        task_id=entered.whole("task_id", 1, _TASK_ID_MAX),
        namespace=entered.namespace,
    )
    return Done(mark("Task %(task)s was cancelled."), _task(task_id))


async def _terminate(entered: Entered) -> Done:
    await entered.ask.client.terminate(
        entered.name, reason=entered.text("reason"), namespace=entered.namespace
    )
    return Done(mark("The process was ended."))


async def _remove(entered: Entered) -> Done:
    await entered.ask.client.remove(entered.name, namespace=entered.namespace)
    links = Links(entered.ask.options.base_path)
    address = links.to("/processes", {"namespace": entered.namespace})
    return Done(mark("Process %(process)s was removed."), {"process": entered.name}, address)


def _task(task_id: int) -> Mapping[str, str]:
    return {"task": str(task_id)}


CALL = Action(
    name="call",
    word=mark("Call"),
    explanation=mark("Runs a call on the process, and waits for the processor's answer."),
    right=Right.CALL,
    fields=(ARGS, _KEY),
    run=_call,
    command=_words("call", ("--args", "args"), ("--idempotency-key", "idempotency_key")),
    fits=_IS_ALIVE,
)
NOTIFY = Action(
    name="notify",
    word=mark("Notify"),
    explanation=mark("Sends the process a call without waiting for its response."),
    right=Right.CALL,
    fields=(ARGS, _KEY),
    run=_notify,
    command=_words("notify", ("--args", "args"), ("--idempotency-key", "idempotency_key")),
    fits=_IS_ALIVE,
)
RETRY = Action(
    name="retry",
    word=mark("Retry"),
    explanation=mark("Runs the task that broke the process again, with its retry policy."),
    right=Right.OPERATE,
    run=_retry,
    command=_words("retry"),
    fits=_IS_BROKEN,
)
REPAIR = Action(
    name="repair",
    word=mark("Repair"),
    explanation=mark("Asks the processor to repair the process, and waits for its answer."),
    right=Right.OPERATE,
    fields=(ARGS, _KEY),
    run=_repair,
    command=_words("repair", ("--args", "args"), ("--idempotency-key", "idempotency_key")),
    fits=_IS_BROKEN,
)
SIMPLE_REPAIR = Action(
    name="simple_repair",
    word=mark("Repair without the processor"),
    explanation=mark(
        "Runs a timer that broke the process again; any other task is left behind, and the "
        "process is running at once."
    ),
    right=Right.OPERATE,
    run=_simple_repair,
    command=_words("simple-repair"),
    fits=_IS_BROKEN,
)
CANCEL = Action(
    name="cancel",
    word=mark("Cancel a task"),
    explanation=mark(
        "Ends one task that has not ended; its callers get an error, and the process continues "
        "without it."
    ),
    warning=mark(
        "A cancelled task does not run again. If it is running, its processor may have acted. "
        "Cancelling an init task also deletes the process."
    ),
    right=Right.OPERATE,
    fields=(Field(name="task_id", label=mark("Task"), kind="number", is_required=True),),
    run=_cancel,
    command=_words("cancel", ("--task", "task_id")),
    fits=_HAS_NOT_ENDED,
)
TERMINATE = Action(
    name="terminate",
    word=mark("Terminate"),
    explanation=mark("Ends the process and cancels its tasks; its record stays."),
    warning=mark("A process that was ended cannot be brought back."),
    right=Right.OPERATE,
    fields=(_REASON,),
    run=_terminate,
    command=_words("terminate", ("--reason", "reason")),
    fits=_HAS_NOT_ENDED,
)
REMOVE = Action(
    name="remove",
    word=mark("Remove"),
    explanation=mark("Deletes the process with its tasks and its history, in any status."),
    warning=mark("A process that was removed cannot be brought back; nothing of it remains."),
    right=Right.OPERATE,
    run=_remove,
    command=_words("remove"),
)

ACTIONS = (RETRY, REPAIR, SIMPLE_REPAIR, CALL, NOTIFY, CANCEL, TERMINATE, REMOVE)
