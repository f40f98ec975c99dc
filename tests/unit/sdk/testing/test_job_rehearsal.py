"""A rehearsed job: its graph, nodes run by processors, leaders of one's own, and inner jobs."""

import datetime as dt
import random
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock

import pytest

from progressor import errors, job_errors
from progressor.domain.jobs.job import WINDOW
from progressor.example import mapreduce, nine
from progressor.sdk import (
    Constraints,
    Fail,
    Graph,
    JobState,
    NamespaceConfig,
    NodeCounts,
    NodeOutcome,
    NodeState,
    Processor,
    ProcessStatus,
    Reject,
    Retry,
    RetryPolicy,
    Step,
    TaskError,
)
from progressor.sdk.testing import JobRehearsal, graph_state, job_rehearsal
from progressor.sdk.testing.rehearsal import STARTS_AT
from tests.support.processor.rehearsed import chain, processor_of


def begin_with(*names: str, **options: Any) -> Callable[[Step[Any]], None]:
    """Return a handler that starts nodes, as `chain`."""
    return lambda step: step.start_nodes(chain(*names, **options), deadline=60)


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
    with pytest.raises(job_errors.JobNotFailedError):
        await job.retry()


async def test_a_node_is_described_as_it_was_added() -> None:
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


@pytest.mark.parametrize("seed", range(5))
async def test_a_thousand_pages_are_counted_in_any_order(seed: int) -> None:
    pages = 70
    job = await JobRehearsal.led_by(mapreduce.words, mapreduce.Book(pages=pages))
    state = await job.run_all(order=random.Random(seed).choice)

    text = " ".join(mapreduce.text_of(it) for it in range(1, pages + 1))
    assert (state, job.counts) == (JobState.DONE, NodeCounts(done=70 + 3 + 1))
    assert sum(job.result.values()) == len(text.split())
    assert job.result["the"] == text.split().count("the")


async def test_a_map_that_fails_fails_the_count() -> None:
    job = await JobRehearsal.led_by(mapreduce.words, mapreduce.Book(pages=40))

    assert await job.run_all(failing=["map-33"]) is JobState.FAILED
    assert job.detail == "reduce-2-1 is skipped because of map-33"
    assert await job.retry() == ("map-33",)
    assert await job.run_all() is JobState.DONE
    assert (job.retry_count, job.counts.done) == (1, 43)


async def test_a_leader_adds_nodes_and_decides() -> None:
    seen: list[list[str]] = []

    def join(step: Step[Any]) -> None:
        seen.append([f"{it.name} {it.state}" for it in step.nodes.values()])
        if "b" in step.nodes:
            step.complete("decided")
            return
        graph = Graph()
        graph.node("b", after="a")
        graph.node("c", after="a")
        step.start_nodes(graph)

    job = await JobRehearsal.led_by(processor_of(init=begin_with("a"), join=join))
    assert await job.complete("a") == ("b", "c")
    await job.fail("b")
    await job.complete("c")

    assert seen == [["a done"], ["a done", "b failed", "c done"]]
    assert (job.state, job.result) == (JobState.DONE, "decided")


async def test_what_is_added_after_a_failed_node_is_skipped_at_once() -> None:
    begin, more = begin_with("a", "b", "c"), begin_with("late", after="b")
    job = await JobRehearsal.led_by(
        processor_of(init=begin, call=more, join=lambda step: step.complete(len(step.nodes)))
    )
    await job.fail("a")
    assert job.result == 3
    job = await JobRehearsal.led_by(processor_of(init=begin, call=more, join=lambda _: None))
    await job.fail("a")
    await job.leader.call()

    assert job.outcomes["late"].skipped_because_of == "a"


async def test_a_cancelled_leader_is_finished() -> None:
    job = await JobRehearsal.led_by(nine.tasks(AsyncMock()), nine.Lead("r"))
    await job.cancel()

    assert job.leader.status is ProcessStatus.FINISHED


@pytest.mark.parametrize(
    ("name", "after", "why"),
    [("b", "absent", "'b' comes after 'absent', which does not exist"),
     ("a", (), "already has a node 'a'")],
)  # fmt: skip
async def test_a_leader_cannot_add_what_does_not_fit(name: str, after: Any, why: str) -> None:
    leads = processor_of(init=begin_with("a"), call=begin_with(name, after=after))
    job = await JobRehearsal.led_by(leads)
    with pytest.raises(ValueError, match=why):
        await job.leader.call()


