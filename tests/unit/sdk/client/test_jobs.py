"""Jobs through the clients: what is sent, what comes back, and watching across outages."""

import asyncio
import datetime as dt
import re
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from progressor.sdk import (
    BYTES,
    Client,
    DeadlineExceededError,
    EngineUnavailableError,
    Graph,
    JobCancelledError,
    JobFailedError,
    JobState,
    NodeCounts,
    NodeState,
    SyncClient,
    TaskError,
)
from progressor.sdk.codec.wire import WireEnum
from progressor.v1 import job_service_pb2 as pb
from progressor.v1 import nodes_pb2 as nodes
from progressor.v1 import types_pb2 as types
from tests.unit.sdk.scripted_engine import HANG, refusal, scripted_engine

NOON = dt.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
SECOND = "2"
AWAY = refusal(grpc.StatusCode.UNAVAILABLE, "STORAGE_UNAVAILABLE")


def one_node() -> Graph:
    graph = Graph()
    graph.node("a", {"n": 1})
    return graph


def a_job(
    state: pb.JobState.ValueType = pb.JOB_STATE_RUNNING, *, revision: int = 1, detail: str = ""
) -> pb.Job:
    message = pb.Job(
        namespace="n",
        job_id="j",
        state=state,
        detail=detail,
        led_by_engine=True,
        counts=pb.NodeCounts(
            waiting=1, ready=2, running=3, done=4, failed=5, skipped=6, cancelled=7
        ),
        schedule_id="nightly",
        revision=revision,
        retry_count=2,
    )
    message.created_at.FromDatetime(NOON)
    message.updated_at.FromDatetime(NOON)
    return message


def a_change(
    state: pb.JobState.ValueType = pb.JOB_STATE_RUNNING, *, revision: int = 1
) -> pb.WatchJobResponse:
    return pb.WatchJobResponse(job=a_job(state, revision=revision))


@pytest.mark.parametrize(
    ("ours", "theirs"), [(JobState, pb.JobState), (NodeState, nodes.NodeState)]
)
def test_states_mirror_the_wire(ours: type[WireEnum], theirs: Any) -> None:
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", ours.__name__).upper()

    assert {f"{prefix}_{it.name}": it.number for it in ours} == dict(theirs.items())


def test_states_tell_what_has_ended() -> None:
    assert [it for it in JobState if it.has_ended] == ["done", "failed", "cancelled"]
    assert [it for it in NodeState if it.has_ended] == ["done", "failed", "skipped", "cancelled"]


@pytest.mark.parametrize(
    ("deadline", "field"),
    [
        (None, {}),
        (NOON, {"deadline": NOON}),
        (90, {"timeout": dt.timedelta(seconds=90)}),
        (dt.timedelta(hours=1), {"timeout": dt.timedelta(hours=1)}),
    ],
)
async def test_submit_sends_the_graph_and_its_deadline(deadline: Any, field: Any) -> None:
    async with (
        scripted_engine(pb.SubmitJobResponse(task_id=7, deduplicated=True)) as engine,
        Client(engine.address, namespace="n") as client,
    ):
        submitted = await client.jobs.submit(
            "j",
            one_node(),
            deadline=deadline,
            idempotency_key="k",
            context={"user": "ann"},
            metadata={"team": "search"},
        )

    expected = pb.SubmitJobRequest(
        namespace="n",
        job_id="j",
        nodes=[nodes.NodeSpec(name="a", args=b'{"n":1}')],
        idempotency_key="k",
        caller_context={"user": "ann"},
        **field,
    )
    expected.metadata.update({"team": "search"})
    assert engine.requests == [expected]
    assert (submitted.task_id, submitted.deduplicated) == (7, True)


@pytest.mark.parametrize(
    ("graph", "words"), [(Graph(), "at least one node"), (None, "the graph has no node 'old'")]
)
async def test_submit_refuses_what_is_no_whole_graph(graph: Graph | None, words: str) -> None:
    if graph is None:
        graph = one_node()
        graph.node("b", after="old")
    async with Client("unix:/nonexistent") as client:
        with pytest.raises(ValueError, match=words):
            await client.jobs.submit("j", graph)


