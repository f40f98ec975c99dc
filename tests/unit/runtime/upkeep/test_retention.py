"""Retention: what is old enough goes, a share at a time."""

from typing import Any, cast

from progressor.domain.processes.process import SLOT_COUNT
from progressor.runtime.upkeep.retention import (
    BATCHES_MAX,
    REPLICAS_AGE,
    REPLIES_AGE,
    SLOTS_PER_ROUND,
    RetentionScan,
)
from progressor.settings.sections import Scanner
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.processes.results import Results
from progressor.storage.processes.retention import Retention
from progressor.storage.replicas.replicas import Replicas
from tests.support.builders import make_namespace, seconds
from tests.support.runtime.memory import (
    MemoryNamespaces,
    MemoryReplicas,
    MemoryResults,
    MemoryRetention,
)
from tests.support.runtime.virtual_time import in_virtual_time

LIMIT = 10


class Harness:
    """A round of retention in one namespace."""

    def __init__(self, **fields: Any) -> None:
        self.retention = MemoryRetention()
        self.results = MemoryResults()
        self.replicas = MemoryReplicas()
        self.round = RetentionScan(
            retention=cast("Retention", self.retention),
            results=cast("Results", self.results),
            replicas=cast("Replicas", self.replicas),
            namespaces=cast("Namespaces", MemoryNamespaces(make_namespace(**fields))),
            scanner=Scanner(retention_batch_max=LIMIT),
        )


@in_virtual_time
async def test_old_answers_and_dead_replicas_go_everywhere() -> None:
    harness = Harness()

    await harness.round.scan()

    assert harness.results.replies_deleted == [REPLIES_AGE]
    assert harness.replicas.dead_deleted == [REPLICAS_AGE]


@in_virtual_time
async def test_a_namespace_without_retention_keeps_everything() -> None:
    harness = Harness()

    await harness.round.scan()

    assert (harness.retention.finished_calls, harness.retention.task_calls) == ([], [])


@in_virtual_time
async def test_finished_processes_go_in_batches_until_none_is_left() -> None:
    harness = Harness(finished_process_retention=seconds(60))
    harness.retention.finished["orders"] = 2 * LIMIT + 1

    await harness.round.scan()

    assert len(harness.retention.finished_calls) == 3
    assert harness.retention.finished["orders"] == 0


@in_virtual_time
async def test_one_round_deletes_only_so_much() -> None:
    harness = Harness(finished_process_retention=seconds(60))
    harness.retention.finished["orders"] = 1000 * LIMIT

    await harness.round.scan()

    assert len(harness.retention.finished_calls) == BATCHES_MAX


@in_virtual_time
async def test_all_slots_have_their_turn() -> None:
    harness = Harness(task_retention=seconds(60))

    for _ in range(SLOT_COUNT // SLOTS_PER_ROUND):
        await harness.round.scan()

    assert harness.retention.task_calls == [(slot, "orders") for slot in range(SLOT_COUNT)]
