"""Courses of events that have once broken the model of gates."""

import datetime as dt
from collections.abc import Iterator

import pytest

from progressor.domain.gates.constraint import Constraints, GateHold, Order, Version
from progressor.domain.processes.intent import Outcome, Released, SetTimer
from progressor.domain.processes.task import TaskType
from tests.support.models.gates.liveness import gates_empty
from tests.support.models.gates.model import STARVATION_TIMEOUT
from tests.support.models.gates.modelled import ModelledGates
from tests.support.models.machine import machinery
from tests.support.models.modelled_processes import Held
from tests.support.storage.store import BROKEN, success

SECOND = dt.timedelta(seconds=1)


class Scene:
    """Deeds on storage and its model, after each of which both are compared."""

    def __init__(self, storage: ModelledGates) -> None:
        self.storage = storage

    def start(self, *process_ids: str) -> None:
        """Start processes that then wait for calls."""
        for process_id in process_ids:
            self._request(TaskType.INIT, process_id, None)
            self.settle(process_id)

    def call(self, process_id: str, *gates: str, run: bool = True, **fields: object) -> None:
        """Call a process, through gates of one place unless they are there."""
        constraints = Constraints(gates=dict.fromkeys(gates, 1), **fields) if gates else None  # type: ignore[arg-type]
        self._request(TaskType.CALL, process_id, constraints, run=run)

    def repair(self, process_id: str) -> None:
        self._request(TaskType.REPAIR, process_id, None)

    def _request(
        self,
        task_type: TaskType,
        process_id: str,
        constraints: Constraints | None,
        *,
        run: bool = True,
    ) -> None:
        self.storage.request(task_type, process_id, 0, run=run, constraints=constraints)
        self.judge()

    def claim(self) -> None:
        self.storage.claim(wait=True, limit=100)
        self.judge()

    def settle(self, process_id: str, outcome: Outcome | None = None) -> None:
        self.storage.settle(
            self.held(process_id), success() if outcome is None else outcome, continues=True
        )
        self.judge()

    def held(self, process_id: str) -> Held:
        [held] = [
            each for each in self.storage.held.values() if each.task.key.process_id == process_id
        ]
        return held

    def runs(self) -> set[str]:
        """Return the processes that have something in hand, once all that is due is claimed."""
        self.claim()
        return {each.task.key.process_id for each in self.storage.held.values()}

    def judge(self) -> None:
        self.storage.tables_are_as_the_model_says()
        self.storage.laws_hold()


@pytest.fixture
def scene(own_database: str) -> Iterator[Scene]:
    with machinery(own_database) as opened:
        yield Scene(ModelledGates(opened))


def test_a_process_passes_the_gate_that_it_holds_itself(scene: Scene) -> None:
    scene.start("a", "b")
    scene.call("a", "x", hold=GateHold.PROCESS)
    scene.claim()
    scene.settle("a")
    scene.call("b", "x")

    scene.call("a", "x")

    assert scene.runs() == {"a"}


def test_a_line_that_is_new_does_not_overtake_those_that_wait_for_the_gate(scene: Scene) -> None:
    scene.start("a", "b")
    scene.call("a", "x")
    scene.claim()
    scene.call("a", "x", priority=5)
    scene.call("b", "x", "y", priority=1)

    scene.settle("a")

    assert scene.runs() == {"b"}


def test_a_process_with_many_calls_does_not_keep_others_from_its_gate(scene: Scene) -> None:
    scene.start("a", "b")
    scene.call("a", "x")
    scene.claim()
    scene.call("b", "x", "y")
    scene.storage.let_time_pass(STARVATION_TIMEOUT)
    scene.call("a", "x", priority=1)
    scene.call("a", "x", priority=1)

    scene.settle("a")

    assert scene.runs() == {"b"}


def test_who_comes_first_passes_first_where_several_gates_are_left_at_once(scene: Scene) -> None:
    scene.start("a", "b", "c")
    scene.call("a", "x", "y")
    scene.claim()
    scene.call("b", "x", "y", priority=3)
    scene.call("c", "y", priority=1)

    scene.settle("a")

    assert scene.runs() == {"c"}


