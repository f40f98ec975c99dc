"""What a replica counts of the ends of nodes and jobs."""

from collections.abc import Mapping

import grpc
import pytest

from progressor.domain.processes.process import process_key
from progressor.telemetry.instruments import Counter
from progressor.v1 import job_service_pb2 as pb
from progressor.v1 import nodes_pb2
from progressor.v1.job_service_pb2_grpc import JobServiceStub
from progressor.v1.processor_service_pb2 import Complete
from tests.support.engine.replica import Env, Replica, answering, broken
from tests.support.processor.scripted import Hang
from tests.support.telemetry.measured import counted

pytestmark = pytest.mark.asyncio(loop_scope="module")

DONE = answering(complete=Complete(result=b""))


def by_state(counter: Counter, env: Env) -> Mapping[str, float]:
    return {
        state: count
        for (namespace, state), count in counted(counter).items()
        if namespace == env.namespace
    }


async def ended(replica: Replica, env: Env, job_id: str) -> None:
    """Wait for the two steps of a leader: its init, and the join."""
    await replica.points.wait("settled", 2, key=process_key(env.namespace, job_id))


async def submitted(replica: Replica, env: Env, job_id: str, *nodes: str) -> None:
    """Submit a job in which each node depends on the one before."""
    specs = [
        nodes_pb2.NodeSpec(
            name=name, process_id=f"{job_id}-{name}", predecessors=nodes[:place][-1:]
        )
        for place, name in enumerate(nodes)
    ]
    request = pb.SubmitJobRequest(namespace=env.namespace, job_id=job_id, nodes=specs)
    async with grpc.aio.insecure_channel(replica.address) as channel:
        await JobServiceStub(channel).SubmitJob(request)


async def test_nodes_and_jobs_are_counted_by_how_they_end(replica: Replica, env: Env) -> None:
    for process_id in ("good-a", "good-b", "bad-a"):
        env.processor.on_process(process_id, DONE)
    env.processor.on_process("bad-b", broken())
    env.processor.on_process("idle-a", Hang())
    metrics = replica.engine.metrics

    await submitted(replica, env, "good", "a", "b")
    await submitted(replica, env, "bad", "a", "b", "c")
    await submitted(replica, env, "idle", "a", "b")
    await ended(replica, env, "good")
    await ended(replica, env, "bad")
    async with grpc.aio.insecure_channel(replica.address) as channel:
        request = pb.CancelJobRequest(namespace=env.namespace, job_id="idle", reason="why")
        await JobServiceStub(channel).CancelJob(request)

    assert by_state(metrics.job_nodes_ended, env) == {"done": 3, "failed": 1}
    assert by_state(metrics.jobs_ended, env) == {"done": 1, "failed": 1, "cancelled": 1}
