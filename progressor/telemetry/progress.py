"""How far a trace has come, so that a story without an end is told in traces with one.

A timer's step is a child of the step that set it, so a process that goes on by itself would be one
trace for life, as deep as it has steps. So after STEPS_MAX steps in a row, or AGE_MAX, the next
step begins a new trace, which is linked to the last.

How many steps there were and when the first began goes with the trace's context, as a member of its
``tracestate``: ``progressor=<steps>:<seconds since 1970>``. So it is stored with the context, and a
processor that calls the engine from a step hands it back.

Source: https://www.w3.org/TR/trace-context/, "Mutating the tracestate Field".
"""

import dataclasses
import datetime as dt
import re
from typing import Self

from progressor.domain.task import RunningTask

STEPS_MAX = 16
AGE_MAX = dt.timedelta(days=1)

_MEMBER = re.compile(r"(?:^|,)progressor=(\d{1,9}):(\d{1,10})(?=,|$)")
_MEMBERS_MAX = 32
_LENGTH_MAX = 512


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """So many steps in a row, the first of which began then."""

    step_count: int
    began_at: dt.datetime

    @classmethod
    def before(cls, task: RunningTask) -> Self:
        """Return where the trace that is stored with a task is when this attempt begins."""
        found = _MEMBER.search(task.trace_context.get("tracestate", ""))
        retried = task.attempt - 1
        if found is None:
            return cls(retried, task.first_started_at)
        count, began = map(int, found.groups())
        return cls(count + retried, dt.datetime.fromtimestamp(began, dt.UTC))

    def is_over(self, now: dt.datetime) -> bool:
        """Tell whether a step that begins now belongs into a new trace."""
        return self.step_count >= STEPS_MAX or now - self.began_at >= AGE_MAX

    def one_more(self) -> "Progress":
        """Return where the trace is after another step."""
        return Progress(self.step_count + 1, self.began_at)

    def noted(self, tracestate: str) -> str:
        """Return `tracestate` with this in the place of what it said before."""
        others = [it for it in tracestate.split(",") if it and not it.startswith("progressor=")]
        members = [f"progressor={self.step_count}:{self.began_at.timestamp():.0f}", *others]
        # What changed last stands first; what is too much is left out at the end.
        del members[_MEMBERS_MAX:]
        while len(text := ",".join(members)) > _LENGTH_MAX:
            members.pop()
        return text
