"""Which histories of one process an order explains, and which none does."""

import dataclasses
import math

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
    Revived,
    Sight,
    Unknown,
    merged,
)
from tests.support.models.history.linear import UNDECIDED, explained


def asked(
    kind: Kind,
    element: str,
    outcome: Outcome,
    sent_at: float,
    answered_at: float = math.inf,
    deed: Deed = Deed.APPEND,
) -> Operation:
    return Operation(
        process_id="p",
        kind=kind,
        element=element,
        outcome=outcome,
        sent_at=sent_at,
        answered_at=answered_at,
        deed=deed,
    )


def did(element: str, *before: str, at: float, until: float | None = None) -> Operation:
    """Return a call that was answered: behind these, and no others."""
    answer = Done(Appended(len(before) + 1, before[-5:]))
    return asked(Kind.CALL, element, answer, at, at + 0.5 if until is None else until)


def step(element: str, *before: str) -> Asked:
    """Return what a processor notes that was shown these, all of them."""
    return Asked(
        process_id="p",
        task_id=1,
        task_type="call",
        element=element,
        deed=Deed.APPEND,
        at=1.0,
        first="".join(before[:1]),
        length=len(before),
        before=before[-5:],
    )


def saw(
    *elements: str, at: float, status: str = "running", until: float | None = None
) -> Operation:
    sight = Sight(status, len(elements), elements)
    return asked(Kind.LOOK, "", Done(sight), at, at + 0.5 if until is None else until)


