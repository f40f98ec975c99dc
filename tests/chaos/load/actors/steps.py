"""The steps of actors: they do what their orders say, and note it in a file outside the engine.

The state of an actor counts its messages. ``sent`` and ``got`` have the number of the last message
to and from each peer; ``open`` the messages that wait for a reply; ``answered`` the last number
that each peer has answered, ``refused`` what was answered with an error. ``wrong`` lists each
message or reply that did not come exactly once, or came out of order.
"""

import asyncio
import json
import os
import random
import time
from pathlib import Path
from typing import Any

from progressor.sdk import Fail, ProcessStatus, Retry, Step, TaskType
from tests.chaos.load.actors.orders import Order
from tests.chaos.plan import STEP_SECONDS

NAMESPACE = "chaos-actors"
FAILED = "FAILED"
"""The reason of a step that breaks its process."""

BEGUN, RAN, USED = "begun", "ran", "used"

_STALL_SECONDS = 60.0
_LONG_SECONDS = STEP_SECONDS + 1.0
_STORE_SECONDS = 0.05


class Recorder:
    """A file that survives kill -9; it has a line for each step, and two for ``step.once``."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, step: Step[Any], what: str, value: int = 0) -> None:
        place = [step.process_id, step.task_id, step.token, step.attempt]
        line = [*place, what, value, time.monotonic(), time.time()]
        os.write(self._file, json.dumps(line).encode() + b"\n")


async def act(step: Step[Any], recorder: Recorder) -> dict[str, Any] | None:
    if step.type is TaskType.REPLY:
        _take_reply(step)
        return None
    order: Order = step.args
    recorder.note(step, BEGUN)
    if order.get("stall") and step.attempt == 1:
        await asyncio.sleep(_STALL_SECONDS)
    if order["do"] == "fail" and step.status is not ProcessStatus.ERROR:
        raise Fail("as the order says", reason=FAILED)
    memo = await _once(step, recorder) if order.get("once") else None
    if step.attempt <= order.get("flaky", 0):
        raise Retry("not now")
    await _work(step, order)
    return _answer(step, order, memo)


def _answer(step: Step[Any], order: Order, memo: int | None) -> dict[str, Any]:
    state = step.state or {
        "sent": {}, "got": {}, "open": {}, "answered": {}, "refused": [], "wrong": []
    }  # fmt: skip
    for change in order.get("timers", ()):
        _change(step, change)
    for number, message in enumerate(order.get("send", ()), 1):
        _send(step, state, number, message)
    if "from" in order:
        answer = {"to": step.process_id, "n": _receive(state, *order["from"])}
    else:
        answer = {"id": order["id"], "memo": memo}
        fired = {"timer": step.timer_name} if step.type is TaskType.TIMEOUT else {}
        step.emit({**answer, **fired, "timers": order.get("timers", [])})
    if order["do"] == "complete":
        step.complete(answer)
    step.state = state
    return answer


async def _once(step: Step[Any], recorder: Recorder) -> int:
    async def run() -> int:
        recorder.note(step, RAN, step.token)
        await asyncio.sleep(random.uniform(0.0, _STORE_SECONDS))
        return step.token

    value: int = await step.once("effect", run)
    recorder.note(step, USED, value)
    return value


async def _work(step: Step[Any], order: Order) -> None:
    if order.get("long"):
        async with step.keep_alive(every=1):
            await asyncio.sleep(_LONG_SECONDS)
    await asyncio.sleep(order.get("pause", 0.0))


def _change(step: Step[Any], change: Order) -> None:
    if change.get("unset"):
        step.unset_timer(change["name"])
    else:
        step.set_timer(change["name"], after=change["after"], args=change["order"])


def _send(step: Step[Any], state: dict[str, Any], number: int, message: Order) -> None:
    to = message["to"]
    if message["kind"] == "start":
        to = f"{step.process_id}/{step.task_id}-{number}"
    n = state["sent"].get(to, 0) + 1
    state["sent"][to] = n
    order = {**message["order"], "id": f"{step.task_id}/{number}", "from": [step.process_id, n]}
    if message["kind"] == "start":
        order["do"] = "complete"
    if message["reply"]:
        state["open"][order["id"]] = [to, n]
    # The methods of a step have the names of these kinds.
    getattr(step, message["kind"])(to, order, **({"reply": ""} if message["reply"] else {}))


def _receive(state: dict[str, Any], sender: str, n: int) -> int:
    expected = state["got"].get(sender, 0) + 1
    if n != expected:
        state["wrong"].append(f"message {n} of {sender} instead of {expected}")
    state["got"][sender] = n
    return n


def _take_reply(step: Step[Any]) -> None:
    state, reply = step.state, step.reply
    place = f"{reply.task_id}/{reply.number}"
    to, n = state["open"].pop(place, ("", 0))
    if not to:
        state["wrong"].append(f"a reply to {place}, which waits for none")
    elif reply.error is not None:
        state["refused"].append([to, n, reply.error.reason])
    elif reply.response != {"to": to, "n": n}:
        state["wrong"].append(f"message {n} to {to} was answered by {reply.response}")
    else:
        state["answered"][to] = max(n, state["answered"].get(to, 0))
    step.state = state
