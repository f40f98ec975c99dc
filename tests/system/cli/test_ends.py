"""How commands end: exit codes, errors on stderr, signals."""

import json
import os
import signal
import subprocess
import sys

import grpc
import pytest
from grpc_health.v1 import health_pb2

from progressor.cli.main import main
from progressor.v1 import process_service_pb2, types_pb2
from tests.support.api.scripted_engine import Cli, Refusal, ScriptedEngine

NOT_FOUND, STATE = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (Refusal(code=NOT_FOUND, reason="PROCESS_NOT_FOUND"), 3),
        (Refusal(code=NOT_FOUND, reason="NAMESPACE_NOT_FOUND"), 3),
        (Refusal(code=STATE, reason="PROCESS_FAILED", metadata={"task_id": "4"}), 4),
        (Refusal(code=STATE, reason="PROCESS_FINISHED"), 4),
        (Refusal(code=grpc.StatusCode.ALREADY_EXISTS, reason="PROCESS_ALREADY_EXISTS"), 4),
        (Refusal(code=grpc.StatusCode.INVALID_ARGUMENT, reason="IDEMPOTENCY_KEY_REUSED"), 4),
        (Refusal(code=grpc.StatusCode.ABORTED, reason="PROCESS_REMOVED"), 4),
        (Refusal(code=grpc.StatusCode.INVALID_ARGUMENT, reason="INVALID_REQUEST"), 2),
        (Refusal(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="OVERLOADED"), 5),
        (Refusal(code=grpc.StatusCode.UNAVAILABLE, reason="STORAGE_UNAVAILABLE"), 5),
        (Refusal(code=grpc.StatusCode.UNAVAILABLE, reason="SHUTTING_DOWN"), 5),
        (Refusal(code=grpc.StatusCode.DEADLINE_EXCEEDED, reason="DEADLINE_EXCEEDED"), 6),
        (Refusal(code=STATE, reason="WRONG_AMOUNT", domain="processor"), 7),
        (Refusal(code=grpc.StatusCode.INTERNAL, reason="INTERNAL"), 1),
    ],
)
def test_each_kind_of_error_has_its_exit_code_and_a_json_object_on_stderr(
    engine: ScriptedEngine, cli: Cli, refusal: Refusal, code: int
) -> None:
    engine.answers["Call"] = refusal

    ended = cli("call", "order-1", "--json")

    assert ended.code == ended.error["exit_code"] == code
    assert ended.error["message"]
    assert not ended.out
    if refusal.domain == "progressor":
        assert ended.error["reason"] == refusal.reason
    else:
        assert ended.error["fields"]["processor_reason"] == refusal.reason


def test_an_error_for_people_is_a_sentence_its_reason_and_its_fields(
    engine: ScriptedEngine, cli: Cli
) -> None:
    engine.answers["Call"] = Refusal(
        code=STATE,
        reason="PROCESS_FAILED",
        metadata={
            "process_id": "order-1",
            "detail": "it broke",
            "own": "false",
            "task_id": "4",
            "broken_by": "3",
            "failure_code": "13",
            "failure_reason": "NO_STOCK",
        },
    )

    err = cli("call", "order-1").err

    assert err == (
        "error: process 'order-1' is in error: it broke\n  reason: PROCESS_FAILED\n"
        "  own: no\n  task_id: 4\n  broken_by: 3\n  failure_code: 13\n  failure_reason: NO_STOCK\n"
    )


def test_a_reading_command_does_not_wait_for_an_engine_that_is_away(
    capfd: pytest.CaptureFixture[str],
) -> None:
    code = main(["get", "p", "--address", "127.0.0.1:1", "--json"])

    assert code == 5
    assert json.loads(capfd.readouterr().err)["error"]["reason"] == "ENGINE_UNAVAILABLE"


@pytest.mark.parametrize(
    "arguments",
    [
        ("call",),
        ("call", "p", "--bogus"),
        ("bogus",),
        ("call", "p", "--args", "{"),
        ("call", "p", "--args", "1", "--text", "t"),
        ("call", "p", "--args-file", "/nowhere/at/all"),
        ("call", "p", "--context", "k"),
        ("call", "p\udcff"),
        ("call", "p", "--timeout", "0"),
        ("call", "p", "--tls-authority", "/nowhere/at/all"),
        ("start", "p", "--metadata", "[]"),
        ("start", "p", "--metadata", '{"a": 9007199254740993}'),
        ("start", "p", "--metadata", '{"a":' * 2000 + "1" + "}" * 2000),
        ("start", "p", "--metadata", '{"a":' * 600 + "1" + "}" * 600),
        ("call", "p", "--args", "[" * 50_000 + "]" * 50_000),
        ("put", "p", "--timer-at", "0001-01-01T00:00:00+05:00"),
        ("list", "--created-to", "9999-12-31T23:59:59-05:00"),
        ("trace", "p", "--limit", "0"),
        ("list", "--created-from", "yesterday"),
        ("list", "--status", "gone"),
        ("put", "p", "--timer-after", "1", "--timer-at", "2026-01-31T12:00:00Z"),
        ("put", "p", "--timer-after", "-1"),
        ("namespace", "create", "orders"),
        ("namespace", "create", "orders", "--target", "nowhere"),
        ("namespace", "update", "orders"),
        ("namespace", "create", "orders", "--target", "h:1", "--set", "history.x=1"),
    ],
)
def test_what_cannot_be_asked_ends_with_2_and_reaches_no_engine(
    engine: ScriptedEngine, cli: Cli, arguments: tuple[str, ...]
) -> None:
    ended = cli(*arguments)

    assert ended.code == 2
    assert ended.err.startswith("error: ")
    assert engine.requests == []


