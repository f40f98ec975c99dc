"""The list of processes."""

from collections.abc import Mapping
from typing import Any

from progressor.console.pages.page import Page
from progressor.console.visits.filters import (
    CAUSES,
    STATUSES,
    causes_of,
    filter_of,
    parts_of,
    query_of,
)
from progressor.console.visits.visit import Ask
from progressor.console.words.words import mark
from progressor.domain.access.rights import Right
from progressor.domain.processes.process import ProcessCounts

PAGE_SIZE = 50
NAMESPACES_MAX = 1000
_COUNTED = {"namespace", "status"}
"""With no more than these a count is exact, and takes as long however many processes there are."""


async def _load(ask: Ask) -> Mapping[str, Any]:
    chosen, causes = filter_of(ask), causes_of(ask)
    listing = ask.client.list(causes=causes, page_size=PAGE_SIZE, **chosen)
    found, following = await listing.page(ask.one("page"))
    parts = tuple(parts_of(ask))
    return {
        "processes": found,
        "following": following,
        "namespaces": await namespaces_of(ask),
        "statuses": STATUSES,
        "causes": CAUSES,
        "query": {**query_of(ask), "cause": causes},
        "parts": parts,
        "counts": await _counts(ask) if {it.name for it in parts} <= _COUNTED else None,
        "may_operate": not causes and ask.may(Right.OPERATE, ask.one("namespace") or "*"),
    }


async def namespaces_of(ask: Ask) -> list[str]:
    """Return the names to choose from."""
    found, _ = await ask.client.namespaces.list(page_size=NAMESPACES_MAX).page("")
    return [it.name for it in found]


async def _counts(ask: Ask) -> Mapping[str, Any]:
    """Return the counts by status in the namespaces of a filter, whatever statuses it has."""
    namespace = ask.one("namespace")
    counted = await ask.client.count(namespace=namespace, all_namespaces=not namespace)
    totals = {it: sum(_count(of, it) for of in counted.namespaces) for it in STATUSES}
    return {"statuses": totals, "is_estimate": counted.is_estimate}


def _count(counts: ProcessCounts, status: str) -> int:
    count: int = getattr(counts, f"{status}_count")
    return count


PAGE = Page(
    path="/processes",
    template="processes/list.html",
    section="processes",
    title=mark("Processes"),
    load=_load,
)
