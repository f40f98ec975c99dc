"""The processor of a chaos run: does the deed that a request names, and keeps a journal of it.

``python -m tests.chaos.load.processor --bind HOST:PORT --journal FILE``. What a step decides
follows from its request, its task id and its attempt alone, so that any processor answers alike.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from progressor.sdk import Constraints, Fail, Processor, Reject, Retry, Step
from tests.chaos.load import jobs
from tests.chaos.load.gates import CAPACITIES, END
from tests.chaos.load.jobs import NodeJournal
from tests.support.models.history.history import TAIL, Asked, Deed

NAMESPACE = "chaos"
TORN = "torn"
"""The deed of a journal's line about a step whose aux_state was not of its history."""

_STALL_SECONDS = 60.0


class Journal:
    """A file of one line of JSON for each step asked for: what was written survives kill -9."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    @contextlib.contextmanager
    def noting(self, step: Step[Any], element: str, deed: str, *, gated: bool) -> Iterator[None]:
        """Write a line before anything comes of the step; where it is gated, one when it ends."""
        self.note(step, element, deed, gated=gated)
        try:
            yield
        finally:
            if gated:
                self._write({**_named(step), "deed": END, "at": time.monotonic()})

    def note(self, step: Step[Any], element: str, deed: str, *, gated: bool = False) -> None:
        """Write one line about a step."""
        before = [event.payload["id"] for event in step.history]
        line = {
            **_named(step),
            "process_id": step.process_id,
            "task_type": str(step.type),
            "element": element,
            "deed": deed,
            "at": time.monotonic(),
            "first": before[0] if before else "",
            "length": len(before),
            "before": before[-TAIL:],
        }
        if gated:
            line |= {"gated": True, "wall": time.time()}
        self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


def _named(step: Step[Any]) -> dict[str, Any]:
    return {"task_id": step.task_id, "attempt": step.attempt}


def read_journals(paths: list[Path]) -> tuple[list[Asked], list[str]]:
    """Return the steps that processors were asked for, and what they found wrong."""
    asked, torn = [], []
    for entry in itertools.chain.from_iterable(map(_entries, paths)):
        if entry["deed"] == TORN:
            torn.append(f"{entry['process_id']}: a step came torn: {entry['element']}")
        elif entry["deed"] != END:
            asked.append(_asked(entry))
    return asked, torn


def _asked(entry: dict[str, Any]) -> Asked:
    # There are hundreds of thousands, and each element comes again in the steps behind it.
    names = {name: sys.intern(entry[name]) for name in ("process_id", "task_type", "element")}
    first, before = sys.intern(entry["first"]), tuple(map(sys.intern, entry["before"]))
    own = {"deed": Deed(entry["deed"]), "first": first, "before": before}
    told = {name: entry[name] for name in ("task_id", "at", "length")}
    return Asked(**{**told, **names, **own})


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        with path.open("rb") as file:
            yield from map(json.loads, file)


def processor(journal: Journal, nodes: NodeJournal) -> Processor[Any]:
    """Return a processor that keeps these journals: of the nodes of jobs, and of all else."""
    made: Processor[Any] = Processor(NAMESPACE)

    @made.init
    @made.call
    @made.notify
    @made.repair
    async def request(step: Step[Any]) -> Any:
        if step.namespace == jobs.NAMESPACE:
            return await jobs.carry(step, nodes)
        order = step.args
        element, deed = order["id"], Deed(order["do"])
        with journal.noting(step, element, deed, gated=bool(order.get("gated"))):
            if step.attempt == 1 and order.get("stall"):
                await asyncio.sleep(_STALL_SECONDS)
            await asyncio.sleep(order.get("delay", 0.0))
            if step.attempt <= order.get("flaky", 0):
                raise Retry("not now")
            _refuse(deed, element)
            answer = _append(step, element, journal)
            _go_on(step, element, deed, order)
            return answer

    @made.timeout
    async def tick(step: Step[Any]) -> None:
        if step.namespace == jobs.NAMESPACE:
            await jobs.carry(step, nodes)
            return
        timer = step.args
        element = f"{timer['by']}.{step.task_id}"
        # Half of those: one that runs again after a repair is a new task.
        fails = timer["do"] == Deed.FAIL and zlib.crc32(element.encode()) % 2
        deed = Deed.FAIL if fails else Deed.APPEND
        with journal.noting(step, element, deed, gated=bool(timer.get("gates"))):
            _refuse(deed, element)
            _append(step, element, journal)
            if timer["chain"] > 0:
                _set_timer(step, {**timer, "chain": timer["chain"] - 1})

    return made


def _refuse(deed: Deed, element: str) -> None:
    if deed is Deed.REJECT:
        raise Reject(element)
    if deed is Deed.FAIL:
        raise Fail(element)


def _append(step: Step[Any], element: str, journal: Journal) -> dict[str, Any]:
    before = [event.payload["id"] for event in step.history]
    expected = {"last": before[-1], "count": len(before)} if before else None
    if step.state != expected:
        journal.note(step, f"{element}: {step.state} is not {expected}", TORN)
    step.emit({"id": element})
    step.state = {"last": element, "count": len(before) + 1}
    return {"length": len(before) + 1, "before": before[-TAIL:], "first": [*before, element][0]}


def _go_on(step: Step[Any], element: str, deed: Deed, order: dict[str, Any]) -> None:
    if deed is Deed.TIMER:
        _set_timer(step, {**order["timer"], "by": element})
    elif deed is Deed.EXPIRE:
        step.set_timer(after=order["timer"]["after"], remove=True)
    elif deed is Deed.COMPLETE:
        step.complete({"last": element})
    elif deed is Deed.REMOVE:
        step.remove()
    elif order.get("unset"):
        step.unset_timer()


def _set_timer(step: Step[Any], timer: dict[str, Any]) -> None:
    gates = {gate: CAPACITIES[gate] for gate in timer.get("gates", ())}
    step.set_timer(
        after=timer["after"], args=timer, constraints=Constraints(gates=gates) if gates else None
    )


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bind", required=True)
    parser.add_argument("--journal", required=True, type=Path)
    arguments = parser.parse_args()
    nodes = NodeJournal(jobs.journal_of_nodes(arguments.journal))
    processor(Journal(arguments.journal), nodes).serve(arguments.bind)


if __name__ == "__main__":
    main()
