"""The processor of a chaos run: does the deed that a request names, and keeps a journal of it.

``python -m tests.chaos.load.processor --bind HOST:PORT --journal FILE [--engine HOST:PORT]``. With
the address of an engine it has no streams: steps come by calls, and ask by StepService. What a step
decides follows from its request, its task id, its attempt and whether its process is in error
alone, so that any processor answers alike.
"""

import argparse
import asyncio
import functools
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from progressor.sdk import (
    Constraints,
    Fail,
    Processor,
    ProcessStatus,
    Reject,
    Retry,
    Step,
    TaskType,
)
from tests.chaos import bulks
from tests.chaos.history import TAIL, Deed, again, is_again
from tests.chaos.load import jobs, messages
from tests.chaos.load.actors import steps
from tests.chaos.load.actors.records import path_beside
from tests.chaos.load.gates import CAPACITIES
from tests.chaos.load.journal import TORN, Journal

NAMESPACE = "chaos"
_STALL_SECONDS = 60.0


def processor(journal: Journal, recorder: steps.Recorder) -> Processor[Any]:
    made: Processor[Any] = Processor(NAMESPACE)

    @made.init
    @made.call
    @made.notify
    @made.repair
    async def request(step: Step[Any]) -> Any:
        if step.namespace != NAMESPACE:
            return await _elsewhere(step, journal, recorder)
        order = step.args
        element, deed = _request(step, order)
        with journal.noting(step, deed, element, spans="gated" in order):
            if step.attempt == 1 and order.get("stall"):
                await asyncio.sleep(_STALL_SECONDS)
            await asyncio.sleep(order.get("delay", 0.0))
            if step.attempt <= order.get("flaky", 0):
                raise Retry("not now")
            _refuse(deed, element)
            sent = messages.send(step, element, order.get("send", ()))
            answer = _append(step, element, journal, sent)
            _go_on(step, element, deed, order)
            return {"again": element} if is_again(element) else answer

    @made.timeout
    async def tick(step: Step[Any]) -> None:
        if step.namespace != NAMESPACE:
            await _elsewhere(step, journal, recorder)
            return
        timer = step.args
        element, deed = _tick(step, timer)
        with journal.noting(step, deed, element, spans=bool(timer.get("gates"))):
            _refuse(deed, element)
            _append(step, element, journal)
            if timer["chain"] > 0:
                _set_timer(step, {**timer, "chain": timer["chain"] - 1})

    made.reply(functools.partial(_take_reply, recorder=recorder))
    return made


async def _take_reply(step: Step[Any], recorder: steps.Recorder) -> None:
    """Leave all processes but actors as they are: the judge reads the args of the task."""
    if step.namespace == steps.NAMESPACE:
        await steps.act(step, recorder)


async def _elsewhere(step: Step[Any], journal: Journal, recorder: steps.Recorder) -> Any:
    if step.namespace == messages.NAMESPACE:
        return await messages.receive(step)
    if step.namespace == steps.NAMESPACE:
        return await steps.act(step, recorder)
    if step.namespace == bulks.NAMESPACE:
        return await bulks.break_once(step)
    return await jobs.carry(step, journal)


def _request(step: Step[Any], order: dict[str, Any]) -> tuple[str, Deed]:
    """Return the element of a request's run, and what is to be done.

    Of those that break their processes half succeed when run again, while these are in error.
    """
    element, deed = order["id"], Deed(order["do"])
    is_rerun = step.status is ProcessStatus.ERROR and step.type is not TaskType.REPAIR
    if is_rerun and deed is Deed.FAIL and zlib.crc32(element.encode()) % 2:
        return again(element, step.token), Deed.APPEND
    return element, deed


def _tick(step: Step[Any], timer: dict[str, Any]) -> tuple[str, Deed]:
    """Return the element of a timer's run, and what is to be done: half of those that may fail do.

    One that has broken its process, and runs again while it is in error, succeeds.
    """
    may_fail = timer["do"] == Deed.FAIL and step.status is not ProcessStatus.ERROR
    fails = may_fail and zlib.crc32(f"{timer['by']}.{step.task_id}".encode()) % 2
    # A task may break its process, be run again and do so once more.
    return f"{timer['by']}.{step.task_id}.{step.token}", Deed.FAIL if fails else Deed.APPEND


def _refuse(deed: Deed, element: str) -> None:
    if deed is Deed.REJECT:
        raise Reject(element)
    if deed is Deed.FAIL:
        raise Fail(element)


def _append(
    step: Step[Any], element: str, journal: Journal, sent: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    before = [event.payload["id"] for event in step.history]
    expected = {"last": before[-1], "count": len(before)} if before else None
    if step.state != expected:
        journal.note(step, TORN, f"{element}: {step.state} is not {expected}")
    step.emit({"id": element, "sent": sent} if sent else {"id": element})
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bind", required=True)
    parser.add_argument("--journal", required=True, type=Path)
    parser.add_argument("--engine")
    arguments = parser.parse_args()
    recorder = steps.Recorder(path_beside(arguments.journal))
    made, engine = processor(Journal(arguments.journal), recorder), arguments.engine
    made.serve(arguments.bind, streaming=engine is None, engine=engine)


if __name__ == "__main__":
    main()