async def test_get_returns_the_graph() -> None:
    answer = pb.GetJobResponse(job=a_job(), payloads_left_out=True)
    answer.job.ended_at.FromDatetime(NOON)
    answer.job.deadline.FromDatetime(NOON)
    node = answer.nodes.add(
        name="b",
        state=nodes.NODE_STATE_SKIPPED,
        namespace="n",
        process_id="j/b",
        predecessors=["a"],
        skipped_because_of="a",
        args=b"[1]",
        result=b"2",
        error=types.TaskError(code=9, reason="R", message="m"),
        target="t",
        constraints=types.Constraints(gates=[types.GateUse(gate="k")]),
        attempt=2,
        revision=5,
    )
    node.created_at.FromDatetime(NOON)
    node.ready_at.FromDatetime(NOON)
    answer.nodes.add(name="c")
    async with scripted_engine(answer) as engine, Client(engine.address) as client:
        view = await client.jobs.get("j", payloads=False, namespace="n")

    assert engine.requests == [pb.GetJobRequest(namespace="n", job_id="j", without_payloads=True)]
    job = view.job
    assert (job.namespace, job.job_id, job.state, job.led_by_engine) == ("n", "j", "running", True)
    assert job.counts == NodeCounts(
        waiting=1, ready=2, running=3, done=4, failed=5, skipped=6, cancelled=7
    )
    assert job.counts.total == 28
    assert (job.created_at, job.updated_at, job.ended_at, job.deadline) == (NOON,) * 4
    assert (job.schedule_id, job.revision, job.retry_count) == ("nightly", 1, 2)
    assert view.payloads_left_out
    skipped, plain = view.nodes
    assert (skipped.state, skipped.skipped_because_of) == (NodeState.SKIPPED, "a")
    assert (skipped.namespace, skipped.process_id, skipped.after) == ("n", "j/b", ("a",))
    assert (skipped.args, skipped.result, skipped.target) == ([1], 2, "t")
    assert skipped.error == TaskError(code=9, reason="R", message="m")
    assert skipped.constraints is not None
    assert (skipped.created_at, skipped.ready_at, skipped.started_at) == (NOON, NOON, None)
    assert (skipped.attempt, skipped.revision) == (2, 5)
    assert view["c"] is plain
    assert (plain.args, plain.error, plain.constraints, plain.created_at) == (None,) * 4
    with pytest.raises(KeyError):
        view["d"]


async def test_results_have_the_type_that_is_asked_for() -> None:
    answer = pb.GetJobResponse(job=a_job(), nodes=[pb.Node(name="a", result=b"[1]")])
    async with scripted_engine(answer, answer) as engine, Client(engine.address) as client:
        view = await client.jobs.get("j", result_type=tuple[int])
        with pytest.raises(ValueError, match="Expected `int`"):
            await client.jobs.get("j", result_type=int)

    assert view["a"].result == (1,)


async def test_list_follows_the_pages() -> None:
    script = (
        pb.ListJobsResponse(jobs=[a_job()], next_page_token=SECOND),
        pb.ListJobsResponse(jobs=[a_job(pb.JOB_STATE_DONE)]),
    )
    async with scripted_engine(*script) as engine, Client(engine.address, namespace="n") as client:
        states = [JobState.RUNNING, JobState.DONE]
        listed = client.jobs.list(states=states, schedule_id="nightly", page_size=1)
        found = [it.state async for it in listed]

    assert found == states
    asked: dict[str, Any] = {
        "namespace": "n",
        "states": [pb.JOB_STATE_RUNNING, pb.JOB_STATE_DONE],
        "schedule_id": "nightly",
        "page_size": 1,
    }
    assert engine.requests == [
        pb.ListJobsRequest(**asked),
        pb.ListJobsRequest(**asked, page_token=SECOND),
    ]


async def test_cancel_says_why_and_retry_what_begins_again() -> None:
    script = (
        pb.CancelJobResponse(job=a_job(pb.JOB_STATE_CANCELLED)),
        pb.RetryJobResponse(job=a_job(), nodes=["a", "b"]),
    )
    async with scripted_engine(*script) as engine, Client(engine.address, namespace="n") as client:
        cancelled = await client.jobs.cancel("j", cause="not needed")
        retried = await client.jobs.retry("j", deadline=60)

    assert engine.requests == [
        pb.CancelJobRequest(namespace="n", job_id="j", reason="not needed"),
        pb.RetryJobRequest(namespace="n", job_id="j", timeout=Duration(seconds=60)),
    ]
    assert cancelled.state is JobState.CANCELLED
    assert (retried.job.state, retried.nodes) == (JobState.RUNNING, ("a", "b"))


