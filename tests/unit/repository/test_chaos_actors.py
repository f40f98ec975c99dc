"""What the judge of actors finds, of a sound run that something is made wrong with."""

import dataclasses
import datetime as dt
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.load.actors.judge import ActorRecords, broken_actors, count_messages, count_others
from tests.chaos.load.actors.lives import Asked, Fate, Life
from tests.chaos.load.actors.records import Actor, ActorTask, Event, Line, read_stalls

RESULT = {"id": "b.e", "memo": None}


def event(task_id: int, element: str, memo: int | None = None, **fields: Any) -> Event:
    payload = {"id": element, "memo": memo, "timers": [], **fields}
    return Event(task_id=task_id, payload=payload, at=float(task_id))


def done(task_id: int, element: str, task_type: str = "call", **fields: Any) -> ActorTask:
    settled = {"task_type": task_type, "status": "finished", "started_at": float(task_id), **fields}
    return ActorTask(task_id=task_id, element=element, **settled)


def line(task_id: int, token: int, what: str, value: int = 0, at: float = 0.0) -> Line:
    return Line(
        process_id="a", task_id=task_id, token=token, attempt=1, what=what, value=value,
        at=at or float(task_id), wall=at or float(task_id),
    )  # fmt: skip


def asked(element: str, outcome: str = "done", **fields: Any) -> Asked:
    return Asked(element=element, key=element, outcome=outcome, **fields)


def timer(name: str, element: str) -> dict[str, Any]:
    return {"name": name, "after": 1.0, "order": {"id": element}}


STATE: dict[str, Any] = {
    "sent": {}, "got": {}, "open": {}, "answered": {}, "refused": [], "wrong": []
}  # fmt: skip
A = Actor(
    process_id="a",
    status="running",
    state={
        **STATE,
        "sent": {"b": 3},
        "answered": {"b": 2},
        "refused": [["b", 3, "PROCESS_FINISHED"]],
    },
    events=[
        event(1, "a.s"),
        event(2, "a.1", timers=[timer("x", "a.1.x"), timer("y", "a.1.y")]),
        event(3, "a.2", memo=31, timers=[{"name": "y", "unset": True}]),
        event(5, "a.1.x", timer="x"),
    ],
    tasks=[
        done(1, "a.s", "init"),
        done(2, "a.1"),
        done(3, "a.2"),
        done(4, "", "reply"),
        done(5, "a.1.x", "timeout"),
        done(6, "a.1.y", "timeout", status="cancelled", started_at=None),
    ],
)
B = Actor(
    process_id="b",
    status="finished",
    result=RESULT,
    changed_at=9.0,
    state={**STATE, "got": {"a": 2}},
    events=[event(1, "b.s"), event(9, "b.e")],
    tasks=[
        done(1, "b.s", "init"),
        done(7, "2/1", sender="a"),
        done(8, "2/2", "notify", sender="a"),
        done(9, "b.e"),
    ],
)
C = Actor(
    process_id="c", status="finished", reason="one", changed_at=2.0, events=[event(1, "c.s")],
    tasks=[done(1, "c.s", "init"), done(2, "c.1", status="cancelled", started_at=2.0)],
)  # fmt: skip
SOUND = ActorRecords(
    lives=[
        Life(
            process_id="a", fate=Fate.OPEN, started=True, over=True,
            requests=[asked("a.s"), asked("a.1"), asked("a.2", memo=31)],
        ),
        Life(
            process_id="b", fate=Fate.COMPLETE, started=True, over=True, ended_at=9.0,
            requests=[asked("b.s"), asked("b.e")], ends=[("completed", RESULT)],
        ),
        Life(
            process_id="c", fate=Fate.TERMINATE, started=True, over=True, ended_at=2.0,
            requests=[asked("c.s"), asked("c.1", "PROCESS_FINISHED")],
            ends=[("terminated", "one")], terminated=["one"],
        ),
    ],
    actors={"a": A, "b": B, "c": C},
    # Of task 3 a first attempt ran the function, and a fault came before its result was stored.
    lines=[
        *(line(task_id, 10 * task_id, "begun") for task_id in (1, 2, 3)),
        line(3, 30, "ran", 30),
        line(3, 31, "begun"),
        line(3, 31, "ran", 31),
        line(3, 31, "used", 31),
        line(3, 32, "used", 31),
        line(5, 50, "begun"),
    ],
    faults=[(3.0, 3.5)],
)  # fmt: skip


def of(actor: Actor, **fields: Any) -> dict[str, Any]:
    changed = dataclasses.replace(actor, **fields)
    return {"actors": {**SOUND.actors, actor.process_id: changed}}


def state_of(actor: Actor, **fields: Any) -> dict[str, Any]:
    return of(actor, state={**actor.state, **fields})


def life(number: int, **fields: Any) -> dict[str, Any]:
    lives = list(SOUND.lives)
    lives[number] = dataclasses.replace(lives[number], **fields)
    return {"lives": lives}


