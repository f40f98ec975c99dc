"""The timers of a process in memory: set, replaced and cancelled by name, the earliest first."""

import dataclasses
import datetime as dt

from progressor.sdk.codec.codecs import Codec, Payload
from progressor.sdk.codec.wire import duration_from_wire, instant_from_wire
from progressor.v1 import processor_service_pb2 as pb
from progressor.v1 import types_pb2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DueTimer:
    """A timer of a process in a rehearsal. ``remove``: it removes the process."""

    due_at: dt.datetime
    args: Payload
    remove: bool
    name: str = ""


@dataclasses.dataclass(slots=True, kw_only=True)
class Timer:
    """A timer as it was set, and its attempts."""

    name: str
    message: types_pb2.SetTimer
    due_at: dt.datetime
    task_id: int
    attempt: int = 1
    tried_for: dt.timedelta = dt.timedelta()
    memos: dict[str, bytes] = dataclasses.field(default_factory=dict)

    def again(self, not_before: dt.datetime) -> "Timer":
        """Return a new timer, due at the same instant, or at `not_before` if that is later."""
        due_at = max(self.due_at, not_before)
        return dataclasses.replace(self, due_at=due_at, attempt=1, tried_for=dt.timedelta())

    def shown(self, codec: Codec) -> DueTimer:
        """Return what a test sees of it."""
        message = self.message
        args = codec.decode(message.args)
        return DueTimer(due_at=self.due_at, args=args, remove=message.remove, name=self.name)


Timers = dict[str, Timer]


def in_order(timers: Timers) -> list[Timer]:
    """Return timers by their instants, then by their task ids."""
    return sorted(timers.values(), key=lambda it: (it.due_at, it.task_id))


def timer_changes(response: pb.ProcessResponse) -> dict[str, types_pb2.SetTimer | None]:
    """Return the timers that a step sets, by their names; None: it cancels the timer."""
    named = {it.name: it.set if it.HasField("set") else None for it in response.timers}
    match response.WhichOneof("timer"):
        case "set_timer":
            return {"": response.set_timer, **named}
        case "unset_timer":
            return {"": None, **named}
        case _:
            return named


def due_at(message: types_pb2.SetTimer, now: dt.datetime) -> dt.datetime:
    """Return when a timer is due that is set now."""
    if message.HasField("at"):
        return instant_from_wire(message.at)
    return now + duration_from_wire(message.after)
