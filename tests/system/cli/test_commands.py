"""The command line against a scripted engine on a real socket: what is asked and printed."""

import base64
import datetime as dt
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from progressor.cli.main import main
from progressor.v1 import messages_pb2, namespace_service_pb2, process_service_pb2, types_pb2
from progressor.v1 import replica_service_pb2 as pb
from tests.support.api.scripted_engine import Cli, ScriptedEngine

BORN = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


def _at(seconds: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(BORN + dt.timedelta(seconds=seconds))
    return stamp


def _process(**fields: Any) -> types_pb2.Process:  # any field
    defaults: dict[str, Any] = {
        "process_id": "order-1",
        "status": types_pb2.PROCESS_STATUS_RUNNING,
        "created_at": _at(0),
    }
    return types_pb2.Process(**(defaults | fields))


def test_start_sends_what_is_given_and_prints_the_answer(engine: ScriptedEngine, cli: Cli) -> None:
    engine.answers["Start"] = process_service_pb2.StartResponse(task_id=7, response=b'{"due": 42}')

    ended = cli(
        *("start", "order-1", "-n", "orders", "--args", '{"item": "tea"}', "--json"),
        *("--idempotency-key", "k", "--context", "user=u", "--context", "tier=a=b"),
        *("--history-last", "3", "--metadata", '{"city": "Oslo"}', "--accept-only"),
    )

    assert ended.code == 0
    assert ended.document == {"task_id": 7, "response": {"due": 42}, "deduplicated": False}
    (request,) = engine.requests
    assert (request.namespace, request.process_id) == ("orders", "order-1")
    assert request.args == b'{"item": "tea"}'
    assert request.caller_context == {"user": "u", "tier": "a=b"}
    assert request.idempotency_key == "k"
    assert request.history_range.limit == 3
    assert request.metadata["city"] == "Oslo"
    assert request.accept_only


@pytest.mark.parametrize("command", ["call", "notify", "repair"])
def test_every_request_takes_args_and_prints_its_task(
    engine: ScriptedEngine, cli: Cli, command: str
) -> None:
    ended = cli(command, "order-1", "--text", "go on")

    assert ended.code == 0
    assert ended.out.startswith("task")
    assert engine.requests[0].args == b"go on"
    assert engine.requests[0].namespace == "default"


def test_args_come_from_a_file_or_from_standard_input(
    engine: ScriptedEngine, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "args"
    file.write_bytes(b"\x00\xff")
    with file.open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)

        codes = [
            cli("call", "p", "--args-file", str(file)).code,
            cli("call", "p", "--args-file", "-").code,
        ]

    assert codes == [0, 0]
    assert [request.args for request in engine.requests] == [b"\x00\xff"] * 2


def test_a_payload_that_is_no_json_stands_as_base64_under_a_key_that_says_so(
    engine: ScriptedEngine, cli: Cli
) -> None:
    engine.answers["Call"] = process_service_pb2.CallResponse(task_id=1, response=b"\x00\xff")

    document = cli("call", "p", "--json").document

    assert base64.b64decode(document["response_base64"]) == b"\x00\xff"
    assert "response" not in document


def test_no_digit_of_a_json_payload_changes_on_its_way_to_the_reader(
    engine: ScriptedEngine, cli: Cli
) -> None:
    number = b"12345678901234567890123.10"
    engine.answers["Call"] = process_service_pb2.CallResponse(task_id=1, response=number)

    assert number.decode() in cli("call", "p", "--json").out


def test_simple_repair_tells_which_timer_runs_again(engine: ScriptedEngine, cli: Cli) -> None:
    engine.answers["SimpleRepair"] = process_service_pb2.SimpleRepairResponse(task_id=5)

    assert cli("simple-repair", "p").out == "p is running; task 5 runs again\n"


def test_await_names_its_task_by_id_or_by_key(engine: ScriptedEngine, cli: Cli) -> None:
    engine.answers["AwaitTask"] = process_service_pb2.AwaitTaskResponse(
        task_id=9, type=types_pb2.TASK_TYPE_CALL, response=b"1"
    )

    document = cli("await", "p", "--task", "9", "--json").document
    cli("await", "p", "--idempotency-key", "k")

    assert document == {"task_id": 9, "type": "call", "response": 1}
    assert [it.WhichOneof("task") for it in engine.requests] == ["task_id", "idempotency_key"]


def test_get_prints_the_process_its_history_and_what_it_waits_for(
    engine: ScriptedEngine, cli: Cli
) -> None:
    engine.answers["Get"] = process_service_pb2.GetResponse(
        process=_process(aux_state=b'{"paid":false}', state_version=2),
        history=[types_pb2.Event(event_id=1, occurred_at=_at(1), payload=b'"placed"', task_id=1)],
        timer=types_pb2.Timer(
            task_id=2,
            type=types_pb2.TASK_TYPE_TIMEOUT,
            status=types_pb2.TASK_STATUS_WAITING,
            due_at=_at(60),
        ),
        waits=[
            types_pb2.Wait(
                task_id=2,
                type=types_pb2.TASK_TYPE_TIMEOUT,
                status=types_pb2.TASK_STATUS_WAITING,
                cause=types_pb2.WAIT_CAUSE_TIMER,
                until=_at(60),
                attempt=1,
                explanation="Task 2 (timeout) is a timer.",
            )
        ],
    )

    people = cli("get", "order-1", "--after", "1", "--limit", "5", "--backward").out
    document = cli("get", "order-1", "--json").document

    assert "Task 2 (timeout) is a timer." in people
    assert '"placed"' in people
    assert re.search(r"state version +2 *\n", people)
    assert (document["process"]["state"], document["process"]["state_version"]) == (
        {"paid": False}, 2,
    )  # fmt: skip
    assert document["process"]["created_at"] == "2026-01-31T12:00:00+00:00"
    assert document["waits"][0]["cause"] == "timer"
    asked = engine.requests[0].history_range
    assert (asked.after, asked.limit) == (1, 5)
    assert asked.direction == types_pb2.DIRECTION_BACKWARD


def test_get_tells_which_part_a_process_has_in_jobs(engine: ScriptedEngine, cli: Cli) -> None:
    role = process_service_pb2.JobRole(
        led=process_service_pb2.LedJob(unfinished_count=2, node_count=9),
        followed=process_service_pb2.FollowedJob(namespace="other", job_id="j", node="a\nb"),
    )
    engine.answers["Get"] = process_service_pb2.GetResponse(process=_process(), job_role=role)

    lines = [line.split() for line in cli("get", "order-1").out.splitlines()]
    document = cli("get", "order-1", "--json").document

    left = "a job; 2 of 9 nodes have not ended, see job get"
    assert ["leads", *left.split()] in lines
    assert ["follows", "job", "j", "in", "other,", "as", "node", "a", "b"] in lines
    assert document["job_role"]["led"] == {"unfinished_count": 2, "node_count": 9}
    assert document["job_role"]["followed"]["node"] == "a\nb"


def _waits() -> list[types_pb2.Wait]:
    """Return a call that runs, and one behind it."""
    return [
        types_pb2.Wait(
            task_id=3, type=types_pb2.TASK_TYPE_CALL, cause=types_pb2.WAIT_CAUSE_RUNNING,
            attempt=1, replica_id=7, explanation="Task 3 (call) runs [in replica 7].",
        ),
        types_pb2.Wait(
            task_id=4, type=types_pb2.TASK_TYPE_CALL, cause=types_pb2.WAIT_CAUSE_BEHIND_TASK,
            attempt=1, behind_task_id=3, explanation="Task 4 (call) waits behind task 3.",
        ),
    ]  # fmt: skip


def test_why_prints_the_chain_in_sentences(engine: ScriptedEngine, cli: Cli) -> None:
    engine.answers["Get"] = process_service_pb2.GetResponse(process=_process(), waits=_waits())

    ended = cli("why", "-n", "orders", "order-1")

    asked = engine.requests[0]
    assert (asked.namespace, asked.process_id) == ("orders", "order-1")
    assert asked.history_range.limit == 0
    assert ended.out.splitlines() == [
        "Task 3 (call) runs [in replica 7].",
        "Task 4 (call) waits behind task 3.",
    ]


def test_why_and_get_print_the_replies_that_are_awaited(engine: ScriptedEngine, cli: Cli) -> None:
    engine.answers["Get"] = process_service_pb2.GetResponse(
        process=_process(),
        explanation="No task.",
        awaited_replies=[
            messages_pb2.AwaitedReply(
                reply="picked", kind=messages_pb2.MESSAGE_KIND_CALL, namespace="rw",
                process_id="w", task_id=7, number=1, sent_at=_at(1), explanation="It waits.",
            )
        ],
        requested_replies=[
            messages_pb2.AwaitedReply(
                sent_at=_at(2), receiver_task_id=9, explanation="Waits for it."
            )
        ],
    )  # fmt: skip

    people = cli("get", "order-1").out
    document = cli("why", "order-1", "--json").document

    assert people.endswith("\n\nIt waits.\nWaits for it.\n")
    assert cli("why", "order-1").out.splitlines() == ["No task.", "It waits.", "Waits for it."]
    assert document["awaited_replies"] == [
        {
            "reply": "picked", "kind": "call", "namespace": "rw", "process_id": "w", "task_id": 7,
            "number": 1, "sent_at": "2026-01-31T12:00:01+00:00", "receiver_task_id": None,
            "explanation": "It waits.",
        }
    ]  # fmt: skip
    assert document["requested_replies"][0]["receiver_task_id"] == 9


def test_why_and_get_of_a_broken_process_name_its_group_of_failures(
    engine: ScriptedEngine, cli: Cli
) -> None:
    engine.answers["Get"] = process_service_pb2.GetResponse(
        process=_process(failure_id="0123456789ab"),
        explanation="It is broken.",
        failure=process_service_pb2.FailureGroup(
            namespace="orders", failure_id="0123456789ab", reason="BUG", broken_count=3_334,
            first_seen_at=_at(0), last_seen_at=_at(60),
        ),
    )  # fmt: skip

    group = (
        "0123456789ab: 3,334 in error now; seen first 2026-01-31 12:00:00.000Z, last"
        " 2026-01-31 12:01:00.000Z"
    )
    these = f"-n orders --failure 0123456789ab --address {engine.address}"
    assert cli("why", "-n", "orders", "order-1").out.splitlines() == [
        "It is broken.",
        f"Group of failures {group}.",
        f"To list them: progressor list {these}",
        f"To retry them all: progressor bulk retry {these}",
    ]
    assert f"failure       {group}" in cli("get", "-n", "orders", "order-1").out
    document = cli("why", "order-1", "--json").document
    assert (document["failure"]["reason"], len(document["sentences"])) == ("BUG", 4)


def test_why_prints_the_fields_beside_the_sentences_in_json(
    engine: ScriptedEngine, cli: Cli
) -> None:
    engine.answers["Get"] = process_service_pb2.GetResponse(
        process=_process(), waits=_waits(), explanation="It is broken."
    )

    document = cli("why", "-n", "orders", "order-1", "--json").document

    assert document["sentences"][:2] == ["It is broken.", "Task 3 (call) runs [in replica 7]."]
    assert (document["namespace"], document["process_id"]) == ("orders", "order-1")
    assert [wait["cause"] for wait in document["waits"]] == ["running", "behind_task"]
    assert document["waits"][0]["replica_id"] == 7
    assert document["waits"][0]["behind_runs"] is None


def test_list_shows_what_comes_first(engine: ScriptedEngine, cli: Cli) -> None:
    process = _process(first_wait=_waits()[0])
    process.first_wait.explanation += " It also has an order."
    engine.answers["List"] = process_service_pb2.ListResponse(processes=[process])

    people = cli("list").out
    document = cli("list", "--json").document

    assert people.endswith("Task 3 (call) runs [in replica 7].\n")
    assert document["processes"][0]["first_wait"]["cause"] == "running"


def test_trace_goes_through_the_pages_and_tells_tasks_as_a_timeline(
    engine: ScriptedEngine, cli: Cli
) -> None:
    engine.answers["Trace"] = process_service_pb2.TraceResponse(
        tasks=[
            process_service_pb2.TaskTrace(
                task_id=3,
                type=types_pb2.TASK_TYPE_CALL,
                status=types_pb2.TASK_STATUS_ERROR,
                created_at=_at(0),
                started_at=_at(0),
                finished_at=_at(0.25),
                attempt_count=3,
                args=b'{"type":"ship"}',
                error=types_pb2.TaskError(code=14, reason="WAREHOUSE_DOWN", message="it is down"),
                events=[types_pb2.Event(event_id=1, payload=b'"tried"', occurred_at=_at(0.2))],
            )
        ],
        next_page_token="more",
    )

    ended = cli("trace", "order-1", "--limit", "2")

    assert [request.page_token for request in engine.requests] == ["", "more"]
    assert "call #3" in ended.out
    assert "error  in 250 ms, 3 attempts, the last in 250 ms" in ended.out
    assert '· 1 "tried"' in ended.out
    assert "✗ UNAVAILABLE WAREHOUSE_DOWN: it is down" in ended.out
    assert "more after the first 2" in ended.out
    assert len(cli("trace", "order-1", "--limit", "1", "--json").document["tasks"]) == 1


def test_list_filters_and_says_where_it_was_cut(engine: ScriptedEngine, cli: Cli) -> None:
    engine.answers["List"] = process_service_pb2.ListResponse(
        processes=[_process(process_id=f"order-{number}") for number in range(3)]
    )

    document = cli(
        *("list", "--status", "error", "--status", "init", "--metadata", '{"a": 1}', "--json"),
        *("--created-from", "2026-01-31T12:00:00", "--limit", "2"),
    ).document

    assert [it["process_id"] for it in document["processes"]] == ["order-0", "order-1"]
    assert document["more"]
    (request,) = engine.requests
    assert list(request.filter.statuses) == [
        types_pb2.PROCESS_STATUS_ERROR,
        types_pb2.PROCESS_STATUS_INIT,
    ]
    assert request.filter.created_from == _at(0)
    assert "order-2" in cli("list").out


def test_count_is_a_table_by_namespace_and_status_or_a_number(
    engine: ScriptedEngine, cli: Cli
) -> None:
    orders = process_service_pb2.ProcessCounts(
        namespace="orders", running_count=1_200, error_count=3
    )
    engine.answers["Count"] = process_service_pb2.CountResponse(count=1_203, namespaces=[orders])
    by_status = cli("count").out
    broken = cli("count", "-n", "orders", "--status", "error").out
    document = cli("count", "--json").document
    engine.answers["Count"] = process_service_pb2.CountResponse(count=250_000, is_estimate=True)
    estimate = cli("count", "--failure-reason", "BUG", "--exact-max", "7").out

    assert [line.split() for line in by_status.splitlines()] == [
        ["namespace", "init", "running", "error", "finished"],
        ["orders", "0", "1,200", "3", "0"],
        [],
        ["1,203"],
    ]
    assert broken.splitlines()[0].split() == ["namespace", "error"]
    assert (document["count"], document["namespaces"][0]["running_count"]) == (1_203, 1_200)
    assert estimate == "about 250,000\n"
    asked = [(it.filter.namespace, list(it.filter.statuses)) for it in engine.requests]
    assert asked[:2] == [("", []), ("orders", [types_pb2.PROCESS_STATUS_ERROR])]
    assert (engine.requests[-1].filter.failure_reason, engine.requests[-1].exact_max) == ("BUG", 7)


def test_list_without_a_namespace_is_of_all_and_names_each(
    engine: ScriptedEngine, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.answers["List"] = process_service_pb2.ListResponse(
        processes=[_process(namespace="carts"), _process(namespace="orders")]
    )

    of_all = cli("list")
    of_one = cli("list", "-n", "orders")
    monkeypatch.setenv("PROGRESSOR_NAMESPACE", "carts")
    cli("list")

    assert [it.filter.namespace for it in engine.requests] == ["", "orders", "carts"]
    assert [line.split()[0] for line in of_all.out.splitlines()] == ["namespace", "carts", "orders"]
    assert of_one.out.split()[0] == "process"


def test_put_imports_state_history_and_timer(engine: ScriptedEngine, cli: Cli) -> None:
    ended = cli(
        *("put", "order-1", "--state", '{"a":1}', "--event", "1", "--event", "2"),
        *("--timer-after", "60", "--state-version", "2"),
        *("--named-timer", "a=1=2", "--named-timer", "b=2026-01-31T12:00:00Z"),
    )

    assert ended.code == 0
    (request,) = engine.requests
    assert request.status == types_pb2.PROCESS_STATUS_RUNNING
    assert (request.aux_state, request.state_version) == (b'{"a":1}', 2)
    assert [event.payload for event in request.history] == [b"1", b"2"]
    assert request.timer.after.seconds == 60
    named = request.named_timers
    assert (named["a=1"].after.seconds, named["b"].at.seconds) == (2, 1769860800)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("5", "must be NAME=SECONDS or NAME=INSTANT, got '5'"),
        ("a=soon", "must be an instant such as 2026-01-31T12:00:00Z, got 'soon'"),
        ("a=-1", "must be from 0 to 3,153,600,000, got -1.0"),
    ],
)
def test_put_refuses_a_timer_that_it_cannot_read(cli: Cli, given: str, told: str) -> None:
    ended = cli("put", "order-1", f"--named-timer={given}")

    assert ended.code != 0
    assert f"--named-timer: {told}" in ended.err


