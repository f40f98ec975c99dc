"""Jobs: their upkeep, and what steps have to do with them."""

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import pytest

from progressor import errors, job_errors
from progressor.domain.jobs.graph import encode_graph
from progressor.domain.jobs.job import NodeSpec, StartNodes
from progressor.domain.processes.intent import Complete, Failed, Outcome, Rejected, Succeeded
from progressor.domain.processes.process import (
    JobOptions,
    Leadership,
    Part,
    Process,
    ProcessKey,
)
from progressor.domain.processes.task import (
    NodeOutcome,
    NodeState,
    RunningTask,
    TaskError,
    TaskType,
)
from progressor.runtime.jobs import OVERDUE, JobControl, JobScan
from progressor.runtime.step.bulk_steps import BulkSteps
from progressor.runtime.step.job_steps import JobSteps, NodeNames
from progressor.storage.jobs.jobs import Found, Jobs, Maintained, RunningJobs
from tests.support.builders import make_key, make_process, make_success, make_task, seconds
from tests.support.clock import START
from tests.support.runtime.harness import (
    make_dispatcher,
    running,
)
from tests.support.runtime.stubs import stub
from tests.support.runtime.virtual_time import settled
from tests.support.telemetry.measured import counted

ONE, OTHER = make_key("one"), make_key("other")


class Upkeep:
    """A scan of scripted jobs."""

    def __init__(self, *maintained: Maintained | errors.StorageError, **answers: Any) -> None:
        chosen: dict[str, Any] = {"recover": None, "fail_overdue": (), "stop_orphans": 0} | answers
        stored = {
            name: chosen.pop(name)
            for name in ("find_upkeep_due", "count_running")
            if name in chosen
        }
        self.jobs = stub(Jobs, **{"find_upkeep_due": (), "count_running": ()} | stored)
        self.control = stub(JobControl, maintain=list(maintained), **chosen)
        self.control.effects, self.control.jobs = make_dispatcher(), self.jobs
        self.queue = self.control.effects.upkeep_queue
        context = self.control.effects.context
        self.metrics, self.observers = context.metrics, context.observers
        self.scan = JobScan(control=self.control, context=context)

    @property
    def maintained(self) -> list[ProcessKey]:
        return [call.args[0] for call in self.control.maintain.await_args_list]


async def test_a_reported_job_is_handled_at_once() -> None:
    upkeep = Upkeep(Maintained(started=2), Maintained(stopped=3))
    async with running(upkeep.scan.run):
        upkeep.queue.add(ONE, OTHER)
        await settled()

        assert upkeep.maintained == [ONE, OTHER]

    assert counted(upkeep.metrics.upkeep_nodes) == {
        ("orders", "started"): 2,
        ("orders", "stopped"): 3,
    }


async def test_a_locked_or_incomplete_job_is_handled_again_and_keeps_no_other_waiting() -> None:
    locked = errors.StorageLockedError("kept")
    upkeep = Upkeep(locked, Maintained(), Maintained(is_whole=False), Maintained())
    async with running(upkeep.scan.run):
        upkeep.queue.add(ONE, OTHER)
        await asyncio.sleep(1)

    assert upkeep.maintained == [ONE, OTHER, ONE, ONE]


async def test_the_scan_picks_up_jobs_that_nobody_handled() -> None:
    upkeep = Upkeep(Maintained(), find_upkeep_due=(ONE,))
    async with running(upkeep.scan.run):
        await upkeep.scan.scan()
        await settled()

        assert upkeep.maintained == [ONE]

    upkeep.control.stop_orphans.assert_awaited_once()
    assert upkeep.jobs.find_upkeep_due.await_args.kwargs["age"] == OVERDUE


async def test_what_fails_at_its_deadline_or_recovery_finds_is_counted() -> None:
    found = (Found("join", ONE, None), Found("node", OTHER, 3))
    upkeep = Upkeep(fail_overdue=(ONE, OTHER), recover=found)

    await upkeep.scan.scan()

    assert counted(upkeep.metrics.jobs_overdue) == {("orders",): 2}
    assert counted(upkeep.metrics.jobs_ended) == {("orders", "failed"): 2}
    assert counted(upkeep.metrics.jobs_recovered) == {("orders", "join"): 1, ("orders", "node"): 1}
    assert upkeep.observers.counts == {"job_overdue": 2, "job_recovered": 2}


async def test_running_jobs_are_reported_until_they_have_ended() -> None:
    upkeep = Upkeep(count_running=(RunningJobs("orders", 2, 3, 0, 5, 1, 4),))
    upkeep.scan.observed()
    await upkeep.scan.count()
    told = counted(upkeep.metrics.jobs_running), counted(upkeep.metrics.job_nodes)
    upkeep.jobs.count_running.return_value = ()

    await upkeep.scan.count()

    nodes = {"waiting": 3, "ready": 0, "running": 5, "failed": 1, "skipped": 4}
    assert told == ({("orders",): 2}, {("orders", state): it for state, it in nodes.items()})
    assert counted(upkeep.metrics.jobs_running) == counted(upkeep.metrics.job_nodes) == {}


