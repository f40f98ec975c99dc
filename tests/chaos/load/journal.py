"""Journals of processors: which steps they were asked for, and when these began and ended.

A journal has a line of JSON for each step, written before anything comes of it, and for steps with
constraints and those of nodes another one when they end. What was written survives kill -9.
"""

import collections
import contextlib
import dataclasses
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from progressor.sdk import Step
from progressor.sdk.processor.links import TurnLink
from tests.chaos.history import TAIL, Asked, Deed

TORN = "torn"
"""The deed of a line about a step whose aux_state was not of its history."""

NODE = "node"
"""The deed of a line about a step of a job's node."""

_END = "end"


class Journal:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    @contextlib.contextmanager
    def noting(
        self, step: Step[Any], deed: str, element: str = "", *, spans: bool
    ) -> Iterator[None]:
        """Write a line before the step; where it `spans`, one when it ends."""
        self.note(step, deed, element, spans=spans, wall=time.time())
        try:
            yield
        finally:
            if spans:
                self.note(step, _END)

    def note(self, step: Step[Any], deed: str, element: str = "", **fields: Any) -> None:
        line = {
            "process_id": step.process_id,
            "task_id": step.task_id,
            "attempt": step.attempt,
            "deed": deed,
            "at": time.monotonic(),
            **fields,
        }
        if deed not in {NODE, _END}:
            before = [event.payload["id"] for event in step.history]
            line |= {
                "task_type": str(step.type),
                "element": element,
                "first": before[0] if before else "",
                "length": len(before),
                "before": before[-TAIL:],
                # Only the SDK knows: for handlers it makes no difference.
                "is_ahead": isinstance(step._link, TurnLink),
            }
        os.write(self._file, json.dumps(line).encode() + b"\n")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A step as its processor noted it; ``wall`` is the time of day when it began.

    ``ended_at`` is infinite if no end was noted.
    """

    task_id: int
    attempt: int
    begun_at: float
    ended_at: float = math.inf
    process_id: str = ""
    wall: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Journals:
    """What journals say: all steps but those of nodes, what was torn, and spans of two kinds."""

    asked: list[Asked]
    torn: list[str]
    gated: list[Span]
    nodes: list[Span]


def read_journals(paths: Iterable[Path]) -> Journals:
    """Read all lines of journals, of which some may not be there."""
    found = Journals([], [], [], [])
    begun: list[tuple[dict[str, Any], list[Span]]] = []
    ends: dict[tuple[str, int, int], list[float]] = collections.defaultdict(list)
    for entry in itertools.chain.from_iterable(map(_entries, paths)):
        match entry["deed"]:
            case "end":
                ends[_which(entry)].append(entry["at"])
            case "torn":
                found.torn.append(f"{entry['process_id']}: a step came torn: {entry['element']}")
            case "node":
                begun.append((entry, found.nodes))
            case _:
                found.asked.append(_asked(entry))
                if entry["spans"]:
                    begun.append((entry, found.gated))
    for entry, spans in begun:
        process_id, task_id, attempt = _which(entry)
        spans.append(
            Span(
                process_id=process_id,
                task_id=task_id,
                attempt=attempt,
                begun_at=entry["at"],
                ended_at=min(ends.get(_which(entry), [math.inf])),
                wall=entry["wall"],
            )
        )
    return found


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        with path.open("rb") as file:
            yield from map(json.loads, file)


def _which(entry: dict[str, Any]) -> tuple[str, int, int]:
    return entry["process_id"], entry["task_id"], entry["attempt"]


def _asked(entry: dict[str, Any]) -> Asked:
    # There are hundreds of thousands, and each element comes again in the steps behind it.
    return Asked(
        process_id=sys.intern(entry["process_id"]),
        task_id=entry["task_id"],
        task_type=sys.intern(entry["task_type"]),
        element=sys.intern(entry["element"]),
        deed=Deed(entry["deed"]),
        at=entry["at"],
        first=sys.intern(entry["first"]),
        length=entry["length"],
        before=tuple(map(sys.intern, entry["before"])),
        is_ahead=entry["is_ahead"],
    )
