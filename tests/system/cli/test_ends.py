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
EXISTS, ABORTED = grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.ABORTED
INVALID, UNAVAILABLE = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAVAILABLE
OVERLOADED, TOO_LATE = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED
WHERE = {
    "namespace": "orders", "process_id": "p", "task_id": "7", "gate": "g", "job_id": "j",
    "schedule_id": "s", "revision": "5", "operation_id": "o",
}  # fmt: skip


@pytest.mark.parametrize(
    ("line", "rpc", "code", "reason", "exit_code", "said"),
    [
        ("call p", "Call", NOT_FOUND, "PROCESS_NOT_FOUND", 3, "process 'p' does not exist"),
        ("call p", "Call", NOT_FOUND, "NAMESPACE_NOT_FOUND", 3, "'orders'"),
        ("call p", "Call", STATE, "PROCESS_FAILED", 4, "process 'p' is in error"),
        ("call p", "Call", STATE, "PROCESS_FINISHED", 4, "'p'"),
        ("call p", "Call", EXISTS, "PROCESS_ALREADY_EXISTS", 4, "'p'"),
        ("call p", "Call", INVALID, "IDEMPOTENCY_KEY_REUSED", 4, ""),
        ("call p", "Call", ABORTED, "PROCESS_REMOVED", 4, "'p'"),
        ("call p", "Call", INVALID, "INVALID_REQUEST", 2, ""),
        ("call p", "Call", OVERLOADED, "OVERLOADED", 5, ""),
        ("call p", "Call", UNAVAILABLE, "STORAGE_UNAVAILABLE", 5, ""),
        ("call p", "Call", UNAVAILABLE, "SHUTTING_DOWN", 5, ""),
        ("call p", "Call", TOO_LATE, "DEADLINE_EXCEEDED", 6, ""),
        ("call p", "Call", grpc.StatusCode.INTERNAL, "INTERNAL", 1, ""),
        ("cancel p --task 7", "Cancel", STATE, "TASK_HAS_ENDED", 4, "task 7 of process 'p' has"),
        ("result p", "AwaitProcess", ABORTED, "PROCESS_TERMINATED", 4, "process 'p' was"),
        ("result p", "AwaitProcess", TOO_LATE, "DEADLINE_EXCEEDED", 6, "process 'p' had not"),
        ("bulk show o", "GetBulk", NOT_FOUND, "OPERATION_NOT_FOUND", 3, "bulk operation 'o' does"),
        ("bulk stop o", "StopBulk", NOT_FOUND, "OPERATION_NOT_FOUND", 3, "bulk operation 'o' does"),
        (
            "bulk retry --yes --id o", "StartBulk",
            EXISTS, "OPERATION_ALREADY_EXISTS", 4, "bulk operation 'o' exists",
        ),
        ("gate get g", "GetGate", NOT_FOUND, "GATE_NOT_FOUND", 3, "gate 'g' does not exist in"),
        ("job get j", "GetJob", NOT_FOUND, "JOB_NOT_FOUND", 3, "job 'j' does not exist in"),
        ("job watch j", "GetJob", NOT_FOUND, "JOB_NOT_FOUND", 3, "job 'j' does not exist in"),
        ("job cancel j", "CancelJob", NOT_FOUND, "JOB_NOT_FOUND", 3, "job 'j' does not exist in"),
        ("job cancel j", "CancelJob", STATE, "JOB_ENDED", 4, "job 'j'"),
        ("job retry j", "RetryJob", NOT_FOUND, "JOB_NOT_FOUND", 3, "job 'j' does not exist in"),
        ("job retry j", "RetryJob", STATE, "JOB_NOT_FAILED", 4, "job 'j'"),
        ("schedule get s", "GetSchedule", NOT_FOUND, "SCHEDULE_NOT_FOUND", 3, "'s'"),
        ("schedule resume s", "ResumeSchedule", ABORTED, "SCHEDULE_CHANGED", 4, "'s'"),
        (
            "schedule create s --cron @daily --start", "CreateSchedule",
            EXISTS, "SCHEDULE_ALREADY_EXISTS", 4, "'s'",
        ),
    ],
)  # fmt: skip
def test_each_kind_of_error_has_its_exit_code_and_a_json_object_on_stderr(
    *, line: str, rpc: str, code: grpc.StatusCode, reason: str, exit_code: int, said: str,
    engine: ScriptedEngine, cli: Cli,
) -> None:  # fmt: skip
    engine.answers[rpc] = Refusal(code=code, reason=reason, metadata=WHERE)

    ended = cli(*line.split(), "--json")

    assert ended.code == ended.error["exit_code"] == exit_code
    assert ended.error["reason"] == reason
    assert ended.error["message"]
    assert said in ended.error["message"]
    assert not ended.out