STARTED = asked(Kind.START, "s", Done(Appended(1, ())), 0, 1)
FAILED = Refused("PROCESS_FAILED")
BROKEN = asked(Kind.CALL, "f", FAILED, 2, 3, Deed.FAIL)


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([], id="nothing at all"),
        pytest.param([STARTED, did("a", "s", at=2), did("b", "s", "a", at=3)], id="one by one"),
        pytest.param(
            [STARTED, did("a", "s", "b", at=2, until=9), did("b", "s", at=3)], id="overtaken"
        ),
        pytest.param(
            [STARTED, asked(Kind.CALL, "u", Unknown(), 2), did("a", "s", at=3)],
            id="a lost request that was not done",
        ),
        pytest.param(
            [STARTED, asked(Kind.CALL, "u", Unknown(), 2), did("a", "s", "u", at=3)],
            id="a lost request that was done",
        ),
        pytest.param(
            [STARTED, asked(Kind.NOTIFY, "n", Accepted(), 2), did("a", "s", at=3),
             did("b", "s", "a", "n", at=4)],
            id="an accepted request that was done later",
        ),
        pytest.param(
            [STARTED, asked(Kind.TICK, "t", Unknown(), 1.5), did("a", "s", "t", at=3)],
            id="a timer in between",
        ),
        pytest.param([saw(at=0.5, status="init"), STARTED], id="seen while it starts"),
        pytest.param(
            [asked(Kind.LOOK, "", Refused("PROCESS_NOT_FOUND"), 0.1, 0.2), STARTED],
            id="looked for before it is there",
        ),
        pytest.param(
            [STARTED, BROKEN, asked(Kind.CALL, "a", FAILED, 2.5, 4),
             saw("s", at=5, status="error"),
             asked(Kind.REPAIR, "r", Done(Appended(2, ("s",))), 6, 7), did("b", "s", "r", at=8)],
            id="broken, and repaired",
        ),
        pytest.param(
            [STARTED, BROKEN, asked(Kind.SIMPLE_REPAIR, "", Done(Revived(timer=False)), 4, 5),
             did("a", "s", at=6)],
            id="broken, and simply repaired",
        ),
        pytest.param(
            [STARTED, asked(Kind.CALL, "c", Done(Appended(2, ("s",))), 2, 3, Deed.COMPLETE),
             asked(Kind.CALL, "a", Refused("PROCESS_FINISHED"), 2.5, 4),
             saw("s", "c", at=5, status="finished")],
            id="finished",
        ),
        pytest.param(
            [STARTED, asked(Kind.REMOVE, "", Done(), 2, 3),
             asked(Kind.CALL, "a", Refused("PROCESS_NOT_FOUND"), 4, 5),
             asked(Kind.START, "z", Done(Appended(1, ())), 6, 7), did("b", "z", at=8)],
            id="removed, and started anew",
        ),
        pytest.param(
            [STARTED, asked(Kind.CALL, "e", Done(Appended(2, ("s",))), 2, 3, Deed.EXPIRE),
             asked(Kind.CALL, "a", Refused("PROCESS_NOT_FOUND"), 4, 5)],
            id="removed by its timer",
        ),
        pytest.param(
            [asked(Kind.START, "s", Refused("REJECTED"), 0, 1, Deed.REJECT),
             asked(Kind.LOOK, "", Refused("PROCESS_NOT_FOUND"), 2, 3)],
            id="refused its start",
        ),
    ],
)  # fmt: skip
def test_an_order_explains_what_can_have_happened(history: list[Operation]) -> None:
    assert explained(history) is None


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([STARTED, did("a", "s", at=2), did("b", "s", at=3)], id="lost write"),
        pytest.param(
            [STARTED, did("a", "s", at=2), did("b", "s", "a", "a", at=3)], id="done twice"
        ),
        pytest.param(
            [STARTED, did("a", "s", "b", at=2), did("b", "s", at=3)], id="against the time"
        ),
        pytest.param([STARTED, did("a", "s", at=2), saw("s", at=3)], id="stale read"),
        pytest.param([STARTED, saw("s", "x", at=2)], id="out of thin air"),
        pytest.param(
            [STARTED, asked(Kind.CALL, "r", Refused("REJECTED"), 2, 3, Deed.REJECT),
             saw("s", "r", at=4)],
            id="refused, and done",
        ),
        pytest.param(
            [STARTED, asked(Kind.CALL, "r", Refused("REJECTED"), 2, 3)], id="refused by none"
        ),
        pytest.param([STARTED, asked(Kind.CALL, "a", FAILED, 2, 3)], id="broken without a cause"),
        pytest.param(
            [STARTED, asked(Kind.CALL, "a", Refused("PROCESS_NOT_FOUND"), 2, 3)],
            id="gone without a cause",
        ),
        pytest.param([STARTED, BROKEN, did("a", "s", at=4)], id="done in error"),
        pytest.param(
            [STARTED, asked(Kind.NOTIFY, "n", Accepted(), 2, 3), saw("s", at=4)],
            id="accepted, and lost",
        ),
        pytest.param(
            [STARTED, asked(Kind.REMOVE, "", Done(), 2, 3), did("a", "s", at=4)],
            id="done after it was removed",
        ),
        pytest.param([did("a", at=0)], id="never started"),
        pytest.param(
            [STARTED, asked(Kind.CALL, "k", Refused("IDEMPOTENCY_KEY_REUSED"), 2, 3)],
            id="a reason that cannot be",
        ),
        pytest.param(
            [STARTED, asked(Kind.START, "z", Done(Appended(1, ())), 2, 3)], id="started twice"
        ),
    ],
)  # fmt: skip
def test_no_order_explains_what_cannot_have_happened(history: list[Operation]) -> None:
    found = explained(history)

    assert found is not None
    assert found.startswith("no order explains p")


def test_a_counterexample_shows_where_it_ends() -> None:
    found = explained([STARTED, did("a", "s", at=2), saw("s", at=3)])

    assert found is not None
    assert "2.000 .. 2.500 call a" in found
    assert "it is running, 2 elements" in found
    assert "next there must be one of\n    3.000 .. 3.500 look" in found


def test_a_repeated_request_may_be_done_before_the_process_goes() -> None:
    gone = asked(Kind.CALL, "k", Refused("PROCESS_NOT_FOUND"), 2, 6)
    history = [STARTED, did("a", "s", "k", at=3), asked(Kind.REMOVE, "", Done(), 4, 5)]

    assert explained([*history, gone]) is not None
    assert explained([*history, dataclasses.replace(gone, key="k")]) is None


def test_a_search_that_grows_too_large_is_undecided() -> None:
    lost = [asked(Kind.CALL, f"u{number}", Unknown(), 2) for number in range(12)]

    anew = [
        asked(Kind.REMOVE, "", Done(), 3, 4),
        asked(Kind.START, "z", Done(Appended(1, ())), 5, 6),
    ]

    history = [STARTED, *lost, *anew, did("a", "x", at=7)]

    assert explained(history, lives_max=100) == UNDECIDED


