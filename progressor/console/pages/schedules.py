"""The schedules of a namespace, and one schedule: when it runs, and what became of its runs."""

from collections.abc import Mapping
from typing import Any

from progressor.console.actions import schedules
from progressor.console.pages.page import Page, namespace_of
from progressor.console.visits.visit import Ask
from progressor.console.words.words import mark
from progressor.sdk.client.schedules import (
    ScheduledCall,
    ScheduledJob,
    ScheduledNotify,
    ScheduledStart,
    ScheduleRunCause,
    Target,
)
from progressor.sdk.codec.wire import timedelta_of

_PAGE_SIZE = 100
_NEXT_SHOWN = 10
_RUNS_SHOWN = 100

_CAUSES: Mapping[ScheduleRunCause, str] = {
    ScheduleRunCause.TIME: mark("its time"),
    ScheduleRunCause.TRIGGER: mark("triggered"),
    ScheduleRunCause.BACKFILL: mark("backfilled"),
}
_KINDS: Mapping[type[Target], str] = {
    ScheduledStart: "start",
    ScheduledCall: "call",
    ScheduledNotify: "notify",
    ScheduledJob: "job",
}


async def _load_list(ask: Ask) -> Mapping[str, Any]:
    namespace, namespaces = await namespace_of(ask)
    listing = ask.client.schedules.list(page_size=_PAGE_SIZE, namespace=namespace)
    found, following = await listing.page(ask.one("page"))
    return {
        "schedules": [(it, _KINDS[type(it.spec.target)]) for it in found],
        "following": following,
        "namespace": namespace,
        "namespaces": namespaces,
    }


async def _load_schedule(ask: Ask) -> Mapping[str, Any]:
    view = await ask.client.schedules.get(
        ask.name,
        next_count=_NEXT_SHOWN,
        last_count=_RUNS_SHOWN,
        namespace=ask.place["namespace"],
    )
    spec = view.schedule.spec
    return {
        "schedule": view.schedule,
        "spec": spec,
        "kind": _KINDS[type(spec.target)],
        "jitter": timedelta_of(spec.jitter),
        "catch_up_window": timedelta_of(spec.catch_up_window),
        "overlap": schedules.OVERLAPS.get(spec.overlap_policy, spec.overlap_policy),
        "next_runs": view.next_runs,
        "runs": [(it, _CAUSES.get(it.cause, it.cause)) for it in view.last_runs],
        "runs_max": _RUNS_SHOWN,
    }


LIST = Page(
    path="/schedules",
    template="schedules/list.html",
    section="schedules",
    title=mark("Schedules"),
    load=_load_list,
)
SCHEDULE = Page(
    path="/schedules/{namespace}/{name:path}",
    template="schedules/schedule.html",
    section="schedules",
    title=mark("Schedule"),
    load=_load_schedule,
    actions=schedules.ACTIONS,
)