def test_a_rejected_call_has_the_processor_s_reason(engine: ScriptedEngine, cli: Cli) -> None:
    engine.answers["Call"] = Refusal(code=STATE, reason="WRONG_AMOUNT", domain="processor")

    ended = cli("call", "p", "--json")

    assert ended.code == ended.error["exit_code"] == 7
    assert ended.error["fields"]["processor_reason"] == "WRONG_AMOUNT"


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


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


INSTANT = "must be an instant such as 2026-01-31T12:00:00Z, got "


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("call", "PROCESS_ID requires an argument"),
        ("call p --bogus", "--bogus"),
        ("bogus", "bogus"),
        ("call p --args {", "--args: is not JSON"),
        ("call p --args 1 --text t", "--args: only one of"),
        ("call p --args-file /nowhere/at/all", "--args-file: cannot read /nowhere/at/all"),
        ("call p --context k", "--context: must be KEY=VALUE, got 'k'"),
        pytest.param("call p\udcff", "argument 2: ", id="no UTF-8"),
        ("call p --timeout 0", "--timeout: must be from 0.001 to 604,800, got 0"),
        ("call p --tls-ca /nowhere/at/all", "--tls-ca: /nowhere/at/all: No such file"),
        ("call p --tls-key /nowhere/at/all", "--tls-certificate: must be given"),
        ("call p --token-file /nowhere/at/all", "--token-file: /nowhere/at/all: No such file"),
        ("start p --metadata []", "--metadata: is not a JSON object"),
        ('start p --metadata {"a":9007199254740993}', "--metadata: a: an integer beyond"),
        pytest.param(f"start p --metadata {nested(2000)}", "nested too deeply", id="too deep"),
        pytest.param(f"start p --metadata {nested(600)}", "must not be nested", id="deep"),
        pytest.param(f"call p --args {nested(50_000)}", "nested too deeply", id="very deep"),
        ("put p --timer-at 0001-01-01T00:00:00+05:00", f"--timer-at: {INSTANT}"),
        ("list --created-to 9999-12-31T23:59:59-05:00", f"--created-to: {INSTANT}"),
        ("list --created-from yesterday", f"--created-from: {INSTANT}'yesterday'"),
        ("list --status gone", "--status"),
        ("list --cause gone", "--cause: must be one of "),
        ("trace p --limit 0", "--limit: must be from 1 to 1,000,000, got 0"),
        ("job list --limit 0", "--limit: must be from 1 to 1,000,000, got 0"),
        ("job list --limit 1000001", "--limit: must be from 1 to 1,000,000, got 1000001"),
        ("put p --timer-after 1 --timer-at 2026-01-31T12:00Z", "--timer-at: only one of"),
        ("put p --timer-after -1", "--timer-after: must be from 0 to"),
        ("await p", "--task: one of --task and --idempotency-key must be given"),
        ("cancel p", "--task: one of --task and --idempotency-key must be given"),
        ("cancel p --task 1 --idempotency-key k", "--task: one of"),
        ("call p --gate=", "--gate: must be KEY or KEY=CAPACITY, got ''"),
        ("call p --gate==1", "--gate: must be KEY or KEY=CAPACITY, got '=1'"),
        ("call p --gate=a=x", "--gate: must be KEY or KEY=CAPACITY, got 'a=x'"),
        ("call p --gate=a=-1", "--gate: must be KEY or KEY=CAPACITY, got 'a=-1'"),
        ("call p --gate=a=9999999999", "--gate: must be KEY or KEY=CAPACITY, got 'a=9999999999'"),
        ("call p --gate a=1 --gate a", "--gate: must name 'a' only once"),
        ("call p --order=a", "--order: must be KEY=VERSION, got 'a'"),
        ("call p --order=a=", "--order: must be KEY=VERSION, got 'a='"),
        ("call p --order==1", "--order: must be KEY=VERSION, got '=1'"),
        ("call p --run-at tomorrow", f"--run-at: {INSTANT}'tomorrow'"),
        ("namespace create orders", "--target"),
        ("namespace create orders --target nowhere", "processor_targets: must be host:port"),
        ("namespace create orders --target h:1 --set history.x=1", "history"),
        ("namespace update orders", "--set: --set or --target must be given"),
        ("gate set g", "--capacity"),
        ("schedule create s --cron @daily", "--start: --start, --call, --notify or --job must be"),
        ("schedule create s --start", "--cron: --cron or --every must be given"),
        (
            "schedule create s --start --cron @daily --every 1h",
            "--every: cannot be combined with --cron",
        ),
        (
            "schedule create s --start --cron @daily --anchor 2026-03-01T12:00:00Z",
            "--anchor: cannot be combined with --cron",
        ),
        ("schedule create s --start --anchor 2026-03-01T12:00:00Z", "--anchor: needs --every"),
        ("schedule create s --start --every 1h --time-zone UTC", "--time-zone: needs --cron"),
        (
            "schedule create s --start --every often",
            "--every: must be a duration such as 30s, 10m or 2h, got 'often'",
        ),
        (
            "schedule create s --start --cron @daily --start-at soon",
            f"--start-at: {INSTANT}'soon'",
        ),
        ("schedule update s --start --call p", "--call: cannot be combined with --start"),
        ("schedule update s --call p --metadata {}", "--metadata: needs --start"),
        ("schedule update s --call p --id-template x", "--id-template: needs --start or --job"),
        ("schedule update s --job f --args 1", "--args: needs --start or --call or --notify"),
        ("schedule update s --job f --gate g", "--gate: needs --start"),
        ("schedule update s --job nowhere.json", "FILE: cannot read nowhere.json"),
        ("schedule update s --start --args {", "--args: is not JSON"),
        ("schedule update s", "--cron: at least one option must be given"),
        ("schedule update s --args 1", "--args: needs --start or --call or --notify"),
        ("schedule next s --count 101", "--count: must be from 0 to 100, got 101"),
        ("schedule get s --last -1", "--last: must be from 0 to 100, got -1"),
        ("schedule backfill s --since 2026-03-01", "--until"),
        ("schedule backfill s --since x --until 2026-03-01", f"--since: {INSTANT}'x'"),
        *(
            (f"top --once --interval {it}", "--interval")
            for it in ("0s", "0.05s", "2h", "2", "soon", "9999999999999y")
        ),
    ],
)
def test_what_cannot_be_asked_is_named_and_reaches_no_engine(
    line: str, said: str, engine: ScriptedEngine, cli: Cli
) -> None:
    ended = cli(*line.split(" "))

    assert ended.code == 2
    assert ended.err.startswith("error: ")
    assert said in " ".join(ended.err.split())
    assert engine.requests == []


def test_health_is_0_when_serving_and_5_when_not(engine: ScriptedEngine, cli: Cli) -> None:
    serving = cli("health", "--json")
    engine.health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    away = cli("health")
    unknown = cli("health", "--service", "absent")

    assert (serving.code, away.code, unknown.code) == (0, 5, 2)
    assert "--service: must be a service of the engine, or cell/NAME, got 'absent'" in unknown.err
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


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--tls-certificate", "tls.crt"), "--tls-key: must be given"),
        (("--tls-client-ca", "ca.crt"), "--tls-certificate: must be given if --tls-client-ca is"),
        (("--trust-token-file", "/nowhere"), "/nowhere: No such file"),
        (("--trust-identity", "engine"), "client_ca"),
    ],
)
def test_an_example_processor_that_cannot_be_secured_does_not_serve(
    options: tuple[str, ...], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["example-processor", "--bind", "127.0.0.1:0", *options]) == 2
    assert told in capfd.readouterr().err
