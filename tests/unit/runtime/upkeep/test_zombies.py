"""Zombies: lost leases are collected by the namespace's policy."""

import asyncio
import dataclasses
import logging

import pytest

from progressor import errors
from progressor.domain.processes.policy import ZombiePolicy
from progressor.domain.processes.process import Part, ProcessKey
from progressor.domain.processes.settlement import Retry
from progressor.domain.processes.task import TaskStatus
from progressor.settings.sections import ReplicaSettings
from progressor.storage.postgres.rows.effects import Effects
from progressor.storage.replicas.replicas import ZombieCause
from progressor.storage.steps.settlements import Entry, LeaseLost, Outcome
from tests.support.builders import (
    make_key,
    make_namespace,
    make_task,
    make_written,
    make_zombie,
    seconds,
)
from tests.support.clock import START
from tests.support.runtime.harness import (
    Harness,
    begun,
    traced,
)
from tests.support.runtime.memory import (
    away,
)
from tests.support.runtime.virtual_time import settled
from tests.support.telemetry.measured import counted, recorded
from tests.support.telemetry.spans import SPAN_ID, TRACED, Spans, attributes_of, parent_of

STRAY = make_zombie(cause=ZombieCause.UNKNOWN)


@pytest.mark.parametrize("cause", [ZombieCause.SILENT, ZombieCause.OVERRUN])
async def test_a_lost_lease_is_retried_and_the_attempt_counts(
    harness: Harness, cause: ZombieCause
) -> None:
    zombie = make_zombie(cause=cause, attempt=2)
    harness.replicas.zombies = (zombie,)

    await harness.zombies.scan()

    (entry,) = harness.settlements.entries
    assert isinstance(entry.settlement, Retry)
    assert entry.settlement.attempt_count == 2
    assert entry == Entry(
        key=zombie.key,
        task_id=zombie.task_id,
        task_type=zombie.task_type,
        attempt=zombie.attempt,
        token=zombie.token,
        settlement=entry.settlement,
        process=None,
        continues=False,
        expires_after=harness.namespaces.known()[0].step_timeout,
    )


async def test_a_zombie_that_is_given_up_ends_its_node_and_notifies_its_caller(
    harness: Harness,
) -> None:
    harness.namespaces.by_name["orders"] = make_namespace(zombie_policy=ZombiePolicy.FAIL)
    leader = dataclasses.replace(make_key(), namespace="rollouts")
    harness.replicas.zombies = (make_zombie(part=Part(leader=leader, node=1)),)
    waiter = harness.expect()

    await harness.zombies.scan()

    assert waiter.result().status is TaskStatus.ERROR
    assert harness.observers.counts == {"zombie_collected": 1}
    assert counted(harness.metrics.zombies_collected) == {("orders", "silent", "fail", "break"): 1}
    assert counted(harness.metrics.settled) == {("orders", "call", "break"): 1}
    assert counted(harness.metrics.job_nodes_ended) == {("rollouts", "failed"): 1}
    assert recorded(harness.metrics.zombie_collection) == {("orders", "call"): (1, 0.0)}


async def test_a_zombie_of_a_namespace_that_is_gone_is_passed_over(harness: Harness) -> None:
    gone = make_zombie(key=make_key(namespace="void"), task_id=1)
    harness.replicas.zombies = (gone, make_zombie(task_id=2))

    await harness.zombies.scan()

    assert [entry.task_id for entry in harness.settlements.entries] == [2]


async def test_a_stray_is_handed_on_uncounted_when_it_is_found_twice(harness: Harness) -> None:
    harness.replicas.zombies = (STRAY,)

    await harness.zombies.scan()
    once = len(harness.settlements.entries)
    await harness.zombies.scan()

    (entry,) = harness.settlements.entries
    assert once == 0
    assert entry.settlement == Retry(delay=seconds(0), attempt_count=0, error=None)


async def test_a_lease_whose_answer_was_only_late_is_no_stray(harness: Harness) -> None:
    harness.replicas.zombies = (STRAY,)
    await harness.zombies.scan()

    harness.leases.take(make_task(token=STRAY.token))
    await harness.zombies.scan()

    assert harness.settlements.entries == []


@pytest.mark.parametrize("writes", ["admissions", "settlements"])
async def test_a_lease_that_a_write_under_way_may_tell_of_is_no_stray_yet(
    harness: Harness, writes: str
) -> None:
    harness.replicas.zombies = (STRAY,)
    writing: set[ProcessKey] = getattr(harness, writes).writing
    writing.add(STRAY.key)
    for _ in range(3):
        await harness.zombies.scan()
    meanwhile = len(harness.settlements.entries)

    writing.clear()
    for _ in range(2):
        await harness.zombies.scan()

    assert (meanwhile, len(harness.settlements.entries)) == (0, 1)


async def test_a_lease_that_a_claim_under_way_may_tell_of_is_no_stray_yet(harness: Harness) -> None:
    harness.replicas.zombies = (STRAY,)
    harness.claims.begun_count, harness.claims.answered_count = 5, 3
    for _ in range(3):
        await harness.zombies.scan()
    meanwhile = len(harness.settlements.entries)

    harness.claims.begun_count, harness.claims.answered_count = 9, 5
    await harness.zombies.scan()

    assert (meanwhile, len(harness.settlements.entries)) == (0, 1)


