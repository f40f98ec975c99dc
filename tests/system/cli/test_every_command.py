"""Every command: no text of others controls the terminal, and no number is too large for it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import grpc
import psycopg
import pytest
from cyclopts import App
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from progressor.cli.main import build_app, main
from progressor.cli.processes import bulk
from tests.support.api.scripted_engine import SERVICES, Cli, Refusal, ScriptedEngine
from tests.support.storage.store import create_namespace

WORST = "a\x1b]0;title\x07\x1b[2J\r\nFORGED\x9b31m\x9d0;t\x9c\x7f\u202eevil\u2066\u2028FORGED"
"""A title and a cleared screen by C0 and C1 controls, forged lines, and a changed direction."""

PAYLOADS = {
    "text": WORST.encode(),
    "json": f'{{\n"FORGED":\n{json.dumps(WORST, ensure_ascii=False)}}}'.encode(),
}

METHODS = [method for service in SERVICES for method in service.methods]

COMMANDS = [
    "start p",
    "call p",
    "notify p",
    "repair p",
    "retry p",
    "simple-repair p",
    "await p --task 1",
    "cancel -n orders p --task 1",
    "get p",
    "why -n orders p",
    "trace p",
    "list",
    "count",
    "failures",
    "put p",
    "terminate p --reason why",
    "result p",
    "remove p",
    "replicas",
    "top --once --interval 0.1s",
    "log-level info",
    "health",
    "namespace create orders --target h:1",
    "namespace update orders --target h:1",
    "namespace get orders",
    "namespace list",
    "namespace pause orders --reason why",
    "namespace resume orders",
    "namespace delete orders",
    "namespace apply {namespaces} --yes",
    "namespace export",
    "gate list",
    "gate get g",
    "access whoami",
    "access why Start",
    "access grant token:a caller --in n",
    "access revoke token:a caller --in n",
    "access list",
    "access apply {bindings} --yes",
    "access export",
    "access token create a",
    "access token list",
    "access token revoke t",
    "audit list",
    "audit follow --once --after 0",
    "audit head",
    "gate set g --capacity 1",
    "gate delete g",
    "job submit {job} --id j",
    "job submit {job} --id j --wait",
    "job get j",
    "job list",
    "job watch j",
    "job retry j",
    "job cancel j",
    "schedule create s --start --every 1h",
    "schedule update s --every 2h",
    "schedule get s",
    "schedule list",
    "schedule next s",
    "schedule pause s",
    "schedule resume s",
    "schedule trigger s",
    "schedule backfill s --since 2026-01-31T12:00:00Z --until 2026-02-01T12:00:00Z",
    "schedule delete s",
    "bulk retry --yes",
    "bulk simple-repair --dry-run",
    "bulk repair --yes --args 1",
    "bulk notify --yes --args 1",
    "bulk cancel --yes --detach",
    "bulk terminate --yes --why why --all",
    "bulk remove --yes --all",
    "bulk list",
    "bulk show b",
    "bulk watch b",
    "bulk stop b",
    "bulk results b",
]
LEFT_OUT = {"next_page_token", "predecessors"}
"""With them listings would have no end, and graphs a circle."""

NODE_NAME = "progressor.v1.NodeSpec.name"
"""Of a schedule's graph, which the SDK refuses as the engine does."""

LOCAL = {
    "access init",
    "context add",
    "context list",
    "context remove",
    "context show",
    "context use",
    "login",
    "logout",
    "serve",
    "console",
    "dev",
    "migrate",
    "doctor",
    "config",
    "example-processor",
    "version",
}
"""Commands that ask no engine."""


