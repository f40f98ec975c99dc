"""Enums mirror PostgreSQL's: same members, same order, both ways."""

import enum

import psycopg
import pytest

from progressor.domain.gates.constraint import GatedState, GateHold
from progressor.domain.jobs.job import JobState
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.task import NodeState, TaskStatus, TaskType
from progressor.domain.schedules.schedule import OverlapPolicy, ScheduleRunCause, ScheduleRunState
from progressor.storage.rows import records

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
