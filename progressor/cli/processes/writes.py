"""Commands that write a process without its processor: put, remove."""

from typing import Annotated, Literal

from progressor.cli.input.engines import client_of
from progressor.cli.input.inputs import (
    bad_input,
    check_range,
    instant,
    json_bytes,
    json_object,
    option,
)
from progressor.cli.input.options import IN_DEFAULT_NAMESPACE, NamespaceOptions
from progressor.cli.output.output import show
from progressor.sdk.values.processes import NewEvent, NewTimer, ProcessStatus, TaskType

_TIMER_AFTER_MAX = 100 * 365 * 86_400

_TYPES = Literal["init", "call", "notify", "repair", "timeout", "remove"]


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
        _TYPES | None,
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
