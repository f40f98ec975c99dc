"""What must be true of actors in the end, when all that is due has been done.

- **Requests**: one that was done has its event, once; one that was cancelled or refused has none.
- **Messages**: each receiver in its state has each message of each sender once, in order: all that
  a sender has sent, unless the receiver has ended. Each reply came once, and was right. The tasks
  in the database are as many as the states count.
- **Ends**: who awaited the end of an actor has seen the end that the database has. Of a terminated
  one no step begins afterwards, and its callers were told.
- **Memos**: the result of ``step.once`` that was stored first is used by every later attempt, which
  does not run the function. A function runs once more only where a fault came between, or where a
  replica could write no heartbeat, since the machine stood still.
- **Timers**: each timer that was set fires once, not before its instant, unless it was unset or
  replaced by one of its name, or its actor has ended.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tests.chaos.load.actors.lives import Asked, Fate, Life
from tests.chaos.load.actors.records import Actor, ActorTask, Line
from tests.chaos.load.actors.steps import BEGUN, FAILED, RAN, USED
from tests.chaos.plan import BACKOFF_SECONDS, LEASE_SECONDS, SCAN_SECONDS, STEP_SECONDS

_CLOCK_SECONDS = 0.01
"""By how much the clocks of two processes on one machine may be read apart."""

_IN_FLIGHT_SECONDS = 1.0
"""A step that was sent to its processor before its actor ended begins so much later at most."""

_FAULT_SECONDS = STEP_SECONDS + LEASE_SECONDS + 2 * SCAN_SECONDS + BACKOFF_SECONDS
"""How long a fault may be felt."""

_GONE = frozenset({"PROCESS_NOT_FOUND", "PROCESS_REMOVED"})
_ENDED = _GONE | {"PROCESS_FINISHED"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ActorRecords:
    """All that is known of the actors of a run; ``faults``: when each began and was fixed."""

    lives: Sequence[Life]
    actors: Mapping[str, Actor]
    lines: Sequence[Line]
    faults: Sequence[tuple[float, float]] = ()

    def faults_between(self, begun_at: float, ended_at: float) -> int:
        """Return how many faults may have been felt in a time."""
        return sum(
            begun < ended_at + _CLOCK_SECONDS and begun_at < ended + _FAULT_SECONDS
            for begun, ended in self.faults
        )


def count_messages(records: ActorRecords) -> dict[str, int]:
    """Return the number of messages by the type of the task that they became, and of replies."""
    tasks = itertools.chain.from_iterable(actor.tasks for actor in records.actors.values())
    types = (task.task_type for task in tasks if task.sender or task.task_type == "reply")
    return dict(collections.Counter(types))


def count_others(records: ActorRecords) -> dict[str, int]:
    """Return how often everything but messages has happened."""
    found: collections.Counter[str] = collections.Counter()
    for task in itertools.chain.from_iterable(it.tasks for it in records.actors.values()):
        if task.task_type == "timeout":
            found[f"timers {task.status}"] += 1
    for life in records.lives:
        found[f"actors {life.fate}"] += life.over
        found["ends awaited"] += len(life.ends)
        found["requests cancelled"] += sum(it.outcome == "TASK_CANCELLED" for it in life.requests)
    ran = [line for line in records.lines if line.what == RAN]
    found["effects run"] = len(ran)
    found["effects run again"] = len(ran) - len({(it.process_id, it.task_id) for it in ran})
    found["results used again"] = sum(
        line.what == USED and line.value != line.token for line in records.lines
    )
    return dict(found)


def broken_actors(records: ActorRecords) -> Iterator[str]:
    """Yield what is wrong with actors."""
    by_process: dict[str, list[Line]] = collections.defaultdict(list)
    for line in records.lines:
        by_process[line.process_id].append(line)
    for life in records.lives:
        actor = records.actors.get(life.process_id)
        lines = by_process.get(life.process_id, [])
        invariants = [_wrong_ends(life, actor), _wrong_steps(records, life, lines)]
        if actor is not None:
            invariants.append(_wrong_requests(life, actor))
        for broken in itertools.chain.from_iterable(invariants):
            yield f"{life.process_id}: {broken}"
    for actor in records.actors.values():
        lines = by_process.get(actor.process_id, [])
        invariants = [
            _wrong_messages(records, actor),
            _wrong_replies(records, actor),
            _wrong_memos(records, actor, lines),
            _wrong_timers(actor, lines),
            _wrong_after_end(actor),
        ]
        for broken in itertools.chain.from_iterable(invariants):
            yield f"{actor.process_id}: {broken}"


def _wrong_ends(life: Life, actor: Actor | None) -> Iterator[str]:
    if not life.started:
        return
    if actor is None and life.fate is not Fate.REMOVE:
        yield "it was started, and is not there"
    end = _end_of(actor)
    if life.ended_at is not None and end[0] != _END_OF[life.fate]:
        yield f"its end is {end}, and its client's {life.fate}"
    for seen in life.ends:
        if seen != end:
            yield f"its end was seen as {seen}, and is {end}"
    if len(life.terminated) > 1 or any(reason != end[1] for reason in life.terminated):
        yield f"it was terminated with {life.terminated}, and its end is {end}"


def _end_of(actor: Actor | None) -> tuple[str, Any]:
    if actor is None:
        return "removed", None
    if actor.is_open:
        return "open", None
    return ("completed", actor.result) if actor.reason is None else ("terminated", actor.reason)


_END_OF = {
    Fate.OPEN: "open",
    Fate.COMPLETE: "completed",
    Fate.TERMINATE: "terminated",
    Fate.REMOVE: "removed",
}


def _wrong_steps(records: ActorRecords, life: Life, lines: Sequence[Line]) -> Iterator[str]:
    """Yield which steps began when clients knew that their actor had ended."""
    for line in lines:
        if life.ended_at is None or line.at <= life.ended_at + _IN_FLIGHT_SECONDS:
            continue
        if line.what == BEGUN and not records.faults_between(life.ended_at, line.at):
            late = line.at - life.ended_at
            yield f"a step of task {line.task_id} began {late:.1f} s after its end"


def _wrong_requests(life: Life, actor: Actor) -> Iterator[str]:
    times = collections.Counter(event.payload["id"] for event in actor.events)
    memos = {event.payload["id"]: event.payload["memo"] for event in actor.events}
    for element, count in times.items():
        if count > 1:
            yield f"{element} is {count} times in the history"
    for asked in life.requests:
        yield from _wrong_request(asked, actor, times[asked.element], memos.get(asked.element))


def _wrong_request(asked: Asked, actor: Actor, count: int, memo: int | None) -> Iterator[str]:
    outcome = asked.outcome
    if outcome == "done" and not asked.is_notify and count == 0:
        yield f"{asked.element} was done, and is lost"
    if outcome == "done" and asked.is_notify and count == 0 and actor.is_open:
        yield f"{asked.element} was accepted, and is lost"
    if outcome == "done" and not asked.is_notify and memo != asked.memo:
        yield f"{asked.element} was answered with the result {asked.memo}, and has {memo}"
    if outcome not in {"done", ""} and count:
        yield f"{asked.element} was refused by {outcome}, and is in the history"
    if outcome == "TASK_CANCELLED" and not asked.cancelled:
        yield f"{asked.element} was cancelled, and no client asked for that"
    if outcome == "PROCESS_FINISHED" and actor.is_open:
        yield f"{asked.element} was refused by {outcome}, and its actor is {actor.status}"
    if outcome not in {"done", "", "TASK_CANCELLED", "PROCESS_FINISHED"}:
        yield f"{asked.element} was refused by {outcome}"


def _wrong_messages(records: ActorRecords, actor: Actor) -> Iterator[str]:
    yield from actor.state.get("wrong", ())
    got: Mapping[str, int] = actor.state.get("got", {})
    applied = collections.Counter(
        task.sender for task in actor.tasks if task.sender and task.status == "finished"
    )
    if applied != got:
        yield f"its state counts messages {got}, and its tasks {dict(applied)}"
    for to, sent in actor.state.get("sent", {}).items():
        receiver = records.actors.get(to)
        if receiver is None:
            continue  # It was removed, or never there: _wrong_ends says which.
        count = receiver.state.get("got", {}).get(actor.process_id, 0)
        # An actor that was started by a message has ended with it.
        if count > sent or (count < sent and (receiver.is_open or "/" in to)):
            yield f"it has sent {sent} messages to {to}, which has {count}"
    for sender, count in got.items():
        if sender in records.actors and count > records.actors[sender].state["sent"].get(
            actor.process_id, 0
        ):
            yield f"it has message {count} of {sender}, which has sent fewer"


def _wrong_replies(records: ActorRecords, actor: Actor) -> Iterator[str]:
    waiting = actor.state.get("open", {})
    if waiting and actor.is_open:
        yield f"replies are missing: {waiting}"
    for to, n in actor.state.get("answered", {}).items():
        receiver = records.actors.get(to)
        count = n if receiver is None else receiver.state.get("got", {}).get(actor.process_id, 0)
        if count < n:
            yield f"message {n} to {to} was answered, and it has {count}"
    for to, n, reason in actor.state.get("refused", ()):
        receiver = records.actors.get(to)
        if reason not in _ENDED | {FAILED} or (receiver is not None and receiver.is_open):
            yield f"message {n} to {to} was answered by {reason}"
        elif receiver is not None and receiver.state["got"].get(actor.process_id, 0) >= n:
            yield f"message {n} to {to} was answered by {reason}, and was applied"


def _wrong_memos(records: ActorRecords, actor: Actor, lines: Sequence[Line]) -> Iterator[str]:
    stored = {
        event.task_id: event.payload["memo"]
        for event in actor.events
        if event.payload["memo"] is not None
    }
    by_task: dict[int, list[Line]] = collections.defaultdict(list)
    for line in lines:
        by_task[line.task_id].append(line)
    for task_id, noted in by_task.items():
        for broken in _wrong_memo(records, noted, stored.pop(task_id, None)):
            yield f"task {task_id}: {broken}"
    for task_id in stored:
        yield f"task {task_id}: it has a result, and was never run"


def _wrong_memo(records: ActorRecords, noted: Sequence[Line], stored: int | None) -> Iterator[str]:
    ran = [line for line in noted if line.what == RAN]
    used = {line.value for line in noted if line.what == USED}
    if stored is not None:
        used.add(stored)
    if len(used) > 1:
        yield f"attempts have used different results: {sorted(used)}"
    if not used <= {line.token for line in ran}:
        yield f"no run has given the result {used}"
    yield from _wrong_runs(noted, ran)
    extra = [line for line in ran if line.value not in used][0 if used else 1 :]
    begun_at = min((line.at for line in noted), default=0.0)
    # The fault may have come after the run whose result was lost, and before the next one.
    if extra and len(extra) > records.faults_between(begun_at, max(line.at for line in ran)):
        attempts = ", ".join(f"{line.what} by {line.token} at {line.at:.3f}" for line in noted)
        yield f"its function ran {len(extra)} times more, and faults do not explain it: {attempts}"


def _wrong_runs(noted: Iterable[Line], ran: Iterable[Line]) -> Iterator[str]:
    for token, count in collections.Counter(line.token for line in ran).items():
        if count > 1:
            yield f"its function ran {count} times in the attempt with token {token}"
    known = min((line.token for line in noted if line.what == USED), default=None)
    for line in ran:
        if known is not None and line.token > known:
            yield f"its function ran with token {line.token}, when a result was stored by {known}"


def _wrong_timers(actor: Actor, lines: Iterable[Line]) -> Iterator[str]:
    """Replay the history of an actor, and yield which timer did not fire as it should."""
    set_now: dict[str, str] = {}
    due: dict[str, float] = {}
    for event in actor.events:
        name = event.payload.get("timer")
        if name is not None:
            element = event.payload["id"]
            if set_now.pop(name, None) != element:
                yield f"timer {name!r} fired as {element}, which was not set at that time"
        for change in event.payload["timers"]:
            set_now.pop(change["name"], None)
            if not change.get("unset"):
                element = change["order"]["id"]
                set_now[change["name"]] = element
                due[element] = event.at + change["after"]
    if set_now and actor.is_open:
        yield f"timers have never fired: {set_now}"
    yield from _wrong_timer_tasks(actor, due, lines)


def _wrong_timer_tasks(
    actor: Actor, due: Mapping[str, float], lines: Iterable[Line]
) -> Iterator[str]:
    fired = {event.payload["id"] for event in actor.events if "timer" in event.payload}
    begun: dict[int, float] = {}
    for line in lines:
        begun[line.task_id] = min(line.wall, begun.get(line.task_id, line.wall))
    timers: dict[str, ActorTask] = {}
    for task in actor.tasks:
        if task.task_type != "timeout":
            continue
        element = task.element
        if element in timers:
            yield f"timer {element} has two tasks"
        timers[element] = task
        if (task.status == "finished") is not (element in fired):
            yield f"timer {element} is {task.status}, and has fired: {element in fired}"
        early = due.get(element, 0.0) - begun.get(task.task_id, due.get(element, 0.0))
        if early > _CLOCK_SECONDS:
            yield f"timer {element} began {early:.3f} s before its time"
    for element in due.keys() - timers:
        yield f"timer {element} was set, and has no task"


def _wrong_after_end(actor: Actor) -> Iterator[str]:
    if actor.is_open:
        return
    for task in actor.tasks:
        if task.status not in {"finished", "error", "cancelled"}:
            yield f"task {task.task_id} is {task.status}"
        if task.started_at is not None and task.started_at > actor.changed_at:
            yield f"task {task.task_id} began after the end"
    if any(event.at > actor.changed_at for event in actor.events):
        yield "it has events of after its end"
