"""Graphs: what a step learns of other nodes, what it adds, and the engine as leader."""

import dataclasses
from collections.abc import Mapping

import pytest

from progressor import job_errors
from progressor.domain.jobs.graph import encode_graph
from progressor.domain.jobs.job import NodeSpec, StartNodes
from progressor.domain.processes.intent import Complete, Failed, Outcome, Rejected, Succeeded
from progressor.domain.processes.process import JobOptions, Leadership, Part, ProcessKey
from progressor.domain.processes.task import (
    NodeOutcome,
    NodeState,
    RunningTask,
    TaskError,
    TaskType,
)
from progressor.runtime.jobs.job_steps import JobSteps
from tests.support.builders import make_key, make_process, make_success, make_task, seconds
from tests.support.clock import START

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


class FakeJobs:
    """Storage's jobs, as a test says; notes what was asked for."""

    def __init__(
        self,
        *,
        known: Mapping[str, int] = {},
        outcomes: tuple[NodeOutcome, ...] | None = (),
        failures: tuple[int, int, tuple[NodeOutcome, ...]] = (2, 0, ()),
    ) -> None:
        self._known, self._outcomes, self._failures = known, outcomes, failures
        self.asked: list[object] = []

    async def known_nodes(self, key: ProcessKey, *, after: int) -> Mapping[str, int]:
        self.asked.append((key, after))
        return {name: ordinal for name, ordinal in self._known.items() if ordinal > after}

    async def outcomes(self, key: ProcessKey, *, bytes_max: int) -> tuple[NodeOutcome, ...] | None:
        self.asked.append((key, bytes_max))
        return self._outcomes

    async def inputs(
        self, leader: ProcessKey, node: int, *, bytes_max: int
    ) -> tuple[NodeOutcome, ...] | None:
        self.asked.append((leader, node, bytes_max))
        return self._outcomes

    async def failures(
        self, key: ProcessKey, *, limit: int
    ) -> tuple[int, int, tuple[NodeOutcome, ...]]:
        self.asked.append((key, limit))
        return self._failures


def a_task(part: Part | None, task_type: TaskType = TaskType.INIT, **fields: object) -> RunningTask:
    return make_task(process=make_process(part=part), task_type=task_type, **fields)


async def handed(jobs: FakeJobs, task: RunningTask) -> RunningTask | Outcome:
    assert task.process.part is not None
    return await JobSteps(jobs).handed(task, task.process.part)


class TestLedByTheEngine:
    async def test_its_timeout_counts_from_the_submission(self) -> None:
        args = encode_graph(StartNodes(nodes=(A,), timeout=seconds(60)))
        task = a_task(BY_ENGINE, args=args, scheduled_at=START, started_at=START + seconds(40))

        outcome = await handed(FakeJobs(), task)

        assert isinstance(outcome, Succeeded)
        action = outcome.intent.action
        assert isinstance(action, StartNodes)
        assert (action.deadline, action.timeout) == (START + seconds(60), None)

    async def test_the_join_completes_it_where_all_nodes_are_done(self) -> None:
        outcome = await handed(FakeJobs(), a_task(BY_ENGINE, TaskType.JOIN))

        assert isinstance(outcome, Succeeded)
        assert outcome.intent.action == Complete()

    async def test_the_join_fails_for_good_and_names_the_first_that_failed(self) -> None:
        jobs = FakeJobs(failures=(9, 4, (broke("x"), broke("y"))))

        outcome = await handed(jobs, a_task(BY_ENGINE, TaskType.JOIN))

        assert outcome == Failed(
            code=10,
            reason="JOB_FAILED",
            message="4 of 9 nodes are not done: x failed (BUG: it broke); y failed (BUG: it broke)",
            retryable=False,
        )

    async def test_the_join_of_a_job_that_was_removed_since_is_no_crash(self) -> None:
        class Gone(FakeJobs):
            async def failures(
                self, key: ProcessKey, *, limit: int
            ) -> tuple[int, int, tuple[NodeOutcome, ...]]:
                del limit
                raise job_errors.JobNotFoundError(key.namespace, key.process_id)

        outcome = await handed(Gone(), a_task(BY_ENGINE, TaskType.JOIN))

        assert isinstance(outcome, Failed)
        assert (outcome.reason, outcome.retryable) == ("JOB_NOT_FOUND", True)

    @pytest.mark.parametrize(
        "task_type", [TaskType.CALL, TaskType.NOTIFY, TaskType.REPAIR, TaskType.TIMEOUT]
    )
    async def test_it_takes_no_requests(self, task_type: TaskType) -> None:
        outcome = await handed(FakeJobs(), a_task(BY_ENGINE, task_type))

        assert isinstance(outcome, Rejected)
        assert (outcome.code, outcome.reason) == (12, "LED_BY_ENGINE")


