"""What the database must say of the operations that clients have seen end."""

import dataclasses
import math
from typing import Any

import pytest

from tests.support.models.history.history import (
    Accepted,
    Appended,
    Asked,
    Deed,
    Done,
    Kind,
    Operation,
    Outcome,
    Refused,
    Sight,
    StoredProcess,
    StoredTask,
    Unknown,
    broken_promises,
    contradictions,
    merged,
)


def operation(element: str, outcome: Outcome, **fields: Any) -> Operation:
    defaults: dict[str, Any] = {"kind": Kind.CALL, "sent_at": 1.0, "answered_at": 2.0}
    return Operation(process_id="p", element=element, outcome=outcome, **{**defaults, **fields})


def appended(element: str, *before: str, **fields: Any) -> Operation:
    return operation(element, Done(Appended(len(before) + 1, before)), **fields)


def stored(*elements: str, **fields: Any) -> StoredProcess:
    """Return a process whose tasks 1, 2 ... have each brought one of these."""
    tasks = tuple(
        StoredTask(task_id=number, task_type="call", status="finished", element=element)
        for number, element in enumerate(elements, 1)
    )
    sound = StoredProcess(
        process_id="p",
        status="running",
        events=tuple((task.task_id, task.element) for task in tasks),
        tasks=tasks,
        register=(elements[-1], len(elements)) if elements else ("", 0),
    )
    return dataclasses.replace(sound, **fields)


def journal(*task_ids: int, deed: Deed = Deed.APPEND, **fields: Any) -> list[Asked]:
    defaults: dict[str, Any] = {"task_type": "call", "element": "?", "at": 1.0}
    return [
        Asked(process_id="p", task_id=task_id, deed=deed, **{**defaults, **fields})
        for task_id in task_ids
    ]


def broken(
    process: StoredProcess, *operations: Operation, asked: list[Asked] | None = None
) -> list[str]:
    lines = journal(*(task.task_id for task in process.tasks)) if asked is None else asked
    return list(broken_promises(process, operations, lines))


SOUND = (appended("a"), appended("b", "a"))


def test_a_sound_database_breaks_nothing() -> None:
    assert broken(stored("a", "b"), *SOUND) == []


@pytest.mark.parametrize(
    ("process", "operations", "says"),
    [
        pytest.param(stored("a"), SOUND, "b was acknowledged, and is lost", id="lost"),
        pytest.param(stored("a", "b", "a"), SOUND, "a is 2 times", id="twice"),
        pytest.param(stored("b", "a"), SOUND, "not where its answer says", id="another order"),
        pytest.param(stored("a", "b", "x"), SOUND, "x is in the history, and no", id="unasked"),
        pytest.param(
            stored("a", "b", register=("a", 1)), SOUND, "aux_state is ('a', 1)", id="old state"
        ),
        pytest.param(
            stored("a", "b", events=((2, "a"), (1, "b"))), SOUND, "behind those of task 2",
            id="out of line",
        ),
        pytest.param(
            stored("a", "r"), (appended("a"), operation("r", Refused("REJECTED"))),
            "r was refused by REJECTED", id="refused, and done",
        ),
        pytest.param(
            stored("a"), (appended("a"), operation("n", Accepted(), kind=Kind.NOTIFY)),
            "n was accepted, and has no task", id="accepted, and gone",
        ),
        pytest.param(
            stored("a", "n", events=((1, "a"),), register=("a", 1)),
            (appended("a"), operation("n", Accepted(), kind=Kind.NOTIFY)),
            "its task is finished, its event there: False", id="accepted, and without event",
        ),
        pytest.param(
            stored("a"), (appended("a", deed=Deed.TIMER),), "a set a timer, and there is none",
            id="no timer",
        ),
        pytest.param(
            stored("b"),
            (operation("put", Done(), kind=Kind.PUT, imported=("a",)), operation("b", Unknown())),
            "does not begin the history", id="import lost",
        ),
    ],
)  # fmt: skip
def test_each_broken_promise_is_told(
    process: StoredProcess, operations: tuple[Operation, ...], says: str
) -> None:
    found = broken(process, *operations)

    assert any(says in line for line in found), found


def test_a_lost_request_may_be_there_or_not() -> None:
    lost = operation("u", Unknown(), answered_at=math.inf)

    assert broken(stored("a"), appended("a"), lost) == []
    assert broken(stored("a", "u"), appended("a"), lost) == []


def test_what_was_cancelled_with_its_line_is_not_lost() -> None:
    waited = StoredTask(task_id=2, task_type="notify", status="cancelled", element="n")
    process = stored("a")
    process = dataclasses.replace(process, tasks=(*process.tasks, waited))

    assert broken(process, appended("a"), operation("n", Accepted(), kind=Kind.NOTIFY)) == []


def test_an_imported_history_needs_no_processor() -> None:
    put = operation("put", Done(), kind=Kind.PUT, imported=("a", "b"))
    task = StoredTask(task_id=1, task_type="init", status="finished")
    process = stored("a", "b", events=((1, "a"), (1, "b")), tasks=(task,))

    assert broken(process, put, asked=[]) == []


def test_a_finished_task_was_asked_for() -> None:
    assert broken(stored("a"), appended("a"), asked=[]) == [
        "p: task 1 is finished, and no processor was asked"
    ]


def test_only_a_processor_breaks_a_process() -> None:
    process = stored("a", status="error", corrupted_by=7)

    assert "which no processor failed" in broken(process, appended("a"))[0]
    assert broken(process, appended("a"), asked=journal(1) + journal(7, deed=Deed.FAIL)) == []