def test_journals_leave_hardly_a_choice() -> None:
    names = [f"u{number}" for number in range(12)]
    lost = [asked(Kind.CALL, name, Unknown(), 2) for name in names]
    anew = [
        asked(Kind.REMOVE, "", Done(), 3, 4),
        asked(Kind.START, "z", Done(Appended(1, (), "z")), 5, 6),
    ]
    history = [STARTED, *lost, *anew, saw("z", "x", at=7)]
    journal = [step("s"), *(step(name, "s") for name in names), step("z")]

    assert explained(history, lives_max=300) == UNDECIDED
    found = explained(history, journal, lives_max=300)
    assert found is not None
    assert found.startswith("no order explains p")


def test_what_no_processor_was_asked_for_was_not_done() -> None:
    history = [STARTED, did("a", "s", at=2)]

    assert explained(history, [step("s"), step("a", "s")]) is None
    assert explained(history, [step("s")]) is not None
    assert explained(history, [step("s"), step("a", "s", "b")]) is not None


def test_a_lost_failure_breaks_a_process_only_where_a_processor_was_asked() -> None:
    lost = asked(Kind.CALL, "f", Unknown(), 2, deed=Deed.FAIL)
    history = [STARTED, lost, did("a", "s", at=2), saw("s", "a", at=4, status="error")]
    journal = [step("s"), step("a", "s")]

    assert explained(history, [*journal, step("f", "s", "a")]) is None
    assert explained(history, [*journal, step("f", "s")]) is not None


def test_a_processor_that_was_shown_another_list_contradicts() -> None:
    journal = [step("s"), step("a", "s"), step("b", "s", "x")]

    found = explained([STARTED, did("a", "s", at=2), did("b", "s", "a", at=3)], journal)

    assert found == "no order explains p: as element 2 there were seen a and x"


def test_an_accepted_request_that_no_processor_was_asked_for_was_cancelled() -> None:
    accepted = asked(Kind.NOTIFY, "n", Accepted(), 1.5, 9)
    journal = [step("s"), step("f", "s")]

    assert explained([STARTED, accepted, BROKEN], journal) is None
    assert explained([STARTED, accepted], journal) is not None


def test_what_others_saw_of_a_process_that_is_gone_is_known_too() -> None:
    names = [f"u{number}" for number in range(60)]
    lost = [asked(Kind.CALL, name, Unknown(), 2) for name in names]
    gone = asked(Kind.REMOVE, "", Done(), 20, 21)

    assert explained([STARTED, *lost, saw("s", *names[::2], at=9), gone]) is None


def test_a_hundred_lost_requests_are_no_trouble_where_the_end_is_known() -> None:
    names = [f"u{number}" for number in range(100)]
    lost = [asked(Kind.CALL, name, Unknown(), 2) for name in names]

    assert explained([STARTED, *lost, saw("s", *names[::2], at=9)]) is None


BORN = Done(Sight("init", 0, ()))
GONE = Refused("PROCESS_NOT_FOUND")
REJECTED = Refused("REJECTED")


def rejected(outcome: Outcome, sent_at: float, answered_at: float = math.inf) -> Operation:
    return asked(Kind.START, "s", outcome, sent_at, answered_at, Deed.REJECT)


def test_a_start_that_was_rejected_is_rejected_anew_when_it_is_repeated() -> None:
    """Its key has gone with its process."""
    repeated = [rejected(Unknown(), 0), rejected(REJECTED, 5, 6)]
    seen = [
        asked(Kind.LOOK, "", BORN, 1, 2),
        asked(Kind.LOOK, "", GONE, 3, 4),
        asked(Kind.LOOK, "", BORN, 5, 6),
    ]

    assert explained(merged([*repeated, *seen])) is None


def test_a_start_that_was_sent_once_is_rejected_once() -> None:
    seen = [
        asked(Kind.LOOK, "", BORN, 1, 2),
        asked(Kind.LOOK, "", GONE, 3, 4),
        asked(Kind.LOOK, "", BORN, 5, 6),
    ]

    assert explained(merged([rejected(REJECTED, 0, 7), *seen])) is not None


def test_a_start_that_is_repeated_while_the_first_lives_need_not_be_done_twice() -> None:
    repeated = [rejected(Unknown(), 0), rejected(REJECTED, 2, 6)]
    seen = [asked(Kind.LOOK, "", BORN, 1, 3), asked(Kind.LOOK, "", GONE, 7, 8)]

    assert explained(merged([*repeated, *seen])) is None