class TestHanded:
    async def test_an_init_that_wants_results_is_told_of_its_predecessors(self) -> None:
        task, jobs = a_task(TAKES_RESULTS), FakeJobs(outcomes=(DONE,))

        found = await handed(jobs, task)

        assert found == dataclasses.replace(task, nodes=(DONE,))
        assert jobs.asked == [(LEADER, 3, 32 * 1024 * 1024)]

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
        outcome = await handed(FakeJobs(outcomes=None), a_task(part, task_type))

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
        task, jobs = a_task(part, task_type), FakeJobs(outcomes=(DONE,))

        assert await handed(jobs, task) is task
        assert jobs.asked == []


class TestPlan:
    @staticmethod
    async def planned(
        jobs: FakeJobs, task: RunningTask, *nodes: NodeSpec
    ) -> tuple[Outcome, list[int], dict[int, tuple[int, ...]]]:
        action = StartNodes(nodes=nodes)
        outcome, plan = await JobSteps(jobs).plan(task, make_success(action), action)
        if plan is None:
            return outcome, [], {}
        return outcome, [node.ordinal for node in plan.nodes], dict(plan.appended)

    async def test_the_init_of_a_leader_has_none_before_it(self) -> None:
        jobs = FakeJobs(known={"z": 1})

        _, ordinals, _ = await self.planned(jobs, a_task(BY_ENGINE), A, B)

        assert (ordinals, jobs.asked) == ([1, 2], [])

    async def test_nodes_inherit_the_context_of_the_step(self) -> None:
        task = a_task(None, caller_context={"tenant": "t"})

        outcome, *_ = await self.planned(FakeJobs(), task, A)

        assert isinstance(outcome, Succeeded)
        action = outcome.intent.action
        assert isinstance(action, StartNodes)
        assert action.caller_context == {"tenant": "t"}

    async def test_the_nodes_of_a_scheduled_job_know_it(self) -> None:
        own = NodeSpec(name="a", options=JobOptions(target="there:1"))

        outcome, *_ = await self.planned(FakeJobs(), a_task(SCHEDULED), own)

        assert isinstance(outcome, Succeeded)
        action = outcome.intent.action
        assert isinstance(action, StartNodes)
        assert [node.options for node in action.nodes] == [
            JobOptions(target="there:1", scheduled=True)
        ]

    @pytest.mark.parametrize("count", [1, MANY])
    async def test_what_is_no_graph_fails_the_step_for_good_and_names_the_field(
        self, count: int
    ) -> None:
        nodes = [NodeSpec(name=f"n{number}", predecessors=("z",)) for number in range(count)]

        outcome, ordinals, _ = await self.planned(FakeJobs(), a_task(None), *nodes)

        assert isinstance(outcome, Failed)
        assert (outcome.code, outcome.reason, outcome.retryable) == (3, "INVALID_ANSWER", False)
        assert outcome.message.startswith("start_nodes.nodes[0].predecessors[0]: ")
        assert ordinals == []