def test_a_timer_brings_what_its_processor_said() -> None:
    timeout = StoredTask(task_id=2, task_type="timeout", status="finished", set_by="a")
    process = stored("a", "a.2")
    process = dataclasses.replace(process, tasks=(process.tasks[0], timeout))
    ticked = journal(1) + journal(2, task_type="timeout", element="a.2")

    assert broken(process, appended("a", deed=Deed.TIMER), asked=ticked) == []


def test_of_a_process_that_may_have_gone_only_what_is_there_counts() -> None:
    gone = operation("", Done(), kind=Kind.REMOVE)

    assert broken(stored("z"), appended("a"), gone, appended("z")) == []


def test_two_answers_for_one_key_are_told() -> None:
    found = list(contradictions([appended("a", key="k"), appended("a", "b", key="k")]))

    assert len(found) == 1
    assert "a was answered in two ways" in found[0]


def test_a_refusal_by_the_processor_is_an_answer_too() -> None:
    assert list(contradictions([appended("a"), operation("a", Refused("REJECTED"))]))
    assert not list(contradictions([appended("a"), operation("a", Refused("PROCESS_FAILED"))]))
    assert not list(contradictions([appended("a"), operation("a", Unknown()), appended("a")]))


def test_what_was_asked_twice_is_one_operation() -> None:
    lost = operation("a", Unknown(), sent_at=1.0, answered_at=math.inf, key="a")
    repeated = appended("a", sent_at=5.0, answered_at=6.0, key="a")

    (one,) = merged([lost, repeated])

    assert (one.sent_at, one.answered_at) == (1.0, 6.0)
    assert one.outcome == repeated.outcome


def test_an_awaited_answer_is_the_request_s() -> None:
    accepted = operation("a", Accepted(), key="a")
    awaited = appended("a", kind=Kind.AWAIT, sent_at=3.0, answered_at=4.0)

    (one,) = merged([accepted, awaited], settled_at=9.0)

    assert (one.kind, one.outcome, one.answered_at) == (Kind.CALL, awaited.outcome, 4.0)


def test_what_was_accepted_is_done_when_all_is() -> None:
    (one,) = merged([operation("a", Accepted())], settled_at=9.0)

    assert (one.outcome, one.answered_at) == (Accepted(), 9.0)


def test_a_repetition_that_is_refused_leaves_the_first_unknown() -> None:
    lost = operation("a", Unknown())
    (one,) = merged([lost, operation("a", Refused("PROCESS_FAILED"))])

    assert isinstance(one.outcome, Unknown)
    assert one.answered_at == math.inf


def test_an_accepted_request_that_broke_with_its_process_is_refused() -> None:
    awaited = operation("a", Refused("PROCESS_FAILED"), kind=Kind.AWAIT, answered_at=5.0)
    (one,) = merged([operation("a", Accepted()), awaited])

    assert (one.outcome, one.answered_at) == (Refused("PROCESS_FAILED"), 5.0)


def test_readings_that_brought_nothing_are_left_out() -> None:
    seen = operation("", Done(Sight("running", 0, ())), kind=Kind.LOOK)

    assert merged([seen, operation("", Unknown(), kind=Kind.LOOK)]) == [seen]


def test_a_request_that_was_cancelled_was_not_done() -> None:
    cancel = operation("a", Done(), kind=Kind.CANCEL, sent_at=3.0, answered_at=4.0)
    asked = operation("a", Accepted(), sent_at=1.0, answered_at=2.0)

    (whole,) = merged([asked, cancel])

    assert whole.outcome == Refused("TASK_CANCELLED")
    assert list(contradictions([asked, cancel])) == []


def test_a_cancellation_that_was_lost_leaves_the_request_unknown() -> None:
    cancel = operation("a", Unknown(), kind=Kind.CANCEL, sent_at=3.0)
    asked = operation("a", Accepted(), sent_at=1.0, answered_at=2.0)

    (whole,) = merged([asked, cancel])

    assert isinstance(whole.outcome, Unknown)


def test_a_cancellation_that_came_too_late_changes_nothing() -> None:
    cancel = operation("a", Refused("TASK_HAS_ENDED"), kind=Kind.CANCEL, answered_at=4.0)
    asked = operation("a", Refused("PROCESS_FAILED"), sent_at=1.0, answered_at=2.0)

    (whole,) = merged([cancel, asked])

    assert whole.outcome == Refused("PROCESS_FAILED")


def test_what_was_cancelled_and_answered_too_is_told() -> None:
    cancel = operation("a", Done(), kind=Kind.CANCEL)
    answer = operation("a", Done(Appended(1, ())))

    (told,) = contradictions([cancel, answer])

    assert "answered in two ways" in told


def test_a_cancellation_that_nobody_asked_for_is_told() -> None:
    (told,) = contradictions([operation("a", Refused("TASK_CANCELLED"))])

    assert told == "p: a was cancelled, and no client asked for that"


def test_what_has_constraints_comes_when_these_let_it() -> None:
    late = stored("b", "a")
    tasks = tuple(
        dataclasses.replace(it, task_id=3 - it.task_id, is_gated=it.element == "b")
        for it in late.tasks
    )
    events = ((2, "b"), (1, "a"))
    whole = dataclasses.replace(late, tasks=tasks, events=events)
    bare = tuple(dataclasses.replace(it, is_gated=False) for it in tasks)

    def found(process: StoredProcess) -> int:
        return sum("behind those of" in told for told in broken(process))

    assert found(whole) == 0
    assert found(dataclasses.replace(whole, tasks=bare)) == 1