def test_who_comes_first_passes_first_of_a_line_that_is_new_and_one_that_waits(
    scene: Scene,
) -> None:
    scene.start("a", "b")
    scene.call("a", "x")
    scene.claim()
    scene.call("b", "x", "y")
    scene.call("a", "y")

    scene.settle("a")

    assert scene.runs() == {"b"}


def test_who_is_behind_one_that_a_smaller_version_keeps_comes_to_the_line_in_its_stead(
    scene: Scene,
) -> None:
    scene.start("a", "b", "c")
    scene.call("a", "x")
    scene.claim()
    scene.call("b", "x", order=Order("o", Version((2,))))
    scene.call("c", "x", priority=5)
    scene.call("b", "x", order=Order("o", Version((1,))))

    scene.settle("a")

    assert scene.runs() == {"b"}


def test_who_comes_first_passes_first_of_those_whose_instants_come_at_once(scene: Scene) -> None:
    scene.start("a", "b", "c", "d")
    later = scene.storage.clock.now() + SECOND
    scene.call("a", "x", priority=5, run_at=later)
    scene.call("d", "x", "y", priority=5, run_at=later)
    scene.call("b", "x", "z", priority=1, run_at=later)
    scene.call("c", "x", "y", "z", priority=5, run_at=later)

    scene.storage.let_time_pass(SECOND)

    assert scene.runs() == {"b"}


def test_a_repair_cancels_the_timer_that_waits_for_its_gates(scene: Scene) -> None:
    broken_by_a_timer(scene)
    scene.call("b", "x")
    scene.claim()
    scene.storage.recover("a", 0)
    scene.judge()
    scene.repair("a")

    scene.settle("a")

    scene.settle("b")
    gates_empty(scene.storage)


def test_a_timer_run_again_keeps_its_gates_in_a_broken_process(scene: Scene) -> None:
    broken_by_a_timer(scene)
    scene.storage.recover("a", 0)
    scene.claim()

    scene.settle("a", Released())

    scene.call("b", "x")
    assert scene.runs() == {"a"}


def test_who_joins_a_line_by_age_holds_its_gates_after_the_step_before_it(scene: Scene) -> None:
    scene.start("a", "b", "c")
    scene.storage.set_gate("x", 3)
    scene.call("a", "x")
    scene.call("b", "x")
    scene.call("c", "x")
    scene.claim()
    scene.storage.set_gate("x", 0)
    scene.call("a", "x")
    scene.storage.set_gate("x", 2)
    scene.storage.let_time_pass(STARVATION_TIMEOUT)
    scene.settle("b")

    scene.settle("a")

    assert scene.runs() == {"a", "c"}


def test_what_stands_behind_a_task_that_gives_way_is_looked_at(scene: Scene) -> None:
    scene.start("a")
    scene.call("a", "x")
    scene.call("a", "y")

    scene.storage.set_gate("x", 0)

    scene.judge()
    assert scene.runs() == {"a"}


def test_a_task_gives_its_gates_back_where_an_older_one_of_its_process_comes_first(
    scene: Scene,
) -> None:
    scene.start("a", "b", "c")
    scene.call("b", "x")
    scene.claim()
    scene.call("a", "x")
    scene.call("a", "y")
    scene.settle("b")
    scene.call("c", "y")

    assert scene.runs() == {"a", "c"}


def test_a_call_may_go_through_the_gate_that_a_younger_one_of_its_process_has_just_passed(
    scene: Scene,
) -> None:
    scene.start("a", "b", "c")
    scene.call("c", "x", "y", "z")
    scene.claim()
    scene.call("b", "x", "y", "z")
    scene.call("a", "x", "y")
    # It comes first of all; but in its process the other one does, once that finds its gates.
    scene.call("a", "y", priority=1)

    scene.settle("c")

    assert scene.runs() == {"a"}


def test_a_call_may_pass_who_waited_for_a_younger_one_of_its_process_a_moment_ago(
    scene: Scene,
) -> None:
    scene.start("a", "b")
    scene.call("a", "x")
    scene.claim()
    scene.call("b", "x", "z")
    scene.call("a", "z")
    # It comes before b, which so does not pass; then the one before it in its process does.
    scene.call("a", "x", priority=1)

    scene.settle("a")

    assert scene.runs() == {"a"}


