"""Jobs through a whole engine: their nodes end when a test says so, one by one.

Each node's follower asks the processor once, and is answered when it is released. What has become
of the graph by that is in the database with the follower's settlement, for which the engine has a
point; so nothing here waits for a time, but for points and for requests that are to come.
"""

import contextlib
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import grpc
import psycopg

from progressor.v1 import job_service_pb2 as pb
from progressor.v1 import nodes_pb2
from progressor.v1.job_service_pb2_grpc import JobServiceStub
from progressor.v1.processor_service_pb2 import Complete, ProcessResponse
from tests.support.engine.points import PATIENCE_SECONDS, eventually
from tests.support.engine.replica import NOW_AND_THEN, Env, Replica, open_env, response
from tests.support.models.jobs.graphs import Graph
from tests.support.processor.scripted import Hang, Step, fail

if TYPE_CHECKING:
    # The generated module has them in its stub alone.
    from progressor.v1.job_service_pb2_grpc import JobServiceAsyncStub

_STATES = """
    SELECT name, state::text FROM progressor.job_nodes
    WHERE namespace = %s AND process_id = %s ORDER BY ordinal"""
_JOB = "SELECT state::text FROM progressor.jobs WHERE namespace = %s AND process_id = %s"
_TASKS = """
    SELECT task_type::text, status::text, attempt_count FROM progressor.tasks
    WHERE namespace = %s AND process_id = %s ORDER BY task_id"""

_INTERNAL = 13


def done(result: bytes = b"") -> ProcessResponse:
    return response(complete=Complete(result=result))


def failing(message: str = "it broke") -> ProcessResponse:
    answer = fail(_INTERNAL, reason="BROKEN", message=message).response
    assert answer is not None, "a failure is an answer"
    return answer


def wire_nodes(graph: Graph, **fields: Any) -> list[nodes_pb2.NodeSpec]:
    """Return a graph as it is on the wire; ``fields`` are of every node."""
    return [
        nodes_pb2.NodeSpec(name=name, predecessors=before, **fields)
        for name, before in graph.items()
    ]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobEnv:
    """An environment on which jobs are submitted, and their nodes released."""

    env: Env
    observer: psycopg.Connection[Any]
    service: "JobServiceAsyncStub"
    hangs: dict[tuple[str, str], Hang] = dataclasses.field(default_factory=dict)

    def through(self, service: "JobServiceAsyncStub") -> "JobEnv":
        return dataclasses.replace(self, service=service)

    async def submit(
        self, job_id: str, graph: Graph, *, hold: bool = True, **fields: Any
    ) -> pb.SubmitJobResponse:
        """Submit a job whose nodes wait to be released, unless `hold` is false."""
        if hold:
            self.hold(job_id, graph)
        nodes = fields.pop("nodes", None) or wire_nodes(graph)
        request = pb.SubmitJobRequest(
            namespace=self.env.namespace, job_id=job_id, nodes=nodes, **fields
        )
        return await self.service.SubmitJob(request, timeout=PATIENCE_SECONDS)

    def hold(self, job_id: str, names: Iterable[str], *then: Step) -> None:
        """Have the first request for each of these nodes wait, and others served by `then`."""
        for name in names:
            hang = self.hangs[job_id, name] = Hang(response=done(name.encode()))
            self.env.processor.on_process(f"{job_id}/{name}", hang, *then)

    def release(self, job_id: str, name: str, answer: ProcessResponse | None = None) -> None:
        hang = self.hangs[job_id, name]
        if answer is not None:
            # A hanging node has its answer by now, and reads the message once it is released.
            assert hang.response is not None
            hang.response.CopyFrom(answer)
        hang.released.set()

    async def end(self, job_id: str, name: str, answer: ProcessResponse | None = None) -> None:
        await self.asked(job_id, name)
        self.release(job_id, name, answer)
        await self.env.settled(f"{job_id}/{name}")

    async def asked(self, job_id: str, *names: str, count: int = 1) -> None:
        for name in names:
            await self.env.asked(f"{job_id}/{name}", count)

    def asked_for(self, job_id: str, names: Iterable[str]) -> list[str]:
        return [name for name in names if self.env.asked_for(f"{job_id}/{name}")]

    def states(self, job_id: str) -> dict[str, str]:
        return dict(self._rows(_STATES, job_id))

    def in_state(self, job_id: str, state: str) -> set[str]:
        return {name for name, each in self.states(job_id).items() if each == state}

    def tasks(self, process_id: str) -> list[tuple[str, str, int]]:
        return self._rows(_TASKS, process_id)

    def attempts(self, process_id: str) -> int:
        """Return the attempts of the first task of a process that are behind it."""
        found = self.tasks(process_id)
        return found[0][2] if found else 0

    def state(self, job_id: str) -> str | None:
        found = self._rows(_JOB, job_id)
        return found[0][0] if found else None

    async def get(self, job_id: str) -> pb.GetJobResponse:
        request = pb.GetJobRequest(namespace=self.env.namespace, job_id=job_id)
        return await self.service.GetJob(request, timeout=PATIENCE_SECONDS)

    async def cancel(self, job_id: str, reason: str = "enough") -> pb.Job:
        request = pb.CancelJobRequest(namespace=self.env.namespace, job_id=job_id, reason=reason)
        return (await self.service.CancelJob(request, timeout=PATIENCE_SECONDS)).job

    async def retry(self, job_id: str, **due: Any) -> list[str]:
        """Retry a job, and return the nodes that begin again."""
        request = pb.RetryJobRequest(namespace=self.env.namespace, job_id=job_id, **due)
        return list((await self.service.RetryJob(request, timeout=PATIENCE_SECONDS)).nodes)

    async def ended(self, job_id: str) -> str:
        await eventually(lambda: self.state(job_id) not in {"running", None})
        return self.state(job_id) or ""

    async def become(self, job_id: str, states: Mapping[str, str]) -> None:
        await eventually(lambda: states.items() <= self.states(job_id).items())

    async def target(self, target: str, *, patience: dt.timedelta) -> None:
        """Let the namespace have another processor, which has a node for it alone."""
        client = self.env.client
        config = await client.namespaces.get(self.env.namespace)
        await client.namespaces.update(
            dataclasses.replace(
                config,
                processor_targets=(*config.processor_targets, target),
                unreachable_patience=patience,
                retry_policy=NOW_AND_THEN,
            )
        )

    def _rows(self, query: str, process_id: str) -> list[Any]:
        which: Sequence[object] = [self.env.namespace, process_id]
        return self.observer.execute(query.encode(), which).fetchall()


@contextlib.asynccontextmanager
async def open_jobs(conninfo: str, replica: Replica, **options: Any) -> AsyncIterator[JobEnv]:
    """Make an environment for jobs on a replica; `options` as of `open_env`."""
    async with (
        open_env(replica, **options) as env,
        grpc.aio.insecure_channel(replica.address) as channel,
    ):
        with psycopg.connect(conninfo, autocommit=True) as observer:
            jobs = JobEnv(env=env, observer=observer, service=JobServiceStub(channel))
            try:
                yield jobs
            finally:
                for hang in jobs.hangs.values():
                    hang.released.set()
