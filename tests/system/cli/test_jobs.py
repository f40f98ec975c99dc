"""Jobs on the command line: what is asked, what is printed, and how a watch ends."""

import io
import sys
from pathlib import Path

import grpc
import pytest

from progressor.v1 import job_service_pb2 as pb
from progressor.v1 import nodes_pb2 as nodes
from progressor.v1 import types_pb2 as types
from tests.support.api.job_messages import a_job, a_node, a_view, an_error, at, changes
from tests.support.api.scripted_engine import Cli, Refusal, ScriptedEngine
from tests.support.api.terminal import Terminal


def a_mixed_job() -> pb.GetJobResponse:
    """Return a job whose node has failed while another one runs."""
    return a_view(
        a_job("running", {"done": 1, "running": 1, "failed": 1, "skipped": 1}),
        a_node("fetch", "done"),
        a_node("build", "running", ["fetch"]),
        a_node("lint", "failed", ["fetch"], error=an_error("BAD", "not\nclean"), attempt=2),
        a_node("deploy", "skipped", ["build", "lint"], skipped_because_of="lint"),
    )


def the_file(tmp_path: Path, text: str = '{"nodes": {"b": {"after": ["a"]}, "a": {}}}') -> str:
    """Return the path of a file of a job."""
    path = tmp_path / "job.json"
    path.write_text(text)
    return str(path)


def test_submit_sends_what_the_file_says(engine: ScriptedEngine, cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(
        """
        job_id = "j"
        deadline = "2h"
        context = { user = "u" }
        metadata = { team = "core" }
        [nodes.b]
        after = ["a"]
        args = { x = 1 }
        wants_results = true
        namespace = "other"
        process_id = "b-1"
        target = "host:1"
        zombie_policy = "fail"
        constraints = { gates = ["g=1"], priority = 1 }
        retry = { attempts_max = 3, interval_max = "1m" }
        [nodes.a]
        """
    )
    engine.answers["SubmitJob"] = pb.SubmitJobResponse(task_id=7)

    ended = cli("job", "submit", str(file), "-n", "orders", "--idempotency-key", "k")

    assert (ended.code, ended.err) == (0, "")
    assert [line.split() for line in ended.out.splitlines()] == [["job", "j"], ["task", "7"]]
    [request] = engine.requests
    first, second = request.nodes
    assert (request.namespace, request.job_id, request.idempotency_key) == ("orders", "j", "k")
    assert request.timeout.seconds == 7200
    assert request.caller_context == {"user": "u"}
    assert request.metadata["team"] == "core"
    assert first == nodes.NodeSpec(name="a")
    assert (second.name, second.predecessors) == ("b", ["a"])
    assert (second.args, second.wants_results) == (b'{"x":1}', True)
    assert (second.namespace, second.process_id, second.target) == ("other", "b-1", "host:1")
    assert second.constraints == types.Constraints(
        gates=[types.GateUse(gate="g", capacity=1)], priority=1, hold=types.GATE_HOLD_TASK
    )
    assert second.retry_policy.attempts_max == 3
    assert second.retry_policy.interval_max.seconds == 60


def test_submit_reads_json_from_standard_input(
    engine: ScriptedEngine, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b'{"nodes": {"a": {"args_text": "hi"}}}'))
    monkeypatch.setattr(sys, "stdin", stdin)
    engine.answers["SubmitJob"] = pb.SubmitJobResponse(task_id=7, deduplicated=True)

    ended = cli("job", "submit", "-", "--id", "mine", "--json")

    assert ended.document == {"job_id": "mine", "task_id": 7, "deduplicated": True}
    assert engine.requests[0].job_id == "mine"
    assert engine.requests[0].nodes[0].args == b"hi"


def test_options_go_before_what_the_file_says(
    engine: ScriptedEngine, cli: Cli, tmp_path: Path
) -> None:
    file = the_file(tmp_path, '{"job_id": "j", "deadline": "1h", "nodes": {"a": {}}}')

    cli("job", "submit", file, "--id", "mine", "--deadline", "2026-03-01T12:00:00Z")

    assert engine.requests[0].job_id == "mine"
    assert engine.requests[0].deadline == at(0)


def test_what_the_engine_refuses_is_told_with_its_place_in_the_file(
    engine: ScriptedEngine, cli: Cli, tmp_path: Path
) -> None:
    engine.answers["SubmitJob"] = Refusal(
        code=grpc.StatusCode.INVALID_ARGUMENT,
        reason="INVALID_REQUEST",
        violations={
            "nodes[1].predecessors[0]": "is odd",
            "nodes[0].retry_policy.jitter": "is odd too",
            "job_id": "is long",
        },
    )

    file = the_file(tmp_path)
    ended = cli("job", "submit", file, "--id", "j")

    assert ended.code == 2
    assert f"{file}: nodes.b.after[0]: is odd" in ended.err
    assert f"{file}: nodes.a.retry.jitter: is odd too" in ended.err
    assert "job_id: is long" in ended.err


