"""Jobs in a chaos run: what processors do of their nodes, and what must be true in the end.

The steps of a node's follower begin and end in the journals. The step by which a node was
done is the attempt that its last finished task counts, since the fence lets only the replica settle
that has the lease. So

- a job that was acknowledged is there, and has ended, unless its job_client has removed it;
- no step of a node begins before the end of that by which each of its predecessors was done;
- who is skipped was never begun;
- a node that is done has the result that its follower gave;
- a leader gets one join once all have ended, and one more for each retry;
- recovery has found nothing: whatever process dies, a settlement is whole.
"""

import asyncio
import collections
import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg

from progressor.sdk import Fail, Retry, Step
from tests.chaos.load.journal import NODE, Journal, Span

NAMESPACE = "chaos-jobs"
"""Where jobs are, so that the judges of processes have nothing to do with them."""

_STALL_SECONDS = 60.0
_CLOCK_SECONDS = 0.01
_RECOVERED = b"job recovered"

_JOBS = """
    SELECT j.process_id, j.state::text, j.retry_count,
        (SELECT count(*) FROM progressor.tasks t
         WHERE (t.slot, t.namespace, t.process_id) = (j.slot, j.namespace, j.process_id)
            AND t.task_type = 'join' AND t.status IN ('finished', 'error'))
    FROM progressor.jobs j WHERE j.namespace = %s"""
_NODES = """
    SELECT n.process_id, n.ordinal, n.name, n.state::text, n.attempt, n.predecessors, n.result,
        n.started_at IS NOT NULL, t.task_id, t.attempt_count
    FROM progressor.job_nodes n
    LEFT JOIN LATERAL (
        SELECT t.task_id, t.attempt_count
        FROM progressor.tasks t
        WHERE (t.slot, t.namespace, t.process_id)
                = (n.follower_slot, n.follower_namespace, n.follower_id)
            AND t.status = 'finished'
        ORDER BY t.task_id DESC LIMIT 1
    ) t ON true
    WHERE n.namespace = %s ORDER BY n.process_id, n.ordinal"""


async def carry(step: Step[Any], journal: Journal) -> None:
    order = step.args
    with journal.noting(step, NODE, spans=True):
        if order["do"] == "stall" and step.attempt == 1:
            await asyncio.sleep(_STALL_SECONDS)
        await asyncio.sleep(order["delay"])
        if order["do"] == "flaky" and step.attempt == 1:
            raise Retry("not now")
        if order["do"] == "fail" and step.task_id % 2:
            # A retry is another task, and may have more luck.
            raise Fail("no luck")
        if order["do"] == "timer":
            step.set_timer(after=order["delay"], args={**order, "do": "done"})
        else:
            step.complete({"id": order["id"]})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoredNode:
    """A node as the database has it; ``settled``: task and attempt by which it was done."""

    job_id: str
    ordinal: int
    name: str
    state: str
    attempt: int = 1
    predecessors: tuple[int, ...] = ()
    result: bytes | None = None
    was_started: bool = True
    settled: tuple[int, int] | None = None

    @property
    def process_id(self) -> str:
        return f"{self.job_id}/{self.name}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """A job as the database has it; ``join_count``: how often its leader has decided."""

    job_id: str
    state: str
    retry_count: int = 0
    join_count: int = 1
    nodes: tuple[StoredNode, ...] = ()


def broken_jobs(
    jobs: Iterable[StoredJob],
    spans: Iterable[Span],
    *,
    acknowledged: Iterable[str] = (),
    removed: Iterable[str] = (),
) -> list[str]:
    """Return what is wrong with jobs."""
    by_process: dict[str, list[Span]] = collections.defaultdict(list)
    gone = set(removed)
    for span in spans:
        by_process[span.process_id].append(span)
    stored = {job.job_id: job for job in jobs}
    lost = sorted(set(acknowledged) - stored.keys() - gone)
    found = [f"{job_id}: the job was acknowledged, and is not there" for job_id in lost]
    for job in stored.values():
        found += _wrong_with(job)
        if job.job_id not in gone:
            found += _wrong_steps(job, by_process)
    return found


def read_jobs(conninfo: str) -> list[StoredJob]:
    nodes: dict[str, list[StoredNode]] = collections.defaultdict(list)
    with psycopg.connect(conninfo) as connection:
        for row in connection.execute(_NODES, [NAMESPACE]):
            nodes[row[0]].append(
                StoredNode(
                    job_id=row[0], ordinal=row[1], name=row[2], state=row[3], attempt=row[4],
                    predecessors=tuple(row[5]), result=row[6], was_started=row[7],
                    settled=None if row[8] is None else (row[8], row[9]),
                )
            )  # fmt: skip
        return [
            StoredJob(
                job_id=row[0], state=row[1], retry_count=row[2], join_count=row[3],
                nodes=tuple(nodes[row[0]]),
            )
            for row in connection.execute(_JOBS, [NAMESPACE])
        ]  # fmt: skip


def recoveries(logs: Iterable[Path]) -> list[str]:
    """Return what replicas have logged of recovery, which has nothing to find."""
    return [
        f"{log.name}: {line.decode(errors='replace')[:300]}"
        for log in logs
        for line in log.read_bytes().splitlines()
        if _RECOVERED in line
    ]


def _wrong_with(job: StoredJob) -> Iterator[str]:
    if job.state == "running":
        yield f"{job.job_id}: the job has not ended: {_states(job)}"
    if job.join_count > job.retry_count + 1:
        yield f"{job.job_id}: the leader has decided {job.join_count} times"
    if job.state in {"done", "failed"} and job.join_count < 1:
        yield f"{job.job_id}: the job is {job.state}, and its leader was never told"
    if job.state == "done" and any(node.state != "done" for node in job.nodes):
        yield f"{job.job_id}: the job is done, and not all its nodes: {_states(job)}"
    for node in job.nodes:
        if node.attempt > job.retry_count + 1:
            yield f"{node.process_id}: the node has begun {node.attempt} times"
        given = json.loads(node.result)["id"] if node.result else None
        if node.state == "done" and given != node.process_id:
            yield f"{node.process_id}: the node is done, and its result is of {given}"


def _wrong_steps(job: StoredJob, by_process: Mapping[str, list[Span]]) -> Iterator[str]:
    ordinals = {node.ordinal: node for node in job.nodes}
    for node in job.nodes:
        spans = by_process.get(node.process_id, [])
        if spans and not node.was_started:
            yield f"{node.process_id}: a node that is {node.state} was never started, and begun"
        begun_at = min((span.begun_at for span in spans), default=math.inf)
        for before in (ordinals[each] for each in node.predecessors):
            ended_at = _done_at(before, by_process)
            if ended_at is not None and begun_at + _CLOCK_SECONDS < ended_at:
                yield f"{node.process_id}: the node began before {before.name} had ended"
            if spans and before.state != "done":
                yield f"{node.process_id}: the node began, and {before.name} is {before.state}"


def _done_at(node: StoredNode, by_process: Mapping[str, list[Span]]) -> float | None:
    """Return when the step has ended by which a node was done; None: no note says."""
    found = [
        span.ended_at
        for span in by_process.get(node.process_id, ())
        if (span.task_id, span.attempt) == node.settled
    ]
    return found[0] if len(found) == 1 and found[0] < math.inf else None


def _states(job: StoredJob) -> str:
    return ", ".join(f"{node.name} {node.state}" for node in job.nodes)
