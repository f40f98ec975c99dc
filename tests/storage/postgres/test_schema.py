"""What the schema refuses, and its enums, which mirror those of the domain."""

import enum

import psycopg
import pytest

from progressor.domain.gates.constraint import GatedState, GateHold
from progressor.domain.jobs.job import JobState
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.task import NodeState, TaskStatus, TaskType
from progressor.domain.schedules.schedule import OverlapPolicy, ScheduleRunCause, ScheduleRunState
from progressor.storage.postgres.rows import records
from tests.support.storage.store import create_namespace

PROCESS = (
    "INSERT INTO progressor.processes (slot, namespace, process_id, status, detail, corrupted_by,"
    " created_at, status_changed_at, init_task_id, last_event_id)"
    " VALUES (1, 'orders', {id}, {status}, {detail}, {by}, now(), now(), 1, {last})"
)
TASK = (
    "INSERT INTO progressor.tasks (slot, namespace, process_id, task_id, task_type, status,"
    " created_at, finished_at, attempt_count, idempotency_key)"
    " VALUES (1, 'orders', 'p', {id}, 'call', {status}, now(), {finished}, {attempts}, {key})"
)
SCHEDULE = (
    "INSERT INTO progressor.schedule (slot, namespace, process_id, task_id, task_type, status,"
    " due_at, replica_id) VALUES (1, 'orders', 'p', {id}, {type}, {status}, {due}, 1)"
)
RUNNING = (
    "INSERT INTO progressor.running (slot, namespace, process_id, task_id, task_type, attempt,"
    " token, replica_id, leased_at, expires_at)"
    " VALUES (1, 'orders', 'p', {id}, 'call', 1, 1, 1, now(), now())"
)
EVENT = (
    "INSERT INTO progressor.events (slot, namespace, process_id, event_id, task_id, occurred_at,"
    " payload) VALUES (1, 'orders', 'p', {id}, 1, now(), '')"
)


MIRRORS: dict[str, type[enum.StrEnum]] = {
    "process_status": ProcessStatus,
    "task_type": TaskType,
    "task_status": TaskStatus,
    "gated_state": GatedState,
    "gate_hold": GateHold,
    "job_state": JobState,
    "node_state": NodeState,
    "overlap_policy": OverlapPolicy,
    "schedule_run_cause": ScheduleRunCause,
    "schedule_run_state": ScheduleRunState,
}


def process(
    id_: str = "'p'", status: str = "'running'", detail: str = "NULL", by: str = "NULL",
    last: int = 0,
) -> str:  # fmt: skip
    return PROCESS.format(id=id_, status=status, detail=detail, by=by, last=last)


def task(
    id_: int = 1, status: str = "'waiting'", finished: str = "NULL", attempts: int = 0,
    key: str = "NULL",
) -> str:  # fmt: skip
    return TASK.format(id=id_, status=status, finished=finished, attempts=attempts, key=key)


def scheduled(
    id_: int = 1, type_: str = "'call'", status: str = "'waiting'", due: str = "now()"
) -> str:
    return SCHEDULE.format(id=id_, type=type_, status=status, due=due)


REFUSED = {
    "an error without detail": [process(status="'error'")],
    "a detail without error": [process(detail="'why'")],
    "a breaker without error": [process(by="1")],
    "a process twice": [process(), process()],
    "an end without an instant": [task(status="'finished'")],
    "an instant without an end": [task(finished="now()")],
    "a task twice": [task(), task()],
    "a key twice in a process": [task(1, key="'k'"), task(2, key="'k'")],
    "a call that is blocked": [scheduled(status="'blocked'")],
    "a schedule of what runs": [scheduled(status="'running'")],
    "a timer that is never due": [scheduled(type_="'timeout'", due="NULL")],
    "two leases of a process": [RUNNING.format(id=1), RUNNING.format(id=2)],
    "an event twice": [EVENT.format(id=1), EVENT.format(id=1)],
    "a namespace in capitals": [
        "INSERT INTO progressor.namespaces VALUES ('Orders', 1, '{}', now(), now())"
    ],
}


@pytest.mark.parametrize("what", REFUSED)
def test_the_schema_refuses(database: str, what: str) -> None:
    *before, last = REFUSED[what]
    create_namespace(database)
    with psycopg.connect(database) as connection:
        for statement in before:
            connection.execute(statement.encode())

        with pytest.raises(psycopg.IntegrityError):
            connection.execute(last.encode())
        connection.rollback()


@pytest.mark.parametrize(
    "allowed", [process(id_="repeat('ä', 128)"), process(status="'error'", detail="''"), task(),
                scheduled(), scheduled(type_="'remove'", status="'blocked'")],
)  # fmt: skip
def test_the_schema_takes_what_is_next_to_that(database: str, allowed: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(allowed.encode())
        connection.rollback()


@pytest.fixture(scope="module")
def labels(database: str) -> dict[str, list[str]]:
    with psycopg.connect(database) as connection:
        found = connection.execute(
            "SELECT t.typname, array_agg(e.enumlabel::text ORDER BY e.enumsortorder)"
            " FROM pg_enum e JOIN pg_type t ON t.oid = e.enumtypid"
            " WHERE t.typnamespace = 'progressor'::regnamespace GROUP BY t.typname"
        ).fetchall()
    return dict(found)


def test_every_enum_of_the_schema_has_a_mirror(labels: dict[str, list[str]]) -> None:
    assert labels.keys() == MIRRORS.keys()


@pytest.mark.parametrize("name", MIRRORS)
def test_members_and_their_order_are_the_same(labels: dict[str, list[str]], name: str) -> None:
    assert labels[name] == [member.value for member in MIRRORS[name]]


@pytest.mark.parametrize("members", MIRRORS.values())
def test_a_row_may_spell_every_member_as_text_or_bytes(members: type[enum.StrEnum]) -> None:
    known = records.members(members)

    assert {known[each.value] for each in members} == set(members)
    assert {known[each.value.encode()] for each in members} == set(members)
