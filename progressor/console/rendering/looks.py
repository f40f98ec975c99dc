"""What a status looks like: an icon, a colour and a word of its own, in one order everywhere."""

import dataclasses
from collections.abc import Mapping
from typing import TypeVar

from progressor.console.words.words import mark
from progressor.sdk.client.bulk import BulkResult, BulkState
from progressor.sdk.client.replicas import FindingState, ReplicaState
from progressor.sdk.client.schedules import ScheduleRunState
from progressor.sdk.codec.wire import WireEnum
from progressor.sdk.values.jobs import JobState, NodeState
from progressor.sdk.values.processes import ProcessStatus, TaskStatus

State = TypeVar("State", bound=WireEnum)


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """How something is shown: ``name`` is its icon in icons.svg and its class in console.css."""

    name: str
    word: str
    is_actionable: bool = True


NOT_STARTED = Look("not-started", mark("not started"))
PENDING = Look("pending", mark("pending"))
AVAILABLE = Look("available", mark("ready"))
RUNNING = Look("running", mark("running"))
DONE = Look("done", mark("done"), is_actionable=False)
SKIPPED = Look("skipped", mark("skipped"), is_actionable=False)
FAILED = Look("failed", mark("failed"))
CANCELLED = Look("cancelled", mark("cancelled"))

LOOKS = (NOT_STARTED, PENDING, AVAILABLE, RUNNING, DONE, SKIPPED, FAILED, CANCELLED)
"""In the order in which they are listed: as work goes through them, then as it ends."""

ATTENTION = Look("attention", mark("warning"))

_UNKNOWN = Look("unknown", mark("unknown"))

_LOOKS: Mapping[type[WireEnum], Mapping[str, Look]] = {
    ProcessStatus: {
        "init": dataclasses.replace(NOT_STARTED, word=mark("starting")),
        "running": RUNNING,
        "error": dataclasses.replace(FAILED, word=mark("in error")),
        "finished": dataclasses.replace(DONE, word=mark("finished")),
    },
    TaskStatus: {
        "waiting": PENDING,
        "blocked": dataclasses.replace(PENDING, word=mark("blocked")),
        "available": AVAILABLE,
        "running": RUNNING,
        "finished": DONE,
        "error": FAILED,
        "cancelled": CANCELLED,
    },
    NodeState: {
        "waiting": NOT_STARTED,
        "ready": AVAILABLE,
        "running": RUNNING,
        "done": DONE,
        "skipped": SKIPPED,
        "failed": FAILED,
        "cancelled": CANCELLED,
    },
    JobState: {"running": RUNNING, "done": DONE, "failed": FAILED, "cancelled": CANCELLED},
    BulkState: {
        "matching": dataclasses.replace(PENDING, word=mark("matching")),
        "running": RUNNING,
        "following": dataclasses.replace(RUNNING, word=mark("following")),
        "done": DONE,
        "stopped": dataclasses.replace(CANCELLED, word=mark("stopped")),
        "failed": FAILED,
    },
    BulkResult: {"pending": PENDING, "done": DONE, "skipped": SKIPPED, "failed": FAILED},
    ScheduleRunState: {
        "queued": PENDING,
        "running": RUNNING,
        "done": DONE,
        "failed": FAILED,
        "cancelled": CANCELLED,
        "gone": dataclasses.replace(_UNKNOWN, word=mark("removed")),
        "skipped": SKIPPED,
        "missed": dataclasses.replace(SKIPPED, word=mark("missed")),
        "refused": dataclasses.replace(FAILED, word=mark("refused")),
    },
    ReplicaState: {
        "serving": dataclasses.replace(RUNNING, word=mark("serving")),
        "draining": dataclasses.replace(PENDING, word=mark("draining")),
        "silent": dataclasses.replace(FAILED, word=mark("silent")),
    },
    FindingState: {
        "ok": dataclasses.replace(DONE, word=mark("ok")),
        "not_done": dataclasses.replace(SKIPPED, word=mark("not done")),
        "warning": ATTENTION,
        "failed": FAILED,
    },
}


def look_of(status: WireEnum) -> Look:
    """Return how a status is shown; one that only a newer release knows is unknown."""
    return _LOOKS[type(status)].get(status, _UNKNOWN)


def in_order(counts: Mapping[State, int]) -> tuple[tuple[State, int], ...]:
    """Return the statuses that occur and how often, in the order in which they are listed."""
    places = {look.name: place for place, look in enumerate(LOOKS)}
    found = ((status, count) for status, count in counts.items() if count)
    return tuple(sorted(found, key=lambda it: places.get(look_of(it[0]).name, len(LOOKS))))
