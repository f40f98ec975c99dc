"""What the chaos run decides beforehand, and what it makes of what happened."""

import math
import random
from pathlib import Path

import pytest

from progressor import errors
from progressor.sdk import EngineUnavailableError
from tests.chaos.load.notes import Notes
from tests.chaos.load.process_pool import ProcessPool, Request, Requester, Subject
from tests.chaos.load.processor import TORN, read_journals
from tests.chaos.plan import LASTING, Fault, FaultKind, calm_seconds, plan, warm_up_seconds
from tests.chaos.report.report import Committed, effects
from tests.support.models.history.history import (
    ENDING_DEEDS,
    Deed,
    Done,
    Kind,
    Outcome,
    Refused,
    Unknown,
)


def test_a_seed_has_one_plan() -> None:
    assert plan(7, 600.0) == plan(7, 600.0)
    assert plan(7, 600.0) != plan(8, 600.0)


@pytest.mark.parametrize("seed", range(5))
def test_every_kind_of_fault_comes_before_any_comes_again(seed: int) -> None:
    kinds = [fault.kind for fault in plan(seed, 300.0)]
    size = len(FaultKind)

    for begin in range(0, len(kinds) - size, size):
        assert set(kinds[begin : begin + size]) == set(FaultKind)


@pytest.mark.parametrize("seed", range(5))
def test_faults_leave_the_beginning_and_the_end_alone(seed: int) -> None:
    faults = plan(seed, 60.0)

    assert faults[0].at >= warm_up_seconds(60.0) + calm_seconds(60.0)
    assert all(fault.at + fault.seconds <= 60.0 - calm_seconds(60.0) for fault in faults)
    assert set(LASTING) == set(FaultKind)


def test_nothing_ends_a_process_whose_start_may_be_repeated() -> None:
    requester = Requester("c", random.Random(1))
    begun = Subject("p", 10, begun=True)
    beginning = Subject("q", 10, begun=True, starting=1)

    deeds = {requester.ask(Kind.CALL, begun).deed for _ in range(2000)}

    assert deeds > ENDING_DEEDS
    assert not ENDING_DEEDS & {requester.ask(Kind.CALL, beginning).deed for _ in range(2000)}


def test_in_the_calm_no_step_is_slow_by_design() -> None:
    requester = Requester("c", random.Random(1))
    subject = Subject("p", 1, begun=True)

    def slow() -> int:
        orders = [requester.ask(Kind.CALL, subject).order for _ in range(2000)]
        return sum("stall" in order or order.get("delay", 0.0) > 0.1 for order in orders)

    assert slow() > 0
    requester.is_calm = True
    assert slow() == 0


def test_no_two_requests_are_of_one_element() -> None:
    requester = Requester("c", random.Random(1))
    subject = ProcessPool(1).grow()

    elements = [requester.ask(Kind.CALL, subject).element for _ in range(100)]

    assert len(set(elements)) == 100


async def seen(error: errors.ProgressorError | None, *, key: str = "") -> tuple[Outcome, Notes]:
    async def request() -> None:
        if error is not None:
            raise error

    notes = Notes()
    ask = Request(kind=Kind.CALL, subject=Subject("p", 1), element="a", key=key)
    outcome = await notes.seen(ask, request(), lambda _: Done(), replica=0, kind=ask.kind)
    return outcome, notes


async def test_an_answer_is_an_acknowledgement() -> None:
    outcome, notes = await seen(None)

    assert outcome == Done()
    assert [replica for _, replica in notes.acknowledged] == [0]
    assert notes.operations[0].answered_at >= notes.operations[0].sent_at


@pytest.mark.parametrize(
    "error",
    [
        EngineUnavailableError("there", "away"),
        errors.StorageUnavailableError("away"),
        errors.DeadlineExceededError(None),
    ],
)
async def test_a_request_without_a_word_has_no_end(error: errors.ProgressorError) -> None:
    outcome, notes = await seen(error)

    assert isinstance(outcome, Unknown)
    assert notes.operations[0].answered_at == math.inf
    assert not notes.acknowledged


async def test_a_refusal_is_its_reason() -> None:
    outcome, notes = await seen(errors.ProcessFinishedError("p"))

    assert outcome == Refused("PROCESS_FINISHED")
    assert not notes.surprises


async def test_a_reused_key_is_a_surprise() -> None:
    _, notes = await seen(errors.IdempotencyKeyReusedError("p", "key"))

    assert "belongs to a different request" in notes.surprises[0]


def fault(kind: FaultKind, at: float) -> Fault:
    return Fault(number=1, kind=kind, at=at, seconds=2.0, target=0, seed=0)


def test_the_effect_of_a_fault_is_what_was_acknowledged_around_it() -> None:
    notes = Notes()
    # Ten a second for ten seconds, three of silence, then ten a second again by both replicas.
    notes.acknowledged = [(number / 10, 0) for number in range(100)]
    notes.acknowledged += [(13.0 + number / 10, number % 2) for number in range(100)]
    committed = Committed(fault=fault(FaultKind.KILL_POSTGRES, 10), began_at=10.0, ended_at=12.0)

    (effect,) = effects([committed], notes, begun_at=0.0, ended_at=23.0)

    assert effect.before == pytest.approx(10, 0.1)
    assert effect.during == 0.0
    assert effect.after == pytest.approx(8, 0.1)
    assert effect.first == pytest.approx(3.0)
    assert effect.silence == pytest.approx(3.0)
    assert effect.whole == pytest.approx(1.1)


def test_a_journal_tells_what_was_asked_and_what_was_torn(tmp_path: Path) -> None:
    line = (
        '{"process_id": "p", "task_id": 1, "task_type": "call", "element": "a",'
        ' "deed": "%s", "at": 1.5, "first": "s", "length": 2, "before": ["s", "b"]}\n'
    )
    journal = tmp_path / "journal.jsonl"
    journal.write_text(line % "append" + line % TORN)

    asked, torn = read_journals([journal, tmp_path / "none"])

    assert [(it.task_id, it.deed, it.at) for it in asked] == [(1, Deed.APPEND, 1.5)]
    assert (asked[0].first, asked[0].length, asked[0].before) == ("s", 2, ("s", "b"))
    assert len(torn) == 1
