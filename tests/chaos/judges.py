"""Judges: whether anything was lost, done twice, invented or left undone."""

import asyncio
import collections
import contextlib
import dataclasses
import datetime as dt
import itertools
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import psycopg
from psycopg.rows import dict_row

from progressor import errors
from progressor.sdk import Client
from progressor.settings import config
from progressor.storage.doctor.doctor import examine
from progressor.storage.doctor.findings import State
from tests.chaos.bulks import (
    BulkNotes,
    broken_bulks,
    count_bulks,
    read_bulks,
    stop_following,
)
from tests.chaos.history import (
    FAILED,
    Asked,
    Deed,
    Done,
    Kind,
    Operation,
    Outcome,
    Refused,
    Sight,
    StoredProcess,
    StoredTask,
    Unknown,
    again,
    broken_promises,
    contradictions,
    is_again,
    merged,
)
from tests.chaos.linear import LIVES_MAX, UNDECIDED, explained, together
from tests.chaos.load.actors import judge as actors
from tests.chaos.load.actors.client import retry_broken
from tests.chaos.load.actors.lives import Life
from tests.chaos.load.actors.records import read_actors, read_lines, read_stalls
from tests.chaos.load.connections import Notes
from tests.chaos.load.gates import broken_gates, read_tasks
from tests.chaos.load.job_clients import JobNotes
from tests.chaos.load.jobs import broken_jobs, read_jobs, recoveries
from tests.chaos.load.journal import read_journals
from tests.chaos.load.messages import broken_messages, count, read_messages, repair_all
from tests.chaos.load.processor import NAMESPACE
from tests.chaos.plan import BACKOFF_SECONDS, LEASE_SECONDS, SCAN_SECONDS, STEP_SECONDS
from tests.chaos.scene import Scene
from tests.support.engine.replica import SETTINGS

LATE_SECONDS = LEASE_SECONDS + 2 * SCAN_SECONDS + BACKOFF_SECONDS
"""After the last fault nothing that is due waits longer, on a machine that is free for it."""

_SLACK_SECONDS = 1.5  # It is not: all of this runs on two cores.
_POLL_SECONDS = 0.1
_DONE_SECONDS_MAX = 60.0
_DOCTOR_TIMEOUT = dt.timedelta(minutes=2)

# A node with constraints that has just become ready is in no other table before the upkeep.
_LEFT = """
    SELECT (SELECT count(*) FROM progressor.running) AS running,
        (SELECT count(*) FROM progressor.schedule) AS waiting,
        (SELECT count(*) FROM progressor.gated) AS gated,
        (SELECT count(*) FROM progressor.held) AS held,
        (SELECT count(*) FROM progressor.messages) AS messages,
        (SELECT count(*) FROM progressor.reply_requests) AS replies,
        (SELECT count(*) FROM progressor.jobs WHERE state = 'running') AS jobs"""
_LEFT_GATED = """
    SELECT process_id, task_id, state::text, gates, order_key, order_version
    FROM progressor.gated ORDER BY task_id LIMIT 10"""
_HOLDING = """
    SELECT DISTINCT p.process_id
    FROM progressor.processes p
    LEFT JOIN progressor.held h USING (slot, namespace, process_id)
    LEFT JOIN progressor.gated g USING (slot, namespace, process_id)
    WHERE p.namespace = %s AND p.status = 'error' AND coalesce(h.task_id, g.task_id) IS NOT NULL"""
