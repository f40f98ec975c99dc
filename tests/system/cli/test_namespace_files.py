"""`namespace apply` and `namespace export`: on a real engine, and where an engine refuses."""

import asyncio
import os
import pty
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from grpc import StatusCode

from progressor.cli.main import main
from progressor.sdk import BulkKind, Client
from progressor.v1 import namespace_service_pb2 as pb
from tests.support.api.scripted_engine import Cli, Ended, Refusal, ScriptedEngine
from tests.support.engine.replica import Replica, running_replica

END = "\x04"
"""What a terminal takes for the end of the input."""

FILE = """
[server]
workers = 2

[namespaces.carts]
processor_targets = ["h:1"]
step_timeout_seconds = 60

[namespaces.orders]
processor_targets = ["h:1", "h:2"]
retry_policies.call.attempts_max = 3
"""


@pytest_asyncio.fixture
async def fresh(own_database: str) -> AsyncIterator[Replica]:
    async with running_replica(own_database) as replica:
        yield replica


@pytest.fixture
def ask(fresh: Replica, capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    async def run(*arguments: str) -> Ended:
        capfd.readouterr()
        code = await asyncio.to_thread(main, ["namespace", *arguments, "--address", fresh.address])
        captured = capfd.readouterr()
        return Ended(code=code, out=captured.out, err=captured.err)

    return run


async def test_a_file_is_applied_once_and_exported_as_it_is(
    ask: Callable[..., Any], fresh: Replica, tmp_path: Path
) -> None:
    """The namespace that the engine made for itself is not in any file."""
    file = tmp_path / "namespaces.toml"
    file.write_text(FILE)
    await ask("create", "other", "--target", "h:9")
    async with Client(fresh.address, namespace="other") as client:
        await client.bulk.start(BulkKind.REMOVE, id_prefix="none")

    tried = await ask("apply", str(file), "--dry-run", "--json")
    first = await ask("apply", str(file), "--yes")
    second = await ask("apply", str(file), "--json")
    file.write_text(FILE.replace("= 60", "= 90.5").replace("= 3", "= 4"))
    third = await ask("apply", str(file), "--yes")
    exported = tmp_path / "exported.toml"
    exported.write_text((await ask("export", "carts", "orders")).out)
    fourth = await ask("apply", str(exported), "--json")
    exported.write_text((await ask("export")).out)
    all_of_them = await ask("apply", str(exported), "--json")

    assert [it["action"] for it in tried.document["namespaces"]] == ["create", "create"]
    assert [it["state"] for it in tried.document["namespaces"]] == ["planned", "planned"]
    assert first.out.splitlines() == [
        "carts: create",
        '  processor_targets: ["h:1"]',
        "  step_timeout_seconds: 60",
        "orders: create",
        '  processor_targets: ["h:1", "h:2"]',
        "  retry_policies.call: {attempts_max = 3}",
        f"not in {file}, left as they are: other",
        "created carts (revision 1)",
        "created orders (revision 1)",
    ]
    assert third.out.splitlines()[:4] == [
        "carts: change",
        "  step_timeout_seconds: 60 → 90.5",
        "orders: change",
        "  retry_policies.call.attempts_max: 3 → 4",
    ]
    for ended, revision in ((second, 1), (fourth, 2)):
        assert ended.document == {
            "namespaces": [
                {
                    "name": name,
                    "action": "keep",
                    "state": "planned",
                    "revision": revision,
                    "changes": [],
                }
                for name in ("carts", "orders")
            ],
            "not_in_file": ["other"],
        }
    assert [it["name"] for it in all_of_them.document["namespaces"]] == ["carts", "orders", "other"]
    assert all_of_them.document["not_in_file"] == []
    assert [it.code for it in (tried, first, second, third, fourth, all_of_them)] == [0] * 6


async def test_a_pause_of_several_says_which_were_paused(ask: Callable[..., Any]) -> None:
    for name in ("a", "b"):
        await ask("create", name, "--target", "h:1")

    paused = await ask("pause", "a", "nosuch", "b", "--reason", "why")
    resumed = await ask("resume", "nosuch", "b", "--json")
    alone = await ask("resume", "nosuch")

    assert [it.code for it in (paused, resumed, alone)] == [1, 1, 3]
    assert [it.split()[0] for it in paused.out.splitlines()] == ["namespace", "a", "b"]
    assert "error: nosuch: namespace 'nosuch' does not exist" in paused.err
    assert [it["name"] for it in resumed.document["namespaces"]] == ["b"]
    assert [it["reason"] for it in resumed.document["refused"]] == ["NAMESPACE_NOT_FOUND"]


@pytest.mark.parametrize("form", ["", "--json"])
def test_an_apply_that_fails_says_how_far_it_came(
    form: str, engine: ScriptedEngine, cli: Cli, tmp_path: Path
) -> None:
    file = tmp_path / "namespaces.toml"
    file.write_text(f"{FILE}\n[namespaces.zoo]\nprocessor_targets = ['h:1']")
    engine.answers["ListNamespaces"] = pb.ListNamespacesResponse(
        namespaces=[pb.Namespace(name="orders", processor_targets=["h:1"], revision=4)]
    )
    engine.answers["UpdateNamespace"] = Refusal(
        code=StatusCode.ABORTED,
        reason="NAMESPACE_CHANGED",
        metadata={"namespace": "orders", "expected_revision": "4", "revision": "5"},
    )

    ended = cli("namespace", "apply", str(file), "--yes", *filter(None, [form]))

    _, created, updated = engine.requests
    assert ended.code != 0
    assert created.namespace.name == "carts"
    assert (updated.expected_revision, "processor_targets" in updated.update_mask.paths) == (
        4,
        True,
    )
    assert "name" not in updated.update_mask.paths
    if form:
        states = {it["name"]: it["state"] for it in ended.document["namespaces"]}
        assert states == {"carts": "applied", "orders": "failed", "zoo": "planned"}
    else:
        assert ended.err.startswith("applied: carts; failed: orders; not tried: zoo\n")


def test_json_without_yes_changes_nothing_and_a_file_may_be_standard_input(
    engine: ScriptedEngine, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "namespaces.toml"
    file.write_text(FILE)

    def from_stdin(*options: str) -> Ended:
        with file.open() as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            return cli("namespace", "apply", "-", *options)

    refused, asked = from_stdin("--json"), from_stdin()
    applied_before = len(engine.requests)
    applied = from_stdin("--yes")

    assert [it.code for it in (refused, asked, applied)] == [2, 2, 0]
    assert "--yes: must be given with --json" in refused.error["message"]
    assert "--yes: must be given where standard input" in asked.err
    assert (applied_before, len(engine.requests)) == (2, 5)
    assert "created orders" in applied.out


@pytest.mark.parametrize(
    ("typed", "code", "applied"), [("yes\n", 0, 2), ("\n", 1, 0), (END, 1, 0), (None, 2, 0)]
)
def test_it_asks_before_it_changes_anything(
    *,
    typed: str | None,
    code: int,
    applied: int,
    engine: ScriptedEngine,
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "namespaces.toml"
    file.write_text(FILE)
    ours, theirs = pty.openpty()
    if typed is None:
        os.close(theirs)
        theirs = os.open(os.devnull, os.O_RDONLY)
    else:
        os.write(ours, typed.encode())
    with open(theirs) as stdin, open(ours):  # noqa: PTH123  by their numbers
        monkeypatch.setattr("sys.stdin", stdin)

        ended = cli("namespace", "apply", str(file))

    assert ended.code == code
    assert len(engine.requests) - 1 == applied
    assert ("--yes: must be given" in ended.err) == (typed is None)