def test_remove_names_the_process(engine: ScriptedEngine, cli: Cli) -> None:
    assert cli("remove", "order-1", "--json").document == {"removed": "order-1"}
    assert engine.requests[0].process_id == "order-1"


def test_terminate_and_result_print_the_reason_and_the_result(
    engine: ScriptedEngine, cli: Cli
) -> None:
    engine.answers["AwaitProcess"] = process_service_pb2.AwaitProcessResponse(result=b'{"total":3}')

    ended = [cli("terminate", "p", "--reason", "no\nmore", *json) for json in ((), ("--json",))]
    found = [cli("result", "p", "--until-finished", *json) for json in ((), ("--json",))]

    assert [ended[0].out, found[0].out] == ["terminated p: no more\n", '{"total":3}\n']
    assert [ended[1].document, found[1].document] == [
        {"terminated": "p", "reason": "no\nmore"}, {"result": {"total": 3}},
    ]  # fmt: skip
    terminated, awaited = engine.requests[::2]
    assert (terminated.reason, awaited.until_finished) == ("no\nmore", True)


@pytest.fixture
def two(engine: ScriptedEngine) -> None:
    """Have the engine tell of a replica that is busy, and of a dead one of another release."""
    busy = pb.Replica(
        replica_id=7, name="host-1", version="1.2.3", functions="progressor_1",
        state=pb.REPLICA_STATE_DRAINING, draining=True, step_count=1200, caller_count=0,
        lease_count=1199,
    )  # fmt: skip
    busy.heartbeat_age.FromMilliseconds(420)
    busy.lease_timeout.FromSeconds(5)
    busy.clock_offset.FromMilliseconds(-1234)
    dead = pb.Replica(replica_id=4, name="host-2", version="1.0", state=pb.REPLICA_STATE_SILENT)
    dead.heartbeat_age.FromSeconds(3000)
    engine.answers["ListReplicas"] = pb.ListReplicasResponse(replicas=[dead, busy])