def worst(descriptor: Any, payload: bytes, *, first: bool, depth: int = 0) -> Message:
    """Return a message in which every text is the worst there is, and every payload as given.

    Of a choice it has the `first` field, or else the last.
    """
    message: Any = GetMessageClass(descriptor)()
    if descriptor.full_name == "google.protobuf.Timestamp":
        message.FromSeconds(1_800_000_000)
    elif descriptor.full_name == "google.protobuf.Duration":
        message.FromSeconds(3)
    elif descriptor.full_name == "google.protobuf.Struct":
        message.update({WORST: [WORST, {WORST: WORST}]})
    elif depth < 6:
        for field in descriptor.fields:
            choice = field.containing_oneof
            if choice is not None and field != choice.fields[0 if first else -1]:
                continue
            if field.name not in LEFT_OUT:
                _fill(message, field, payload, first=first, depth=depth + 1)
    return message  # type: ignore[no-any-return]  # a class that is made at run time


def _fill(message: Any, field: FieldDescriptor, payload: bytes, *, first: bool, depth: int) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        _, value = field.message_type.fields
        values = getattr(message, field.name)
        if value.message_type is None:
            values[WORST] = _scalar(value, payload)
        else:
            values[WORST].CopyFrom(worst(value.message_type, payload, first=first, depth=depth))
    elif field.message_type is not None:
        inner = worst(field.message_type, payload, first=first, depth=depth)
        if field.is_repeated:
            getattr(message, field.name).append(inner)
        else:
            getattr(message, field.name).CopyFrom(inner)
    elif field.is_repeated:
        getattr(message, field.name).append(_scalar(field, payload))
    else:
        setattr(message, field.name, _scalar(field, payload))


def _scalar(field: FieldDescriptor, payload: bytes) -> Any:
    if field.type == field.TYPE_STRING:
        return "n" if field.full_name == NODE_NAME else WORST
    if field.type == field.TYPE_BYTES:
        return payload
    if field.enum_type is not None:
        # Of a job the last state is one that has ended, of a bulk operation the last but one.
        last = -2 if field.enum_type.name == "BulkState" else -1
        return field.enum_type.values[last].number
    return True if field.type == field.TYPE_BOOL else 1


@pytest.fixture
def arguments(tmp_path: Path, request: pytest.FixtureRequest) -> list[str]:
    """Return the arguments of a command, of which each stands as one word."""
    job = tmp_path / "job.json"
    job.write_text('{"nodes": {"a": {}}}')
    namespaces = tmp_path / "namespaces.toml"
    namespaces.write_text('[namespaces.orders]\nprocessor_targets = ["h:1"]\n')
    bindings = tmp_path / "bindings.toml"
    bindings.write_text('[[bindings]]\nprincipal = "*"\nrole = "reader"\nnamespaces = ["n"]\n')
    files = {"job": job, "namespaces": namespaces, "bindings": bindings}
    return [it.format(**files) for it in request.param.split()]


def check_harmless(text: str) -> None:
    assert not {it for it in text if not it.isprintable() and it != "\n"}
    assert not re.search(r"(?m)^FORGED", text)


def command_of(line: str) -> tuple[str, App]:
    """Return the name of the command that a line asks for, and what stands for it."""
    name, app = "", build_app()
    for word in line.split():
        if app.default_command is not None:
            break
        name, app = f"{name} {word}".strip(), app[word]
    return name, app


def test_every_command_that_asks_an_engine_is_tried() -> None:
    def names(app: App) -> Iterator[str]:
        for name in app:
            if not name.startswith("-"):
                inner = [f"{name} {it}" for it in names(app[name])]
                yield from inner or [name]

    assert {command_of(it)[0] for it in COMMANDS} == set(names(build_app())) - LOCAL


@pytest.mark.parametrize("number", [2**31, 2**63, -(2**64), 10**40, "9" * 5000])
def test_no_number_is_too_large_for_an_answer(number: int | str, cli: Cli) -> None:
    options = [
        (line, argument.name)
        for line in COMMANDS
        for argument in command_of(line)[1].assemble_argument_collection()
        if argument.hint is int or int in get_args(argument.hint)
    ]
    for line, option in options:
        before = (
            line.partition(f" {option} ")[0]
            .format(job="job.json", namespaces="n.toml", bindings="b.toml")
            .split()
        )
        ended = cli(*before, f"{option}={number}")

        assert ended.code == 0 or option in ended.err, (line, option)
    assert len(options) > 15


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_STEPS_SECONDS", 0.0)  # the answer is always that steps wait