async def test_a_suspect_that_disappears_is_cleared(harness: Harness) -> None:
    for zombies in ((STRAY,), (), (STRAY,)):
        harness.replicas.zombies = zombies
        await harness.zombies.scan()

    assert harness.settlements.entries == []


async def test_a_zombie_that_cannot_be_settled_ends_the_scan_loudly(harness: Harness) -> None:
    harness.replicas.zombies = (make_zombie(),)
    harness.settlements.script.append(away())

    with pytest.raises(ExceptionGroup) as caught:
        await harness.zombies.scan()

    assert caught.group_contains(errors.StorageUnavailableError)


async def test_one_whose_process_is_locked_does_not_hold_up_those_that_are_found_later(
    harness: Harness,
) -> None:
    locked, later = make_zombie(task_id=1, token=11), make_zombie(task_id=2, token=12)
    held: list[asyncio.Future[Outcome]] = []
    harness.settlements.held = held
    harness.replicas.zombies = (locked,)
    await harness.zombies.scan()
    harness.settlements.held = None
    harness.replicas.zombies = (locked, later)
    for _ in range(3):
        await harness.zombies.scan()
        harness.replicas.zombies = (locked,)
    meanwhile = [entry.task_id for entry in harness.settlements.entries]
    collected = harness.observers.counts["zombie_collected"]

    held[0].set_result(make_written())
    await settled()

    assert (meanwhile, collected) == ([1, 2], 1)
    assert harness.observers.counts == {"zombie_collected": 2}
    await harness.zombies.scan()
    assert [entry.task_id for entry in harness.settlements.entries] == [1, 2, 1]


async def test_a_settlement_has_its_effects_although_its_scan_was_cancelled(
    harness: Harness,
) -> None:
    held: list[asyncio.Future[Outcome]] = []
    harness.settlements.held = held
    harness.replicas.zombies = (make_zombie(),)
    scan = await begun(harness.zombies.scan())
    scan.cancel()
    await settled()

    held[0].set_result(make_written(effects=Effects(due=((make_key(), 9),))))
    await settled()

    assert scan.cancelled()
    assert harness.due_queue.changed.is_set()


async def test_one_that_cannot_be_settled_does_not_hold_up_the_others(harness: Harness) -> None:
    harness.replicas.zombies = (make_zombie(task_id=1), make_zombie(task_id=2))
    harness.settlements.script.append(errors.StorageRefusedError("its page is broken"))

    await harness.zombies.scan()

    assert [entry.task_id for entry in harness.settlements.entries] == [1, 2]
    assert harness.observers.counts == {"zombie_collected": 1}


async def test_the_log_and_a_span_of_its_trace_name_what_was_collected(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    spans = Spans()
    harness.replicas.zombies = (make_zombie(trace_context=TRACED, attempt=2, replica_id=3),)

    await traced(harness.zombies, spans.tracing).scan()

    facts = {"attempt": 2, "cause": "silent", "lost_replica_id": 3, "settlement": "retry"}
    (told,) = (vars(it) for it in caplog.records if it.getMessage() == "lost lease collected")
    assert told.items() >= ({"task_id": 7} | facts).items()
    span = spans.one("progressor.collect")
    assert parent_of(span) == SPAN_ID
    assert attributes_of(span).items() >= {f"progressor.{it}": facts[it] for it in facts}.items()


async def test_a_lost_lease_that_another_replica_collected_is_told_by_that() -> None:
    spans, harness = Spans(), Harness()
    harness.replicas.zombies = (make_zombie(trace_context=TRACED),)
    harness.settlements.script.append(LeaseLost())

    await traced(harness.zombies, spans.tracing).scan()

    assert spans.ended() == ()


JUMP = seconds(60)
LEASE = ReplicaSettings().lease_timeout.total_seconds()


async def test_nothing_is_collected_for_a_lease_timeout_after_the_clock_has_jumped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    harness = Harness()
    await harness.zombies.scan()
    harness.replicas.ahead, harness.replicas.zombies = JUMP, (make_zombie(),)

    await asyncio.sleep(1)
    await harness.zombies.scan()
    await asyncio.sleep(LEASE - 0.1)
    await harness.zombies.scan()
    too_early = len(harness.settlements.entries)
    await asyncio.sleep(0.2)
    await harness.zombies.scan()

    assert (too_early, len(harness.settlements.entries)) == (0, 1)
    [line] = [each for each in caplog.records if "clock has jumped" in each.message]
    assert line.__dict__["ahead_seconds"] == JUMP.total_seconds()


async def test_a_step_from_before_the_jump_may_take_longer_by_as_much(harness: Harness) -> None:
    await harness.zombies.scan()
    harness.replicas.ahead = JUMP

    await asyncio.sleep(1)
    await harness.zombies.scan()
    await harness.zombies.scan()

    assert harness.replicas.jumps == [
        (None, seconds(0)), (None, seconds(0)), (START + seconds(1) + JUMP, JUMP),
    ]  # fmt: skip


@pytest.mark.parametrize("ahead", [-60.0, 0.0, 0.4])
async def test_a_clock_that_goes_back_or_a_little_ahead_holds_nothing_up(
    harness: Harness, ahead: float
) -> None:
    await harness.zombies.scan()
    harness.replicas.ahead, harness.replicas.zombies = seconds(ahead), (make_zombie(),)

    await asyncio.sleep(1)
    await harness.zombies.scan()

    assert len(harness.settlements.entries) == 1
