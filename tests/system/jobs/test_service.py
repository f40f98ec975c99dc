"""JobService on a whole engine: what clients see of a job from its submission to its end."""

import asyncio
import datetime as dt
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import duration_pb2

from progressor.sdk import LedByEngineError
from progressor.v1 import job_service_pb2 as pb
from progressor.v1 import nodes_pb2, types_pb2
from progressor.v1.job_service_pb2_grpc import JobServiceStub
from progressor.v1.processor_service_pb2 import Complete
from tests.support.api.server import end_of
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.replica import Env, Replica, answering, response
from tests.support.processor.scripted import Hang

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from progressor.v1.job_service_pb2_grpc import JobServiceAsyncStub

pytestmark = pytest.mark.asyncio(loop_scope="module")

DONE = answering(complete=Complete(result=b"result"))


@pytest_asyncio.fixture(loop_scope="module")
async def service(replica: Replica) -> "AsyncIterator[JobServiceAsyncStub]":
    options = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(replica.address, options=options) as channel:
        yield JobServiceStub(channel)


def node(name: str, *predecessors: str, **fields: Any) -> nodes_pb2.NodeSpec:
    return nodes_pb2.NodeSpec(name=name, predecessors=predecessors, **fields)


def submission(env: Env, *nodes: nodes_pb2.NodeSpec, **fields: Any) -> pb.SubmitJobRequest:
    return pb.SubmitJobRequest(namespace=env.namespace, job_id="job", nodes=nodes, **fields)


async def reason_of(call: Any) -> str:
    _, info = await end_of(call)
    return str(info.reason)


async def watched(service: "JobServiceAsyncStub", env: Env) -> list[pb.WatchJobResponse]:
    request = pb.WatchJobRequest(namespace=env.namespace, job_id="job")
    async with asyncio.timeout(PATIENCE_SECONDS):
        return [message async for message in service.WatchJob(request)]


async def read(service: "JobServiceAsyncStub", env: Env) -> pb.GetJobResponse:
    return await service.GetJob(pb.GetJobRequest(namespace=env.namespace, job_id="job"))


async def test_a_submitted_job_can_be_read_at_once_and_runs_to_its_end(
    service: "JobServiceAsyncStub", env: Env
) -> None:
    hang = Hang(response=response(complete=Complete(result=b"a's")))
    env.processor.on_process("job/a", hang)
    env.processor.on_process("b-1", DONE)

    answer = await service.SubmitJob(
        submission(
            env,
            node("a", args=b"args"),
            node("b", "a", process_id="b-1"),
            caller_context={"tenant": "t"},
            timeout=duration_pb2.Duration(seconds=3600),
        )
    )
    begun = await read(service, env)
    hang.released.set()
    changes = await watched(service, env)
    ended = await read(service, env)

    assert answer.task_id > 0
    assert begun.job.state == pb.JOB_STATE_RUNNING
    assert begun.job.led_by_engine
    assert [(spec.name, spec.state) for spec in begun.nodes] == [
        ("a", nodes_pb2.NODE_STATE_RUNNING),
        ("b", nodes_pb2.NODE_STATE_WAITING),
    ]
    left = begun.job.deadline.ToDatetime(dt.UTC) - begun.job.created_at.ToDatetime(dt.UTC)
    assert abs(left - dt.timedelta(hours=1)) < dt.timedelta(minutes=1)
    assert changes[-1].job.state == pb.JOB_STATE_DONE
    assert ended.job.counts == pb.NodeCounts(done=2)
    assert [(spec.name, spec.process_id, spec.args, spec.result) for spec in ended.nodes] == [
        ("a", "job/a", b"args", b"a's"),
        ("b", "b-1", b"", b"result"),
    ]
    assert {dict(request.task.caller_context)["tenant"] for request in env.processor.requests} == {
        "t"
    }


