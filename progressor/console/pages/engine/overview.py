"""The first page: rates, namespaces, what waits, failures and replicas."""

from collections.abc import Mapping
from typing import Any

from progressor import errors
from progressor.console.pages.engine.activity import AWAY, TIMEOUT_SECONDS, waiting_of
from progressor.console.pages.engine.charts import chart_of
from progressor.console.pages.page import Page
from progressor.console.visits.visit import Ask
from progressor.console.words.words import mark
from progressor.sdk.client.client import Client
from progressor.sdk.client.overview import Overview
from progressor.sdk.values.namespaces import NamespaceConfig
from progressor.sdk.values.processes import FailureGroup

_FAILURES_SHOWN = 5
_NAMESPACES_READ = 1000


async def _load(ask: Ask) -> Mapping[str, Any]:
    away: errors.ProgressorError | None = None
    paused: Mapping[str, NamespaceConfig] = {}
    failures: tuple[FailureGroup, ...] = ()
    more = ""
    try:
        activity = await ask.client.replicas.activity(timeout=TIMEOUT_SECONDS)
        overview, rates = ask.meters.read(ask.identity, activity)
        paused = await _paused(ask.client, overview)
        failures, more = await _failures(ask.client)
    except AWAY as error:
        last = ask.meters.last(ask.identity)
        if last is None:
            raise
        (overview, rates), away = last, error
    queues = [it.queue for it in overview.namespaces if it.queue is not None]
    return {
        "overview": overview,
        "is_idle": _is_idle(overview),
        "chart": chart_of(rates),
        "waiting": waiting_of(overview, queues),
        "paused": paused,
        "failures": failures,
        "more": bool(more),
        "away": away,
    }


async def _paused(client: Client, overview: Overview) -> Mapping[str, NamespaceConfig]:
    """Return the paused namespaces by their names; asks only if there are some."""
    if not any(it.queue and it.queue.paused_age is not None for it in overview.namespaces):
        return {}
    found, _ = await client.namespaces.list(page_size=_NAMESPACES_READ).page("")
    return {it.name: it for it in found if it.pause is not None}


async def _failures(client: Client) -> tuple[tuple[FailureGroup, ...], str]:
    listing = client.failures(all_namespaces=True, broken_only=True, page_size=_FAILURES_SHOWN)
    return await listing.page()


def _is_idle(overview: Overview) -> bool:
    totals = overview.totals
    due = totals.queue is None or totals.queue.worker_age is not None
    return not (totals.busy_count or totals.pace.settled_per_second or due)


PAGE = Page(
    path="/",
    template="engine/overview.html",
    section="overview",
    title=mark("Overview"),
    load=_load,
)
