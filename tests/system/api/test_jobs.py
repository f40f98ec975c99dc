"""JobService over a real socket: what is asked of whom, what is refused, how watches end."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2, struct_pb2

from progressor.domain.jobs.graph import decode_graph
from progressor.domain.jobs.job import JobFilter, JobState, NodeCounts, NodeSpec, StartNodes
from progressor.domain.processes.admission import Request
from progressor.domain.processes.process import Leadership, process_key
from progressor.domain.processes.task import NodeState, TaskType
from progressor.v1 import job_service_pb2 as pb
from progressor.v1 import nodes_pb2
from tests.support.api.memory import PAYLOAD_MAX, SECOND
from tests.support.api.memory_jobs import make_job, make_node
from tests.support.api.server import Engine, end_of, failure, running_engine

NAMED: dict[str, Any] = {"namespace": "orders", "job_id": "job"}
OVER: dict[str, Any] = {"state": JobState.DONE, "counts": NodeCounts(done=1)}
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
async def api() -> AsyncIterator[Engine]:
    async with running_engine(in_sessions=False) as engine:
        yield engine


def submission(**fields: Any) -> pb.SubmitJobRequest:
    nodes = [nodes_pb2.NodeSpec(name="a"), nodes_pb2.NodeSpec(name="b", predecessors=["a"])]
    return pb.SubmitJobRequest(**NAMED | {"nodes": nodes} | fields)


async def test_a_job_is_the_start_of_a_leader_whose_args_are_the_graph(api: Engine) -> None:
    metadata = struct_pb2.Struct()
    metadata.update({"kind": "nightly"})
    answer = await api.job_service.SubmitJob(
        submission(
            timeout=duration_pb2.Duration(seconds=5),
            idempotency_key="key",
            caller_context={"tenant": "t"},
            metadata=metadata,
        ),
        metadata=(("traceparent", TRACEPARENT),),
    )

    (request,) = api.requests.requests
    assert isinstance(request, Request)
    assert answer == pb.SubmitJobResponse(task_id=1)
    assert request == Request(
        key=process_key("orders", "job"),
        task_type=TaskType.INIT,
        args=request.args,
        caller_context={"tenant": "t"},
        trace_context={"traceparent": TRACEPARENT},
        idempotency_key="key",
        metadata={"kind": "nightly"},
        led_by=Leadership.ENGINE,
    )
    assert decode_graph(request.args) == StartNodes(
        nodes=(NodeSpec(name="a"), NodeSpec(name="b", predecessors=("a",))),
        timeout=dt.timedelta(seconds=5),
    )


async def test_a_graph_may_be_larger_than_a_payload(api: Engine) -> None:
    nodes = [nodes_pb2.NodeSpec(name=f"n{i}", args=b"x" * PAYLOAD_MAX) for i in range(3)]

    await api.job_service.SubmitJob(submission(nodes=nodes))

    (request,) = api.requests.requests
    assert isinstance(request, Request)
    assert len(request.args) > 3 * PAYLOAD_MAX


async def test_a_job_in_a_namespace_that_is_not_there_is_refused(api: Engine) -> None:
    code, info = await end_of(api.job_service.SubmitJob(submission(namespace="absent")))

    assert (code, info.reason) == (grpc.StatusCode.NOT_FOUND, "NAMESPACE_NOT_FOUND")


async def test_a_job_is_read_with_its_graph_and_without_payloads(api: Engine) -> None:
    api.jobs.put(make_job(), make_node(1, args=b"x"), make_node(2, predecessors=("n1",)))

    whole = await api.job_service.GetJob(pb.GetJobRequest(**NAMED))
    bare = await api.job_service.GetJob(pb.GetJobRequest(**NAMED, without_payloads=True))

    assert (whole.job.job_id, whole.job.state) == ("job", pb.JOB_STATE_RUNNING)
    assert [(it.name, list(it.predecessors)) for it in whole.nodes] == [("n1", []), ("n2", ["n1"])]
    assert [whole.nodes[0].args, bare.nodes[0].args] == [b"x", b""]


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("GetJob", pb.GetJobRequest(**NAMED)),
        ("CancelJob", pb.CancelJobRequest(**NAMED)),
        ("RetryJob", pb.RetryJobRequest(**NAMED)),
    ],
)
async def test_no_such_job_is_told_by_its_id(api: Engine, method: str, request_: Any) -> None:
    code, info = await end_of(getattr(api.job_service, method)(request_))

    assert (code, info.reason) == (grpc.StatusCode.NOT_FOUND, "JOB_NOT_FOUND")
    assert dict(info.metadata) == {"namespace": "orders", "job_id": "job"}


async def test_jobs_are_listed_page_by_page_the_youngest_first(api: Engine) -> None:
    for number in range(5):
        state = JobState.FAILED if number == 2 else JobState.RUNNING
        api.jobs.put(make_job(f"job-{number}", state=state))
    request = pb.ListJobsRequest(
        namespace="orders", states=[pb.JOB_STATE_RUNNING], schedule_id="nightly", page_size=3
    )

    first = await api.job_service.ListJobs(request)
    request.page_token = first.next_page_token
    second = await api.job_service.ListJobs(request)

    assert [it.job_id for it in first.jobs] == ["job-4", "job-3", "job-1"]
    assert [it.job_id for it in second.jobs] == ["job-0"]
    assert second.next_page_token == ""
    assert api.jobs.asked[0] == JobFilter(states=(JobState.RUNNING,), schedule_id="nightly")


async def test_a_watch_tells_a_job_as_it_changes_until_it_is_over(api: Engine) -> None:
    api.jobs.put(make_job(counts=NodeCounts(running=2)), make_node(1), make_node(2))
    watch = api.job_service.WatchJob(pb.WatchJobRequest(**NAMED))
    told: list[Any] = [await watch.read()]
    api.jobs.put(
        make_job(revision=2, counts=NodeCounts(running=1)),
        make_node(2, state=NodeState.RUNNING, revision=2),
    )
    told.append(await watch.read())
    # It has been cancelled: its last node ends its step.
    api.jobs.put(
        make_job(revision=3, state=JobState.CANCELLED, counts=NodeCounts(running=1)),
        make_node(1, state=NodeState.CANCELLED, revision=3),
    )
    told.append(await watch.read())
    api.jobs.put(
        make_job(revision=4, state=JobState.CANCELLED, counts=NodeCounts(cancelled=2)),
        make_node(2, state=NodeState.CANCELLED, revision=4),
    )
    async with asyncio.timeout(10):
        told.append(await watch.read())
        assert await watch.read() is grpc.aio.EOF

    assert [(it.job.revision, [node.name for node in it.nodes]) for it in told] == [
        (1, ["n1", "n2"]),
        (2, ["n2"]),
        (3, ["n1"]),
        (4, ["n2"]),
    ]
    assert await watch.code() is grpc.StatusCode.OK


async def test_a_watch_goes_on_behind_a_revision(api: Engine) -> None:
    api.jobs.put(make_job(revision=3, **OVER), make_node(1), make_node(2, revision=3))

    async def names(after: int) -> list[list[str]]:
        watch = api.job_service.WatchJob(pb.WatchJobRequest(**NAMED, after_revision=after))
        return [[node.name for node in message.nodes] async for message in watch]

    assert await names(0) == [["n1", "n2"]]
    assert await names(1) == [["n2"]]
    assert await names(3) == [[]]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "JOB_NOT_FOUND"),
        ({"namespace": "absent"}, "NAMESPACE_NOT_FOUND"),
        ({"job_id": ""}, "INVALID_REQUEST"),
        ({"after_revision": -1}, "INVALID_REQUEST"),
    ],
)
async def test_a_watch_that_cannot_be_is_refused(
    api: Engine, fields: dict[str, Any], reason: str
) -> None:
    watch = api.job_service.WatchJob(pb.WatchJobRequest(**NAMED | fields))

    _, info = await end_of(watch.read())

    assert info.reason == reason


async def test_a_watch_ends_with_its_job(api: Engine) -> None:
    api.jobs.put(make_job())
    watch = api.job_service.WatchJob(pb.WatchJobRequest(**NAMED))
    await watch.read()
    del api.jobs.stored["job"]

    code, info = await end_of(watch.read())

    assert (code, info.reason) == (grpc.StatusCode.NOT_FOUND, "JOB_NOT_FOUND")


async def test_a_watch_ends_with_its_callers_deadline(api: Engine) -> None:
    api.jobs.put(make_job())
    watch = api.job_service.WatchJob(pb.WatchJobRequest(**NAMED), timeout=0.2)
    await watch.read()

    error = await failure(watch.read())

    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await api.server.drain(SECOND)


async def test_a_watch_whose_caller_leaves_is_no_longer_in_flight(api: Engine) -> None:
    api.jobs.put(make_job())
    watch = api.job_service.WatchJob(pb.WatchJobRequest(**NAMED))
    await watch.read()
    watch.cancel()

    async with asyncio.timeout(5):
        await api.server.drain(30 * SECOND)


async def test_a_drain_sends_watchers_elsewhere_at_once(api: Engine) -> None:
    api.jobs.put(make_job())
    watch = api.job_service.WatchJob(pb.WatchJobRequest(**NAMED))
    await watch.read()
    async with asyncio.timeout(5):
        await api.server.drain(30 * SECOND)

    # With the reason SHUTTING_DOWN, but where the server's end comes before its last words.
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await watch.read()

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_bug_in_a_watch_ends_it_without_a_word_of_what_it_was(
    api: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.jobs, "changes", None)
    watch = api.job_service.WatchJob(pb.WatchJobRequest(**NAMED))

    code, info = await end_of(watch.read())

    assert (code, info.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert "error_id" in info.metadata