@pytest.mark.parametrize(("state", "code"), [("done", 0), ("failed", 8), ("cancelled", 9)])
def test_submit_can_wait_for_the_end_and_tells_it_by_its_code(
    state: str, code: int, engine: ScriptedEngine, cli: Cli, tmp_path: Path
) -> None:
    engine.answers["SubmitJob"] = pb.SubmitJobResponse(task_id=7)
    engine.answers["GetJob"] = a_view(a_job(state), a_node("a", "done", result=b"1"))
    engine.answers["WatchJob"] = [changes(a_job(state))]  # for who waits without looking

    people = cli("job", "submit", the_file(tmp_path), "--id", "j", "--wait")
    programs = cli("job", "submit", the_file(tmp_path), "--id", "j", "--wait", "--json")

    assert (people.code, programs.code) == (code, code)
    assert f"job j is {state} after 1m30s" in people.out
    assert programs.document["job"]["state"] == state
    assert programs.document["nodes"][0]["result"] == 1


def test_a_job_is_shown_with_its_graph_and_its_nodes(engine: ScriptedEngine, cli: Cli) -> None:
    engine.answers["GetJob"] = a_mixed_job()

    ended = cli("job", "get", "j")

    assert engine.requests == [
        pb.GetJobRequest(namespace="default", job_id="j", without_payloads=True)
    ]
    lines = ended.out.splitlines()
    words = [line.split() for line in lines]
    assert ["nodes", "●", "1", "running", "✓", "1", "done", "✗", "1", "failed"] in [
        it[:10] for it in words
    ]
    assert "✓ fetch ─┬─ ● build ─┬─ ↷ deploy" in lines
    assert "         ╰─ ✗ lint ──╯" in lines
    since = ["2026-03-01", "12:00:01.500Z"]
    assert ["lint", "✗", "failed", *since, "1.5s", "j/lint", "2", "BAD:", "not", "clean"] in words
    assert ["deploy", "↷", "skipped", *since, "j/deploy", "because", "of", "lint"] in words
    assert ["build", "●", "running", "2026-03-01", "12:00:00.000Z", "j/build"] in words


def test_a_job_is_a_document_too_with_what_its_nodes_gave(engine: ScriptedEngine, cli: Cli) -> None:
    engine.answers["GetJob"] = a_view(a_job("done"), a_node("a", "done", result=b'{"n": 1.50}'))

    ended = cli("job", "get", "j", "--json")

    assert not engine.requests[0].without_payloads
    assert '"result": {"n":1.50}' in ended.out.replace(
        '{\n        "n": 1.50\n      }', '{"n":1.50}'
    )
    assert ended.document["job"]["counts"]["done"] == 0
    assert ended.document["nodes"][0]["state"] == "done"


def test_a_graph_is_a_flowchart_too(engine: ScriptedEngine, cli: Cli) -> None:
    engine.answers["GetJob"] = a_mixed_job()

    lines = cli("job", "get", "j", "--mermaid").out.splitlines()

    assert lines[:3] == ["flowchart LR", '  n0["fetch"]:::done', '  n1["build"]:::running']
    assert "  n0 --> n1" in lines
    assert "  n2 --> n3" in lines


def test_a_large_job_shows_first_what_says_most(engine: ScriptedEngine, cli: Cli) -> None:
    many = [a_node(f"n{number}", "done") for number in range(200)]
    engine.answers["GetJob"] = a_view(a_job(), *many, a_node("last", "failed"))

    lines = cli("job", "get", "j").out.splitlines()

    assert "✓ n# (200)  200✓" in lines
    assert lines[lines.index(next(it for it in lines if it.startswith("node "))) + 1].startswith(
        "last  "
    )
    assert lines[-1] == "… 101 more; --json prints all"


def test_jobs_are_listed(engine: ScriptedEngine, cli: Cli) -> None:
    jobs = [a_job("failed", {"failed": 2}, detail="broke\nit", schedule_id="nightly"), a_job()]
    engine.answers["ListJobs"] = pb.ListJobsResponse(jobs=jobs)

    people = cli("job", "list", "--state", "failed", "--state", "running", "--schedule", "nightly")
    one = cli("job", "list", "--limit", "1", "--json").document

    assert engine.requests[0] == pb.ListJobsRequest(
        namespace="default",
        states=[pb.JOB_STATE_FAILED, pb.JOB_STATE_RUNNING],
        schedule_id="nightly",
        page_size=101,
    )
    words = [line.split() for line in people.out.splitlines()]
    created = ["2026-03-01", "12:00:00.000Z"]
    failed = ["j", "failed", "✗", "2", "failed", *created, "1m30s", "nightly", "broke", "it"]
    assert words[1:] == [failed, ["j", "running", *created]]
    assert ([it["state"] for it in one["jobs"]], one["more"]) == (["failed"], True)


