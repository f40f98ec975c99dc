"""What the chaos run finds of jobs, and what it takes for right."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.chaos.load.jobs import StoredJob, StoredNode, broken_jobs
from tests.chaos.load.journal import Span


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