async def test_a_retry_has_the_timer_due_that_broke_the_leader() -> None:
    def fail(_step: Step[Any]) -> None:
        raise Fail("at the timer")

    job = await JobRehearsal.led_by(
        processor_of(
            init=begin_with("a"),
            call=lambda step: step.set_timer(after=60),
            timeout=fail,
        )
    )
    await job.leader.call()
    await job.leader.run_timer()
    assert (job.state, job.detail, job.counts.cancelled) == (JobState.FAILED, "at the timer", 1)
    await job.retry()

    assert (job.leader.status, job.running) == (ProcessStatus.RUNNING, ("a",))
    assert job.leader.timer is not None
    assert job.leader.timer.due_at == job.leader.now


async def test_a_repair_of_the_leader_goes_on_with_its_job() -> None:
    joined: list[int] = []

    def join(step: Step[Any]) -> None:
        joined.append(len(step.nodes))
        if len(joined) == 1:
            raise Fail("not yet")

    leads = processor_of(
        init=begin_with("a"),
        join=join,
        repair=lambda step: step.complete("fixed") if step.args else None,
    )
    job = await JobRehearsal.led_by(leads)
    await job.complete("a")
    assert (job.state, job.detail) == (JobState.FAILED, "not yet")
    await job.leader.repair()

    assert (job.state, joined) == (JobState.RUNNING, [1, 1])
    assert job.deadline is not None
    await job.expire()
    await job.leader.simple_repair()
    assert (job.state, joined) == (JobState.RUNNING, [1, 1, 1])
    with pytest.raises(ValueError, match="has no deadline"):
        await job.expire()


async def test_a_repair_that_completes_the_leader_has_its_job_done() -> None:
    def fail(_step: Step[Any]) -> None:
        raise Fail("enough")

    job = await JobRehearsal.led_by(
        processor_of(
            init=begin_with("a"),
            call=fail,
            repair=lambda step: step.complete("fixed"),
        )
    )
    with pytest.raises(errors.ProcessFailedError):
        await job.leader.call()
    await job.leader.repair()

    assert (job.state, job.detail, job.result) == (JobState.DONE, "", "fixed")
    await job.leader.remove()
    assert job.state is JobState.DONE
    assert job.counts == NodeCounts(cancelled=1)


async def test_followers_are_carried_out_by_their_namespaces() -> None:
    async def double(step: Step[Any]) -> None:
        step.complete(2 * (step.args + sum(step.results_as(int).values())))

    def slow(step: Step[Any]) -> None:
        step.state = sum(step.results_as(int).values())
        step.set_timer(after=3600)

    doubles = processor_of("doubles", init=double)
    patient = processor_of(init=slow, timeout=lambda step: step.complete(step.state + 1))
    graph = Graph()
    a = graph.node("a", 1, namespace="doubles")
    b = graph.node("b", 2, namespace="doubles", after=a, wants_results=True, process_id="b-proc")
    graph.node("c", after=[a, b], wants_results=True)
    job = JobRehearsal(graph, processors=[doubles, patient], job_id="j", namespace="jobs")

    assert await job.run("a") is NodeState.DONE
    assert (await job.process("a")).process_id == "j/a"
    assert await job.run_all() is JobState.DONE
    assert [it.result for it in job.outcomes.values()] == [2, 8, 11]
    assert (await job.process("b")).process_id == "b-proc"


async def test_a_follower_that_breaks_or_is_refused_fails_its_node() -> None:
    def fail(step: Step[Any]) -> None:
        raise Fail("broken") if step.args == "fail" else Reject("refused")

    graph = Graph()
    graph.node("a", "fail")
    graph.node("b", "reject")
    job = JobRehearsal(graph, processors=[processor_of(init=fail)])

    assert await job.run_all() is JobState.FAILED
    told = {name: it.error.message for name, it in job.outcomes.items() if it.error is not None}
    assert told == {"a": "broken", "b": "refused"}


async def test_a_follower_that_removes_itself_is_done() -> None:
    def go(step: Step[Any]) -> str:
        step.remove()
        return "gone"

    job = JobRehearsal(chain("a"), processors=[processor_of(init=go)])

    assert await job.run("a") is NodeState.DONE
    assert job.outcomes["a"].result == "gone"