@pytest.mark.usefixtures("two")
def test_a_table_shows_each_with_its_state_and_load(cli: Cli) -> None:
    ended = cli("replicas")

    heads, dead, busy = (line.split() for line in ended.out.splitlines())
    assert ended.code == 0
    assert heads == [
        "name", "id", "version", "state", "heartbeat", "steps", "callers", "leases", "clock",
    ]  # fmt: skip
    assert dead == ["host-2", "4", "1.0", "silent", "3,000.0", "s", "ago", "0"]
    assert busy == [
        "host-1", "7", "1.2.3", "draining", "0.4", "s", "ago", "1,200", "0", "1,199", "-1.234", "s",
    ]  # fmt: skip


@pytest.mark.usefixtures("two")
def test_a_document_has_every_field(cli: Cli) -> None:
    dead, busy = cli("replicas", "--json").document["replicas"]

    assert busy == {
        "replica_id": 7,
        "name": "host-1",
        "version": "1.2.3",
        "state": "draining",
        "functions": "progressor_1",
        "started_at": "1970-01-01T00:00:00+00:00",
        "heartbeat_at": "1970-01-01T00:00:00+00:00",
        "heartbeat_age_seconds": 0.42,
        "lease_timeout_seconds": 5.0,
        "draining": True,
        "step_count": 1200,
        "caller_count": 0,
        "clock_offset_seconds": -1.234,
        "lease_count": 1199,
        "cell": "",
    }
    # What is not known is null, a duration under its plain name.
    assert (dead["step_count"], dead["caller_count"], dead["clock_offset"]) == (None, None, None)


