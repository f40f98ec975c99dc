"""Gates in a chaos run: which constraints its requests carry, and what must be true of the steps.

Who has lost a lease may still be in a processor when another attempt is made, so of the steps that
processors note only those can be judged that were settled: the attempt that the task's row counts
last. The fence lets only the replica settle that has the lease, and with it the gates, from before
the step began until after it had ended; the processor notes both in between. So

- of the steps of a gate that were settled no more are in hand at once than it has places for;
- no step of any attempt begins before the end of that which settled a smaller version of its order
  for the first time, if the smaller one had been accepted before the larger one was sent;
- no step of any attempt begins before its instant.

What was removed with its process has left no row, and is not judged.
"""

import collections
import dataclasses
import datetime as dt
import heapq
import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import psycopg

from progressor.sdk import Constraints, GateHold, Order
from tests.chaos.history import Accepted, Deed, Done, Kind, Operation
from tests.chaos.load.journal import Span

CAPACITIES: Mapping[str, int] = MappingProxyType(
    {"mutex-a": 1, "mutex-b": 1, "three": 3, "elastic": 3}
)
"""How many may hold each gate at most."""

ELASTIC, ELASTIC_CAPACITIES = "elastic", (1, 2, 3)
"""The gate whose capacity is changed all the time, and to what. It is never closed: no client would
open it in the end."""

NOWHERE = "nowhere"
"""A gate that is not there."""

_SHARE = 0.1
_TIMER_SHARE = 0.15
_ORDERS = ("order-a", "order-b", "order-c")
_SPREAD = 4
_RUN_AT_SECONDS = 1.0
_CLOCK_SECONDS = 0.01
"""By how much the clocks of two processes on one machine may be read apart."""


def draw(
    chosen: random.Random, kind: Kind, deed: Deed, number: int, *, floor: int = 0
) -> Constraints | None:
    """Return the constraints of a client's request of this number; most have none.

    `floor` is the version of the start of the process. A call must not have a smaller one: the
    start would wait for the call, and the call for the process to be started.
    """
    if kind not in {Kind.START, Kind.CALL, Kind.NOTIFY} or chosen.random() >= _SHARE:
        return None
    if kind is not Kind.START and chosen.random() < 0.03:
        return Constraints(gates=[NOWHERE])
    gates = chosen.sample(list(CAPACITIES), chosen.choice((0, 1, 1, 1, 1, 2)))
    order = None
    if chosen.random() < 0.3 or not gates:
        # Clients count alike, so that versions of several meet.
        spread = 0 if kind is Kind.START else chosen.randint(-_SPREAD, _SPREAD)
        version = max(floor, number + spread)
        order = Order(chosen.choice(_ORDERS), f"{version // 10}.{version % 10}")
    run_at = None
    if chosen.random() < 0.2:
        seconds = chosen.uniform(0.0, _RUN_AT_SECONDS)
        run_at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)
    # Nothing else ends the process, which would hold the gate for ever.
    is_last = deed is Deed.COMPLETE and chosen.random() < 0.5
    return Constraints(
        gates={gate: CAPACITIES[gate] for gate in gates},
        order=order,
        run_at=run_at,
        priority=chosen.randint(1, 5),
        hold=GateHold.PROCESS if is_last else GateHold.TASK,
    )


def draw_timer(chosen: random.Random) -> list[str]:
    """Return the gates that a timer is to wait for; most wait for none."""
    return [chosen.choice(list(CAPACITIES))] if chosen.random() < _TIMER_SHARE else []