_STUCK = """
    SELECT s.process_id, s.task_id, format('%%s due since %%s', s.task_type, now() - s.due_at)
    FROM progressor.schedule s
    JOIN progressor.processes p USING (slot, namespace, process_id)
    LEFT JOIN progressor.running r USING (slot, namespace, process_id)
    WHERE r.task_id IS NULL AND s.status = 'waiting' AND s.due_at IS NOT NULL
        -- A timer that was held may be overdue for long when its process comes back.
        AND greatest(s.due_at, p.status_changed_at) < now() - make_interval(secs => %(late)s)
    UNION ALL
    SELECT r.process_id, r.task_id,
        format('%%s in hand since %%s', r.task_type, now() - r.leased_at)
    FROM progressor.running r
    WHERE r.leased_at < now() - make_interval(secs => %(overrun)s)"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """``findings`` empty: nothing is wrong. ``undecided`` of them: histories too long to judge."""

    findings: tuple[str, ...]
    process_count: int
    operation_count: int
    event_count: int
    gated_count: int
    job_count: int
    node_count: int
    messages: Mapping[str, int]
    actors: Mapping[str, int]
    bulks: Mapping[str, int]
    undecided: int
    seconds_judging: float


async def all_done(scene: Scene, notes: Notes) -> tuple[float, list[str]]:
    """Wait until no task and no job is left; return how long it took, and what got stuck.

    Processes in error that hold something are repaired, so that it is done, and receivers of
    messages, so that these are answered.
    """
    begun_at = time.monotonic()
    bounds = {
        "late": LATE_SECONDS + _SLACK_SECONDS,
        "overrun": STEP_SECONDS + LATE_SECONDS + _SLACK_SECONDS,
    }
    async with (
        await psycopg.AsyncConnection.connect(scene.conninfo, autocommit=True) as connection,
        Client(scene.addresses[0], namespace=NAMESPACE) as client,
    ):
        counts = connection.cursor(row_factory=dict_row)
        while True:  # ends by the clock at the latest
            waited = time.monotonic() - begun_at
            left = await (await counts.execute(_LEFT)).fetchone()
            assert left is not None
            if not any(left.values()):
                return waited, []
            for (process_id,) in await (await connection.execute(_HOLDING, [NAMESPACE])).fetchall():
                await _repair(client, process_id, notes)
            await repair_all(connection, client)
            await retry_broken(connection, client)
            await stop_following(client)
            stuck = await (await connection.execute(_STUCK, bounds)).fetchall()
            if stuck:
                return waited, [f"{row[0]}: task {row[1]} is stuck: {row[2]}" for row in stuck]
            if waited > _DONE_SECONDS_MAX:
                gated = await (await connection.execute(_LEFT_GATED)).fetchall()
                return waited, [f"after {waited:.0f} s there are {left}: {gated}"]
            await asyncio.sleep(_POLL_SECONDS)


async def _repair(client: Client, process_id: str, notes: Notes) -> None:
    begun_at = time.monotonic()
    with contextlib.suppress(errors.RequestError):
        await client.simple_repair(process_id)
    notes.operations.append(
        Operation(
            process_id=process_id,
            kind=Kind.SIMPLE_REPAIR,
            outcome=Unknown("after the run"),
            sent_at=begun_at,
            answered_at=math.inf,
        )
    )


def judge(
    scene: Scene,
    notes: Notes,
    job_notes: JobNotes,
    lives: Sequence[Life],
    bulk_notes: BulkNotes,
    *,
    faults: Sequence[tuple[float, float]],
    settled_at: float,
    undone: Iterable[str],
) -> Judgement:
    """Hold what clients saw and processors were asked against the database, where all is done."""
    begun_at = time.monotonic()
    journals = read_journals(scene.journals)
    stored = _stored(scene.conninfo)
    journals.asked.extend(list(_failed_again(journals.asked)))
    ticked = ticks(journals.asked, stored, settled_at)
    histories = together(merged([*notes.operations, *ticked], settled_at=settled_at))
    wrong, undecided = compare(histories, stored, journals.asked, settled_at)
    gated = read_tasks(scene.conninfo)
    jobs = read_jobs(scene.conninfo)
    messages = read_messages(scene.conninfo, NAMESPACE)
    bulks = read_bulks(scene.conninfo)
    records = actors.ActorRecords(
        lives=lives,
        actors=read_actors(scene.conninfo),
        lines=read_lines(scene.journals),
        faults=[*faults, *read_stalls(scene.directory.glob("replica-*.log"))],
    )
    findings = [
        *undone,
        *scene.accidents,
        *notes.surprises,
        *journals.torn,
        *contradictions(notes.operations),
        *wrong,
        *broken_gates(gated, journals.gated, notes.operations),
        *broken_jobs(
            jobs,
            journals.nodes,
            acknowledged=job_notes.acknowledged,
            removed=job_notes.removed,
        ),
        *broken_messages(messages),
        *actors.broken_actors(records),
        *broken_bulks(bulks, bulk_notes),
        *recoveries(scene.directory.glob("replica-*.log")),
        *_ailments(scene.conninfo),
    ]
    return Judgement(
        findings=tuple(findings),
        process_count=len(histories),
        operation_count=len(notes.operations),
        event_count=sum(len(process.events) for process in stored.values()),
        gated_count=len(gated),
        job_count=len(jobs),
        node_count=sum(len(job.nodes) for job in jobs),
        messages=dict(
            collections.Counter(count(messages))
            + collections.Counter(actors.count_messages(records))
        ),
        actors=actors.count_others(records),
        bulks=count_bulks(bulks),
        undecided=undecided,
        seconds_judging=round(time.monotonic() - begun_at, 1),
    )


def compare(
    histories: Mapping[str, list[Operation]],
    stored: Mapping[str, StoredProcess],
    asked: Sequence[Asked],
    settled_at: float,
    *,
    lives_max: int = LIVES_MAX,
) -> tuple[list[str], int]:
    """Return what is wrong with the processes, and how many of them are undecided.

    Who cannot be judged is not innocent: that is a finding too.
    """
    findings, undecided = [], 0
    journal: dict[str, list[Asked]] = collections.defaultdict(list)
    for entry in asked:
        journal[entry.process_id].append(entry)
    for process_id, history in histories.items():
        process = stored.get(process_id)
        asked_of_it = journal.get(process_id, [])
        last = _last_look(process_id, process, settled_at)
        unexplained = explained([*history, last], asked_of_it, lives_max=lives_max)
        if unexplained == UNDECIDED:
            undecided += 1
            findings.append(f"{process_id}: {UNDECIDED}")
        elif unexplained is not None:
            findings.append(unexplained)
        if process is not None:
            findings += broken_promises(process, history, asked_of_it)
    findings += [f"{name}: no client started it" for name in stored if name not in histories]
    return findings, undecided


def _last_look(process_id: str, process: StoredProcess | None, settled_at: float) -> Operation:
    outcome: Done | Refused = Refused("PROCESS_NOT_FOUND")
    if process is not None:
        elements = tuple(element for _, element in process.events)
        outcome = Done(Sight(process.status, len(elements), elements))
    at = settled_at + 1.0
    return Operation(
        process_id=process_id, kind=Kind.LOOK, outcome=outcome, sent_at=at, answered_at=at
    )


def ticks(
    asked: Iterable[Asked], stored: Mapping[str, StoredProcess], settled_at: float
) -> Iterator[Operation]:
    """Yield the steps of timers and of what is run again, as operations without a client.

    Their tasks say how they ended.

    Those whose tasks went with their process, or are still there, may have been saved or not.
    """
    ends: dict[str, Outcome] = {"finished": Done(), "error": Refused(FAILED)}
    statuses = {
        (process.process_id, task.task_id): task.status
        for process in stored.values()
        for task in process.tasks
    }
    saved = {
        process.process_id: {element for _, element in process.events}
        for process in stored.values()
    }
    for entry in asked:
        is_rerun = is_again(entry.element)
        if is_rerun or entry.task_type == "timeout":
            status = statuses.get((entry.process_id, entry.task_id), "")
            if entry.deed is Deed.FAIL or entry.element not in saved.get(entry.process_id, ()):
                # Of several runs of a task, any may have broken the process.
                status = ""
            yield Operation(
                process_id=entry.process_id,
                kind=Kind.RERUN if is_rerun else Kind.TICK,
                outcome=ends.get(status, Unknown()),
                sent_at=entry.at,
                answered_at=settled_at if status in ends else math.inf,
                element=entry.element,
                deed=entry.deed,
            )


def _failed_again(asked: Iterable[Asked]) -> Iterator[Asked]:
    """Yield each later failure of a request's task, with an element of its own.

    The task was run again, or its failure was not saved: it may have broken the process once more.
    """
    runs: dict[tuple[str, int], itertools.count[int]] = collections.defaultdict(itertools.count)
    # Each processor has a journal of its own.
    for entry in sorted(asked, key=lambda each: each.at):
        if entry.deed is Deed.FAIL and entry.task_type not in {"timeout", "repair"}:
            run = next(runs[entry.process_id, entry.task_id])
            if run:
                yield dataclasses.replace(entry, element=again(entry.element, -run))


def _stored(conninfo: str) -> dict[str, StoredProcess]:
    events: dict[str, list[tuple[int, str]]] = collections.defaultdict(list)
    tasks: dict[str, list[StoredTask]] = collections.defaultdict(list)
    with psycopg.connect(conninfo) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        for process_id, task_id, payload in connection.execute(
            "SELECT process_id, task_id, payload FROM progressor.events"
            " WHERE namespace = %s ORDER BY process_id, event_id",
            [NAMESPACE],
        ):
            events[process_id].append((task_id, json.loads(payload)["id"]))
        for process_id, task_id, task_type, status, args, is_gated in connection.execute(
            "SELECT process_id, task_id, task_type::text, status::text, args,"
            " constraints IS NOT NULL FROM progressor.tasks"
            " WHERE namespace = %s AND task_type <> 'reply'",
            [NAMESPACE],
        ):
            told = json.loads(args) if args else {}
            tasks[process_id].append(
                StoredTask(
                    task_id=task_id,
                    task_type=task_type,
                    status=status,
                    element=told.get("id", ""),
                    set_by=told.get("by", ""),
                    is_gated=is_gated,
                )
            )
        rows = connection.execute(
            "SELECT process_id, status::text, corrupted_by, aux_state FROM progressor.processes"
            " WHERE namespace = %s",
            [NAMESPACE],
        ).fetchall()
    return {
        process_id: StoredProcess(
            process_id=process_id,
            status=status,
            corrupted_by=corrupted_by,
            register=_register(aux_state),
            events=tuple(events[process_id]),
            tasks=tuple(tasks[process_id]),
        )
        for process_id, status, corrupted_by, aux_state in rows
    }


def _register(aux_state: bytes) -> tuple[str, int]:
    state: dict[str, Any] = json.loads(aux_state) if aux_state else {"last": "", "count": 0}
    return state["last"], state["count"]


def _ailments(conninfo: str) -> list[str]:
    """Return what the doctor finds to be broken."""
    chosen = config.load(environment={}, flags={**SETTINGS, "database.dsn": conninfo})
    return [
        f"doctor: {finding.check}: {finding.words} {finding.offenders[:3]}"
        for finding in examine(chosen, conninfo, deep=True, timeout=_DOCTOR_TIMEOUT)
        if finding.state is State.FAILED
    ]
