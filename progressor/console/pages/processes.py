"""The list of processes, and one process: why it waits, what it is, what it has done."""

import datetime as dt
from collections.abc import Mapping
from typing import Any, TypeVar

from progressor import errors
from progressor.console.actions import processes
from progressor.console.pages.page import Page
from progressor.console.visits.visit import Ask
from progressor.console.words.words import mark
from progressor.domain.access.rights import Right
from progressor.domain.processes.event import Direction, HistoryRange
from progressor.sdk.client.filters import FilterOptions
from progressor.sdk.codec.wire import WireEnum
from progressor.sdk.values.processes import ProcessStatus, WaitCause

Member = TypeVar("Member", bound=WireEnum)

PAGE_SIZE = 50
_EVENTS_SHOWN = 50
_TASKS_SHOWN = 100

STATUSES = tuple(ProcessStatus)[1:]
CAUSES = tuple(it for it in WaitCause if it is not WaitCause.UNSPECIFIED)


def filter_of(ask: Ask) -> FilterOptions:
    """Return the filter in the address of a page.

    Raises:
        InvalidRequestError: A parameter cannot be read; it is named.
    """
    namespace, found = ask.one("namespace"), FilterOptions()
    if namespace:
        found["namespace"] = namespace
    else:
        found["all_namespaces"] = True
    if statuses := ask.query.get("status"):
        found["statuses"] = tuple(_member(ProcessStatus, "status", it) for it in statuses)
    texts = {it: ask.one(it) for it in ("failure_id", "failure_reason", "id_prefix")}
    instants = {
        it: _instant(it, ask.one(it))
        for it in ("created_from", "created_to", "broken_from", "broken_to")
        if ask.one(it)
    }
    found.update(texts)  # type: ignore[typeddict-item]  # of the names above
    found.update(instants)  # type: ignore[typeddict-item]  # as well
    if text := ask.one("metadata"):
        found["metadata"] = _metadata(text)
    return found


def causes_of(ask: Ask) -> tuple[WaitCause, ...]:
    return tuple(_member(WaitCause, "cause", it) for it in ask.query.get("cause", ()))


def _member(kind: type[Member], name: str, text: str) -> Member:
    try:
        return kind(text)
    except ValueError as error:
        known = ", ".join(tuple(kind)[1:])
        raise _invalid(name, f"must be one of {known}, got {text!r}") from error


def _instant(name: str, text: str) -> dt.datetime:
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError as error:
        example = "2026-01-31T12:00:00Z"
        raise _invalid(name, f"must be an instant such as {example}, got {text!r}") from error
    return found if found.tzinfo else found.replace(tzinfo=dt.UTC)


def _metadata(text: str) -> dict[str, str]:
    found = {}
    for pair in text.split(","):
        key, equals, value = pair.partition("=")
        if not (key.strip() and equals):
            raise _invalid("metadata", f"must be KEY=VALUE, got {pair!r}")
        found[key.strip()] = value.strip()
    return found


def _invalid(name: str, description: str) -> errors.InvalidRequestError:
    return errors.InvalidRequestError(errors.FieldViolation(name, description))


async def _load_list(ask: Ask) -> Mapping[str, Any]:
    chosen, causes = filter_of(ask), causes_of(ask)
    listing = ask.client.list(causes=causes, page_size=PAGE_SIZE, **chosen)
    found, following = await listing.page(ask.one("page"))
    namespaces, _ = await ask.client.namespaces.list(page_size=1000).page()
    return {
        "processes": found,
        "following": following,
        "namespaces": [it.name for it in namespaces],
        "statuses": STATUSES,
        "causes": CAUSES,
        "query": ask.query,
    }


async def _load_process(ask: Ask) -> Mapping[str, Any]:
    namespace = ask.place["namespace"]
    history = HistoryRange(limit=_EVENTS_SHOWN, direction=Direction.BACKWARD)
    snapshot = await ask.client.get(ask.name, namespace=namespace, history=history)
    trace = await ask.client.trace(
        ask.name, namespace=namespace, page_size=_TASKS_SHOWN, page_token=ask.one("page")
    )
    return {
        "snapshot": snapshot,
        "process": snapshot.process,
        "trace": trace,
        "may_operate": ask.may(Right.OPERATE, namespace),
        "may_call": ask.may(Right.CALL, namespace),
    }


LIST = Page(
    path="/processes",
    template="processes.html",
    section="processes",
    title=mark("Processes"),
    load=_load_list,
)
PROCESS = Page(
    path="/processes/{namespace}/{name:path}",
    template="process.html",
    section="processes",
    title=mark("Process"),
    load=_load_process,
    actions=processes.ACTIONS,
)
