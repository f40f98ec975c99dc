"""A node of a rehearsed job leads a job itself: what happens to one is felt in the other."""

from typing import Any

import pytest

from progressor import job_errors
from progressor.sdk import (
    Fail,
    Graph,
    JobState,
    NodeState,
    Processor,
    ProcessStatus,
    Step,
    TaskError,
)
from progressor.sdk.testing import JobRehearsal, job_rehearsal
from tests.support.processor.rehearsed import chain, processor_of


def leading() -> Processor[Any]:
    """Return a processor that leads nodes x and y of another one, which must be done."""

    def begin(step: Step[Any]) -> None:
        graph = Graph()
        x = graph.node("x", 1, namespace="leaves")
        graph.node("y", 2, namespace="leaves", after=x)
        step.start_nodes(graph, deadline=60)

    def join(step: Step[Any]) -> None:
        undone = [it.name for it in step.nodes.values() if not it.is_done]
        if undone:
            raise Fail(f"not done: {', '.join(undone)}")
        step.complete(sorted(step.nodes))

    return processor_of("leads", init=begin, join=join)


def outer_graph() -> Graph:
    """Return a graph of node a, which leads, and b, which comes after it."""
    graph = Graph()
    graph.node("b", namespace="leaves", after=graph.node("a", namespace="leads"))
    return graph


def outer_job() -> JobRehearsal:
    """Return a job of that graph, whose leaves are never executed."""
    return JobRehearsal(outer_graph(), processors=[leading()], namespace="leads")


async def test_an_inner_job_may_wait_to_be_called() -> None:
    leaves = processor_of("leaves", init=lambda _: None, call=lambda step: step.complete(step.args))
    job = JobRehearsal(outer_graph(), processors=[leading(), leaves])
    assert await job.run("a") is NodeState.RUNNING
    assert await job.run_all() is JobState.RUNNING
    inner = await job.inner("a")
    for name in ("x", "y"):
        await (await inner.process(name)).call(name)

    assert [it.result for it in inner.outcomes.values()] == ["x", "y"]
    assert job.running == ("b",)


async def test_a_node_that_leads_is_not_ended_by_hand() -> None:
    job = outer_job()
    await job.inner("a")

    with pytest.raises(ValueError, match="node 'a' leads a job and ends with it"):
        await job.complete("a")
    with pytest.raises(ValueError, match="node 'a' leads a job"):
        await job.fail("a")


async def test_a_node_that_leads_no_job_has_none() -> None:
    processor = processor_of("leads", init=lambda _: None)
    job = JobRehearsal(outer_graph(), processors=[processor])

    with pytest.raises(ValueError, match="node 'a' leads no job"):
        await job.inner("a")
    with pytest.raises(ValueError, match="node 'b' has no process, since it is waiting"):
        await job.inner("b")


@pytest.mark.parametrize(
    ("deed", "detail", "reason", "message"),
    [
        (
            "cancel",
            "JOB_CANCELLED: the job was cancelled",
            "JOB_CANCELLED",
            "the job was cancelled",
        ),
        ("expire", "DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED", "the deadline of its job has passed"),
    ],
)
async def test_an_inner_job_that_is_ended_fails_its_node(
    deed: str, detail: str, reason: str, message: str
) -> None:
    job = outer_job()
    inner = await job.inner("a")
    await getattr(inner, deed)()

    assert (inner.state, inner.detail) == (JobState.FAILED, detail)
    assert (inner.leader.status, inner.leader.detail) == (ProcessStatus.ERROR, detail)
    assert job.outcomes["a"].error == TaskError(code=9, reason=reason, message=message)
    assert (job.state, job.states["b"]) == (JobState.FAILED, NodeState.SKIPPED)
    with pytest.raises(job_errors.JobEndedError):
        await getattr(inner, deed)()


@pytest.mark.parametrize("deed", ["fail", "cancel", "expire"])
async def test_a_retry_of_the_outer_job_brings_the_inner_one_back(deed: str) -> None:
    job = outer_job()
    inner = await job.inner("a")
    await (inner.fail("x") if deed == "fail" else getattr(inner, deed)())
    assert await job.retry() == ("a",)

    assert (job.state, job.states) == (
        JobState.RUNNING, {"a": NodeState.RUNNING, "b": NodeState.WAITING},
    )  # fmt: skip
    assert (inner.state, inner.retry_count, inner.deadline) == (JobState.RUNNING, 1, None)
    assert inner.states == {"x": NodeState.RUNNING, "y": NodeState.WAITING}
    assert (job.attempts["a"], inner.attempts["x"]) == (2, 2)
    assert (await job.inner("a")).states == inner.states
    assert await job.run_all() is JobState.DONE


async def test_jobs_may_be_three_deep() -> None:
    def begin(step: Step[Any]) -> None:
        step.start_nodes(outer_graph())

    def join(step: Step[Any]) -> None:
        if not all(it.is_done for it in step.nodes.values()):
            raise Fail("not done in the middle")
        step.complete("all")

    middle = processor_of("middle", init=begin, join=join)
    graph = Graph()
    graph.node("m", namespace="middle")
    job = JobRehearsal(graph, processors=[middle, leading()])
    inner = await (await job.inner("m")).inner("a")
    await inner.fail("x")
    assert (job.state, inner.job_id) == (JobState.FAILED, "job-1/m/a")
    await job.retry()
    assert inner.running == ("x",)
    await inner.fail("x")
    await inner.retry()
    assert (job.state, job.attempts["m"]) == (JobState.RUNNING, 3)

    assert await job.run_all() is JobState.DONE
    assert job.outcomes["m"].result == "all"


async def test_a_job_within_a_job_without_an_end_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_rehearsal, "DEPTH_MAX", 2)

    def lead(step: Step[Any]) -> None:
        step.start_nodes(chain("x"))

    job = JobRehearsal(chain("a"), processors=[processor_of(init=lead)])
    with pytest.raises(RuntimeError, match="node 'x' cannot lead a job: it is within 2 others"):
        await job.run("a")


async def test_a_retry_begins_a_leader_anew_whose_process_was_removed() -> None:
    job = outer_job()
    removed = await job.inner("a")
    await removed.leader.remove()
    assert (removed.state, removed.counts.cancelled) == (JobState.CANCELLED, 2)
    assert job.state is JobState.FAILED
    await job.retry()

    assert (await job.inner("a")).state is JobState.RUNNING
    assert await job.run_all() is JobState.DONE
