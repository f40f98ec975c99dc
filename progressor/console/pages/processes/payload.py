"""One payload of a process, whole."""

import contextlib
from typing import Any

from progressor import errors
from progressor.console.actions.action import invalid
from progressor.console.visits.visit import Ask
from progressor.domain.processes.event import NO_HISTORY, HistoryRange

_KINDS = ("state", "result", "event", "args", "response")
_PAGE_SIZE = 100
_PAGES_MAX = 10
_ID_DIGITS_MAX = 18


async def read(ask: Ask) -> tuple[str, bytes]:
    """Return the name of a file and what is in it, as the address of a download says.

    Raises:
        InvalidRequestError: A parameter cannot be read; it is named.
        NotFoundError: There is no such process, event or task.
    """
    kind = ask.one("of")
    match kind:
        case "state" | "result":
            process = (await _get(ask, NO_HISTORY)).process
            return kind, getattr(process, kind) or b""
        case "event":
            event_id = _id(ask, "event")
            wanted = HistoryRange(after=event_id - 1, limit=1)
            with contextlib.suppress(errors.EventNotFoundError):
                for event in (await _get(ask, wanted)).history:
                    return f"event-{event_id}", event.payload or b""
            raise errors.EventNotFoundError(ask.one("process"), event_id)
        case "args" | "response":
            task_id = _id(ask, "task")
            return f"{kind}-{task_id}", getattr(await _task(ask, task_id), kind) or b""
        case _:
            raise invalid("of", f"must be one of {', '.join(_KINDS)}, got {kind!r}")


def _id(ask: Ask, name: str) -> int:
    text = ask.one(name)
    if not (text.isascii() and text.isdecimal() and len(text) <= _ID_DIGITS_MAX and int(text)):
        raise invalid(name, f"must be an id, got {text!r}")
    return int(text)


async def _get(ask: Ask, history: HistoryRange) -> Any:  # noqa: ANN401  # a snapshot of bytes
    return await ask.client.get(ask.one("process"), namespace=ask.one("namespace"), history=history)


async def _task(ask: Ask, task_id: int) -> Any:  # noqa: ANN401  # a trace of bytes
    """Return a task of the page that a link is on, or a little further, since new ones come."""
    token = ask.one("tasks")
    for _ in range(_PAGES_MAX):
        trace = await ask.client.trace(
            ask.one("process"),
            namespace=ask.one("namespace"),
            page_size=_PAGE_SIZE,
            page_token=token,
            newest_first=True,
        )
        for task in trace.tasks:
            if task.task_id == task_id:
                return task
        token = trace.next_page_token
        if not token:
            break
    raise errors.TaskNotFoundError(ask.one("process"), task_id)
