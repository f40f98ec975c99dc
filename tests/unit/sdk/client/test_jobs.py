"""Jobs through the clients: what is sent, what comes back, and watching across outages."""

import asyncio

import grpc
import pytest

from progressor.sdk import (
    BYTES,
    Client,
    DeadlineExceededError,
    EngineUnavailableError,
    Graph,
    JobCancelledError,
    JobFailedError,
    SyncClient,
)
from progressor.v1 import job_service_pb2 as pb
from progressor.v1 import nodes_pb2 as nodes
from tests.unit.sdk.scripted_engine import HANG, refusal, scripted_engine

AWAY = refusal(grpc.StatusCode.UNAVAILABLE, "STORAGE_UNAVAILABLE")


def a_job(
    state: pb.JobState.ValueType = pb.JOB_STATE_RUNNING, *, revision: int = 1, detail: str = ""
) -> pb.Job:
    counts = pb.NodeCounts(waiting=1, ready=2, running=3, done=4, failed=5, skipped=6, cancelled=7)
    return pb.Job(job_id="j", state=state, detail=detail, counts=counts, revision=revision)


def a_change(
    state: pb.JobState.ValueType = pb.JOB_STATE_RUNNING, *, revision: int = 1
) -> pb.WatchJobResponse:
    return pb.WatchJobResponse(job=a_job(state, revision=revision))


@pytest.mark.parametrize(
    ("names", "words"), [([], "at least one node"), (["a"], "the graph has no node 'old'")]
)
async def test_submit_refuses_what_is_no_whole_graph(names: list[str], words: str) -> None:
    graph = Graph()
    graph.fan_out("node", names, after=["old"])
    async with Client("unix:/nonexistent") as client:
        with pytest.raises(ValueError, match=words):
            await client.jobs.submit("j", graph)


async def test_results_have_the_type_that_is_asked_for() -> None:
    answer = pb.GetJobResponse(job=a_job(), nodes=[pb.Node(name="a", result=b"[1]")])
    async with scripted_engine(answer, answer) as engine, Client(engine.address) as client:
        view = await client.jobs.get("j", result_type=tuple[int])
        with pytest.raises(ValueError, match="Expected `int`"):
            await client.jobs.get("j", result_type=int)

    assert view["a"].result == (1,)
    assert view.job.counts.total == 28
    with pytest.raises(KeyError):
        view["b"]


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
            assert client.jobs.wait("j").revision == 3
            with pytest.raises(JobFailedError):
                client.jobs.wait("j", check=True)
            with pytest.raises(DeadlineExceededError):
                list(client.jobs.watch("j", timeout=0.3))

    async with scripted_engine(*script) as engine:
        await asyncio.to_thread(ask, engine.address)

    assert engine.requests[0].nodes[0].args == b"raw"
    assert [it.after_revision for it in engine.requests[1:]] == [0, 2, 0, 0]