BY_ENGINE = Part(led_by=Leadership.ENGINE)
BY_PROCESSOR = Part(led_by=Leadership.PROCESSOR)
LEADER = make_key("leader")
FOLLOWER = Part(leader=LEADER, node=3)
TAKES_RESULTS = dataclasses.replace(FOLLOWER, options=JobOptions(takes_results=True))
SCHEDULED = Part(options=JobOptions(scheduled=True))
A, B = NodeSpec(name="a"), NodeSpec(name="b", predecessors=("a",))
DONE = NodeOutcome(name="a", state=NodeState.DONE, result=b"1")
MANY = 600


def broke(name: str) -> NodeOutcome:
    error = TaskError(code=13, reason="BUG", message="it broke")
    return NodeOutcome(name=name, state=NodeState.FAILED, error=error)


def a_task(part: Part | None, task_type: TaskType = TaskType.INIT, **fields: object) -> RunningTask:
    return make_task(process=make_process(part=part), task_type=task_type, **fields)


async def handed(task: RunningTask, **answers: Any) -> RunningTask | Outcome:
    assert task.process.part is not None
    return await JobSteps(stub(Jobs, **answers), stub(BulkSteps)).handed(task, task.process.part)


class TestLedByTheEngine:
    async def test_its_timeout_counts_from_the_submission(self) -> None:
        args = encode_graph(StartNodes(nodes=(A,), timeout=seconds(60)))
        task = a_task(BY_ENGINE, args=args, scheduled_at=START, started_at=START + seconds(40))

        outcome = await handed(task)

        assert isinstance(outcome, Succeeded)
        action = outcome.intent.action
        assert isinstance(action, StartNodes)
        assert (action.deadline, action.timeout) == (START + seconds(60), None)

    async def test_the_join_completes_it_where_all_nodes_are_done(self) -> None:
        outcome = await handed(a_task(BY_ENGINE, TaskType.JOIN), failures=(2, 0, ()))

        assert isinstance(outcome, Succeeded)
        assert outcome.intent.action == Complete()

    async def test_the_join_fails_for_good_and_names_the_first_that_failed(self) -> None:
        failures = (9, 4, (broke("x"), broke("y")))

        outcome = await handed(a_task(BY_ENGINE, TaskType.JOIN), failures=failures)

        assert outcome == Failed(
            code=10,
            reason="JOB_FAILED",
            message="4 of 9 nodes are not done: x failed (BUG: it broke); y failed (BUG: it broke)",
            retryable=False,
        )

    async def test_the_join_of_a_job_that_was_removed_since_is_no_crash(self) -> None:
        gone = job_errors.JobNotFoundError("orders", "p1")

        outcome = await handed(a_task(BY_ENGINE, TaskType.JOIN), failures=gone)

        assert isinstance(outcome, Failed)
        assert (outcome.reason, outcome.retryable) == ("JOB_NOT_FOUND", True)

    @pytest.mark.parametrize(
        "task_type", [TaskType.CALL, TaskType.NOTIFY, TaskType.REPAIR, TaskType.TIMEOUT]
    )
    async def test_it_takes_no_requests(self, task_type: TaskType) -> None:
        outcome = await handed(a_task(BY_ENGINE, task_type))

        assert isinstance(outcome, Rejected)
        assert (outcome.code, outcome.reason) == (12, "LED_BY_ENGINE")


class TestHanded:
    async def test_an_init_that_wants_results_is_told_of_its_predecessors(self) -> None:
        task, jobs = a_task(TAKES_RESULTS), stub(Jobs, inputs=(DONE,))

        found = await JobSteps(jobs, stub(BulkSteps)).handed(task, TAKES_RESULTS)

        assert found == dataclasses.replace(task, nodes=(DONE,))
        jobs.inputs.assert_awaited_once_with(LEADER, 3, bytes_max=32 * 1024 * 1024)

    @pytest.mark.parametrize(
        ("part", "task_type", "reason"),
        [
            (BY_PROCESSOR, TaskType.JOIN, "JOIN_TOO_LARGE"),
            (TAKES_RESULTS, TaskType.INIT, "RESULTS_TOO_LARGE"),
        ],
    )
    async def test_more_than_fits_fails_the_step_for_good(
        self, part: Part, task_type: TaskType, reason: str
    ) -> None:
        outcome = await handed(a_task(part, task_type), outcomes=None, inputs=None)

        assert isinstance(outcome, Failed)
        assert (outcome.code, outcome.reason, outcome.retryable) == (8, reason, False)

    @pytest.mark.parametrize(
        ("part", "task_type"),
        [
            (FOLLOWER, TaskType.INIT),
            (TAKES_RESULTS, TaskType.CALL),
            (TAKES_RESULTS, TaskType.TIMEOUT),
            (BY_PROCESSOR, TaskType.INIT),
            (BY_PROCESSOR, TaskType.CALL),
        ],
    )
    async def test_any_other_step_is_told_nothing_and_nothing_is_read(
        self, part: Part, task_type: TaskType
    ) -> None:
        task, jobs = a_task(part, task_type), stub(Jobs)

        assert await JobSteps(jobs, stub(BulkSteps)).handed(task, part) is task
        jobs.inputs.assert_not_awaited()
        jobs.outcomes.assert_not_awaited()