async def test_a_repeated_submission_is_the_same_job(
    service: "JobServiceAsyncStub", env: Env
) -> None:
    env.processor.on_process("job/a", DONE)
    first = submission(env, node("a"), idempotency_key="key", caller_context={"a": "1"})
    again = submission(env, node("a"), idempotency_key="key", caller_context={"a": "2"})
    other = submission(env, node("b"), idempotency_key="key")

    begun = await service.SubmitJob(first)
    repeated = await service.SubmitJob(again)

    assert (repeated.task_id, repeated.deduplicated) == (begun.task_id, True)
    assert await reason_of(service.SubmitJob(other)) == "IDEMPOTENCY_KEY_REUSED"
    assert (
        await reason_of(service.SubmitJob(submission(env, node("a")))) == "PROCESS_ALREADY_EXISTS"
    )
    await watched(service, env)


async def test_a_cancelled_job_is_watched_until_its_last_step_has_ended(
    service: "JobServiceAsyncStub", env: Env
) -> None:
    hang = Hang(response=response(complete=Complete()))
    env.processor.on_process("job/a", hang)
    await service.SubmitJob(submission(env, node("a"), node("b", "a")))
    await env.asked("job/a")
    request = pb.CancelJobRequest(namespace=env.namespace, job_id="job", reason="enough")
    cancelled = await service.CancelJob(request)
    watching = asyncio.create_task(watched(service, env))
    hang.released.set()
    last = (await watching)[-1]

    assert cancelled.job.state == pb.JOB_STATE_CANCELLED
    assert last.job.counts.running == 0
    assert last.job.counts.cancelled >= 1
    assert await reason_of(service.CancelJob(request)) == "JOB_ENDED"


def at_gate(gate: str, capacity: int | None = None) -> types_pb2.Constraints:
    return types_pb2.Constraints(gates=[types_pb2.GateUse(gate=gate, capacity=capacity)])


async def test_a_job_with_a_node_at_a_gate_that_does_not_exist_is_refused(
    service: "JobServiceAsyncStub", env: Env
) -> None:
    env.processor.on_process("job/a", DONE)
    env.processor.on_process("job/b", DONE)
    existing = node("a", constraints=at_gate("database", 2))
    misspelt = node("b", "a", constraints=at_gate("databse"))

    code, info = await end_of(service.SubmitJob(submission(env, existing, misspelt)))
    assert (code, info.reason) == (grpc.StatusCode.NOT_FOUND, "GATE_NOT_FOUND")
    assert (info.metadata["namespace"], info.metadata["gate"]) == (env.namespace, "databse")
    # Nothing of it was kept, not even the gate that came with a capacity.
    assert await reason_of(read(service, env)) == "JOB_NOT_FOUND"
    spelt = node("a", constraints=at_gate("database"))
    assert await reason_of(service.SubmitJob(submission(env, spelt))) == "GATE_NOT_FOUND"

    # A capacity in the same job makes it; one that is there needs none.
    await service.SubmitJob(submission(env, existing, node("b", "a")))
    told = await watched(service, env)
    assert told[-1].job.state == pb.JOB_STATE_DONE
    again = submission(env, node("a", constraints=at_gate("database")))
    again.job_id = "again"
    env.processor.on_process("again/a", DONE)
    await service.SubmitJob(again)
    request = pb.WatchJobRequest(namespace=env.namespace, job_id="again")
    async with asyncio.timeout(PATIENCE_SECONDS):
        *_, last = [message async for message in service.WatchJob(request)]
    assert last.job.state == pb.JOB_STATE_DONE


async def test_a_call_to_a_job_that_the_engine_leads_is_an_error_of_the_engine(
    service: "JobServiceAsyncStub", env: Env
) -> None:
    hang = Hang(response=response(complete=Complete()))
    env.processor.on_process("job/a", hang)
    await service.SubmitJob(submission(env, node("a")))

    with pytest.raises(LedByEngineError) as raised:
        await env.client.call("job")
    hang.released.set()
    await watched(service, env)

    assert (raised.value.namespace, raised.value.job_id) == (env.namespace, "job")