def test_who_goes_through_a_gate_of_its_process_does_not_give_way(scene: Scene) -> None:
    scene.start("a", "b")
    scene.storage.set_gate("x", 2)
    scene.call("a", "x", hold=GateHold.PROCESS)
    scene.claim()
    scene.settle("a")
    scene.call("b", "x")
    scene.call("a", "x")

    scene.storage.set_gate("x", 1)

    assert scene.runs() == {"a"}


def test_who_has_reserved_a_gate_may_pass_one_that_has_waited_longer_and_comes_to_it_later(
    scene: Scene,
) -> None:
    scene.start("a", "b", "c", "d")
    scene.call("c", "y")
    scene.call("d", "z")
    scene.call("a")
    scene.claim()
    scene.call("a", "x", "y", "z")
    scene.call("b", "y", "z")
    scene.storage.let_time_pass(STARVATION_TIMEOUT)
    scene.settle("c")
    scene.settle("a")

    scene.settle("d")

    assert scene.runs() == {"b"}


def test_what_a_line_has_reserved_goes_to_the_oldest_who_has_come_to_it(scene: Scene) -> None:
    scene.start("a", "b", "c", "d", "e")
    scene.call("c", "y")
    scene.call("d", "z")
    scene.call("a")
    scene.call("e")
    scene.claim()
    scene.call("a", "x", "y", "z")
    scene.call("e", "y", "z")
    scene.call("b", "y", "z")
    scene.storage.let_time_pass(STARVATION_TIMEOUT)
    scene.settle("c")
    scene.settle("e")
    scene.settle("a")

    scene.settle("d")

    assert scene.runs() == {"e"}


def test_a_process_keeps_the_gates_of_a_timer_that_a_call_has_sent_back_at_once(
    scene: Scene,
) -> None:
    scene.start("a")
    scene.call("a")
    scene.claim()
    scene.call("a", "x")
    constraints = Constraints(gates={"z": 1}, priority=1, hold=GateHold.PROCESS)

    scene.settle("a", success(SetTimer(after=dt.timedelta(), constraints=constraints)))

    assert scene.runs() == {"a"}
    gates_empty(scene.storage)


def test_who_stands_in_line_for_what_its_process_has_got_passes_when_another_of_it_has_ended(
    scene: Scene,
) -> None:
    scene.start("a", "b")
    scene.storage.let_time_pass(SECOND)
    scene.storage.set_gate("x", 2)
    scene.call("a")
    scene.call("b", "x", "z", order=Order("o", Version.parse("1")))
    scene.claim()
    constraints = Constraints(gates={"x": 1, "y": 1, "z": 1}, priority=1, hold=GateHold.PROCESS)
    scene.settle("a", success(SetTimer(after=dt.timedelta(), constraints=constraints)))
    scene.call("a", "x", "z")
    scene.call("a", "x", "y", order=Order("o", Version.parse("2")))
    # The timer passes, and the younger call, before which that goes back at once.
    scene.settle("b")
    scene.claim()

    scene.settle("a")

    assert scene.runs() == {"a"}
    assert scene.held("a").task.task_type is TaskType.CALL
    gates_empty(scene.storage)


def test_who_comes_first_passes_first_where_another_gives_way(scene: Scene) -> None:
    scene.start("a", "b")
    scene.call("a", "x", "y", run=False)
    scene.call("b", "y", priority=1)
    scene.call("a", "y", "z", priority=5)

    scene.storage.set_gate("x", 0)

    assert scene.runs() == {"b"}


def broken_by_a_timer(scene: Scene) -> None:
    """Break process a by a timer with a gate; start b."""
    scene.start("b")
    scene.storage.request(TaskType.INIT, "a", 0)
    timer = SetTimer(after=dt.timedelta(), constraints=Constraints(gates={"x": 1}))
    scene.settle("a", success(timer))
    scene.claim()
    scene.settle("a", BROKEN)