def test_an_engine_that_is_not_there_is_an_exit_code(capfd: pytest.CaptureFixture[str]) -> None:
    code = main(["replicas", "--json", "--address", "unix:/nonexistent/engine.sock"])

    assert code == 5
    assert capfd.readouterr().out == ""


def test_a_namespace_is_created_from_the_keys_of_the_configuration(
    engine: ScriptedEngine, cli: Cli
) -> None:
    ended = cli(
        *("namespace", "create", "orders", "--target", "127.0.0.1:7421"),
        *("--set", "step_timeout_seconds=5", "--set", "retry_policies.call.attempts_max=3"),
        *("--set", "history=none"),
    )

    assert ended.code == 0
    created = engine.requests[0].namespace
    assert list(created.processor_targets) == ["127.0.0.1:7421"]
    assert created.step_timeout.seconds == 5
    assert created.retry_policies["call"].attempts_max == 3
    assert created.history.none


def test_an_update_of_a_namespace_changes_what_is_given_and_no_more(
    engine: ScriptedEngine, cli: Cli
) -> None:
    stored = namespace_service_pb2.Namespace(
        name="orders", processor_targets=["h:1"], worker_count_max=5, payload_bytes_max=10,
        waiting_callers_max=1, revision=4, zombie_policy=namespace_service_pb2.ZOMBIE_POLICY_FAIL,
    )  # fmt: skip
    stored.step_timeout.FromSeconds(30)
    for policy in (stored.retry_policy, stored.retry_policies["call"]):
        policy.initial_interval.FromSeconds(1)
        policy.interval_max.FromSeconds(9)
        policy.coefficient, policy.attempts_max = 2, 8
    engine.answers["GetNamespace"] = namespace_service_pb2.GetNamespaceResponse(namespace=stored)

    cli("namespace", "update", "orders", "--set", "retry_policy.attempts_max=3")

    request = engine.requests[-1]
    assert list(request.update_mask.paths) == ["retry_policy"]
    assert request.namespace.retry_policy.attempts_max == 3
    assert request.namespace.retry_policy.interval_max.seconds == 9
    assert request.expected_revision == 4