def noted(*lines: Line) -> dict[str, Any]:
    return {"lines": [*SOUND.lines, *lines]}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, ""),
        # Ends.
        ({"actors": {"b": B, "c": C}}, "a: it was started, and is not there"),
        (life(1, ends=[("completed", None)]), "b: its end was seen as"),
        (life(2, ends=[("removed", None)]), "c: its end was seen as"),
        (life(2, terminated=["two"]), "c: it was terminated with ['two']"),
        (life(2, terminated=["one", "one"]), "c: it was terminated with"),
        (of(C, status="running", reason=None), "c: its end is ('open', None)"),
        (of(C, changed_at=1.5), "c: task 2 began after the end"),
        (of(C, events=[event(3, "c.s")]), "c: it has events of after its end"),
        (of(C, tasks=[done(1, "c.s", status="waiting")]), "c: task 1 is waiting"),
        (
            {**life(0, ended_at=20.0), **noted(line(9, 9, "begun", at=40.0))},
            "a: a step of task 9 began 20.0 s after its end",
        ),
        # Requests.
        (life(0, requests=[asked("a.9")]), "a.9 was done, and is lost"),
        (life(0, requests=[asked("a.9", is_notify=True)]), "a.9 was accepted, and is lost"),
        (life(0, requests=[asked("a.2", memo=30)]), "a.2 was answered with the result 30"),
        (life(0, requests=[asked("a.2", "TASK_CANCELLED", cancelled=True)]), "a.2 was refused by"),
        (life(0, requests=[asked("a.9", "TASK_CANCELLED")]), "and no client asked for that"),
        (life(0, requests=[asked("a.9", "PROCESS_FINISHED")]), "and its actor is running"),
        (life(0, requests=[asked("a.9", "REJECTED")]), "a.9 was refused by REJECTED"),
        (of(A, events=[*A.events, event(6, "a.2", 31)]), "a.2 is 2 times in the history"),
        # Messages and replies.
        (state_of(B, wrong=["message 2 of a instead of 1"]), "b: message 2 of a instead"),
        (state_of(B, got={"a": 3}), "b: its state counts messages"),
        (state_of(A, sent={"b": 1}), "a: it has sent 1 messages to b, which has 2"),
        (state_of(A, sent={"a": 1}), "a: it has sent 1 messages to a, which has 0"),
        (state_of(A, open={"2/1": ["b", 1]}), "a: replies are missing"),
        (state_of(A, answered={"b": 3}), "message 3 to b was answered, and it has 2"),
        (state_of(A, refused=[["b", 2, "PROCESS_FINISHED"]]), "and was applied"),
        (state_of(A, refused=[["b", 3, "INTERNAL"]]), "message 3 to b was answered by INTERNAL"),
        (state_of(A, refused=[["a", 1, "PROCESS_FINISHED"]]), "message 1 to a was answered by"),
        # Memos.
        (noted(line(3, 31, "ran", 31)), "its function ran 2 times in the attempt with token 31"),
        (noted(line(3, 33, "used", 30)), "attempts have used different results: [30, 31]"),
        (noted(line(3, 33, "ran", 33)), "its function ran with token 33, when a result was stored"),
        ({"faults": []}, "its function ran 1 times more, and faults do not explain it"),
        (noted(line(3, 29, "ran", 29)), "its function ran 2 times more"),
        # The fault came after the run whose result was lost.
        (
            {
                "lines": [
                    line(3, 30, "ran", 30, at=2.0),
                    line(3, 31, "ran", 31, at=12.0),
                    line(3, 31, "used", 31, at=12.0),
                ]
            },
            "",
        ),
        ({"lines": []}, "task 3: it has a result, and was never run"),
        # Timers.
        (of(A, events=A.events[:-1]), "timers have never fired: {'x': 'a.1.x'}"),
        (of(A, events=[*A.events, event(6, "a.1.y", timer="y")]), "which was not set at that time"),
        (of(A, events=[*A.events, A.events[-1]]), "a.1.x, which was not set at that time"),
        (of(A, tasks=A.tasks[:-1]), "timer a.1.y was set, and has no task"),
        (of(A, tasks=[*A.tasks, A.tasks[-1]]), "timer a.1.y has two tasks"),
        (of(A, tasks=[*A.tasks[:5], done(6, "a.1.y", "timeout")]), "a.1.y is finished, and has"),
        (noted(line(5, 49, "begun", at=2.5)), "timer a.1.x began 0.500 s before its time"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_actors_is_found(wrong: dict[str, Any], says: str) -> None:
    found = list(broken_actors(dataclasses.replace(SOUND, **wrong)))

    assert bool(found) == bool(says), found
    assert not says or any(says in finding for finding in found), found


def test_what_has_happened_is_counted() -> None:
    assert count_messages(SOUND) == {"call": 1, "notify": 1, "reply": 1}
    assert count_others(SOUND) == {
        "actors complete": 1,
        "actors open": 1,
        "actors terminate": 1,
        "timers cancelled": 1,
        "timers finished": 1,
        "ends awaited": 2,
        "requests cancelled": 0,
        "effects run": 2,
        "effects run again": 1,
        "results used again": 1,
    }


def test_a_replica_that_could_write_no_heartbeat_says_when_it_stood_still(tmp_path: Path) -> None:
    log, at = tmp_path / "replica-0.log", time.monotonic()
    lost = {
        "event": "lease lost: no heartbeat could be written",
        "seconds": 2.0,
        "timestamp": dt.datetime.now(dt.UTC).isoformat(),
    }
    log.write_text(f"{json.dumps({'event': 'heartbeat missed'})}\n{json.dumps(lost)}\n")

    [(begun, ended)] = read_stalls([log])

    assert ended - begun == pytest.approx(2.0)
    assert ended == pytest.approx(at, abs=1.0)
