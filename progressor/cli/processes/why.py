"""The command why."""

import dataclasses
import datetime as dt

from rich.text import Text

from progressor.cli.input.engines import client_of
from progressor.cli.input.options import IN_DEFAULT_NAMESPACE, NamespaceOptions
from progressor.cli.output.output import instant_text, one_line, show
from progressor.sdk.values.processes import (
    NO_HISTORY,
    GateWait,
    OrderWait,
    Snapshot,
    TaskType,
    Wait,
    WaitCause,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The document that why prints: the explanation as sentences, and the waits as fields."""

    namespace: str
    process_id: str
    sentences: tuple[str, ...]
    waits: tuple[Wait, ...]


async def why(process_id: str, /, *, options: NamespaceOptions = IN_DEFAULT_NAMESPACE) -> None:
    """Explain what a process waits for: first its running or next task, then the tasks behind it.

    Prints each unfinished task with the cause of its wait; without such tasks, whether the process
    needs a repair.
    """
    async with client_of(options) as client:
        snapshot = await client.get(process_id, history=NO_HISTORY)
    shown = Why(
        namespace=options.namespace,
        process_id=process_id,
        sentences=_sentences(snapshot),
        waits=snapshot.waits,
    )
    show(shown, *map(Text, map(one_line, shown.sentences)), as_json=options.json)


def cause_text(wait: Wait) -> str:
    """Return the cause of a wait in a few words, from its fields alone."""
    reach = _at(", processor unreachable since ", wait.processor_unreachable_since)
    return f"{_cause_text(wait)}{reach}"


def explanation_of(wait: Wait) -> str:
    """Return the engine's explanation of a wait; older engines send the fields only."""
    return wait.explanation or f"Task {wait.task_id} ({wait.type}): {cause_text(wait)}."


def _sentences(snapshot: Snapshot) -> tuple[str, ...]:
    own = (snapshot.explanation,) if snapshot.explanation else ()
    return own + tuple(map(explanation_of, snapshot.waits))


def _cause_text(wait: Wait) -> str:
    where = "" if wait.replica_id is None else f" in replica {wait.replica_id}"
    match wait.cause:
        case WaitCause.RUNNING:
            again = f", attempt {wait.attempt}{_after(wait)}" if wait.attempt > 1 else ""
            return f"running{where}{_at(' since ', wait.since)}{again}"
        case WaitCause.BEHIND_TASK:
            return _behind_text(wait)
        case WaitCause.RUN_AT | WaitCause.ORDER | WaitCause.GATE:
            return _constraint_text(wait)
        case WaitCause.NO_FREE_WORKER:
            return _workers_text(wait)
        case WaitCause.RETRY:
            of = "" if wait.attempts_max is None else f" of {wait.attempts_max}"
            return f"retry {wait.attempt}{of}{_at(' at ', wait.until)}{_after(wait)}"
        case _:
            return _other_text(wait, where)


def _other_text(wait: Wait, where: str) -> str:
    collected = _at(", collected at ", wait.collected_at)
    if wait.cause is WaitCause.PRESUMED_DEAD:
        return f"replica {wait.replica_id} presumed dead{collected}"
    # Also for an unknown cause of a newer engine: the fields that any cause may have.
    name = wait.cause.replace("_", " ")
    return f"{name}{where}{_at(', until ', wait.until)}{_at(' since ', wait.since)}{collected}"


def _behind_text(wait: Wait) -> str:
    # Older engines send neither.
    is_known = wait.behind_type not in {None, TaskType.UNSPECIFIED}
    kind = f" ({wait.behind_type})" if is_known else ""
    state = "running" if wait.behind_runs else "waiting"
    since = _at(f", {state} since ", wait.behind_since)
    return f"behind task {wait.behind_task_id}{kind}{since}"


def _constraint_text(wait: Wait) -> str:
    if wait.cause is WaitCause.RUN_AT:
        return _at("not before ", wait.until)
    if wait.cause is WaitCause.GATE:
        return ", ".join(map(_gate_text, wait.gates))
    return "" if wait.order is None else _order_text(wait.order)


def _order_text(wait: OrderWait) -> str:
    return (
        f"order {wait.order.key}: {wait.order.version} behind {wait.version} (task {wait.task_id} "
        f"of {wait.process_id}, {wait.status})"
    )


def _gate_text(gate: GateWait) -> str:
    held = f"{gate.held} of {gate.capacity} held"
    if gate.holders:
        first = gate.holders[0]
        by = "by" if len(gate.holders) == 1 else "first by"
        held += f" {by} {first.process_id}{_at(' since ', first.held_at)}"
    place = f", {gate.position} of {gate.waiting_count} in the queue" if gate.position else ""
    return f"gate {gate.gate} ({held}){place}"


def _workers_text(wait: Wait) -> str:
    busy, count = wait.busy_count or 0, wait.worker_count or 0
    counts = f" ({busy} of {count} busy)" if count else ""
    state = "no free worker" if busy >= count else "waits for a worker"
    return f"{state}{counts}{_at(', due since ', wait.since)}"


def _after(wait: Wait) -> str:
    error = wait.last_error
    if error is None:
        return ""
    words = one_line(error.message)
    return f" after {error.reason}: {words}" if words else f" after {error.reason}"


def _at(words: str, instant: dt.datetime | None) -> str:
    return "" if instant is None else f"{words}{instant_text(instant)}"