def test_health_is_0_when_serving_and_5_when_not(engine: ScriptedEngine, cli: Cli) -> None:
    serving = cli("health", "--json")
    engine.health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    away = cli("health")
    unknown = cli("health", "--service", "absent")

    assert (serving.code, away.code, unknown.code) == (0, 5, 1)
    assert serving.document["status"] == "SERVING"
    assert "NOT_SERVING" in away.out


def test_config_shows_each_value_with_its_source_and_no_password(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROGRESSOR_DATABASE_DSN", "postgresql://u:hunter2@h/db")

    assert main(["config", "--json", "--set", "commit.shard_count=3"]) == 0

    out = capfd.readouterr().out
    rows = {row["key"]: row for row in json.loads(out)["settings"]}
    assert "hunter2" not in out
    assert rows["database.dsn"]["source"]["where"] == "PROGRESSOR_DATABASE_DSN"
    assert rows["commit.shard_count"]["value"] == 3
    assert rows["commit.shard_count"]["source"]["kind"] == "flag"
    assert rows["log.level"]["source"]["kind"] == "default"


def test_config_explains_every_key(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--explain", "--json"]) == 0

    keys = json.loads(capfd.readouterr().out)["keys"]
    assert {"key", "variable", "default", "meaning"} == set(keys[0])


def test_a_wrong_setting_names_its_key(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--bind", "nowhere", "--json"]) == 2

    error = json.loads(capfd.readouterr().err)["error"]
    assert error["reason"] == "CONFIGURATION"
    assert error["fields"]["key"] == "server.bind"


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("localhost", "got 'localhost', which has no port"),
        ("[::1]", "got '[::1]', which has no port"),
        ("127.0.0.1:99999999", "a port 1 to 65535"),
        ("127.0.0.1:0", "a port 1 to 65535"),
        ("", "host:port"),
    ],
)
def test_an_address_without_a_port_that_exists_is_refused(
    address: str, said: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_option = main(["get", "p", "--address", address])
    monkeypatch.setenv("PROGRESSOR_ADDRESS", address)
    by_variable = main(["health"])

    first, second = capfd.readouterr().err.splitlines()[::2]
    assert (by_option, by_variable) == (2, 2)
    assert first == second
    assert first.startswith("error: --address: ")
    assert said in first


@pytest.mark.parametrize(
    ("arguments", "as_json"),
    [
        (("start", "--", "--json"), False),
        (("start", "--json", "--", "p"), True),
        (("start", "p", "--text", "--json"), False),
        (("start", "p", "--text=--json", "--json"), True),
        (("config", "--bind", "nowhere", "--json"), True),
        (("config", "--set", "server.bind=--json"), False),
        (("bogus", "--json"), True),
        (("bogus", "--", "--json"), False),
        (("start", "p", "--timeout", "0", "--json"), True),
    ],
)
def test_an_error_is_a_document_only_where_that_is_asked_for(
    arguments: tuple[str, ...],
    as_json: bool,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PROGRESSOR_ADDRESS", "127.0.0.1:1")

    assert main(arguments) != 0

    assert capfd.readouterr().err.startswith("{") == as_json


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("serve", "a second signal ends it at once"),
        ("schedule backfill", "At most 1,000; without --overlap, all at once."),
        ("job submit", "[nodes.build]"),
        ("job", "Submit a job from a file."),
        ("list", "newest first"),
        ("", "simple-repair"),
        ("", "7  the processor rejected"),
    ],
)
def test_help_is_of_the_command_and_only_that_of_all_has_the_exit_codes(
    command: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--help"]) == 0

    out = " ".join(capfd.readouterr().out.split())
    assert " ".join(words.split()) in out
    assert ("Exit codes" in out) == (command == "")
    assert "[default: ]" not in out


def test_a_reader_that_leaves_early_is_no_error_worth_a_traceback(engine: ScriptedEngine) -> None:
    engine.answers["List"] = process_service_pb2.ListResponse(
        processes=[types_pb2.Process(process_id="order" * 30) for _ in range(1000)]
    )
    listing = f"{sys.executable} -m progressor list --limit 1000 --json --address {engine.address}"

    ended = subprocess.run(  # noqa: S602  # a pipe is what is tested
        f"{listing} | head -1", shell=True, capture_output=True, text=True, check=False
    )

    assert ended.stdout == "{\n"
    assert not ended.stderr


def test_the_example_processor_registers_and_ends_with_a_signal(engine: ScriptedEngine) -> None:
    command = [sys.executable, "-m", "progressor", "example-processor", "--bind", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--engine", engine.address, "--target", "processor:7421"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stderr is not None
        lines = [json.loads(process.stderr.readline()) for _ in range(2)]
        process.send_signal(signal.SIGTERM)
        code = process.wait(20)

    assert [line["event"] for line in lines] == ["processor serves", "namespace registered"]
    assert list(engine.requests[0].namespace.processor_targets) == ["processor:7421"]
    assert code == 0
