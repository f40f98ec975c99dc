"""The first page: rates, namespaces, what is oldest, failures and replicas."""

from collections.abc import Mapping
from typing import Any

from progressor.console.pages.page import Page
from progressor.console.visits.visit import Ask
from progressor.console.words.words import mark

_FAILURES_SHOWN = 5


async def _load(ask: Ask) -> Mapping[str, Any]:
    overview, rates = ask.meters.read(ask.identity, await ask.client.replicas.activity())
    broken = ask.client.failures(all_namespaces=True, broken_only=True, page_size=_FAILURES_SHOWN)
    failures, more = await broken.page()
    return {"overview": overview, "rates": rates, "failures": failures, "more": bool(more)}


PAGE = Page(
    path="/", template="overview.html", section="overview", title=mark("Overview"), load=_load
)
