"""JobService over a real socket: what is asked of whom, what is refused, how watches end."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import grpc
import pytest
from google.protobuf import duration_pb2, struct_pb2

from progressor import job_errors
from progressor.domain.jobs.graph import decode_graph
from progressor.domain.jobs.job import JobFilter, JobPage, JobState, NodeSpec, StartNodes
from progressor.domain.jobs.roles import NodeCounts
from progressor.domain.processes.admission import Request
from progressor.domain.processes.process import Leadership, process_key
from progressor.domain.processes.task import TaskType
from progressor.v1 import job_service_pb2 as pb
from progressor.v1 import nodes_pb2
from tests.support.api.memory import NOW, PAYLOAD_MAX, SECOND, make_job, make_node
from tests.support.api.server import Engine, end_of, failure, running_engine

NAMED: dict[str, Any] = {"namespace": "orders", "job_id": "job"}
KEY = process_key("orders", "job")
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


@pytest.mark.parametrize("without_payloads", [False, True])
async def test_a_job_is_read_with_its_graph(api: Engine, *, without_payloads: bool) -> None:
    nodes = make_node(1, args=b"x"), make_node(2, predecessors=("n1",))
    api.jobs.read.return_value = JobPage(job=make_job(), nodes=nodes, payloads_left_out=False)

    found = await api.job_service.GetJob(
        pb.GetJobRequest(**NAMED, without_payloads=without_payloads)
    )

    assert (found.job.job_id, found.job.state) == ("job", pb.JOB_STATE_RUNNING)
    assert [(it.name, list(it.predecessors)) for it in found.nodes] == [("n1", []), ("n2", ["n1"])]
    api.jobs.read.assert_called_once_with(KEY, payloads=not without_payloads)


@pytest.mark.parametrize(
    ("rpc", "fields", "reason"),
    [
        ("SubmitJob", {"namespace": "absent"}, "NAMESPACE_NOT_FOUND"),
        ("WatchJob", {"namespace": "absent"}, "NAMESPACE_NOT_FOUND"),
        ("WatchJob", {"job_id": ""}, "INVALID_REQUEST"),
        ("WatchJob", {"after_revision": -1}, "INVALID_REQUEST"),
        ("WatchJob", {}, "JOB_NOT_FOUND"),
        ("GetJob", {}, "JOB_NOT_FOUND"),
        ("CancelJob", {}, "JOB_NOT_FOUND"),
        ("RetryJob", {}, "JOB_NOT_FOUND"),
    ],
)
async def test_what_cannot_be_is_refused(
    api: Engine, rpc: str, fields: dict[str, Any], reason: str
) -> None:
    for asked in (api.jobs.read, api.jobs.changes, api.job_control.cancel, api.job_control.retry):
        asked.side_effect = job_errors.JobNotFoundError("orders", "job")
    nodes = {"nodes": [nodes_pb2.NodeSpec(name="a")]} if rpc == "SubmitJob" else {}
    request = getattr(pb, f"{rpc}Request")(**NAMED | nodes | fields)

    call = getattr(api.job_service, rpc)(request)
    _, info = await end_of(call.read() if rpc == "WatchJob" else call)

    assert info.reason == reason
    if reason == "JOB_NOT_FOUND":
        assert dict(info.metadata) == {"namespace": "orders", "job_id": "job"}


async def test_a_job_is_cancelled_and_retried(api: Engine) -> None:
    api.job_control.cancel.return_value = make_job(state=JobState.CANCELLED)
    api.job_control.retry.return_value = make_job(), ("n1", "n2")

    cancelled = await api.job_service.CancelJob(pb.CancelJobRequest(**NAMED, reason="why"))
    retried = await api.job_service.RetryJob(
        pb.RetryJobRequest(**NAMED, timeout=duration_pb2.Duration(seconds=5))
    )

    assert cancelled.job.state == pb.JOB_STATE_CANCELLED
    assert (retried.job.state, [*retried.nodes]) == (pb.JOB_STATE_RUNNING, ["n1", "n2"])
    api.job_control.cancel.assert_called_once_with(KEY, "why")
    api.job_control.retry.assert_called_once_with(KEY, deadline=None, timeout=5 * SECOND)


async def test_jobs_are_listed_page_by_page(api: Engine) -> None:
    api.jobs.list.return_value = make_job("job-2"), make_job("job-1")
    request = pb.ListJobsRequest(
        namespace="orders", states=[pb.JOB_STATE_RUNNING], schedule_id="nightly", page_size=1
    )

    first = await api.job_service.ListJobs(request)
    request.page_token = first.next_page_token
    await api.job_service.ListJobs(request)

    wanted = JobFilter(states=(JobState.RUNNING,), schedule_id="nightly")
    assert [it.job_id for it in first.jobs] == ["job-2"]
    assert api.jobs.list.call_args_list == [
        mock.call("orders", wanted, after=None, limit=2),
        mock.call("orders", wanted, after=(NOW, "job-2"), limit=2),
    ]


async def test_a_watch_tells_a_job_as_it_changes_until_it_is_over(api: Engine) -> None:
    # It is cancelled, and then its last node ends its step.
    cancelled = make_job(revision=3, state=JobState.CANCELLED, counts=NodeCounts(running=1))
    over = make_job(revision=4, state=JobState.CANCELLED, counts=NodeCounts(cancelled=2))
    api.jobs.changes.side_effect = [
        (make_job(counts=NodeCounts(running=2)), (make_node(1), make_node(2))),
        (make_job(revision=2, counts=NodeCounts(running=1)), (make_node(2),)),
        (cancelled, (make_node(1),)),
        (over, (make_node(2),)),
    ]

    async with asyncio.timeout(10):
        watch = api.job_service.WatchJob(pb.WatchJobRequest(**NAMED))
        told = [it async for it in watch]

    assert [(it.job.revision, [node.name for node in it.nodes]) for it in told] == [
        (1, ["n1", "n2"]),
        (2, ["n2"]),
        (3, ["n1"]),
        (4, ["n2"]),
    ]
    assert await watch.code() is grpc.StatusCode.OK
    assert api.jobs.changes.call_args_list == [mock.call(KEY, it) for it in range(4)]


async def test_a_watch_goes_on_behind_a_revision_and_says_at_once_how_it_is(api: Engine) -> None:
    api.jobs.changes.return_value = make_job(revision=3, **OVER), ()

    watch = api.job_service.WatchJob(pb.WatchJobRequest(**NAMED, after_revision=3))

    assert [message.job.revision async for message in watch] == [3]
    api.jobs.changes.assert_called_once_with(KEY, 3)


async def test_a_watch_ends_with_its_job(api: Engine) -> None:
    gone = job_errors.JobNotFoundError("orders", "job")
    api.jobs.changes.side_effect = [(make_job(), ()), gone]
    watch = api.job_service.WatchJob(pb.WatchJobRequest(**NAMED))
    await watch.read()

    code, info = await end_of(watch.read())

    assert (code, info.reason) == (grpc.StatusCode.NOT_FOUND, "JOB_NOT_FOUND")


async def test_a_watch_ends_with_its_callers_deadline(api: Engine) -> None:
    api.jobs.changes.return_value = make_job(), ()
    watch = api.job_service.WatchJob(pb.WatchJobRequest(**NAMED), timeout=0.2)
    await watch.read()

    error = await failure(watch.read())

    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await api.server.drain(SECOND)


async def test_a_watch_whose_caller_leaves_is_no_longer_in_flight(api: Engine) -> None:
    api.jobs.changes.return_value = make_job(), ()
    watch = api.job_service.WatchJob(pb.WatchJobRequest(**NAMED))
    await watch.read()
    watch.cancel()

    async with asyncio.timeout(5):
        await api.server.drain(30 * SECOND)


async def test_a_drain_sends_watchers_elsewhere_at_once(api: Engine) -> None:
    api.jobs.changes.return_value = make_job(), ()
    watch = api.job_service.WatchJob(pb.WatchJobRequest(**NAMED))
    await watch.read()
    async with asyncio.timeout(5):
        await api.server.drain(30 * SECOND)

    # With the reason SHUTTING_DOWN, but where the server's end comes before its last words.
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await watch.read()

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
