"""The graph of a rehearsed job goes the way of the engine: nodes ended by hand, in any order."""

import datetime as dt
from unittest.mock import AsyncMock

import pytest

from progressor import job_errors
from progressor.domain.jobs.job import WINDOW
from progressor.example import nine
from progressor.sdk import (
    Constraints,
    Graph,
    JobState,
    NodeCounts,
    NodeOutcome,
    NodeState,
    RetryPolicy,
    TaskError,
)
from progressor.sdk.testing import JobRehearsal, graph_state
from progressor.sdk.testing.rehearsal import STARTS_AT
from tests.support.processor.rehearsed import chain


async def test_the_example_of_the_docstring() -> None:
    graph = Graph()
    build = graph.node("build")
    tests = graph.fan_out("test", ["unit", "system"], after=build)
    graph.node("deploy", after=tests)

    job = JobRehearsal(graph)
    assert job.running == ("build",)
    assert await job.complete("build") == ("test-1", "test-2")
    await job.fail("test-1")
    assert job.states["deploy"] is NodeState.SKIPPED


@pytest.mark.parametrize("led_by", ["engine", "processor"])
@pytest.mark.parametrize("fails", [False, True])
async def test_the_worked_examples_of_the_job_center(led_by: str, *, fails: bool) -> None:
    if led_by == "engine":
        job = JobRehearsal(nine.nine_tasks("r"))
    else:
        job = await JobRehearsal.led_by(nine.tasks(AsyncMock()), nine.Lead("r"))
    assert job.running == ("1", "2", "3")

    for task, ready in nine.FAILURE if fails else nine.SUCCESS:
        assert job.state is JobState.RUNNING
        if fails and task == nine.FAILING:
            assert await job.fail(task) == tuple(nine.SKIPPED)
        else:
            assert await job.complete(task, {"task": task}) == tuple(ready)

    if not fails:
        assert (job.state, job.counts) == (JobState.DONE, NodeCounts(done=9))
        assert job.result == (None if led_by == "engine" else {"done": list("123456789")})
    else:
        assert (job.state, job.counts) == (JobState.FAILED, NodeCounts(done=6, failed=1, skipped=2))
        assert job.detail == (
            "3 of 9 nodes are not done: 4 failed (FAILED_PRECONDITION: failed by the test)"
            if led_by == "engine"
            else "not done: 4, 7, 9"
        )


async def test_a_node_gets_what_it_asked_for_and_nothing_else() -> None:
    graph = Graph()
    a = graph.node("a")
    b = graph.node("b", {"x": 1}, after=a, wants_results=True)
    graph.node("c", after=b)
    job = JobRehearsal(graph)
    await job.complete("a", 7)
    await job.complete("b")

    assert job.inputs("b") == (NodeOutcome(name="a", state=NodeState.DONE, result=7),)
    assert job.inputs("c") == ()
    assert job.args("b") == {"x": 1}


async def test_only_what_runs_can_end() -> None:
    job = JobRehearsal(chain("a", "b"))

    with pytest.raises(ValueError, match="node 'b' is waiting, not running"):
        await job.complete("b")
    with pytest.raises(ValueError, match="node 'b' has no process, since it is waiting"):
        await job.process("b")
    with pytest.raises(ValueError, match="no processor for node 'a'"):
        await job.run("a")
    with pytest.raises(KeyError, match="no node 'z'; it has a, b"):
        await job.fail("z")
    with pytest.raises(ValueError, match="no process in error"):
        await job.repair("a")
    with pytest.raises(ValueError, match="the engine leads job"):
        job.leader  # noqa: B018 - it raises


async def test_a_window_holds_back_what_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    assert graph_state.WINDOW == WINDOW
    monkeypatch.setattr(graph_state, "WINDOW", 2)
    graph = Graph()
    graph.fan_out("n", range(3))
    job = JobRehearsal(graph)

    assert job.counts == NodeCounts(running=2, ready=1)
    assert await job.complete("n-2") == ("n-3",)


async def test_a_retry_begins_failed_nodes_again_and_has_skipped_ones_wait() -> None:
    graph = chain("a", "b", "c")
    graph.node("d", after=[graph["a"]])
    job = JobRehearsal(graph)
    await job.complete("a")
    await job.fail("b")
    await job.complete("d")
    assert job.state is JobState.FAILED
    with pytest.raises(ValueError, match="not running"):
        await job.complete("b")

    assert await job.retry() == ("b",)
    assert (job.state, job.detail) == (JobState.RUNNING, "")
    assert job.counts == NodeCounts(done=2, running=1, waiting=1)
    assert await job.complete("b") == ("c",)
    await job.complete("c")
    assert job.counts == NodeCounts(done=4)
    with pytest.raises(job_errors.JobNotFailedError):
        await job.retry()


async def test_a_cancelled_job_ends_what_has_not_ended() -> None:
    graph = chain("a", "b")
    graph.node("c")
    job = JobRehearsal(graph)
    await job.complete("c")
    await job.cancel("not needed")

    assert (job.state, job.counts) == (JobState.CANCELLED, NodeCounts(done=1, cancelled=2))
    assert job.detail == "not needed"
    assert job.outcomes["a"].error == TaskError(
        code=10, reason="JOB_CANCELLED", message="not needed"
    )
    with pytest.raises(job_errors.JobEndedError):
        await job.cancel()


async def test_a_job_fails_at_its_deadline() -> None:
    graph = chain("a", "b")
    graph.node("c")
    job = JobRehearsal(graph, deadline=60)
    assert job.deadline == STARTS_AT + dt.timedelta(seconds=60)
    await job.complete("c")
    await job.expire()

    assert (job.state, job.detail) == (JobState.FAILED, "DEADLINE_EXCEEDED")
    assert job.counts == NodeCounts(done=1, cancelled=2)
    assert job.outcomes["a"].error == TaskError(
        code=10, reason="JOB_CANCELLED", message="DEADLINE_EXCEEDED"
    )
    with pytest.raises(job_errors.JobEndedError):
        await job.expire()


async def test_a_retry_goes_on_after_a_deadline_with_another_one_or_none() -> None:
    job = JobRehearsal(chain("a", "b"), deadline=STARTS_AT)
    await job.expire()

    assert await job.retry() == ()
    assert (job.running, job.deadline) == (("a",), None)
    with pytest.raises(ValueError, match="job 'job-1' has no deadline"):
        await job.expire()
    await job.fail("a")
    await job.retry(deadline=STARTS_AT + dt.timedelta(days=1))
    assert job.deadline == STARTS_AT + dt.timedelta(days=1)
    assert job.attempts == {"a": 3, "b": 1}
    await job.run_all()
    assert job.state is JobState.DONE


async def test_a_node_is_told_as_it_was_added() -> None:
    graph = Graph()
    policy = RetryPolicy(attempts_max=2)
    graph.node("build", {"ref": "main"}, retry_policy=policy)
    graph.node(
        "deploy", after="build", target="unix:/a", constraints=Constraints(gates={"site": 1})
    )
    job = JobRehearsal(graph)
    await job.complete("build")

    assert job.node("build").args == {"ref": "main"}
    assert job.node("build").options == {"retry_policy": policy}
    assert job.node("deploy").after == ("build",)
    assert job.node("deploy").options["target"] == "unix:/a"
    assert job.node("deploy").options["constraints"] == Constraints(gates={"site": 1})
    # Its gate has a place.
    assert job.running == ("deploy",)
    with pytest.raises(KeyError, match="no node 'z'"):
        job.node("z")