def test_a_watch_in_a_pipe_prints_each_change_as_a_line(engine: ScriptedEngine, cli: Cli) -> None:
    engine.answers["GetJob"] = a_view(a_job(), a_node("a", "running"), a_node("b", "waiting", "a"))
    engine.answers["WatchJob"] = [
        changes(a_job(revision=4), a_node("a", "done"), a_node("b", "running", "a")),
        changes(a_job(revision=5), a_node("b", "running", "a")),
        changes(
            a_job("failed", {"done": 1, "failed": 1}, detail="b", revision=6),
            a_node("b", "failed", "a", error=an_error("BAD", "no")),
        ),
    ]

    ended = cli("job", "watch", "j")

    assert ended.code == 8
    assert ended.out.splitlines() == [
        "2026-03-01 12:01:30.000Z  job j is running: ",
        "2026-03-01 12:00:01.500Z  ✓ done a, took 1.5s",
        "2026-03-01 12:00:00.000Z  ● running b",
        "2026-03-01 12:00:01.500Z  ✗ failed b, took 1.5s, BAD: no",
        "2026-03-01 12:01:30.000Z  job j is failed after 1m30s: ✓ 1 done  ✗ 1 failed, b",
    ]
    assert engine.requests[1] == pb.WatchJobRequest(
        namespace="default", job_id="j", after_revision=3
    )


def test_a_watch_prints_documents_for_programs(engine: ScriptedEngine, cli: Cli) -> None:
    engine.answers["GetJob"] = a_view(a_job(), a_node("a", "running"))
    engine.answers["WatchJob"] = [changes(a_job("done", revision=4), a_node("a", "done"))]

    ended = cli("job", "watch", "j", "--json")

    lines = ended.out.splitlines()
    assert ended.code == 0
    assert ['"state":"running"' in lines[0], '"state":"done"' in lines[1]] == [True, True]
    assert len(lines) == 2


def test_a_job_that_has_ended_is_not_watched(engine: ScriptedEngine, cli: Cli) -> None:
    engine.answers["GetJob"] = a_view(a_job("cancelled"))

    assert cli("job", "watch", "j").code == 9
    assert len(engine.requests) == 1


def test_a_watch_goes_on_where_it_was_cut_off(engine: ScriptedEngine, cli: Cli) -> None:
    away = Refusal(code=grpc.StatusCode.UNAVAILABLE, reason="SHUTTING_DOWN")
    engine.answers["GetJob"] = a_view(a_job(), a_node("a", "running"))
    engine.answers["WatchJob"] = [changes(a_job(revision=8)), away, changes(a_job("done"))]

    ended = cli("job", "watch", "j")

    assert ended.code == 0
    assert [it.after_revision for it in engine.requests[1:]] == [3, 8]


def test_a_watch_without_an_end_is_no_success(engine: ScriptedEngine, cli: Cli) -> None:
    engine.answers["GetJob"] = a_view(a_job(), a_node("a", "running"))
    engine.answers["WatchJob"] = [changes(a_job(revision=8))]

    assert cli("job", "watch", "j").code == 5


async def test_a_terminal_shows_the_graph_as_it_changes(engine: ScriptedEngine) -> None:
    engine.answers["GetJob"] = a_view(a_job(), a_node("a", "running"), a_node("b", "waiting", "a"))
    last = changes(
        a_job("done", {"done": 2}, revision=9), a_node("a", "done"), a_node("b", "done", "a")
    )
    engine.answers["WatchJob"] = [changes(a_job(revision=4), a_node("a", "done")), last]

    async with Terminal.running("job", "watch", "j", "--address", engine.address) as terminal:
        code = await terminal.ended()
        await terminal.shows("✓\x1b[0m b")

    assert code == 0
    assert "●\x1b[0m a" in terminal.drawn
    assert "\x1b[?25h" in terminal.drawn


def test_retry_tells_which_nodes_begin_again(engine: ScriptedEngine, cli: Cli) -> None:
    names = [f"n{number}" for number in range(25)]
    engine.answers["RetryJob"] = pb.RetryJobResponse(job=a_job(), nodes=names)

    people = cli("job", "retry", "j", "--deadline", "2h")
    document = cli("job", "retry", "j", "--json").document

    assert people.out.startswith("retrying job j from 25 nodes: n0, n1, ")
    assert people.out.endswith(", n19 and 5 more\n")
    assert engine.requests[0].timeout.seconds == 7200
    assert engine.requests[1].WhichOneof("due") is None
    assert document["nodes"] == names


def test_cancel_gives_its_reason(engine: ScriptedEngine, cli: Cli) -> None:
    engine.answers["CancelJob"] = pb.CancelJobResponse(job=a_job("cancelled", {"cancelled": 3}))

    ended = cli("job", "cancel", "j", "--reason", "not today")

    assert engine.requests[0] == pb.CancelJobRequest(
        namespace="default", job_id="j", reason="not today"
    )
    assert ["state", "cancelled"] in [line.split() for line in ended.out.splitlines()]
