"""Operations on many processes: all of them, one, and a new one with its preview."""

import contextlib
import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import Any

from progressor import errors
from progressor.console.actions import bulk
from progressor.console.pages.page import Page
from progressor.console.visits.filters import FIELDS, Part, filter_of, parts_of, query_of
from progressor.console.visits.visit import Ask
from progressor.console.words.words import mark
from progressor.domain.access.rights import EVERYTHING, Right
from progressor.domain.processes.policy import Pause
from progressor.domain.views.bulk import OPERATIONS
from progressor.sdk.client.bulk import BulkFilter

_PAGE_SIZE = 50
_COUNTED_MAX = 10_000
"""Processes of an operation of which a look counts what has become of each."""


async def _load_list(ask: Ask) -> Mapping[str, Any]:
    found, following = await ask.client.bulk.list(page_size=_PAGE_SIZE).page(ask.one("page"))
    return {
        "operations": found,
        "following": following,
        "filters": {it.operation_id: filter_parts(it.filter) for it in found},
        "pause": await _pause(ask),
        "may_operate": ask.may(Right.OPERATE, EVERYTHING),
    }


async def _load_new(ask: Ask) -> Mapping[str, Any]:
    kind = bulk.kind_of(ask)
    preview = await ask.client.bulk.preview(kind, **filter_of(ask))
    return {
        "kind": kind,
        "kinds": bulk.KINDS,
        "preview": preview,
        "rate": bulk.RATE_DEFAULT,
        "takes": dt.timedelta(seconds=max(1, preview.matched_count // bulk.RATE_DEFAULT)),
        "parts": tuple(parts_of(ask)),
        "query": query_of(ask),
    }


async def _load_operation(ask: Ask) -> Mapping[str, Any]:
    operation = await ask.client.bulk.get(ask.name)
    if operation.matched_count <= _COUNTED_MAX:
        operation = await ask.client.bulk.get(ask.name, count_outcomes=True)
    shows_failed = ask.one("failed") == "yes"
    listing = ask.client.bulk.results(ask.name, failed=shows_failed, page_size=_PAGE_SIZE)
    found, following = await listing.page(ask.one("page"))
    return {
        "operation": operation,
        "parts": filter_parts(operation.filter),
        "results": found,
        "following": following,
        "shows_failed": shows_failed,
        "pause": None if operation.has_ended else await _pause(ask),
        "operations_namespace": OPERATIONS,
    }


def filter_parts(chosen: BulkFilter) -> tuple[Part, ...]:
    """Return the parts of the filter of an operation."""
    found = []
    for name, value in dataclasses.asdict(chosen).items():
        match value:
            case dict():
                found += [(name, f"{key}={it}") for key, it in value.items()]
            case tuple():
                found += [("status", str(it)) for it in value]
            case dt.datetime():
                found.append((name, value.isoformat(timespec="milliseconds")))
            case None | "":
                pass
            case _:
                found.append((name, str(value)))
    return tuple(Part(name, value, {}) for name, value in found)


async def _pause(ask: Ask) -> Pause | None:
    """Return the pause of all operations; None also if the visitor may not know."""
    with contextlib.suppress(errors.ProgressorError):
        return (await ask.client.namespaces.get(OPERATIONS)).pause
    return None


LIST = Page(
    path="/bulk",
    template="bulk/list.html",
    section="bulk",
    title=mark("Bulk operations"),
    load=_load_list,
)
NEW = Page(
    path="/bulk/new",
    template="bulk/new.html",
    section="bulk",
    title=mark("New bulk operation"),
    load=_load_new,
    actions=bulk.STARTS,
    parameters=frozenset({"kind", *FIELDS}),
    is_live=False,
)
OPERATION = Page(
    path="/bulk/{name:path}",
    template="bulk/operation.html",
    section="bulk",
    title=mark("Bulk operation"),
    load=_load_operation,
    actions=(bulk.STOP,),
)
