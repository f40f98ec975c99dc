"""What clients know of actors: what they asked of each, what they saw, and how they ended it."""

import collections
import dataclasses
import enum
import random
from typing import Any

_REMEMBERED_MAX = 20
"""How many ended actors still get messages."""


class Fate(enum.StrEnum):
    """How a client ends its actor. OPEN: not at all."""

    OPEN = "open"
    COMPLETE = "complete"
    TERMINATE = "terminate"
    REMOVE = "remove"


@dataclasses.dataclass(slots=True, kw_only=True)
class Asked:
    """A request and what became of it: "done", "accepted", an error's reason, "" if unknown.

    ``cancelled``: a client has asked to cancel it; ``memo`` is the answer's.
    """

    element: str
    key: str
    is_notify: bool = False
    cancelled: bool = False
    outcome: str = ""
    memo: int | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class Life:
    """An actor as its client knows it.

    ``ends`` are what those saw who awaited its end, as (how, result or reason); ``terminated``: the
    reasons that were acknowledged; ``ended_at``: when a client knew that it had ended.
    """

    process_id: str
    fate: Fate
    is_flood: bool = False
    started: bool = False
    over: bool = False
    ended_at: float | None = None
    requests: list[Asked] = dataclasses.field(default_factory=list)
    ends: list[tuple[str, Any]] = dataclasses.field(default_factory=list)
    terminated: list[str] = dataclasses.field(default_factory=list)


class Lives:
    """All actors of a run; some of them get messages now."""

    def __init__(self) -> None:
        self.all: list[Life] = []
        self._ended: collections.deque[str] = collections.deque(maxlen=_REMEMBERED_MAX)

    def begin(self, life: Life) -> Life:
        self.all.append(life)
        return life

    def end(self, life: Life) -> None:
        life.over = True
        self._ended.append(life.process_id)

    def peers(self, chosen: random.Random, but: Life) -> list[str]:
        """Return who can be sent messages; now and then also those that have ended."""
        found = [
            each.process_id
            for each in self.all[-200:]
            if each.started and not each.over and each is not but
        ]
        return [*found, *self._ended] if chosen.random() < 0.1 else found