async def planned(task: RunningTask, *nodes: NodeSpec) -> tuple[Any, list[int]]:
    """Return the outcome of a step that starts nodes, or its action, and their ordinals."""
    action = StartNodes(nodes=nodes)
    outcome, plan = await JobSteps(stub(Jobs), stub(BulkSteps)).plan(
        task, make_success(action), action
    )
    if plan is None:
        return outcome, []
    assert isinstance(outcome, Succeeded)
    return outcome.intent.action, [node.ordinal for node in plan.nodes]


class TestPlan:
    async def test_the_init_of_a_leader_has_none_before_it(self) -> None:
        assert (await planned(a_task(BY_ENGINE), A, B))[1] == [1, 2]

    async def test_nodes_inherit_the_context_of_the_step(self) -> None:
        action, _ = await planned(a_task(None, caller_context={"tenant": "t"}), A)

        assert action.caller_context == {"tenant": "t"}

    async def test_the_nodes_of_a_scheduled_job_know_it(self) -> None:
        own = NodeSpec(name="a", options=JobOptions(target="there:1"))

        action, _ = await planned(a_task(SCHEDULED), own)

        [node] = action.nodes
        assert node.options == JobOptions(target="there:1", scheduled=True)

    @pytest.mark.parametrize("count", [1, MANY])
    async def test_what_is_no_graph_fails_the_step_for_good_and_names_the_field(
        self, count: int
    ) -> None:
        nodes = [NodeSpec(name=f"n{number}", predecessors=("z",)) for number in range(count)]

        outcome, _ = await planned(a_task(None), *nodes)

        assert isinstance(outcome, Failed)
        assert (outcome.code, outcome.reason, outcome.retryable) == (3, "INVALID_ANSWER", False)
        assert outcome.message.startswith("start_nodes.nodes[0].predecessors[0]: ")


class GrowingJobs:
    """Jobs by their leaders' keys; notes which were read, and after which ordinals."""

    def __init__(self) -> None:
        self.jobs: dict[ProcessKey, dict[str, int]] = {}
        self.asked: list[tuple[ProcessKey, int]] = []

    def add(self, key: ProcessKey, *names: str) -> None:
        job = self.jobs.setdefault(key, {})
        for name in names:
            job[name] = len(job) + 1

    async def known_nodes(self, key: ProcessKey, *, after: int) -> Mapping[str, int]:
        self.asked.append((key, after))
        return {name: at for name, at in self.jobs.get(key, {}).items() if at > after}


def a_leader(key: ProcessKey = LEADER, init_task_id: int = 1) -> Process:
    return make_process(key=key, init_task_id=init_task_id)


async def test_only_what_is_new_is_read() -> None:
    jobs = GrowingJobs()
    names = NodeNames(cast("Any", jobs))
    assert await names.of(a_leader()) == {}
    jobs.add(LEADER, "a", "b")
    assert await names.of(a_leader()) == {"a": 1, "b": 2}
    jobs.add(LEADER, "c")

    assert await names.of(a_leader()) == {"a": 1, "b": 2, "c": 3}
    assert jobs.asked == [(LEADER, 0), (LEADER, 0), (LEADER, 2)]


async def test_a_later_leader_of_the_same_id_has_another_job() -> None:
    jobs = GrowingJobs()
    names = NodeNames(cast("Any", jobs))
    jobs.add(LEADER, "a", "b")
    await names.of(a_leader())
    jobs.jobs.clear()
    jobs.add(LEADER, "c")

    assert await names.of(a_leader(init_task_id=2)) == {"c": 1}
    jobs.add(LEADER, "d")
    assert await names.of(a_leader(init_task_id=2)) == {"c": 1, "d": 2}


async def test_the_job_that_was_asked_for_longest_ago_is_forgotten() -> None:
    jobs = GrowingJobs()
    names = NodeNames(cast("Any", jobs), names_max=5)
    jobs.add(LEADER, "a", "b")
    jobs.add(OTHER, "a", "b")
    for key in (LEADER, OTHER, LEADER):
        await names.of(a_leader(key))
    jobs.add(LEADER, "c", "d")

    assert await names.of(a_leader()) == {"a": 1, "b": 2, "c": 3, "d": 4}
    assert await names.of(a_leader(OTHER)) == {"a": 1, "b": 2}
    assert jobs.asked[-3:] == [(LEADER, 2), (LEADER, 2), (OTHER, 0)]


async def test_a_job_that_has_no_room_is_read_whole_each_time() -> None:
    jobs = GrowingJobs()
    names = NodeNames(cast("Any", jobs), names_max=1)
    jobs.add(LEADER, "a", "b")

    assert [len(await names.of(a_leader())) for _ in range(2)] == [2, 2]
    assert jobs.asked == [(LEADER, 0), (LEADER, 0)]
