"""What the chaos run finds of jobs, and what it takes for right."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.load.jobs import StoredJob, StoredNode, broken_jobs, recoveries
from tests.chaos.load.journal import Span, read_journals


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


def test_a_job_whose_nodes_followed_each_other_is_sound() -> None:
    assert broken_jobs([job(*PAIR)], IN_ORDER, acknowledged=["j"]) == []


def test_one_that_is_lost_is_found_unless_it_was_removed() -> None:
    assert broken_jobs([], [], acknowledged=["j"]) == [
        "j: the job was acknowledged, and is not there"
    ]
    assert broken_jobs([], [], acknowledged=["j"], removed=["j"]) == []


def test_a_node_that_began_too_early_is_found() -> None:
    (found,) = broken_jobs([job(*PAIR)], [IN_ORDER[0], span("b", 2, 1.5, 3.0)])

    assert found == "j/b: the node began before a had ended"


def test_an_attempt_that_settled_nothing_may_still_go_on() -> None:
    pair = (node("a", 1, settled=(1, 2)), node("b", 2, 1))
    lost = span("a", 1, 0.5, 9.0)

    assert broken_jobs([job(*pair)], [lost, span("a", 1, 1.0, 2.0, 2), IN_ORDER[1]]) == []


def test_who_was_skipped_and_began_is_found() -> None:
    nodes = (
        node("a", 1, state="failed", result=None, settled=None),
        node("b", 2, 1, state="skipped", result=None, settled=None, was_started=False),
    )

    found = broken_jobs([job(*nodes, state="failed")], IN_ORDER)

    assert found == [
        "j/b: a node that is skipped was never started, and begun",
        "j/b: the node began, and a is failed",
    ]


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"state": "running"}, "the job has not ended"),
        ({"join_count": 2}, "the leader has decided 2 times"),
        ({"join_count": 0}, "its leader was never told"),
    ],
)
def test_what_became_of_the_job_is_looked_at(fields: dict[str, Any], found: str) -> None:
    assert found in " ".join(broken_jobs([job(*PAIR, **fields)], IN_ORDER))
    assert broken_jobs([job(*PAIR, join_count=2, retry_count=1)], IN_ORDER) == []


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"state": "failed"}, "the job is done, and not all its nodes"),
        ({"attempt": 2}, "the node has begun 2 times"),
        ({"result": b'{"id": "j/x"}'}, "its result is of j/x"),
        ({"result": None}, "its result is of None"),
    ],
)
def test_what_became_of_a_node_is_looked_at(fields: dict[str, Any], found: str) -> None:
    assert found in " ".join(broken_jobs([job(node("a", 1, **fields))], []))


def test_what_recovery_has_found_is_found(tmp_path: Path) -> None:
    log = tmp_path / "replica-0.log"
    log.write_bytes(b'{"event": "engine serves"}\n{"event": "job recovered", "kind": "join"}\n')

    (found,) = recoveries([log])

    assert found.startswith("replica-0.log: ")
    assert "join" in found


def test_journals_are_read_with_their_ends(tmp_path: Path) -> None:
    path = tmp_path / "journal-0.jsonl"
    step = {"process_id": "j/a", "task_id": 1, "attempt": 1}
    begin = {"deed": "node", "spans": True, "wall": 0.0}
    lines = [{**step, **begin, "at": 1.0}, {**step, "deed": "end", "at": 2.0},
             {**step, **begin, "attempt": 2, "at": 3.0}]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    first, second = read_journals([path, tmp_path / "missing.jsonl"]).nodes

    assert (first.begun_at, first.ended_at) == (1.0, 2.0)
    assert (second.attempt, second.ended_at) == (2, float("inf"))
