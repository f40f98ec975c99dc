"""A job rehearsed in memory goes the way of the engine: the seed's two jobs, and more."""

import random
from typing import Any

import pytest

from progressor import errors, job_errors
from progressor.domain.job import WINDOW
from progressor.example import mapreduce, nine
from progressor.sdk import (
    Fail,
    Graph,
    JobState,
    NodeCounts,
    NodeOutcome,
    NodeState,
    Processor,
    ProcessStatus,
    Reject,
    Step,
    TaskError,
)
from progressor.sdk.testing import JobRehearsal, standing


def chain(*names: str) -> Graph:
    """Return a graph in which each node comes after the one before."""
    graph = Graph()
    before: Any = ()
    for name in names:
        before = graph.node(name, after=before, wants_results=True)
    return graph


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
        job = await JobRehearsal.led_by(nine.tasks(nine.Turns()), nine.Lead("r"))
    assert job.running == ("1", "2", "3")

    for task, ready in nine.FAILURE if fails else nine.SUCCESS:
        assert job.state is JobState.RUNNING
        if fails and task == nine.FAILING:
            assert await job.fail(task) == nine.SKIPPED
        else:
            assert await job.complete(task, {"task": task}) == ready

    if not fails:
        assert (job.state, job.counts) == (JobState.DONE, NodeCounts(done=9))
        assert job.result == (None if led_by == "engine" else {"done": list("123456789")})
    else:
        assert (job.state, job.counts) == (JobState.FAILED, NodeCounts(done=6, failed=1, skipped=2))
        assert job.detail == (
            "3 of 9 nodes are not done: 4 failed (FAILED_PRECONDITION: told to fail)"
            if led_by == "engine"
            else "not done: 4, 7, 9"
        )


def test_the_nine_tasks_have_the_edges_of_the_text() -> None:
    assert sorted(nine.nine_tasks("r").edges) == sorted(nine.EDGES.values())
    assert "".join(nine.EDGES) == "abcdefghijk"


@pytest.mark.parametrize("seed", range(5))
async def test_a_thousand_pages_are_counted_in_any_order(seed: int) -> None:
    pages = 70
    job = await JobRehearsal.led_by(mapreduce.words, mapreduce.Book(pages=pages))
    state = await job.run_all(order=random.Random(seed).choice)

    text = " ".join(mapreduce.text_of(it) for it in range(1, pages + 1))
    assert (state, job.counts) == (JobState.DONE, NodeCounts(done=70 + 3 + 1))
    assert sum(job.result.values()) == len(text.split())
    assert job.result["the"] == text.split().count("the")


async def test_a_book_without_a_page_is_refused() -> None:
    with pytest.raises(errors.RejectedError, match="a page"):
        await JobRehearsal.led_by(mapreduce.words, mapreduce.Book(pages=0))


async def test_a_map_that_fails_fails_the_count() -> None:
    job = await JobRehearsal.led_by(mapreduce.words, mapreduce.Book(pages=40))

    assert await job.run_all(failing=["map-33"]) is JobState.FAILED
    assert job.detail == "reduce-2-1 is skipped because of map-33"
    assert await job.retry() == ("map-33",)
    assert await job.run_all() is JobState.DONE
    assert (job.retry_count, job.counts.done) == (1, 43)


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
    with pytest.raises(ValueError, match="node 'b' is waiting, and has no process"):
        await job.process("b")
    with pytest.raises(ValueError, match="no processor for node 'a'"):
        await job.run("a")
    with pytest.raises(KeyError, match="no node 'z'; it has a, b"):
        await job.fail("z")
    with pytest.raises(ValueError, match="no broken process"):
        await job.repair("a")
    with pytest.raises(ValueError, match="led by the engine"):
        job.leader  # noqa: B018 - it raises


async def test_what_is_skipped_names_the_node_that_failed() -> None:
    job = JobRehearsal(chain("a", "b", "c"))
    await job.fail("a", "out of order", reason="BROKEN")

    assert job.outcomes["c"] == NodeOutcome(
        name="c", state=NodeState.SKIPPED, skipped_because_of="a"
    )
    assert job.outcomes["a"].error == TaskError(code=9, reason="BROKEN", message="out of order")


async def test_a_window_holds_back_what_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    assert standing.WINDOW == WINDOW
    monkeypatch.setattr(standing, "WINDOW", 2)
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
    assert job.outcomes["a"].error is not None
    assert job.outcomes["a"].error.message == "JOB_CANCELLED: not needed"
    with pytest.raises(job_errors.JobEndedError):
        await job.cancel()


