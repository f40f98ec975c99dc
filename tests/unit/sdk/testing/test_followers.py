"""Nodes of a rehearsed job are carried out by processors, and end as their processes do."""

from typing import Any

import pytest

from progressor.example import mapreduce
from progressor.sdk import (
    Fail,
    Graph,
    JobState,
    NamespaceConfig,
    NodeState,
    ProcessStatus,
    Reject,
    Retry,
    RetryPolicy,
    Step,
)
from progressor.sdk.testing import JobRehearsal, job_rehearsal
from tests.support.processor.rehearsed import breaking, chain, processor_of


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


async def test_what_another_failed_node_keeps_stays_skipped() -> None:
    graph = Graph()
    a, b = graph.node("a"), graph.node("b")
    graph.node("only-a", after=a)
    graph.node("both", after=[a, b])
    graph.node("below", after="both")
    job = JobRehearsal(graph, processors=[breaking()])
    await job.run("a")
    await job.fail("b")
    await job.repair("a")

    assert job.states["only-a"] is NodeState.WAITING
    assert job.outcomes["both"].skipped_because_of == "b"
    assert job.outcomes["below"].skipped_because_of == "b"


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
    graph = Graph()
    if attempts_max is None:
        graph.node("a")
    else:
        graph.node("a", retry_policy=RetryPolicy(attempts_max=attempts_max))
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
