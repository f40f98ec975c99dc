"""`progressor doctor`: what it prints and how it ends, over healthy, ill and absent databases."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from progressor.cli.main import main
from progressor.engine import engine as app
from progressor.settings import config
from progressor.storage.doctor.environment import checks as environment
from progressor.storage.doctor.invariants import checks as invariants
from tests.support.api.scripted_engine import Ended
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.process import running_process
from tests.support.engine.replica import SETTINGS, open_env, running_replica
from tests.support.postgres.cluster import Cluster
from tests.support.storage.doctor.doctor import clocks_reported, execute
from tests.support.storage.store import create_namespace

Cli = Callable[..., Ended]


@pytest.fixture(scope="module")
def cluster(durable_cluster: Cluster) -> Cluster:
    """Return a server in which the doctor finds nothing wrong."""
    return durable_cluster


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("PROGRESSOR_CONFIG", "")

    def run(*arguments: str) -> Ended:
        capfd.readouterr()
        code = main(["doctor", *arguments])
        captured = capfd.readouterr()
        return Ended(code=code, out=captured.out, err=captured.err)

    return run


def findings(ended: Ended) -> dict[str, dict[str, Any]]:
    return {it["check"]: it for it in ended.document["findings"]}


async def test_a_database_with_a_replica_at_work_is_well(own_database: str, cli: Cli) -> None:
    async with running_replica(own_database) as replica, open_env(replica) as env:
        await env.running("p1")
        await env.client.call("p1", b"args")
        await clocks_reported(own_database)

        ended = cli("--dsn", own_database, "--json", "--deep")

    assert ended.code == 0
    assert {name: it["state"] for name, it in findings(ended).items() if it["state"] != "ok"} == {}
    assert findings(ended)["heartbeats"]["words"] == "1 replica serving, 0 draining, 0 silent"
    assert findings(ended)["clocks"]["words"].startswith("1 clock within ")


@contextlib.asynccontextmanager
async def configured_engine(dsn: str, file: Path) -> AsyncIterator[None]:
    flags = {**SETTINGS, "database.dsn": dsn}
    loaded = config.load(file=file, environment={}, flags=flags)
    async with app.engine(loaded) as engine, asyncio.timeout(PATIENCE_SECONDS):
        await engine.serving.wait()
        yield


async def test_a_namespace_that_is_not_as_configured_is_reported_at_the_start_and_by_the_doctor(
    own_database: str, tmp_path: Path, cli: Cli, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "progressor.toml"
    orders = '[namespaces.orders]\nprocessor_targets = ["h:1"]\nretry_policy.jitter = 0.1\n'
    file.write_text(orders)
    async with configured_engine(own_database, file):
        as_created = findings(cli("--dsn", own_database, "--config", str(file), "--json"))
    before = [it for it in caplog.records if it.msg.startswith("namespace differs")]

    file.write_text(f"{orders}step_timeout_seconds = 5\nhistory = 9\n")
    async with configured_engine(own_database, file):
        [told] = [it for it in caplog.records if it.msg.startswith("namespace differs")]
        file.write_text(f"{file.read_text()}[namespaces.carts]\nprocessor_targets = ['h:1']\n")
        as_changed = findings(cli("--dsn", own_database, "--config", str(file), "--json"))

    assert before == []
    assert as_created["namespaces"]["state"] == "ok"
    assert (told.__dict__["namespace"], told.__dict__["keys"]) == (
        "orders",
        ("step_timeout_seconds", "history"),
    )
    assert as_changed["namespaces"]["state"] == "warning"
    assert as_changed["namespaces"]["offenders"] == [
        "orders: step_timeout_seconds, history",
        "carts: missing",
    ]


async def test_a_replica_that_was_killed_is_told(
    own_database: str, tmp_path: Path, cli: Cli
) -> None:
    async with running_process(own_database, tmp_path) as process:
        process.kill()
        await process.left()
        execute(
            own_database,
            "UPDATE progressor.replicas SET heartbeat_at = now() - '1 min'::interval",
        )

        ended = cli("--dsn", own_database, "--json")

    assert ended.code == 0
    assert findings(ended)["heartbeats"]["state"] == "warning"
    assert "0 replicas serving, 0 draining, 1 silent" in findings(ended)["heartbeats"]["words"]


def test_without_a_replica_it_works_and_only_warns(own_database: str, cli: Cli) -> None:
    ended = cli("--dsn", own_database)

    assert ended.code == 0
    assert "✓ durability: fsync and full_page_writes are on" in ended.out
    assert "! heartbeats: 0 replicas serving" in ended.out
    assert "  → Start a replica" in ended.out
    assert "1 warning; --deep also checks invariants of whole tables" in ended.out
    assert "docs/how-to/operate/runbook/index.md has a section" in ended.out
    assert "✗" not in ended.out
    assert (
        ended.out.index("server\n")
        < ended.out.index("replicas\n")
        < ended.out.index("invariants\n")
    )


def test_what_failed_is_named_with_what_to_do_and_the_exit_code_is_1(
    own_database: str, cli: Cli
) -> None:
    execute(own_database, "DROP INDEX progressor.schedule_due")

    ended = cli("--dsn", own_database)

    assert ended.code == 1
    assert "✗ indexes: 1 index missing, 0 invalid" in ended.out
    assert "    · schedule_due is missing" in ended.out
    assert "CREATE INDEX CONCURRENTLY" in ended.out
    assert "1 failed" in ended.out


def test_a_broken_invariant_is_a_failure(own_database: str, cli: Cli) -> None:
    create_namespace(own_database)
    execute(
        own_database,
        "INSERT INTO progressor.schedule"
        " (slot, namespace, process_id, task_id, task_type, status, due_at, replica_id)"
        " VALUES (1, 'orders', 'p', 1, 'call', 'waiting', now(), 1)",
    )

    ended = cli("--dsn", own_database)

    assert ended.code == 1
    assert "✗ scheduled tasks match their records: 1 row violates the invariant" in ended.out
    assert "orders/p: task 1 (call, 0 attempts) is scheduled, and has no record" in ended.out


@pytest.mark.parametrize("deep", [False, True])
def test_the_document_has_every_check_with_all_its_fields(
    deep: bool, own_database: str, cli: Cli
) -> None:
    form = ["--deep"] if deep else []
    document = cli("--dsn", own_database, "--json", *form).document

    assert (document["database"], document["deep"]) == (own_database, deep)
    assert ("--deep" in cli("--dsn", own_database, *form).out) == (not deep)
    assert sum(document["counts"].values()) == len(document["findings"])
    assert document["counts"]["warning"] == 1
    asked = [*environment.CHECKS, *invariants.checks(deep=deep)]
    assert [it["check"] for it in document["findings"]] == [check.name for check in asked]
    for it in document["findings"]:
        assert it.keys() == {"state", "words", "advice", "offenders", "group", "check"}
        assert bool(it["advice"]) == (it["state"] != "ok")


@pytest.fixture
def as_stranger(own_database: str) -> Iterator[str]:
    """Yield a DSN of the database as a role that may do nothing."""
    execute(
        own_database,
        "DROP ROLE IF EXISTS doctor_stranger",
        "CREATE ROLE doctor_stranger LOGIN PASSWORD 'stranger'",
    )
    yield make_conninfo(own_database, user="doctor_stranger", password="stranger")
    execute(own_database, "DROP ROLE doctor_stranger")


def test_a_role_that_may_only_read_is_enough(own_database: str, as_stranger: str, cli: Cli) -> None:
    execute(own_database, "GRANT pg_read_all_data, pg_monitor TO doctor_stranger")

    ended = cli("--dsn", as_stranger, "--json", "--deep")

    assert ended.code == 0
    assert ended.document["counts"]["not_done"] == 0
    assert findings(ended)["ids_are_below_their_sequences"]["state"] == "ok"
    assert "'stranger'" not in ended.out
    assert "password=stranger" not in ended.out


def test_a_role_that_may_not_read_learns_what_was_not_done(as_stranger: str, cli: Cli) -> None:
    ended = cli("--dsn", as_stranger)

    assert ended.code == 0
    assert "? leases match their tasks: permission denied" in ended.out
    assert "not done" in ended.out


def test_postgresql_that_is_away_is_exit_code_5(tmp_path: Path, cli: Cli) -> None:
    ended = cli("--dsn", f"host={tmp_path} dbname=nothing", "--json")

    assert ended.code == 5
    assert not ended.out
    assert ended.error["reason"] == "STORAGE_UNAVAILABLE"


def test_an_embedded_one_that_does_not_run_is_exit_code_5(tmp_path: Path, cli: Cli) -> None:
    ended = cli("--data-directory", str(tmp_path))

    assert ended.code == 5
    assert "is running: start its engine, or name a server by database.dsn" in ended.err


def test_an_embedded_one_that_runs_is_found_by_its_directory(cluster: Cluster, cli: Cli) -> None:
    if not cluster.is_embedded:
        pytest.skip("the server of the tests is not embedded")
    _, home = cluster._owned()

    ended = cli("--data-directory", str(home / "data"), "--json")

    # Its first database has no schema: that is what is found.
    assert ended.code == 1
    assert findings(ended)["migrations"]["words"] == "this database has no schema progressor"
    assert findings(ended)["server"]["state"] == "ok"


@pytest.mark.parametrize("timeout", ["0", "-1", "1e9", "nan"])
def test_a_timeout_that_is_none_is_refused(own_database: str, cli: Cli, timeout: str) -> None:
    ended = cli("--dsn", own_database, "--timeout", timeout)

    assert ended.code == 2
    assert "--timeout" in ended.err