def processor_of(name: str = "jobs", **handlers: Any) -> Processor[Any]:
    processor = Processor(name)
    for handler_name, handler in handlers.items():
        getattr(processor, handler_name)(handler)
    return processor


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


async def test_a_follower_may_wait_to_be_called() -> None:
    processor = processor_of(init=lambda _: None, call=lambda step: step.complete(step.args))
    job = JobRehearsal(chain("a", "b"), processors=[processor])

    assert await job.run("a") is NodeState.RUNNING
    assert await job.run_all() is JobState.RUNNING
    await (await job.process("a")).call("hello")
    assert job.states == {"a": NodeState.DONE, "b": NodeState.RUNNING}
    assert job.outcomes["a"].result == "hello"


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


def breaking() -> Processor[Any]:
    """Return a processor whose processes break at their timer, and can be repaired."""

    def tick(step: Step[Any]) -> None:
        if step.status is ProcessStatus.RUNNING:
            raise Fail("at the timer")
        step.complete("by the timer")

    return processor_of(
        init=lambda step: step.set_timer(after=1),
        timeout=tick,
        repair=lambda step: step.unset_timer(),
        call=lambda step: step.complete("by a call"),
    )


async def test_a_repair_reopens_a_node_and_what_it_had_skipped() -> None:
    graph = chain("a", "b")
    graph.node("other")
    job = JobRehearsal(graph, processors=[breaking()])
    assert await job.run("a") is NodeState.FAILED

    assert await job.repair("a") == ("b",)
    assert job.states == {
        "a": NodeState.RUNNING, "b": NodeState.WAITING, "other": NodeState.RUNNING,
    }  # fmt: skip
    await (await job.process("a")).call()
    assert job.outcomes["a"].result == "by a call"
    assert job.running == ("b", "other")


async def test_a_repair_brings_back_a_job_that_has_failed() -> None:
    job = JobRehearsal(chain("a", "b"), processors=[breaking()])
    await job.run("a")
    assert job.state is JobState.FAILED
    await job.repair("a")

    assert (job.state, job.states["b"]) == (JobState.RUNNING, NodeState.WAITING)


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


async def test_a_retry_runs_the_timer_again_that_broke_a_follower() -> None:
    job = JobRehearsal(chain("a", "b"), processors=[breaking()])
    await job.run("a")
    await job.retry()

    assert job.outcomes["a"].result == "by the timer"
    assert job.running == ("b",)


async def test_a_leader_adds_nodes_and_decides() -> None:
    seen: list[list[str]] = []

    def begin(step: Step[Any]) -> None:
        graph = Graph()
        graph.node("a")
        step.start_nodes(graph)

    def join(step: Step[Any]) -> None:
        seen.append([f"{it.name} {it.state}" for it in step.nodes.values()])
        if "b" in step.nodes:
            step.complete("decided")
            return
        graph = Graph()
        graph.node("b", after="a")
        graph.node("c", after="a")
        step.start_nodes(graph)

    job = await JobRehearsal.led_by(processor_of(init=begin, join=join))
    assert await job.complete("a") == ("b", "c")
    await job.fail("b")
    await job.complete("c")

    assert seen == [["a done"], ["a done", "b failed", "c done"]]
    assert (job.state, job.result) == (JobState.DONE, "decided")


async def test_what_is_added_after_a_failed_node_is_skipped_at_once() -> None:
    def more(step: Step[Any]) -> None:
        graph = Graph()
        graph.node("late", after="b")
        step.start_nodes(graph)

    def begin(step: Step[Any]) -> None:
        step.start_nodes(chain("a", "b", "c"))

    job = await JobRehearsal.led_by(
        processor_of(init=begin, call=more, join=lambda step: step.complete(len(step.nodes)))
    )
    await job.fail("a")
    assert job.result == 3
    job = await JobRehearsal.led_by(processor_of(init=begin, call=more, join=lambda _: None))
    await job.fail("a")
    await job.leader.call()

    assert job.outcomes["late"].skipped_because_of == "a"


async def test_a_leader_that_ends_early_ends_its_nodes() -> None:
    def begin(step: Step[Any]) -> None:
        step.start_nodes(chain("a", "b"))

    def fail(_step: Step[Any]) -> None:
        raise Fail("enough")

    job = await JobRehearsal.led_by(processor_of(init=begin, call=fail))
    with pytest.raises(errors.ProcessFailedError):
        await job.leader.call()

    assert (job.state, job.detail) == (JobState.FAILED, "enough")
    assert job.counts == NodeCounts(cancelled=2)