def may_be_cancelled(kind: Kind, constraints: Constraints | None, key: str) -> bool:
    """Return whether a request is one that may be cancelled.

    A start that was cancelled leaves no key, and its repetition would be a new one; what a process
    holds until it ends, it would hold for ever.
    """
    return (
        constraints is not None
        and constraints.hold is GateHold.TASK
        and kind is not Kind.START
        and bool(key)
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GatedTask:
    """A task with constraints as the database has it; ``settled`` is the attempt that ended it."""

    process_id: str
    task_id: int
    element: str
    settled: int | None
    gates: tuple[str, ...] = ()
    order_key: str = ""
    version: tuple[int, ...] = ()
    run_at: float = 0.0


def broken_gates(
    tasks: Sequence[GatedTask], spans: Iterable[Span], operations: Iterable[Operation]
) -> list[str]:
    """Return what is wrong with the steps of tasks that had to pass something."""
    by_task: dict[int, list[Span]] = collections.defaultdict(list)
    for span in spans:
        by_task[span.task_id].append(span)
    settled = {task.task_id: last for task in tasks if (last := _settled(task, by_task))}
    return [
        *_crowded(tasks, settled),
        *_out_of_order(tasks, by_task, settled, operations),
        *_early(tasks, by_task),
    ]


def read_tasks(conninfo: str) -> list[GatedTask]:
    with psycopg.connect(conninfo) as connection:
        rows = connection.execute(
            "SELECT process_id, task_id, args, constraints, status::text, attempt_count"
            " FROM progressor.tasks WHERE constraints IS NOT NULL AND namespace = 'chaos'"
        ).fetchall()
    return [_task(*row) for row in rows]


def _task(
    process_id: str, task_id: int, args: bytes, made: dict[str, Any], status: str, attempts: int
) -> GatedTask:
    order_key, version = made.get("order") or ("", ())
    return GatedTask(
        process_id=process_id,
        task_id=task_id,
        element=json.loads(args).get("id", "") if args else "",
        settled=attempts if status in {"finished", "error"} else None,
        gates=tuple(made.get("gates") or ()),
        order_key=order_key,
        version=tuple(version),
        run_at=made.get("run_at", 0) / 1_000_000,
    )


def _settled(task: GatedTask, by_task: Mapping[int, Sequence[Span]]) -> Span | None:
    """Return the step by which a task has ended; None: it is unknown.

    An attempt that was handed back is made again under its number: which of them it was, no note
    says.
    """
    found = [span for span in by_task.get(task.task_id, ()) if span.attempt == task.settled]
    return found[0] if len(found) == 1 and found[0].ended_at < math.inf else None


def _crowded(tasks: Iterable[GatedTask], settled: Mapping[int, Span]) -> Iterator[str]:
    by_gate: dict[str, list[tuple[Span, GatedTask]]] = collections.defaultdict(list)
    for task in tasks:
        if task.task_id in settled:
            for gate in task.gates:
                by_gate[gate].append((settled[task.task_id], task))
    for gate, steps in by_gate.items():
        steps.sort(key=lambda each: each[0].begun_at)
        inside: list[tuple[float, int]] = []
        for span, task in steps:
            while inside and inside[0][0] <= span.begun_at:
                heapq.heappop(inside)
            heapq.heappush(inside, (span.ended_at, task.task_id))
            if len(inside) > CAPACITIES[gate]:
                others = [task_id for _, task_id in inside if task_id != task.task_id]
                yield (
                    f"{task.process_id}: task {task.task_id} was in {gate} at once with {others}, "
                    f"which has {CAPACITIES[gate]} places"
                )


def _out_of_order(
    tasks: Iterable[GatedTask],
    by_task: Mapping[int, Sequence[Span]],
    settled: Mapping[int, Span],
    operations: Iterable[Operation],
) -> Iterator[str]:
    sent, accepted = _instants(operations)
    by_order: dict[str, list[GatedTask]] = collections.defaultdict(list)
    for task in tasks:
        if task.order_key and task.element in sent:
            by_order[task.order_key].append(task)
    for key, ordered in by_order.items():
        ordered.sort(key=lambda each: each.version)
        for place, large in enumerate(ordered):
            begun_at = min(
                (each.begun_at for each in by_task.get(large.task_id, ())), default=math.inf
            )
            for small in ordered[:place]:
                span = settled.get(small.task_id)
                knew = accepted.get(small.element, math.inf) < sent[large.element]
                once = _has_ended_once(by_task.get(small.task_id, ()))
                is_early = span is not None and begun_at < span.ended_at
                if is_early and once and knew and small.version < large.version:
                    yield (
                        f"{large.process_id}: task {large.task_id}, {key} {large.version}, began "
                        f"before task {small.task_id}, {small.version}, had ended"
                    )


def _has_ended_once(spans: Sequence[Span]) -> bool:
    """Return whether a task cannot have been retried after it had broken its process.

    What comes after it may begin when it has ended for the first time. A retry has all attempts
    anew, so their numbers begin again.
    """
    numbers = [span.attempt for span in sorted(spans, key=lambda each: each.begun_at)]
    return numbers == sorted(set(numbers))


def _early(tasks: Iterable[GatedTask], by_task: Mapping[int, Sequence[Span]]) -> Iterator[str]:
    for task in tasks:
        for span in by_task.get(task.task_id, ()):
            if span.wall < task.run_at - _CLOCK_SECONDS:
                early = task.run_at - span.wall
                yield f"{task.process_id}: task {task.task_id} began {early:.3f} s before its time"


def _instants(operations: Iterable[Operation]) -> tuple[dict[str, float], dict[str, float]]:
    """Return when each element was first sent, and by when it was known to be accepted.

    A cancelled task gives its key back: the element may be of a task that came later.
    """
    sent: dict[str, float] = {}
    accepted: dict[str, float] = {}
    cancelled: set[str] = set()
    for operation in operations:
        if operation.kind is Kind.CANCEL:
            cancelled.add(operation.element)
        elif operation.element and operation.kind is not Kind.AWAIT:
            sent[operation.element] = min(operation.sent_at, sent.get(operation.element, math.inf))
            if isinstance(operation.outcome, Done | Accepted):
                accepted[operation.element] = min(
                    operation.answered_at, accepted.get(operation.element, math.inf)
                )
    return sent, {it: at for it, at in accepted.items() if it not in cancelled}