async def test_results_can_be_given_in_place_of_asking() -> None:
    job = JobRehearsal(chain("a", "b"), processors=[mapreduce.words])

    assert await job.run_all(results={"a": 1, "b": 2}) is JobState.DONE
    assert [it.result for it in job.outcomes.values()] == [1, 2]


async def test_a_retry_has_a_stopped_follower_go_on_with_its_timer() -> None:
    processor = processor_of(
        init=lambda step: step.set_timer(after=60), timeout=lambda step: step.complete("in time")
    )
    job = JobRehearsal(chain("a", "b"), processors=[processor], deadline=30)
    follower = await job.process("a")
    due_at = follower.timer and follower.timer.due_at
    await job.expire()
    assert (follower.status, follower.detail) == (
        ProcessStatus.ERROR, "JOB_CANCELLED: DEADLINE_EXCEEDED",
    )  # fmt: skip
    assert follower.timer is None
    await job.retry()

    assert follower.timer is not None
    assert follower.timer.due_at == due_at
    assert await job.run("a") is NodeState.DONE
    assert job.attempts == {"a": 2, "b": 1}


@pytest.mark.parametrize("attempts_max", [None, 1, 3])
async def test_attempts_go_by_the_policy_of_the_node_or_else_of_its_namespace(
    attempts_max: int | None,
) -> None:
    attempts: list[int] = []

    def stumble(step: Step[Any]) -> None:
        attempts.append(step.attempt)
        raise Retry("not yet")

    policy = RetryPolicy(attempts_max=2)
    config = NamespaceConfig(name="jobs", processor_targets=(), retry_policies={"init": policy})
    of_the_node = RetryPolicy(attempts_max=attempts_max) if attempts_max else None
    graph = chain("a", retry_policy=of_the_node) if of_the_node else chain("a")
    job = JobRehearsal(graph, processors=[processor_of(init=stumble)], configs=[config])

    assert await job.run("a") is NodeState.FAILED
    assert attempts == list(range(1, (attempts_max or 2) + 1))


async def test_timers_without_an_end_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_rehearsal, "TIMERS_MAX", 3)
    again = processor_of(
        init=lambda step: step.set_timer(after=1), timeout=lambda step: step.set_timer(after=1)
    )
    job = JobRehearsal(chain("a"), processors=[again])

    with pytest.raises(RuntimeError, match="3 timers of node 'a' have run, and another is due"):
        await job.run_all()


def leading() -> Processor[Any]:
    """Return a processor that leads nodes x and y of another one, which must be done."""

    def join(step: Step[Any]) -> None:
        undone = [it.name for it in step.nodes.values() if not it.is_done]
        if undone:
            raise Fail(f"not done: {', '.join(undone)}")
        step.complete(sorted(step.nodes))

    return processor_of("leads", init=begin_with("x", "y", namespace="leaves"), join=join)


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
    job = JobRehearsal(chain("m", namespace="middle"), processors=[middle, leading()])
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


async def test_a_terminated_follower_fails_its_node_also_after_a_retry() -> None:
    job = JobRehearsal(chain("a", "b"), processors=[processor_of(init=lambda _: None)])
    follower = await job.process("a")

    await follower.terminate("why")

    for _ in range(2):
        assert (job.state, list(job.states.values())) == (
            JobState.FAILED, [NodeState.FAILED, NodeState.SKIPPED],
        )  # fmt: skip
        error = job.outcomes["a"].error
        assert error is not None
        assert (error.reason, error.message) == ("PROCESS_TERMINATED", "why")
        await job.retry()


async def test_a_terminated_leader_cancels_its_job_and_fails_its_node() -> None:
    job = outer_job()
    inner = await job.inner("a")

    await inner.leader.terminate("why")

    assert (inner.state, inner.counts.cancelled, inner.detail) == (JobState.CANCELLED, 2, "why")
    assert job.states["a"] is NodeState.FAILED


async def test_a_retry_begins_a_leader_anew_whose_process_was_removed() -> None:
    job = outer_job()
    removed = await job.inner("a")
    await removed.leader.remove()
    assert (removed.state, removed.counts.cancelled) == (JobState.CANCELLED, 2)
    assert job.state is JobState.FAILED
    await job.retry()

    assert (await job.inner("a")).state is JobState.RUNNING
    assert await job.run_all() is JobState.DONE