async def test_a_leader_that_broke_goes_on_by_a_retry() -> None:
    joins: list[int] = []

    def begin(step: Step[Any]) -> None:
        step.start_nodes(chain("a"))

    def join(step: Step[Any]) -> None:
        joins.append(len(step.nodes))
        if len(joins) == 1:
            raise Fail("not yet")
        step.complete("now")

    job = await JobRehearsal.led_by(processor_of(init=begin, join=join))
    await job.complete("a")
    assert job.state is JobState.FAILED
    assert await job.retry() == ()

    assert (job.state, job.result, joins) == (JobState.DONE, "now", [1, 1])


async def test_a_cancelled_leader_is_finished() -> None:
    job = await JobRehearsal.led_by(nine.tasks(nine.Turns()), nine.Lead("r"))
    await job.cancel()

    assert job.leader.status is ProcessStatus.FINISHED


async def test_a_leader_cannot_name_what_is_not_there() -> None:
    def begin(step: Step[Any]) -> None:
        graph = Graph()
        graph.node("a", after="nobody")
        step.start_nodes(graph)

    with pytest.raises(ValueError, match="'a' comes after 'nobody', which is not there"):
        await JobRehearsal.led_by(processor_of(init=begin))


async def test_names_are_unique_within_a_job() -> None:
    def again(step: Step[Any]) -> None:
        step.start_nodes(chain("a"))

    job = await JobRehearsal.led_by(processor_of(init=again, call=again))
    with pytest.raises(ValueError, match="has a node 'a' already"):
        await job.leader.call()


async def test_a_node_that_leads_a_job_is_rehearsed_by_itself() -> None:
    def lead(step: Step[Any]) -> None:
        step.start_nodes(chain("x"))

    job = JobRehearsal(chain("a"), processors=[processor_of(init=lead)])
    with pytest.raises(NotImplementedError, match="node 'a' leads a job itself"):
        await job.run("a")


async def test_results_can_be_given_in_place_of_asking() -> None:
    job = JobRehearsal(chain("a", "b"), processors=[mapreduce.words])

    assert await job.run_all(results={"a": 1, "b": 2}) is JobState.DONE
    assert [it.result for it in job.outcomes.values()] == [1, 2]


async def test_a_follower_whose_first_step_failed_begins_anew_by_a_retry() -> None:
    attempts: list[int] = []

    def stumble(step: Step[Any]) -> None:
        attempts.append(step.task_id)
        if len(attempts) == 1:
            raise Fail("once")
        step.complete("at last")

    job = JobRehearsal(chain("a"), processors=[processor_of(init=stumble)])
    assert await job.run_all() is JobState.FAILED
    assert await job.retry() == ("a",)

    assert await job.run_all() is JobState.DONE
    assert job.outcomes["a"].result == "at last"


async def test_what_runs_in_a_cancelled_job_is_broken() -> None:
    job = JobRehearsal(chain("a", "b"), processors=[breaking()])
    follower = await job.process("a")
    await job.cancel("not needed")

    assert (follower.status, follower.detail) == (ProcessStatus.ERROR, "JOB_CANCELLED: not needed")


async def test_a_repair_of_a_follower_brings_its_leader_back() -> None:
    breaks = breaking()

    @breaks.join
    async def join(step: Step[Any]) -> None:
        if not all(it.is_done for it in step.nodes.values()):
            raise Fail("not all")
        step.complete("all")

    def begin(step: Step[Any]) -> None:
        graph = Graph()
        graph.node("a", namespace=breaks.name)
        step.start_nodes(graph)

    leads = processor_of("leads", init=begin, join=join)
    job = await JobRehearsal.led_by(leads, processors=[breaks])
    await job.run("a")
    assert job.leader.status is ProcessStatus.ERROR
    await job.repair("a")
    await (await job.process("a")).call()

    assert (job.state, job.result) == (JobState.DONE, "all")


async def test_a_retry_has_the_timer_due_that_broke_the_leader() -> None:
    def fail(_step: Step[Any]) -> None:
        raise Fail("at the timer")

    job = await JobRehearsal.led_by(
        processor_of(
            init=lambda step: step.start_nodes(chain("a")),
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
