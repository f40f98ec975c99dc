"""What the judges of a chaos run find, of a sound run that something is made wrong with."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.chaos.history import (
    Accepted,
    Again,
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
    StoredProcess,
    StoredTask,
    Unknown,
    again,
    merged,
)
from tests.chaos.judges import compare
from tests.chaos.linear import UNDECIDED, explained
from tests.chaos.load.jobs import StoredJob, StoredNode, broken_jobs
from tests.chaos.load.journal import Span
from tests.chaos.load.messages import Received, Sent, StoredMessages, broken_messages

SETTLED_AT = 100.0


@dataclasses.dataclass(slots=True)
class Run:
    """All that the judges look at, of one process that is in error at the end."""

    history: list[Operation]
    journal: list[Asked]
    stored: dict[str, StoredProcess]

    def findings(self) -> list[str]:
        histories = {"p": self.history} if self.history else {}
        return compare(histories, self.stored, self.journal, SETTLED_AT)[0]

    def change(self, **fields: Any) -> None:
        self.stored["p"] = dataclasses.replace(self.stored["p"], **fields)

    def change_line(self, number: int, **fields: Any) -> None:
        self.journal[number] = dataclasses.replace(self.journal[number], **fields)

    def change_task(self, task_id: int, **fields: Any) -> None:
        tasks = [
            dataclasses.replace(task, **fields) if task.task_id == task_id else task
            for task in self.stored["p"].tasks
        ]
        self.change(tasks=tuple(tasks))


def sound() -> Run:
    """Return a run of a start, a call, a notify, a lost call, and a call that broke the process."""
    history = [
        asked(Kind.START, "s", Done(Appended(1, (), "s")), 1),
        asked(Kind.CALL, "a", Done(Appended(2, ("s",), "s")), 2),
        asked(Kind.NOTIFY, "n", Accepted(), 3, answered_at=SETTLED_AT),
        asked(Kind.CALL, "u", Unknown(), 4, answered_at=float("inf")),
        asked(Kind.CALL, "f", Refused("PROCESS_FAILED"), 5, deed=Deed.FAIL),
    ]
    elements = ("s", "a", "n", "u")
    journal = [
        line(number, element, elements[: number - 1]) for number, element in enumerate(elements, 1)
    ]
    tasks = [
        StoredTask(task_id=number, task_type="call", status="finished", element=element)
        for number, element in enumerate(elements, 1)
    ]
    process = StoredProcess(
        process_id="p",
        status="error",
        events=tuple(enumerate(elements, 1)),
        tasks=(*tasks, StoredTask(task_id=5, task_type="call", status="error", element="f")),
        register=("u", 4),
        corrupted_by=5,
    )
    return Run(history, [*journal, line(5, "f", elements, Deed.FAIL)], {"p": process})


def asked(
    kind: Kind, element: str, outcome: Outcome, at: float, deed: Deed = Deed.APPEND, **fields: Any
) -> Operation:
    return Operation(
        **{
            "process_id": "p",
            "kind": kind,
            "outcome": outcome,
            "sent_at": at,
            "answered_at": at + 0.5,
            "element": element,
            "deed": deed,
            **fields,
        }
    )


def line(task_id: int, element: str, before: tuple[str, ...], deed: Deed = Deed.APPEND) -> Asked:
    return Asked(
        process_id="p",
        task_id=task_id,
        task_type="call",
        element=element,
        deed=deed,
        at=float(task_id),
        first="".join(before[:1]),
        length=len(before),
        before=before,
    )


def retried() -> Run:
    """Return the same run, whose last call was run again and then succeeded."""
    run, appended = sound(), again("f", 9)
    run.history[-1:] = merged(
        [
            run.history[-1],
            asked(Kind.AWAIT, "f", Done(Again(appended)), 8, deed=Deed.FAIL),
            asked(Kind.RETRY, "", Done(), 7),
        ]
    )
    run.journal.append(line(5, appended, ("s", "a", "n", "u")))
    run.change(
        events=(*run.stored["p"].events, (5, appended)),
        register=(appended, 5),
        status="running",
        corrupted_by=None,
    )
    run.change_task(5, status="finished")
    return run


@pytest.mark.parametrize("run", [sound(), retried()], ids=["sound", "retried"])
def test_nothing_is_found_in_a_sound_run(run: Run) -> None:
    assert run.findings() == []


def unasked_again(run: Run) -> None:
    """Let the task be run again while its process was running."""
    run.history.insert(-1, asked(Kind.SIMPLE_REPAIR, "", Done(Revived(timer=False)), 6.5))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda run: run.change(status="error", corrupted_by=5), "no order explains p"),
        (lambda run: lose(run, 5), "f.again.9 was acknowledged, and is lost"),
        (lambda run: run.journal.pop(), "no order explains p"),
        (unasked_again, "no order explains p"),
    ],
    ids=["still in error", "lost", "never asked", "run again after a repair"],
)
def test_what_is_wrong_with_a_retry_is_found(wrong: Callable[[Run], object], says: str) -> None:
    run = retried()
    wrong(run)

    found = run.findings()

    assert any(says in finding for finding in found), found


def lose(run: Run, *task_ids: int) -> None:
    """Take events out of the database, with all that would tell of them there."""
    events = tuple(event for event in run.stored["p"].events if event[0] not in task_ids)
    run.change(events=events, register=(events[-1][1], len(events)))


def settle_twice(run: Run) -> None:
    events = (*run.stored["p"].events, (2, "a"))
    run.change(events=events, register=("a", 5))


def settle_twice_otherwise(run: Run) -> None:
    events = (*run.stored["p"].events, (4, "u-again"))
    run.change(events=events, register=("u-again", 5))


def exchange(run: Run) -> None:
    one, two, three, four = run.stored["p"].events
    run.change(events=(one, three, two, four))


def invent(run: Run) -> None:
    run.change(events=(*run.stored["p"].events, (6, "x")), register=("x", 5))


def never_fail(run: Run) -> None:
    run.change_line(4, deed=Deed.APPEND)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        pytest.param(lambda run: lose(run, 2), "a was acknowledged, and is lost", id="gap"),
        pytest.param(lambda run: lose(run, 3, 4), "n was accepted; its task is", id="end lost"),
        pytest.param(settle_twice, "task 2 was settled 2 times", id="settled twice"),
        pytest.param(
            settle_twice_otherwise, "task 4 of u has brought u-again", id="two answers settled"
        ),
        pytest.param(exchange, "behind those of task 3", id="out of line"),
        pytest.param(invent, "x is in the history, and no client asked", id="out of thin air"),
        pytest.param(
            lambda run: run.change(register=("a", 2)), "aux_state is ('a', 2)", id="old aux_state"
        ),
        pytest.param(
            lambda run: run.change_task(4, status="running"), "has not succeeded: running",
            id="event without success",
        ),
        pytest.param(
            lambda run: run.change(corrupted_by=4), "in error by task 4, which no processor failed",
            id="broken by a success",
        ),
        pytest.param(never_fail, "in error by task 5, which no processor failed", id="broken"),
        pytest.param(
            never_fail, "task 5 is in error, and no processor", id="a task in error by itself"
        ),
        pytest.param(
            lambda run: run.change(status="running", corrupted_by=None), "no order explains p",
            id="fixed by itself",
        ),
        pytest.param(
            lambda run: run.journal.pop(3), "task 4 is finished, and no processor",
            id="never asked",
        ),
        pytest.param(
            lambda run: run.change_line(3, before=("s", "n", "a")), "was seen as element",
            id="another history shown",
        ),
        pytest.param(
            lambda run: run.change_line(3, length=2, before=("s", "a")), "no order explains p",
            id="decided by an old history",
        ),
        pytest.param(lambda run: run.stored.clear(), "no order explains p", id="process lost"),
        pytest.param(
            lambda run: run.history.clear(), "p: no client started it",
            id="process out of thin air",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found(wrong: Callable[[Run], object], says: str) -> None:
    run = sound()
    wrong(run)

    found = run.findings()

    assert any(says in finding for finding in found), found


@pytest.mark.parametrize(
    ("seen", "is_right"),
    [
        (("s", "a", "n", "u"), True),
        (("s", "a"), False),
        (("s", "a", "u"), False),
        (("s", "a", "u", "n"), False),
        (("s", "a", "n", "u", "u"), False),
    ],
    ids=["all", "stale", "one lost", "two exchanged", "one twice"],
)
def test_a_reading_is_explained_only_where_it_is_right(
    seen: tuple[str, ...], is_right: bool
) -> None:
    run = sound()
    reading = asked(Kind.LOOK, "", Done(Sight("error", len(seen), seen)), SETTLED_AT + 2)

    assert (explained([*run.history, reading], run.journal) is None) == is_right


@pytest.mark.parametrize("is_ahead", [True, False])
def test_what_a_turn_has_shown_ahead_need_not_have_been_saved(*, is_ahead: bool) -> None:
    """The process was removed when none of the steps of the turn had been saved."""
    history = [
        asked(Kind.START, "s", Done(Appended(1, (), "s")), 1),
        asked(Kind.CALL, "a", Refused("PROCESS_REMOVED"), 2),
        asked(Kind.NOTIFY, "n", Accepted(), 2, answered_at=SETTLED_AT),
        asked(Kind.CALL, "b", Refused("PROCESS_REMOVED"), 2),
        asked(Kind.REMOVE, "", Done(None), 2),
    ]
    turn = [line(3, "n", ("s", "a")), line(4, "b", ("s", "a", "n"))]
    journal = [
        line(1, "s", ()),
        line(2, "a", ("s",)),
        *(dataclasses.replace(each, is_ahead=is_ahead) for each in turn),
    ]

    # A step that holds a lease is shown saved elements only.
    assert (explained(history, journal) is None) is is_ahead


def test_a_history_that_cannot_be_judged_is_found() -> None:
    run = sound()

    found, undecided = compare({"p": run.history}, run.stored, run.journal, SETTLED_AT, lives_max=0)

    assert (found, undecided) == ([f"p: {UNDECIDED}"], 1)


def node(name: str, ordinal: int, *before: int, **fields: Any) -> StoredNode:
    result = json.dumps({"id": f"j/{name}"}).encode()
    settled = {"state": "done", "result": result, "settled": (ordinal, 1)}
    return StoredNode(
        job_id="j", name=name, ordinal=ordinal, predecessors=before, **{**settled, **fields}
    )


def span(name: str, task_id: int, begun_at: float, ended_at: float, attempt: int = 1) -> Span:
    return Span(
        process_id=f"j/{name}",
        task_id=task_id,
        attempt=attempt,
        begun_at=begun_at,
        ended_at=ended_at,
    )


def job(*nodes: StoredNode, **fields: Any) -> StoredJob:
    return StoredJob(job_id="j", nodes=nodes, **{"state": "done", **fields})


PAIR = (node("a", 1), node("b", 2, 1))
IN_ORDER = (span("a", 1, 1.0, 2.0), span("b", 2, 2.5, 3.0))
SKIPPED = node("b", 2, 1, state="skipped", result=None, settled=None, was_started=False)


@pytest.mark.parametrize(
    ("stored", "spans", "found"),
    [
        (job(*PAIR), IN_ORDER, []),
        (job(*PAIR, join_count=2, retry_count=1), IN_ORDER, []),
        # An attempt that settled nothing may still go on.
        (
            job(node("a", 1, settled=(1, 2)), PAIR[1]),
            [span("a", 1, 0.5, 9.0), span("a", 1, 1.0, 2.0, 2), IN_ORDER[1]],
            [],
        ),
        (job(*PAIR), [IN_ORDER[0], span("b", 2, 1.5, 3.0)], ["b: the node began before a had"]),
        (
            job(node("a", 1, state="failed", result=None, settled=None), SKIPPED, state="failed"),
            IN_ORDER,
            ["b: a node that is skipped was never started", "b: the node began, and a is failed"],
        ),
        (job(*PAIR, state="running"), IN_ORDER, ["the job has not ended"]),
        (job(*PAIR, join_count=2), IN_ORDER, ["the leader has decided 2 times"]),
        (job(*PAIR, join_count=0), IN_ORDER, ["its leader was never told"]),
        (job(node("a", 1, state="failed")), [], ["the job is done, and not all its nodes"]),
        (job(node("a", 1, attempt=2)), [], ["the node has begun 2 times"]),
        (job(node("a", 1, result=b'{"id": "j/x"}')), [], ["its result is of j/x"]),
        (job(node("a", 1, result=None)), [], ["its result is of None"]),
    ],
)
def test_what_is_wrong_with_a_job_is_found(
    stored: StoredJob, spans: Sequence[Span], found: Sequence[str]
) -> None:
    said = broken_jobs([stored], spans)

    assert bool(said) == bool(found)
    assert all(any(each in line for line in said) for each in found), said


def test_a_job_that_is_lost_is_found_unless_it_was_removed() -> None:
    assert broken_jobs([], [], acknowledged=["j"]) == [
        "j: the job was acknowledged, and is not there"
    ]
    assert broken_jobs([], [], acknowledged=["j"], removed=["j"]) == []


def sent(number: int, receiver: str = "m1", **fields: Any) -> Sent:
    place = ("p", 10 * number, 1)
    return Sent(message_id=f"e{number}", place=place, first="s", receiver=receiver, **fields)


def received(number: int, **fields: Any) -> Received:
    """Return the task of a message of `sent`."""
    task = {"message_id": f"e{number}", "receiver": "m1", "task_id": 10 * number + 5}
    return Received(
        **{**task, "sender": "p", "first": "s", "at": (number, 1), "count": number, **fields}
    )


SOUND = StoredMessages(
    firsts={"p": "s"},
    sent=[
        sent(1),
        sent(2, wants_reply=True),
        sent(3, deed="reject", wants_reply=True),
        sent(4, "nowhere"),
        sent(5, "nowhere", wants_reply=True),
        sent(6, "r1"),  # It was removed.
    ],
    received=[received(1), received(2), received(3, count=None, error="REJECTED")],
    counts={"m1": 2},
    refused=[(("p", 40, 1), "PROCESS_NOT_FOUND")],
    replies=[(("p", 20, 1), "e2"), (("p", 30, 1), "REJECTED"), (("p", 50, 1), "PROCESS_NOT_FOUND")],
)


def also(name: str, *values: object) -> dict[str, list[object]]:
    return {name: [*getattr(SOUND, name), *values]}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, ""),
        # Of an earlier process of this name no step is left.
        (also("received", received(9, first="x", receiver="m2", count=None)), ""),
        (also("received", received(1, task_id=99, count=None)), "e1 was received 2 times"),
        ({"received": SOUND.received[1:], "counts": {}}, "e1 to m1 was sent, and is lost"),
        (also("received", received(9)), "e9 was received, and is of no step that was saved"),
        ({"counts": {"m1": 3}}, "m1: 2 tasks have finished, its state says 3"),
        (
            {"received": [received(1, task_id=26), *SOUND.received[1:]]},
            "e2 came before e1, sent earlier",
        ),
        (
            {"received": [received(1, count=2), received(2, count=1), SOUND.received[2]]},
            "e2 was run before e1, received earlier",
        ),
        ({"refused": []}, "e4 to nowhere was sent, and is lost"),
        (also("refused", (("p", 10, 1), "PROCESS_NOT_FOUND")), "e1 to m1 was refused: PROCESS"),
        (also("refused", (("p", 20, 1), "OVERLOADED")), "and received or answered as well"),
        (also("refused", (("p", 90, 1), "PROCESS_NOT_FOUND")), "of no step that was saved was ref"),
        ({"replies": SOUND.replies[1:]}, "e2 to m1 has no reply"),
        (also("replies", (("p", 20, 1), "e2")), "e2 has 2 replies, wanted: True"),
        (also("replies", (("p", 10, 1), "e1")), "e1 has 1 replies, wanted: False"),
        (also("replies", (("p", 90, 1), "e9")), "of no step that was saved was answered"),
        (
            {"replies": [(("p", 20, 1), "PROCESS_NOT_FOUND"), *SOUND.replies[1:]]},
            "e2 was answered by PROCESS_NOT_FOUND",
        ),
    ],
)
def test_what_is_wrong_with_messages_is_found(wrong: dict[str, Any], says: str) -> None:
    found = list(broken_messages(dataclasses.replace(SOUND, **wrong)))

    assert bool(found) == bool(says)
    assert not says or any(says in line for line in found), found
