"""Jobs in a replica's storage: submitted, carried and settled by hand, and what the tables say."""

import dataclasses
import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from progressor.domain.jobs.graph import encode_graph, plan_nodes
from progressor.domain.jobs.job import NodeSpec, StartNodes
from progressor.domain.processes.intent import Complete, Lost, Outcome, Succeeded
from progressor.domain.processes.process import NO_OPTIONS, Leadership, ProcessKey, process_key
from progressor.domain.processes.settlement import settle
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.runtime.jobs import JobControl
from progressor.storage.jobs.jobs import Found, Jobs
from progressor.storage.replicas.replicas import Zombie, ZombieCause
from progressor.storage.steps.settlements import Entry, Written
from progressor.storage.steps.settlements import Outcome as SettlementOutcome
from tests.support.models.jobs.graphs import DIAMOND, Graph, specs
from tests.support.storage.store import (
    BROKEN,
    EXPIRES_AFTER,
    NAMESPACE,
    NO_TIME,
    Store,
    a_request,
    fresh_key,
    success,
)

DONE = success(Complete(b"end"))
"""The answer of a follower that is done."""

AGES = dt.timedelta(days=1)
ROUNDS_MAX = 100

_NODES = """
    SELECT name, state::text, waits_for, begun, attempt, skipped_because_of IS NOT NULL
    FROM progressor.job_nodes
    WHERE (slot, namespace, process_id) = (%s, %s, %s)
    ORDER BY ordinal"""
_COUNTS = """
    SELECT state::text, node_count, waiting, ready, running, failed, skipped, cancelled, beginning,
        upkeep_due_at IS NULL
    FROM progressor.jobs
    WHERE (slot, namespace, process_id) = (%s, %s, %s)"""
_WORK = """
    SELECT process_id, task_type::text, 'waiting', due_at IS NOT NULL
    FROM progressor.schedule
    UNION ALL
    SELECT process_id, task_type::text, 'running', true
    FROM progressor.running
    ORDER BY 1, 2"""
_FOLLOWERS = "SELECT process_id, status::text FROM progressor.processes ORDER BY 1"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobStore:
    store: Store
    jobs: Jobs
    control: JobControl

    async def submit(self, leader: ProcessKey, specs: Sequence[NodeSpec], **fields: Any) -> Written:
        action = StartNodes(nodes=tuple(specs), **fields)
        init = await self.store.run_task(
            a_request(leader, TaskType.INIT, args=encode_graph(action), led_by=Leadership.ENGINE)
        )
        return await self.settled(init, success(action), continues=False)

    async def entry(self, task: RunningTask, outcome: Outcome, *, continues: bool = False) -> Entry:
        """Return the settlement of a task that may have a part in a job."""
        part = task.process.part
        plan = None
        if isinstance(outcome, Succeeded) and isinstance(outcome.intent.action, StartNodes):
            known = await self.jobs.known_nodes(task.key)
            plan = plan_nodes(task.key, outcome.intent.action, known)
        entry = self.store.entry(task, outcome, continues=continues)
        if part is not None:
            settlement = settle(
                task,
                outcome,
                namespace=self.store.namespace,
                now=self.store.clock.now(),
                spread=0.0,
                options=part.options,
            )
            entry = dataclasses.replace(entry, settlement=settlement)
        return dataclasses.replace(entry, part=part, plan=plan)

    async def settle(
        self, task: RunningTask, outcome: Outcome = DONE, *, continues: bool = False
    ) -> SettlementOutcome:
        entry = await self.entry(task, outcome, continues=continues)
        return await self.store.write(entry)

    async def settled(
        self, task: RunningTask, outcome: Outcome = DONE, *, continues: bool = False
    ) -> Written:
        written = await self.settle(task, outcome, continues=continues)
        assert isinstance(written, Written), "the lease was lost"
        return written

    async def end(
        self, tasks: Mapping[str, RunningTask], name: str, *, fails: Collection[str] = ()
    ) -> None:
        """Settle a node's task: it is done, or it breaks."""
        await self.settled(tasks[name], BROKEN if name in fails else DONE)

    async def claim(self) -> dict[str, RunningTask]:
        """Claim all that is due, by the names that follow the leader's in their ids."""
        claimed = await self.store.claim_due(limit=1000)
        return {each.task.key.process_id.rpartition("/")[2]: each.task for each in claimed}

    async def maintain(self, leader: ProcessKey) -> None:
        """Do for a job what no settlement does, as a replica does at once."""
        for _ in range(ROUNDS_MAX):
            if (await self.control.maintain(leader)).is_whole:
                return
        message = f"{leader.process_id} is never maintained"
        raise AssertionError(message)

    async def recovered(self) -> list[Found]:
        """Do a round of recovery, of however lively jobs, and return what it has found."""
        found = await self.control.recover(age=-AGES, interval=NO_TIME)
        assert found is not None, "another replica has the round"
        return list(found)

    async def job_state(self, leader: ProcessKey) -> str:
        return str((await self._rows(_COUNTS, leader))[0][0])

    async def states(self, leader: ProcessKey) -> dict[str, str]:
        return {row[0]: row[1] for row in await self._rows(_NODES, leader)}

    async def attempts(self, leader: ProcessKey) -> dict[str, int]:
        return {row[0]: row[4] for row in await self._rows(_NODES, leader)}

    async def picture(self, leader: ProcessKey) -> list[Any]:
        """Return all that the tables say of a job but times, numbers and who was blamed first.

        What is in line, at work, and which processes there are, for all jobs.
        """
        return [
            await self._rows(_NODES, leader),
            await self._rows(_COUNTS, leader),
            await self._rows(_WORK),
            await self._rows(_FOLLOWERS),
        ]

    async def _rows(self, query: str, leader: ProcessKey | None = None) -> list[Any]:
        which = [] if leader is None else [leader.slot, leader.namespace, leader.process_id]
        async with self.store.pool.connection() as connection:
            return await (await connection.execute(query.encode(), which)).fetchall()


async def begun(jobs: JobStore, graph: Graph = DIAMOND, **fields: Any) -> ProcessKey:
    """Submit a job that the engine leads, under a new id; `fields` are of every node."""
    leader = fresh_key()
    await jobs.submit(leader, specs(graph, **fields))
    return leader


def job_store(store: Store) -> JobStore:
    jobs = Jobs(store.context)
    control = JobControl(jobs=jobs, effects=cast("EffectDispatcher", store.effects))
    return JobStore(store=store, jobs=jobs, control=control)


def leader_of(number: object, namespace: str = "orders") -> ProcessKey:
    return process_key(namespace, f"job-{number}")


def collecting(task: RunningTask, now: dt.datetime) -> Entry:
    """Return the settlement of a task whose lease was lost, as the zombie scanner makes it."""
    part = task.process.part
    zombie = Zombie(
        key=task.key,
        task_id=task.task_id,
        task_type=task.task_type,
        attempt=task.attempt,
        token=task.token,
        started_at=task.started_at,
        tried_for=task.tried_for,
        found_at=now,
        cause=ZombieCause.SILENT,
        part=part,
        broken_by=task.broken_by,
    )
    options = NO_OPTIONS if part is None else part.options
    return Entry(
        key=zombie.key,
        task_id=zombie.task_id,
        task_type=zombie.task_type,
        attempt=zombie.attempt,
        token=zombie.token,
        settlement=settle(
            zombie, Lost(), namespace=NAMESPACE, now=now, spread=0.0, options=options
        ),
        process=None,
        continues=False,
        expires_after=EXPIRES_AFTER,
        part=part,
    )
