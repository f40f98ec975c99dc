"""A processor leads a rehearsed job: it starts nodes, hears of their end, and decides."""

import random
from typing import Any
from unittest.mock import AsyncMock

import pytest

from progressor import errors
from progressor.example import mapreduce, nine
from progressor.sdk import (
    Fail,
    Graph,
    JobState,
    NodeCounts,
    ProcessStatus,
    Step,
)
from progressor.sdk.testing import JobRehearsal
from tests.support.processor.rehearsed import chain, processor_of


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
    with pytest.raises(errors.RejectedError, match="at least 1"):
        await JobRehearsal.led_by(mapreduce.words, mapreduce.Book(pages=0))


async def test_a_map_that_fails_fails_the_count() -> None:
    job = await JobRehearsal.led_by(mapreduce.words, mapreduce.Book(pages=40))

    assert await job.run_all(failing=["map-33"]) is JobState.FAILED
    assert job.detail == "reduce-2-1 is skipped because of map-33"
    assert await job.retry() == ("map-33",)
    assert await job.run_all() is JobState.DONE
    assert (job.retry_count, job.counts.done) == (1, 43)


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


async def test_a_cancelled_leader_is_finished() -> None:
    job = await JobRehearsal.led_by(nine.tasks(AsyncMock()), nine.Lead("r"))
    await job.cancel()

    assert job.leader.status is ProcessStatus.FINISHED


async def test_a_leader_cannot_name_what_is_not_there() -> None:
    def begin(step: Step[Any]) -> None:
        graph = Graph()
        graph.node("a", after="absent")
        step.start_nodes(graph)

    with pytest.raises(ValueError, match="'a' comes after 'absent', which does not exist"):
        await JobRehearsal.led_by(processor_of(init=begin))


async def test_names_are_unique_within_a_job() -> None:
    def again(step: Step[Any]) -> None:
        step.start_nodes(chain("a"))

    job = await JobRehearsal.led_by(processor_of(init=again, call=again))
    with pytest.raises(ValueError, match="already has a node 'a'"):
        await job.leader.call()


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


async def test_a_repair_of_the_leader_goes_on_with_its_job() -> None:
    joined: list[int] = []

    def join(step: Step[Any]) -> None:
        joined.append(len(step.nodes))
        if len(joined) == 1:
            raise Fail("not yet")

    leads = processor_of(
        init=lambda step: step.start_nodes(chain("a"), deadline=60),
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
            init=lambda step: step.start_nodes(chain("a")),
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
