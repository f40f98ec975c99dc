"""What statements tell of gates: who has passed, who is to be looked at later, and what again.

Every statement that leaves or enters gates returns the same rows (see ``settle_gates.sql``): a task
that is due now, or after a while; one that is to be looked at after a while; or, without a task, a
gate, a line or an order that another transaction held. ``runtime/gates/wake_ups.py`` acts on all
of it.
"""

import dataclasses
import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from progressor.domain.processes.process import ProcessKey, process_key

PATIENCE = dt.timedelta(seconds=60)
"""How long a task waits for its gates before it goes before all others, unless configured."""

BATCH_MAX = 100
"""Tasks that one statement promotes at most; the rest is reported for another pass."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """Something of a namespace to be looked at again: exactly one of the three is there."""

    namespace: str
    gate: str | None = None
    line: str | None = None
    order_key: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Later:
    """A task that is due, or to be looked at, after so many seconds."""

    key: ProcessKey
    task_id: int
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class LoweredGate:
    """A gate whose capacity was lowered below what is held."""

    namespace: str
    gate: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Promoted:
    """What came of leaving or entering gates."""

    due: tuple[tuple[ProcessKey, int], ...] = ()
    upcoming: tuple[Later, ...] = ()
    """Who is due after a while."""
    later: tuple[Later, ...] = ()
    again: tuple[Again, ...] = ()
    lowered: tuple[LoweredGate, ...] = ()
    """Gates that have more holders than their new capacity, of which some are to give way."""


NOTHING = Promoted()

OnPromoted = Callable[[Promoted], None]


def ignore(_: Promoted) -> None:
    """Leave everything to the scan."""


class GateEffect(NamedTuple):
    """A task, or, without one, a gate, a line or an order that another transaction held."""

    namespace: str
    process_id: str
    task_id: int | None
    gate: str | None
    line: str | None
    order_key: str | None
    wait_seconds: float | None
    due_seconds: float | None


def promoted(rows: Iterable[Sequence[Any]] | None) -> Promoted:
    """Return what the rows of GateEffect say, as columns or as JSON."""
    due, upcoming, later, again = [], [], [], []
    for row in map(GateEffect._make, rows or ()):
        if row.task_id is None:
            again.append(
                Again(
                    namespace=row.namespace,
                    gate=row.gate,
                    line=row.line,
                    order_key=row.order_key,
                )
            )
            continue
        key = process_key(row.namespace, row.process_id)
        if row.wait_seconds is not None:
            later.append(Later(key, row.task_id, float(row.wait_seconds)))
        elif row.due_seconds is not None:
            upcoming.append(Later(key, row.task_id, float(row.due_seconds)))
        else:
            due.append((key, row.task_id))
    # A task may be told twice: as promoted, and as what its process has in line.
    return Promoted(
        due=tuple(dict.fromkeys(due)),
        upcoming=tuple(upcoming),
        later=tuple(later),
        again=tuple(dict.fromkeys(again)),
    )
