"""What asking the processor gave: an intent, a reject or a failure."""

import dataclasses
import datetime as dt
import types
from collections.abc import Mapping

from progressor.domain import values
from progressor.domain.gates.constraint import Constraints
from progressor.domain.jobs.job import StartNodes
from progressor.domain.processes.event import HistoryRange, NewEvent
from progressor.domain.processes.message import Message

STEP_TIMEOUT = "STEP_TIMEOUT"
"""The reason of a step that ran past its timeout."""

TIMERS_MAX = 32
"""Timers of a process; ``insert_timers.sql`` has the same bound."""

TIMER_NAME_BYTES_MAX = 64

STILL_RUNNING = "STILL_RUNNING"
"""The reason of a step that a processor did not begin: an earlier attempt still runs."""


@values.dataclass(frozen=True, slots=True)
class KeepTimer:
    """Leave the timer without a name as it is; one that a call has blocked continues."""


@values.dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Replace the timer of its name. Exactly one of ``at`` and ``after`` (0 or more) is given.

    ``remove``: when it is due the process is removed without asking the processor; then without
    ``constraints``. These have no ``run_at``: the timer's own instant is.
    """

    at: dt.datetime | None = None
    after: dt.timedelta | None = None
    remove: bool = False
    args: bytes = b""
    history_range: HistoryRange | None = None
    step_timeout: dt.timedelta | None = None
    # Not in the text of which fingerprints are made: an import has none.
    constraints: Constraints | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        if (self.at is None) == (self.after is None):
            message = f"exactly one of at and after: at={self.at!r}, after={self.after!r}"
            raise ValueError(message)


@dataclasses.dataclass(frozen=True, slots=True)
class UnsetTimer:
    """Cancel the timer; waiting calls still run."""


@dataclasses.dataclass(frozen=True, slots=True)
class RemoveProcess: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Complete:
    result: bytes = b""


TimerChange = KeepTimer | SetTimer | UnsetTimer

NO_TIMERS: Mapping[str, SetTimer | UnsetTimer] = types.MappingProxyType({})

Action = RemoveProcess | Complete | StartNodes


@values.dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What a step decided. ``aux_state`` and ``metadata`` None leave the stored ones.

    ``state_version`` is of ``aux_state``; 0: none. Without ``aux_state`` the stored one stays.
    ``timer`` is about the one without a name, ``timers`` about those with one, in the order in
    which they were set; both stand beside every action. A process that is finished or removed has
    no timers, whatever they say. ``action`` None: the process waits for its next task.
    """

    events: tuple[NewEvent, ...] = ()
    aux_state: bytes | None = None
    metadata: Mapping[str, object] | None = None
    response: bytes = b""
    timer: TimerChange = dataclasses.field(default_factory=KeepTimer)
    action: Action | None = None
    state_version: int = 0
    messages: tuple[Message, ...] = ()
    timers: Mapping[str, SetTimer | UnsetTimer] = dataclasses.field(
        default_factory=lambda: NO_TIMERS
    )


@values.dataclass(frozen=True, slots=True)
class Succeeded:
    intent: Intent


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The processor refused the request: ``code`` (gRPC, 1 .. 16) and words are its own."""

    code: int
    message: str
    reason: str = ""
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The step failed: the processor said so, or could not be asked.

    ``retryable``: another attempt may help; the policy decides. ``unreachable``: the processor was
    not asked, or refused to begin: the attempt does not count, the policy is not asked, and the
    next one comes after ``retry_after``. ``sent`` False: no target was connected. ``release`` is
    the processor's, if it says so.
    """

    code: int
    reason: str
    message: str
    retryable: bool
    retry_after: dt.timedelta | None = None
    unreachable: bool = False
    sent: bool = True
    release: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Lost:
    """The lease was lost: the replica is presumed dead, or the step overran. A zombie."""


@dataclasses.dataclass(frozen=True, slots=True)
class Released:
    """The replica gave the lease back before the processor was done; the attempt does not count."""


Outcome = Succeeded | Rejected | Failed | Lost | Released

TURN_ENDED = "TURN_ENDED"
"""The reason of a step that was asked in a turn and not run, since the turn had ended before it."""

TURN_SECONDS = 0.1
"""How long after its first step a turn may begin further ones, and the outcome of a step may wait
for those behind it."""


def continues_turn(outcome: Outcome) -> bool:
    """Whether the next call of a running process may be asked before this outcome is settled.

    The outcome says all about the process that the next step needs to know, and brings about
    nothing besides.
    """
    if not isinstance(outcome, Succeeded):
        return isinstance(outcome, Rejected)
    intent = outcome.intent
    keeps_timers = isinstance(intent.timer, KeepTimer) and not intent.timers
    return keeps_timers and intent.action is None and not intent.messages
