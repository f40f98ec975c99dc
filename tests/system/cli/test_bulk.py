"""Bulk commands against a scripted engine: what they ask, what they refuse, and their words."""

import re

import pytest
from grpc import StatusCode

from progressor.cli.output import ExitCode
from progressor.domain.views.bulk import OPERATIONS
from progressor.v1 import bulk_service_pb2 as pb
from progressor.v1 import namespace_service_pb2, process_service_pb2, types_pb2
from tests.support.api.scripted_engine import Cli, Refusal, ScriptedEngine

SCHEDULE = "schedule create s --every 1h"
FILTER = ("--status", "error", "--status", "init", "--id-prefix", "a b")


@pytest.mark.parametrize(
    ("line", "scope"),
    [
        (("retry",), "retry in all namespaces, without a filter"),
        (("retry", "-n", "orders"), "retry in orders, without a filter"),
        (
            ("simple-repair", *FILTER),
            "simple repair in all namespaces, --status error --status init --id-prefix 'a b'",
        ),
    ],
)
def test_a_preview_begins_with_its_scope_and_fails_if_nothing_matches(
    engine: ScriptedEngine, cli: Cli, line: tuple[str, ...], scope: str
) -> None:
    nothing = cli("bulk", *line, "--dry-run")
    engine.answers["PreviewBulk"] = pb.PreviewBulkResponse(matched_count=1)
    something = cli("bulk", *line, "--dry-run")

    assert nothing.out.splitlines() == [f"{scope}: no processes match"]
    assert something.out.splitlines()[0] == f"{scope}: 1 process matches"
    assert (nothing.code, something.code) == (ExitCode.FAILED, ExitCode.DONE)


@pytest.mark.parametrize("kind", ["terminate", "remove"])
def test_the_end_of_all_processes_has_to_be_asked_for(
    engine: ScriptedEngine, cli: Cli, kind: str
) -> None:
    for_all, filtered = (kind, "-n", "orders", "--yes", "--why", "x"), ("--status", "error")

    without = cli("bulk", *for_all)
    with_both = cli("bulk", *for_all, *filtered, "--all")
    assert (without.code, with_both.code, engine.requests) == (ExitCode.USAGE, ExitCode.USAGE, [])
    assert "--all: must be given" in without.err
    assert "--all: must not be given with a filter" in with_both.err

    for words in (filtered, ("--all",)):
        cli("bulk", *for_all, "--detach", *words)
    started = [it for it in engine.requests if isinstance(it, pb.StartBulkRequest)]
    assert [len(it.filter.statuses) for it in started] == [1, 0]


@pytest.mark.parametrize(
    ("line", "rpc", "field", "words"),
    [
        ("bulk retry --yes", "StartBulk", "failed_share_max", "--failed-share: must be x"),
        ("bulk retry --yes", "StartBulk", "filter.statuses", "--status: must be x"),
        ("bulk retry --yes", "StartBulk", "filter.failure_id", "--failure: must be x"),
        ("bulk retry --yes", "StartBulk", "operation_id", "--id: must be x"),
        ("bulk retry --yes", "StartBulk", "reason", "--why: must be x"),
        ("bulk show b", "GetBulk", "operation_id", "OPERATION_ID: must be x"),
        ("terminate p --reason x", "Terminate", "reason", "--reason: must be x"),
        ("count", "Count", "filter.failure_reason", "--failure-reason: must be x"),
        ("call p", "Call", "constraints.gates[1].key", "--gate: must be x"),
        ("call p", "Call", "caller_context", "--context: must be x"),
        ("call p", "Call", "no_option", "no_option: must be x"),
        ("call p", "Call", "history_range.limit", "--history-last: must be x"),
        ("get p", "Get", "history_range.limit", "--limit: must be x"),
        ("count", "Count", "filter.metadata.'failure_id'", "--metadata: must be x"),
        ("namespace create n --target h:1", "CreateNamespace", "namespace.name", "NAME: must be x"),
        (f"{SCHEDULE} --call p", "CreateSchedule", "spec.call.process_id", "--call: must be x"),
        (f"{SCHEDULE} --start", "CreateSchedule", "spec.start.args", "--args: must be x"),
    ],
)
def test_an_error_names_what_was_typed(
    engine: ScriptedEngine, cli: Cli, line: str, rpc: str, field: str, words: str
) -> None:
    engine.answers[rpc] = Refusal(
        code=StatusCode.INVALID_ARGUMENT, reason="INVALID_REQUEST", violations={field: "must be x"}
    )

    ended = cli(*line.split())

    assert ended.code == ExitCode.USAGE
    assert words in ended.err


def test_the_description_of_an_error_names_options_too(engine: ScriptedEngine, cli: Cli) -> None:
    engine.answers["List"] = Refusal(
        code=StatusCode.INVALID_ARGUMENT, reason="INVALID_REQUEST",
        violations={"filter.created_to": "must not be before created_from, got 'created_from'"},
    )  # fmt: skip

    err = cli("list", "--created-to", "2026-01-31").err

    assert "--created-to: must not be before --created-from, got 'created_from'" in err


@pytest.mark.parametrize("line", ["list", "show b", "retry --yes --detach"])
def test_paused_operations_are_not_shown_without_a_word(
    engine: ScriptedEngine, cli: Cli, line: str
) -> None:
    pause = types_pb2.Pause(reason="restore", author="ann")
    engine.answers["GetNamespace"] = namespace_service_pb2.GetNamespaceResponse(
        namespace=namespace_service_pb2.Namespace(name=OPERATIONS, pause=pause)
    )
    bulk = pb.BulkOperation(operation_id="b", state=pb.BULK_STATE_RUNNING)
    engine.answers["StartBulk"] = pb.StartBulkResponse(operation=bulk)
    engine.answers["GetBulk"] = pb.GetBulkResponse(operation=bulk)

    out = cli("bulk", *line.split()).out

    assert re.search(r"all are paused: restore \(ann, since .*\)", out)
    assert f"progressor namespace resume {OPERATIONS} --address {engine.address}" in out


def test_commands_that_are_printed_reach_the_same_engine(engine: ScriptedEngine, cli: Cli) -> None:
    bulk = pb.BulkOperation(operation_id="a b", error_count=1, failed_count=1)
    bulk.filter.namespace = "orders"
    engine.answers["GetBulk"] = pb.GetBulkResponse(operation=bulk)
    group = process_service_pb2.FailureGroup(namespace="orders", failure_id="0f3c")
    engine.answers["Get"] = process_service_pb2.GetResponse(failure=group)

    unknown = Refusal(code=StatusCode.NOT_FOUND, reason="NAMESPACE_NOT_FOUND")

    shown, why = cli("bulk", "show", "a b").out, cli("why", "p").out
    engine.answers["Get"] = unknown
    without_namespace = cli("why", "p").err

    there = f" --address {engine.address}\n"
    assert f"progressor bulk results --failed 'a b'{there}" in shown
    assert f"progressor failures -n orders{there}" in shown
    assert f"progressor bulk retry -n orders --failure 0f3c{there}" in why
    assert f"progressor namespace list{there}" in without_namespace
