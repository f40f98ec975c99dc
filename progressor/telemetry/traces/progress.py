"""The progress of a trace, by which a process that never ends is split into several traces.

A timer's step is a child of the step that set it. So after STEPS_MAX steps in a row, or AGE_MAX,
the next step begins a new trace, which is linked to the previous one. The number of steps and the
start of the first are a member of the context's ``tracestate``, which is stored with it:
``progressor=<steps>:<seconds since 1970>``.

Source: https://www.w3.org/TR/trace-context/, "Mutating the tracestate Field".
"""

import dataclasses
import datetime as dt
import re
from collections.abc import Mapping
from typing import Self

from progressor.domain.processes.task import RunningTask

STEPS_MAX = 16
AGE_MAX = dt.timedelta(days=1)

_MEMBER = re.compile(r"(?:^|,)progressor=(\d{1,9}):(\d{1,10})(?=,|$)")
_PREFIX = "progressor="
_MEMBERS_MAX = 32
_LENGTH_MAX = 512
_AGE_MAX_SECONDS = AGE_MAX.total_seconds()


@dataclasses.dataclass(frozen=True, slots=True)
class TraceProgress:
    """The number of steps in a row, and the start of the first in seconds since 1970."""

    step_count: int
    began_seconds: int

    @classmethod
    def none(cls, now: dt.datetime) -> Self:
        return cls(0, int(now.timestamp()))

    @classmethod
    def before(cls, task: RunningTask) -> Self:
        retried = task.attempt - 1
        state = task.trace_context.get("tracestate")
        found = None if state is None else _MEMBER.search(state)
        if found is None:
            return cls(retried, int(task.first_started_at.timestamp()))
        return cls(int(found[1]) + retried, int(found[2]))

    def is_over(self, now: dt.datetime) -> bool:
        """Return whether a step that begins now belongs in a new trace."""
        return (
            self.step_count >= STEPS_MAX or now.timestamp() - self.began_seconds >= _AGE_MAX_SECONDS
        )

    def one_more(self) -> "TraceProgress":
        return TraceProgress(self.step_count + 1, self.began_seconds)

    def written_into(self, tracestate: str) -> str:
        """Return `tracestate` with this progress instead of the previous one."""
        own = f"{_PREFIX}{self.step_count}:{self.began_seconds}"
        if not tracestate:
            return own
        others = [it for it in tracestate.split(",") if it and not it.startswith(_PREFIX)]
        # The member that changed last comes first; excess members are dropped at the end.
        members = [own, *others][:_MEMBERS_MAX]
        while len(text := ",".join(members)) > _LENGTH_MAX:
            members.pop()
        return text


def without(context: Mapping[str, str]) -> Mapping[str, str]:
    """Return a context without its ``tracestate``, if that has nothing but its progress."""
    state = context.get("tracestate")
    if state is None or not state.startswith(_PREFIX) or "," in state:
        return context
    return {"traceparent": context["traceparent"]}
