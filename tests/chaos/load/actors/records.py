"""What is left of actors: their rows in the database, and what their steps have noted."""

import dataclasses
import datetime as dt
import itertools
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg

from tests.chaos.load.actors.steps import NAMESPACE

_LEASE_LOST = b'"lease lost: no heartbeat could be written"'
_PROCESSES = """
    SELECT process_id, status::text, end_reason, result, aux_state,
        extract(epoch FROM status_changed_at)::float8
    FROM progressor.processes WHERE namespace = %s"""
_EVENTS = """
    SELECT process_id, task_id, payload, extract(epoch FROM occurred_at)::float8
    FROM progressor.events WHERE namespace = %s ORDER BY process_id, event_id"""
_TASKS = """
    SELECT process_id, task_id, task_type::text, status::text, args,
        extract(epoch FROM scheduled_at)::float8, extract(epoch FROM started_at)::float8,
        error_reason
    FROM progressor.tasks WHERE namespace = %s ORDER BY task_id"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    task_id: int
    payload: Mapping[str, Any]
    at: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ActorTask:
    """A task as the database has it; ``element`` is the id in its order, ``sender`` who sent it."""

    task_id: int
    task_type: str
    status: str
    element: str = ""
    sender: str = ""
    scheduled_at: float = 0.0
    started_at: float | None = None
    error: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """An actor as the database has it; instants in seconds of the database's clock."""

    process_id: str
    status: str
    reason: str | None = None
    result: Mapping[str, Any] | None = None
    state: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    changed_at: float = 0.0
    events: Sequence[Event] = ()
    tasks: Sequence[ActorTask] = ()

    @property
    def is_open(self) -> bool:
        return self.status != "finished"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What a step has noted; ``value`` is the token by which its effect was run, ``wall`` a time.

    ``what``: the step has begun, its effect was run, or the result of the effect was used.
    """

    process_id: str
    task_id: int
    token: int
    attempt: int
    what: str
    value: int
    at: float
    wall: float


def path_beside(journal: Path) -> Path:
    """Return the path of the file for the notes of actors, beside a processor's journal."""
    return journal.with_suffix(".actors")


def read_lines(journals: Iterable[Path]) -> list[Line]:
    names = [field.name for field in dataclasses.fields(Line)]
    found = []
    for path in filter(Path.exists, map(path_beside, journals)):
        with path.open("rb") as file:
            for values in map(json.loads, file):
                values[0] = sys.intern(values[0])
                found.append(Line(**dict(zip(names, values, strict=True))))
    return found


def read_stalls(logs: Iterable[Path]) -> Iterator[tuple[float, float]]:
    """Yield when replicas lost their leases because they could write no heartbeat, as they say.

    They do so in faults, and where the machine stands still for as long.
    """
    ahead = time.time() - time.monotonic()
    for line in itertools.chain.from_iterable(log.read_bytes().splitlines() for log in logs):
        if _LEASE_LOST in line:
            entry = json.loads(line)
            at = dt.datetime.fromisoformat(entry["timestamp"]).timestamp() - ahead
            yield at - entry["seconds"], at


def read_actors(conninfo: str) -> dict[str, Actor]:
    with psycopg.connect(conninfo) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        rows = connection.execute(_PROCESSES, [NAMESPACE]).fetchall()
        events = _by_process(connection, _EVENTS)
        tasks = _by_process(connection, _TASKS)
    return {
        process_id: Actor(
            process_id=process_id,
            status=status,
            reason=reason,
            result=json.loads(result) if result else None,
            state=json.loads(state) if state else {},
            changed_at=changed_at,
            events=tuple(itertools.starmap(_event, events.get(process_id, ()))),
            tasks=tuple(itertools.starmap(_task, tasks.get(process_id, ()))),
        )
        for process_id, status, reason, result, state, changed_at in rows
    }


def _by_process(
    connection: psycopg.Connection[Any], query: str
) -> dict[str, list[tuple[Any, ...]]]:
    found: dict[str, list[tuple[Any, ...]]] = {}
    for process_id, *row in connection.execute(query.encode(), [NAMESPACE]):
        found.setdefault(process_id, []).append(tuple(row))
    return found


def _event(task_id: int, payload: bytes, at: float) -> Event:
    return Event(task_id=task_id, payload=json.loads(payload), at=at)


def _task(  # noqa: PLR0917  # a row
    task_id: int,
    task_type: str,
    status: str,
    args: bytes,
    scheduled_at: float | None,
    started_at: float | None,
    error: str | None,
) -> ActorTask:
    order = json.loads(args) if args and task_type != "reply" else {}
    return ActorTask(
        task_id=task_id,
        task_type=sys.intern(task_type),
        status=sys.intern(status),
        element=order.get("id", ""),
        sender=sys.intern(order.get("from", [""])[0]),
        scheduled_at=math.inf if scheduled_at is None else scheduled_at,
        started_at=started_at,
        error=error or "",
    )
