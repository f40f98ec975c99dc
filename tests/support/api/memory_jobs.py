"""Jobs behind the API, in memory; and jobs and nodes with defaults."""

import asyncio
import dataclasses
import datetime as dt
from typing import Any

from progressor import job_errors
from progressor.domain.jobs.job import Job, JobFilter, JobPage, JobState, Node, NodeCounts
from progressor.domain.processes.process import Leadership, ProcessKey, process_key
from progressor.domain.processes.task import NodeState

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class MemoryJobs:
    """Jobs of the namespace ``orders`` in a dict, each with its nodes."""

    def __init__(self) -> None:
        self.stored: dict[str, Job] = {}
        self.nodes: dict[str, tuple[Node, ...]] = {}
        self.asked: list[object] = []
        self.looked = asyncio.Event()

    def put(self, job: Job, *nodes: Node) -> None:
        """Store a job, and those of its nodes that are given."""
        job_id = job.key.process_id
        self.stored[job_id] = job
        changed = {node.ordinal: node for node in self.nodes.get(job_id, ())}
        changed |= {node.ordinal: node for node in nodes}
        self.nodes[job_id] = tuple(changed[ordinal] for ordinal in sorted(changed))

    async def read(self, key: ProcessKey, *, payloads: bool) -> JobPage:
        """Return what is stored."""
        job = self._job(key)
        nodes = self.nodes[key.process_id]
        if not payloads:
            nodes = tuple(dataclasses.replace(node, args=b"", result=b"") for node in nodes)
        return JobPage(job=job, nodes=nodes, payloads_left_out=False)

    async def list(
        self,
        namespace: str,
        wanted: JobFilter,
        *,
        after: tuple[dt.datetime, str] | None,
        limit: int,
    ) -> tuple[Job, ...]:
        """Return some, the youngest first."""
        assert namespace == "orders"
        self.asked.append(wanted)
        found = sorted(
            self.stored.values(), key=lambda it: (it.created_at, it.key.process_id), reverse=True
        )
        return tuple(
            job
            for job in found
            if (not wanted.states or job.state in wanted.states)
            and (after is None or (job.created_at, job.key.process_id) < after)
        )[:limit]

    async def changes(self, key: ProcessKey, after_revision: int) -> tuple[Job, tuple[Node, ...]]:
        """Return what is stored with a revision above the one given."""
        self.looked.set()
        job = self._job(key)
        nodes = self.nodes[key.process_id]
        return job, tuple(node for node in nodes if node.revision > after_revision)

    async def cancel(self, key: ProcessKey, reason: str) -> Job:
        """Note the reason."""
        job = self._job(key)
        if job.state is not JobState.RUNNING:
            raise job_errors.JobEndedError(key.namespace, key.process_id)
        self.asked.append(reason)
        self.put(make_job(key.process_id, state=JobState.CANCELLED, revision=job.revision + 1))
        return self.stored[key.process_id]

    async def retry(
        self, key: ProcessKey, *, deadline: dt.datetime | None, timeout: dt.timedelta | None
    ) -> tuple[Job, tuple[str, ...]]:
        """Run again all nodes that have failed."""
        job = self._job(key)
        if job.state is not JobState.FAILED:
            raise job_errors.JobNotFailedError(key.namespace, key.process_id)
        self.asked.append((deadline, timeout))
        self.put(make_job(key.process_id, revision=job.revision + 1))
        failed = (node for node in self.nodes[key.process_id] if node.state is NodeState.FAILED)
        return self.stored[key.process_id], tuple(node.name for node in failed)

    def _job(self, key: ProcessKey) -> Job:
        if key.namespace != "orders" or key.process_id not in self.stored:
            raise job_errors.JobNotFoundError(key.namespace, key.process_id)
        return self.stored[key.process_id]


def make_job(job_id: str = "job", **fields: Any) -> Job:
    """Return a job that runs, or that has ended where its state says so."""
    is_over = fields.get("state", JobState.RUNNING) is not JobState.RUNNING
    defaults: dict[str, Any] = {
        "key": process_key("orders", job_id),
        "state": JobState.RUNNING,
        "detail": None,
        "led_by": Leadership.ENGINE,
        "counts": NodeCounts(),
        "created_at": NOW,
        "updated_at": NOW,
        "ended_at": NOW if is_over else None,
        "deadline_at": None,
        "schedule_id": None,
        "revision": 1,
        "retry_count": 0,
    }
    return Job(**defaults | fields)


def make_node(ordinal: int = 1, **fields: Any) -> Node:
    """Return a node that waits."""
    name = fields.get("name", f"n{ordinal}")
    defaults: dict[str, Any] = {
        "ordinal": ordinal,
        "name": name,
        "state": NodeState.WAITING,
        "follower": process_key("orders", f"job/{name}"),
        "predecessors": (),
        "skipped_because_of": None,
        "args": b"",
        "result": b"",
        "error": None,
        "target": None,
        "constraints": None,
        "created_at": NOW,
        "ready_at": None,
        "started_at": None,
        "ended_at": None,
        "attempt": 1,
        "revision": 1,
    }
    return Node(**defaults | fields)
