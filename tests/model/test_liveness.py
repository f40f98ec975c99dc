"""Whatever a replica leaves behind that is killed, another does all of it that is due, and soon.

The bound is the promise: the lease timeout, until what the dead one held is known to be lost; a
scan interval, until that is seen, and what no replica claims is overdue; a backoff, for what waits
for its retry. And patience for the machine, less than the time after which another safety net (the
timeout of a step, above all) would have brought what the scanners had missed.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
from collections.abc import Collection, Iterator
from typing import Any, LiteralString

import psycopg
import pytest
from hypothesis import Phase, given, settings

from progressor.domain.processes.namespace import Namespace
from progressor.sdk import BYTES, Client
from tests.support.engine.replica import Replica, running_replica
from tests.support.models.wreckage import BACKOFF, LIVES, POLICY, Lives, leave_behind
from tests.support.processor.scripted import ScriptedProcessor
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.store import create_namespace, empty

LEASE_TIMEOUT = dt.timedelta(seconds=0.5)
SCAN_INTERVAL = dt.timedelta(seconds=0.1)
BOUND = LEASE_TIMEOUT + SCAN_INTERVAL + BACKOFF
PATIENCE = dt.timedelta(seconds=10)
SETTINGS = {
    "replica.heartbeat_interval_seconds": "0.1",
    "replica.lease_timeout_seconds": str(LEASE_TIMEOUT.total_seconds()),
    "scanner.interval_seconds": str(SCAN_INTERVAL.total_seconds()),
    "scanner.overdue_seconds": str(SCAN_INTERVAL.total_seconds()),
}

_UNENDED: LiteralString = """
    SELECT t.process_id, t.task_id, coalesce(r.attempt, 0), p.status::text,
        coalesce(s.due_at > clock_timestamp() + %(bound)s, FALSE) AND t.attempt_count = 0
    FROM progressor.tasks t
    JOIN progressor.processes p USING (slot, namespace, process_id)
    LEFT JOIN progressor.schedule s USING (slot, namespace, process_id, task_id)
    LEFT JOIN progressor.running r USING (slot, namespace, process_id, task_id)
    WHERE t.finished_at IS NULL"""
_LEFT: LiteralString = """
    SELECT process_id, task_id
    FROM progressor.running
    UNION ALL
    SELECT process_id, task_id
    FROM progressor.schedule s
    JOIN progressor.tasks t USING (slot, namespace, process_id, task_id)
    WHERE s.status <> 'waiting' OR s.due_at IS NULL OR s.due_at <= %(until)s
        OR t.attempt_count > 0"""


@dataclasses.dataclass(frozen=True, slots=True)
class Unended:
    """A task that the dead replica left; ``is_later``: a timer that is not due for long."""

    process_id: str
    task_id: int
    attempt: int
    status: str
    is_later: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A database, the loop on which its replicas live and die, and a processor that succeeds."""

    conninfo: str
    runner: asyncio.Runner
    observer: psycopg.Connection[Any]
    processor: ScriptedProcessor
    namespace: Namespace

    def unended(self) -> list[Unended]:
        """Return the tasks that have not ended."""
        rows = self.observer.execute(_UNENDED, {"bound": BOUND}).fetchall()
        return [Unended(*row) for row in rows]

    def statuses(self) -> dict[str, str]:
        """Return the status of each process."""
        query: LiteralString = "SELECT process_id, status::text FROM progressor.processes"
        return dict(self.observer.execute(query).fetchall())

    def finished(self) -> set[int]:
        """Return the tasks that succeeded."""
        query: LiteralString = "SELECT task_id FROM progressor.tasks WHERE status = 'finished'"
        return {row[0] for row in self.observer.execute(query).fetchall()}

    async def do_what_is_due(self) -> None:
        """Run a replica until it has done all that is due; then each process takes a call."""
        async with running_replica(self.conninfo, SETTINGS) as replica:
            row = self.observer.execute("SELECT clock_timestamp() + %s", [BOUND]).fetchone()
            assert row is not None
            async with asyncio.timeout((BOUND + PATIENCE).total_seconds()):
                await self._nothing_left(replica, row[0])
            async with asyncio.timeout(PATIENCE.total_seconds()), asyncio.TaskGroup() as group:
                for process_id, status in self.statuses().items():
                    if status == "running":
                        group.create_task(self._call(replica, process_id))

    async def _nothing_left(self, replica: Replica, until: dt.datetime) -> None:
        scans = 0
        while self.observer.execute(_LEFT, {"until": until}).fetchall():
            scans += 1
            await replica.points.wait("scanned", scans, scan="due")

    async def _call(self, replica: Replica, process_id: str) -> None:
        async with Client(replica.address, namespace=self.namespace.name, codec=BYTES) as client:
            await client.call(process_id)


@pytest.fixture
def scene(own_database: str) -> Iterator[Scene]:
    with (
        asyncio.Runner() as runner,
        psycopg.connect(own_database, autocommit=True) as observer,
        contextlib.ExitStack() as stack,
    ):
        processor = ScriptedProcessor()
        runner.run(processor.__aenter__())
        stack.callback(lambda: runner.run(processor.stop()))
        namespace = Namespace(
            name="orders", processor_targets=(processor.target,), retry_policy=POLICY
        )
        create_namespace(own_database, namespace)
        yield Scene(
            conninfo=own_database,
            runner=runner,
            observer=observer,
            processor=processor,
            namespace=namespace,
        )


def spent(unended: Collection[Unended]) -> set[str]:
    """Return the processes whose task had no attempt left when its replica was killed."""
    return {each.process_id for each in unended if each.attempt >= POLICY.attempts_max}


def test_all_that_a_killed_replica_leaves_is_done_in_bounded_time(scene: Scene) -> None:
    chosen = settings()

    # No shrinking: each try at a state that fails costs the whole patience.
    phases = [phase for phase in chosen.phases if phase is not Phase.shrink]

    @settings(chosen, max_examples=max(1, chosen.max_examples // 4), phases=phases)
    @given(lives=LIVES)
    def left_by(lives: Lives) -> None:
        empty(scene.observer)
        scene.runner.run(leave_behind(scene.conninfo, scene.namespace, lives))
        unended, before = scene.unended(), scene.statuses()
        due = [each for each in unended if not each.is_later]

        scene.runner.run(scene.do_what_is_due())

        after, finished = scene.statuses(), scene.finished()
        broken = {process_id for process_id, status in before.items() if status == "error"}
        unlucky = spent(unended)
        beyond_help = broken - {each.process_id for each in due}
        assert {key for key, status in after.items() if status == "error"} <= unlucky | beyond_help
        assert {
            each.task_id for each in due if each.process_id in after.keys() - unlucky - broken
        } <= finished
        assert "init" not in after.values()
        assert broken_invariants(scene.observer) == {}
        assert scene.processor.overlaps == []

    left_by()
