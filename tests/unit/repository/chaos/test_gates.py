"""What the chaos run finds of steps that had to pass something, and what it cannot say."""

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest

from progressor.sdk import GateHold
from tests.chaos.load.gates import (
    END,
    NOWHERE,
    GatedTask,
    Span,
    broken_gates,
    draw,
    may_be_cancelled,
    read_spans,
)
from tests.support.models.history.history import Accepted, Deed, Kind, Operation, Refused


def task(task_id: int, **fields: Any) -> GatedTask:
    named = {"process_id": f"p{task_id}", "task_id": task_id, "element": f"e{task_id}"}
    return GatedTask(**{**named, "settled": 1, "gates": ("mutex-a",), **fields})


def span(task_id: int, begun_at: float, ended_at: float, attempt: int = 1) -> Span:
    return Span(
        task_id=task_id, attempt=attempt, begun_at=begun_at, wall=begun_at, ended_at=ended_at
    )


def accepted(task_id: int, at: float) -> Operation:
    return Operation(
        process_id=f"p{task_id}",
        kind=Kind.NOTIFY,
        outcome=Accepted(),
        sent_at=at,
        answered_at=at + 0.5,
        element=f"e{task_id}",
    )


class TestTheGate:
    def test_of_one_that_is_passed_one_by_one_is_sound(self) -> None:
        assert broken_gates([task(1), task(2)], [span(1, 0, 1), span(2, 1, 2)], []) == []

    def test_of_one_that_two_were_in_at_once_is_found(self) -> None:
        (found,) = broken_gates([task(1), task(2)], [span(1, 0, 2), span(2, 1, 3)], [])

        assert "p2: task 2 was in mutex-a at once with [1]" in found

    @pytest.mark.parametrize(("count", "finds"), [(3, 0), (4, 1)])
    def test_of_three_is_counted(self, count: int, finds: int) -> None:
        tasks = [task(number, gates=("three",)) for number in range(count)]
        spans = [span(number, number, 10) for number in range(count)]

        assert len(broken_gates(tasks, spans, [])) == finds

    def test_is_not_judged_by_an_attempt_that_has_lost_its_lease(self) -> None:
        lost = span(1, 0, 9)
        spans = [lost, span(1, 2, 3, attempt=2), span(2, 4, 5)]

        assert broken_gates([task(1, settled=2), task(2)], spans, []) == []

    def test_is_not_judged_where_nobody_can_tell_which_attempt_was_settled(self) -> None:
        spans = [span(1, 0, 9), span(1, 2, 3), span(2, 4, 5)]

        assert broken_gates([task(1), task(2)], spans, []) == []


class TestTheOrder:
    SMALL = task(1, gates=(), order_key="o", version=(1, 9))
    LARGE = task(2, gates=(), order_key="o", version=(1, 10))

    def test_of_a_larger_one_that_began_too_early_is_found(self) -> None:
        spans = [span(1, 3, 5), span(2, 4, 6)]

        (found,) = broken_gates([self.SMALL, self.LARGE], spans, [accepted(1, 0), accepted(2, 1)])

        assert "task 2, o (1, 10), began before task 1, (1, 9), had ended" in found

    def test_is_kept_by_attempts_that_were_lost_too(self) -> None:
        spans = [span(1, 3, 5), span(2, 4, 9), span(2, 6, 7, attempt=2)]
        large = dataclasses.replace(self.LARGE, settled=2)

        assert len(broken_gates([self.SMALL, large], spans, [accepted(1, 0), accepted(2, 1)])) == 1

    @pytest.mark.parametrize("sent_at", [0.0, 2.0])
    def test_is_unknown_where_the_smaller_one_was_not_known_before(self, sent_at: float) -> None:
        spans = [span(1, 3, 5), span(2, 4, 6)]
        operations = [accepted(1, sent_at), accepted(2, 0.2)]

        assert broken_gates([self.SMALL, self.LARGE], spans, operations) == []

    def test_ends_with_a_smaller_one_that_was_cancelled(self) -> None:
        small = dataclasses.replace(self.SMALL, settled=None)
        operations = [accepted(1, 0), accepted(2, 1)]

        assert broken_gates([small, self.LARGE], [span(2, 4, 6)], operations) == []


def test_a_step_before_its_instant_is_found() -> None:
    (found,) = broken_gates([task(1, run_at=3.0)], [span(1, 2, 4)], [])

    assert found == "p1: task 1 began 1.000 s before its time"


def test_a_journal_tells_begin_and_end_of_gated_steps_alone(tmp_path: Path) -> None:
    begun = {"task_id": 1, "attempt": 2, "deed": "append", "at": 1.5}
    lines = [
        {**begun, "gated": True, "wall": 7.0},
        {**begun, "task_id": 2},
        {"task_id": 1, "attempt": 2, "deed": END, "at": 2.5},
    ]
    journal = tmp_path / "journal.jsonl"
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    assert read_spans([journal, tmp_path / "none"]) == [
        Span(task_id=1, attempt=2, begun_at=1.5, wall=7.0, ended_at=2.5)
    ]


def test_what_holds_its_gates_for_its_process_ends_it_and_is_never_cancelled() -> None:
    chosen = random.Random(1)
    drawn = [
        (deed, made)
        for number in range(20_000)
        for deed in (Deed.APPEND, Deed.COMPLETE)
        if (made := draw(chosen, Kind.CALL, deed, number)) is not None
    ]
    held = [(deed, made) for deed, made in drawn if made.hold is GateHold.PROCESS]

    assert held
    assert all(deed is Deed.COMPLETE for deed, _ in held)
    assert not any(may_be_cancelled(Kind.CALL, made, "k") for _, made in held)
    assert any(NOWHERE in made.gates for _, made in drawn)


def test_a_start_names_no_gate_that_is_not_there_and_is_never_cancelled() -> None:
    chosen = random.Random(1)
    drawn = [draw(chosen, Kind.START, Deed.APPEND, number) for number in range(5_000)]

    assert not any(NOWHERE in made.gates for made in drawn if made is not None)
    assert not any(may_be_cancelled(Kind.START, made, "k") for made in drawn)


def test_refusals_at_the_door_accept_nothing() -> None:
    refused = dataclasses.replace(accepted(1, 0), outcome=Refused("GATE_NOT_FOUND"))
    small = task(1, gates=(), order_key="o", version=(1,))
    large = task(2, gates=(), order_key="o", version=(2,))

    found = broken_gates([small, large], [span(1, 3, 5), span(2, 4, 6)], [refused, accepted(2, 1)])

    assert found == []