# Each pair of a payload, a form and a choice, in half as many cases as all three together have.
@pytest.mark.parametrize(
    ("payload", "form", "choice"),
    [
        ("text", "", "first"),
        ("text", "--json", "last"),
        ("json", "", "last"),
        ("json", "--json", "first"),
    ],
)
@pytest.mark.parametrize("arguments", COMMANDS, indirect=True)
def test_no_answer_controls_the_terminal(
    arguments: list[str], choice: str, form: str, payload: str, engine: ScriptedEngine, cli: Cli
) -> None:
    for method in METHODS:
        answer = worst(method.output_type, PAYLOADS[payload], first=choice == "first")
        engine.answers[method.name] = [answer] if method.server_streaming else answer

    ended = cli(*arguments, *filter(None, [form]))

    # An update reads the whole of the namespace, and refuses it.
    assert not ended.err or arguments[:2] == ["namespace", "update"]
    check_harmless(ended.out + ended.err)
    if form:
        decoder, rest, said = json.JSONDecoder(), ended.out, ""
        while rest := rest.strip():
            document, end = decoder.raw_decode(rest)
            said += json.dumps(document)
            rest = rest[end:]
        assert json.dumps(WORST)[1:-1] in said or "\\u001b" not in said


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(
            code=grpc.StatusCode.FAILED_PRECONDITION,
            reason="PROCESS_FAILED",
            metadata={"process_id": WORST, "detail": WORST, "task_id": "4"},
        ),
        Refusal(
            code=grpc.StatusCode.FAILED_PRECONDITION,
            reason=WORST,
            message=WORST,
            domain="processor",
            metadata={WORST: WORST},
        ),
        Refusal(
            code=grpc.StatusCode.INVALID_ARGUMENT,
            reason="INVALID_REQUEST",
            violations={WORST: WORST},
        ),
        Refusal(code=grpc.StatusCode.INTERNAL, reason=WORST, message=WORST),
    ],
    ids=["failed", "rejected", "invalid", "unknown"],
)
@pytest.mark.parametrize("form", ["", "--json"])
@pytest.mark.parametrize(
    "arguments", ["start p", "get p", "trace p", "job watch j", "top --once"], indirect=True
)
def test_no_error_controls_the_terminal(
    arguments: list[str], form: str, refusal: Refusal, engine: ScriptedEngine, cli: Cli
) -> None:
    for method in METHODS:
        engine.answers[method.name] = [refusal] if method.server_streaming else refusal

    ended = cli(*arguments, *filter(None, [form]))

    assert ended.code != 0
    assert ended.err
    check_harmless(ended.err)
    if form:
        assert ended.error["message"]


@pytest.mark.parametrize("form", ["", "--json"])
def test_what_was_typed_does_not_come_back_as_controls(form: str, cli: Cli) -> None:
    removed = cli("remove", WORST, *filter(None, [form]))
    refused = cli("call", "p", "--context", WORST, *filter(None, [form]))

    check_harmless(removed.out + refused.err)


def test_no_row_controls_the_terminal_of_the_doctor(
    own_database: str, capfd: pytest.CaptureFixture[str]
) -> None:
    create_namespace(own_database)
    with psycopg.connect(own_database, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO progressor.schedule"
            " (slot, namespace, process_id, task_id, task_type, status, due_at, replica_id)"
            " VALUES (1, 'orders', %s, 1, 'call', 'waiting', now(), 1)",
            [WORST],
        )

    for form in ([], ["--json"]):
        assert main(["doctor", "--dsn", own_database, *form]) == 1
        out = capfd.readouterr().out
        assert "FORGED" in out
        check_harmless(out)