def test_namespaces_are_read_and_deleted(engine: ScriptedEngine, cli: Cli) -> None:
    engine.answers["ListNamespaces"] = namespace_service_pb2.ListNamespacesResponse(
        namespaces=[namespace_service_pb2.Namespace(name="orders")]
    )

    assert cli("namespace", "list", "--json").document["namespaces"][0]["name"] == "orders"
    assert cli("namespace", "get", "orders").code == 0
    assert cli("namespace", "delete", "orders").out == "deleted namespace orders\n"


def test_a_namespace_says_what_zero_and_no_value_mean(engine: ScriptedEngine, cli: Cli) -> None:
    orders = namespace_service_pb2.Namespace(name="orders", task_retention=Duration())
    orders.history.none = True
    engine.answers["GetNamespace"] = namespace_service_pb2.GetNamespaceResponse(namespace=orders)

    lines = cli("namespace", "get", "orders").out.splitlines()

    shown = dict(re.split(r"  +", it, maxsplit=1) for it in lines)
    assert shown["history_last"] == "none"
    assert shown["task_retention_seconds"] == "0, deleted at once"
    assert shown["finished_process_retention"] == "kept"
    assert shown["unreachable_patience"] == "no limit"
    assert shown["exhausted_call_fails_alone"] == "no"
    assert shown["retry_policy"].endswith("elapsed_max no limit")


def test_to_pause_all_namespaces_leaves_bulk_operations_alone(
    engine: ScriptedEngine, cli: Cli
) -> None:
    engine.answers["ListNamespaces"] = namespace_service_pb2.ListNamespacesResponse(
        namespaces=[
            namespace_service_pb2.Namespace(name=it) for it in ("orders", "progressor.operations")
        ]
    )

    assert cli("namespace", "pause", "--all", "--reason", "maintenance").code == 0
    paused = [it.name for it in engine.requests if hasattr(it, "author")]
    assert cli("namespace", "pause", "progressor.operations", "--reason", "x").code == 0

    assert paused == ["orders"]
    assert engine.requests[-1].name == "progressor.operations"