async def test_watch_goes_on_where_the_engine_went_away() -> None:
    first = pb.WatchJobResponse(
        job=a_job(revision=4), nodes=[pb.Node(name="a", state=nodes.NODE_STATE_RUNNING)]
    )
    second = pb.WatchJobResponse(
        job=a_job(pb.JOB_STATE_DONE, revision=6),
        nodes=[pb.Node(name="a", state=nodes.NODE_STATE_DONE)],
    )
    async with (
        scripted_engine([first, AWAY], [AWAY], [second]) as engine,
        Client(engine.address, namespace="n", jitter=lambda: 1.0) as client,
    ):
        seen = [(it.job.revision, it["a"].state) async for it in client.jobs.watch("j")]

    assert seen == [(4, "running"), (6, "done")]
    assert engine.requests == [
        pb.WatchJobRequest(namespace="n", job_id="j"),
        pb.WatchJobRequest(namespace="n", job_id="j", after_revision=4),
        pb.WatchJobRequest(namespace="n", job_id="j", after_revision=4),
    ]


async def test_watch_that_nobody_reads_on_is_closed() -> None:
    async with scripted_engine([a_change(), HANG]) as engine, Client(engine.address) as client:
        watching = client.jobs.watch("j")
        await anext(watching)
        await watching.aclose()

        with pytest.raises(StopAsyncIteration):
            await anext(watching)


async def test_watch_ends_with_its_timeout() -> None:
    async with scripted_engine([a_change(), HANG]) as engine, Client(engine.address) as client:
        watching = client.jobs.watch("j", timeout=0.3)
        await anext(watching)
        with pytest.raises(DeadlineExceededError):
            await anext(watching)


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (pb.JOB_STATE_DONE, None),
        (pb.JOB_STATE_FAILED, JobFailedError),
        (pb.JOB_STATE_CANCELLED, JobCancelledError),
    ],
)
async def test_wait_returns_the_job_and_raises_only_when_asked(
    state: pb.JobState.ValueType, kind: type[JobFailedError | JobCancelledError] | None
) -> None:
    ended = pb.WatchJobResponse(job=a_job(state, revision=2, detail="node a failed"))
    script = ([a_change(), ended], [ended])
    async with scripted_engine(*script) as engine, Client(engine.address) as client:
        job = await client.jobs.wait("j")
        if kind is None:
            assert await client.jobs.wait("j", check=True) == job
        else:
            with pytest.raises(kind, match="job 'j'") as raised:
                await client.jobs.wait("j", check=True)
            assert getattr(raised.value, "job", None) == job

    assert (job.state.number, job.revision) == (state, 2)


async def test_a_wait_that_is_cut_off_says_so() -> None:
    async with scripted_engine([a_change()]) as engine, Client(engine.address) as client:
        with pytest.raises(EngineUnavailableError, match="job 'j'"):
            await client.jobs.wait("j")


async def test_the_blocking_client_does_the_same() -> None:
    ended = a_change(pb.JOB_STATE_FAILED, revision=3)
    script = (
        pb.SubmitJobResponse(task_id=1),
        pb.ListJobsResponse(jobs=[a_job()], next_page_token=SECOND),
        pb.ListJobsResponse(jobs=[a_job()]),
        [a_change(revision=2), AWAY],
        [ended],
        [ended],
        [a_change(), HANG],
    )

    def ask(address: str) -> None:
        with SyncClient(address, namespace="n", codec=BYTES, jitter=lambda: 1.0) as client:
            graph = Graph()
            graph.node("a", b"raw")
            client.jobs.submit("j", graph)
            assert len(list(client.jobs.list())) == 2
            assert client.jobs.wait("j").revision == 3
            with pytest.raises(JobFailedError):
                client.jobs.wait("j", check=True)
            with pytest.raises(DeadlineExceededError):
                list(client.jobs.watch("j", timeout=0.3))

    async with scripted_engine(*script) as engine:
        await asyncio.to_thread(ask, engine.address)

    assert engine.requests[0].nodes[0].args == b"raw"
    assert [it.after_revision for it in engine.requests[3:]] == [0, 2, 0, 0]
