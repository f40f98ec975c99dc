"""docs/how-to/operate/back-up-and-restore.md: from a dump, and from a base backup and its WAL."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from progressor.sdk import Client, WaitCause
from progressor.storage.embedded.binaries import find_binaries
from progressor.storage.embedded.server import EmbeddedPostgres
from tests.rehearsals.load import (
    NAMESPACE,
    TICK,
    Load,
    client_of,
    complete_histories,
    create_namespace,
    expected,
    histories,
    processor,
    running_load,
    send_all,
)
from tests.rehearsals.releases import Fleet, findings, migrated, open_fleet
from tests.support.engine.points import eventually
from tests.support.engine.process import ROOT
from tests.support.postgres.cluster import Cluster, put_cluster

pytestmark = pytest.mark.slow


def tool(name: str, *arguments: str) -> None:
    """Run a tool of the PostgreSQL that the tests run on."""
    command = [str(find_binaries() / name), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.fixture
async def target() -> AsyncIterator[str]:
    async with processor().running("127.0.0.1:0") as address:
        yield address


async def check(
    fleet: Fleet, conninfo: str, load: Load, saved: Mapping[str, Sequence[int]]
) -> dict[str, list[Any]]:
    """Bring a restored database back into use as the page says, and check what it has.

    Returns:
        The numbers that were restored, by process.
    """
    assert await migrated(ROOT, conninfo) == "nothing to apply\n"
    async with (
        processor().running("127.0.0.1:0") as other,
        client_of(fleet.addresses) as client,
    ):
        wrong = await findings(conninfo)
        assert set(wrong) <= {"heartbeats", "due_tasks"}, wrong
        await fleet.start("restored", ROOT, "--paused")
        assert _value(conninfo, b"SELECT epoch FROM progressor.lineage") > 1
        await _retarget(client, other)
        await client.start("new", 0, accept_only=True)
        assert (await client.get("new")).waits[0].cause is WaitCause.PAUSED
        events = await histories(client, [*load.acknowledged])
        restored = {name: [it for it in each if it != TICK] for name, each in events.items()}
        for name, numbers in saved.items():
            assert restored[name][: len(numbers)] == list(numbers), name
        # Nothing has begun: each due timer and each accepted call waits as it was restored.
        assert await histories(client, [*load.acknowledged]) == events
        await client.namespaces.resume(NAMESPACE)
        # Clients that kept their requests send them again, with the same keys.
        await send_all(client, load.acknowledged)
        found = await complete_histories(client, [*load.acknowledged])
    assert found == expected(load.acknowledged)
    return restored


async def _retarget(client: Client, target: str) -> None:
    """Let a paused namespace lead to another processor, before anything of it runs."""
    found = await client.namespaces.get(NAMESPACE)
    assert found.pause is not None, "the replica was started with --paused"
    wanted = dataclasses.replace(found, processor_targets=(target,))
    await client.namespaces.update(wanted, fields=["processor_targets"])


async def test_a_dump_made_under_load_is_restored_and_goes_on(
    durable_cluster: Cluster, tmp_path: Path, target: str
) -> None:
    conninfo, dump = durable_cluster.create_database(), tmp_path / "progressor.dump"
    async with open_fleet(conninfo, tmp_path, "first") as fleet:
        await fleet.start("first")
        async with client_of(fleet.addresses) as client:
            await create_namespace(client, target)
        async with running_load(fleet.addresses) as load:
            await load.advance()
            saved = load.snapshot()
            dumping = asyncio.to_thread(
                tool, "pg_dump", "--format=custom", f"--file={dump}", f"--dbname={conninfo}"
            )
            await dumping
            await load.advance()
        await fleet.kill("first")

    restored = durable_cluster.create_database()
    await asyncio.to_thread(
        tool, "pg_restore", "--exit-on-error", "--single-transaction",
        f"--dbname={restored}", str(dump),
    )  # fmt: skip

    async with open_fleet(restored, tmp_path, "restored") as fleet:
        numbers = await check(fleet, restored, load, saved)
    assert sum(map(len, numbers.values())) < load.count, "nothing was acknowledged after the dump"


async def test_a_restored_dump_takes_the_place_of_a_database_under_load(
    durable_cluster: Cluster, tmp_path: Path, target: str
) -> None:
    conninfo, dump = durable_cluster.create_database(), tmp_path / "progressor.dump"
    restored = durable_cluster.create_database()
    async with open_fleet(conninfo, tmp_path, "first", "second") as fleet:
        await fleet.start("first")
        await fleet.start("second")
        async with client_of(fleet.addresses) as client:
            await create_namespace(client, target)
            async with running_load(fleet.addresses) as load:
                load.resends = True
                await load.advance()
                await asyncio.to_thread(
                    tool, "pg_dump", "--format=custom", f"--file={dump}", f"--dbname={conninfo}"
                )
                await load.advance()
                await asyncio.to_thread(
                    tool, "pg_restore", "--exit-on-error", "--single-transaction",
                    f"--dbname={restored}", str(dump),
                )  # fmt: skip
                await asyncio.to_thread(_swap, durable_cluster.conninfo, conninfo, restored)
                await load.advance()
            await send_all(client, load.acknowledged)
            found = await complete_histories(client, [*load.acknowledged])
        assert _value(conninfo, b"SELECT epoch FROM progressor.lineage") > 1
        assert await findings(conninfo) == {}
    assert {name: (sorted(each), ticks) for name, (each, ticks) in found.items()} == {
        name: (sorted(each), ticks) for name, (each, ticks) in expected(load.acknowledged).items()
    }


def _swap(server: str, one: str, other: str) -> None:
    """Let two databases change names, which ends the sessions in them."""
    names = [sql.Identifier(str(conninfo_to_dict(it)["dbname"])) for it in (one, other)]
    aside = sql.Identifier("aside")
    with psycopg.connect(server, autocommit=True) as connection:
        allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
        rename = sql.SQL("ALTER DATABASE {} RENAME TO {}")
        connection.execute(allow.format(names[0], sql.SQL("false")))
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s",
            [conninfo_to_dict(one)["dbname"]],
        )
        connection.execute(rename.format(names[0], aside))
        connection.execute(rename.format(names[1], names[0]))
        connection.execute(rename.format(aside, names[1]))


@pytest.fixture
def home() -> Iterator[Path]:
    # Not tmp_path: the path of the socket is short.
    with tempfile.TemporaryDirectory(prefix="progressor-rehearsal-", dir="/tmp") as directory:
        yield Path(directory)


async def test_a_base_backup_and_its_wal_are_restored_to_an_instant(
    home: Path, tmp_path: Path, target: str
) -> None:
    archive, base = home / "archive", home / "base"
    archive.mkdir()
    put_cluster(home / "data")
    archiving = {"archive_mode": "on", "archive_command": f"cp %p {archive}/%f"}
    postgres = EmbeddedPostgres(data_directory=home / "data", settings=archiving)
    with contextlib.closing(_Stopped(postgres)):
        conninfo = await asyncio.to_thread(postgres.start)
        async with open_fleet(conninfo, tmp_path, "first") as fleet:
            await fleet.start("first")
            async with client_of(fleet.addresses) as client:
                await create_namespace(client, target)
            async with running_load(fleet.addresses) as load:
                await load.advance()
                await asyncio.to_thread(_base_backup, conninfo, base)
                await load.advance()
                saved, instant = load.snapshot(), _now(conninfo)
                await load.advance()
            await fleet.kill("first")
            await _archived(conninfo)

    (home / "restored").mkdir(mode=0o700)
    base.rename(home / "restored" / "postgres")
    (home / "restored" / "postgres" / "recovery.signal").touch()
    recovery = {
        "restore_command": f"cp {archive}/%f %p",
        "recovery_target_time": instant.isoformat(),
        "recovery_target_action": "promote",
    }
    postgres = EmbeddedPostgres(data_directory=home / "restored", settings=recovery)
    with contextlib.closing(_Stopped(postgres)):
        restored = await asyncio.to_thread(postgres.start)
        await eventually(lambda: not _value(restored, b"SELECT pg_is_in_recovery()"))
        async with open_fleet(restored, tmp_path, "restored") as fleet:
            numbers = await check(fleet, restored, load, saved)
    lost = {*load.acknowledged} - {*numbers}
    assert lost, "no process was started after the instant"


class _Stopped:
    """Closes a server, as contextlib.closing wants it."""

    def __init__(self, postgres: EmbeddedPostgres) -> None:
        self.close = postgres.stop


def _value(conninfo: str, query: bytes) -> Any:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None, "every query has a row"
    return row[0]


def _now(conninfo: str) -> dt.datetime:
    found = _value(conninfo, b"SELECT now()")
    assert isinstance(found, dt.datetime), "now() is an instant"
    return found


def _base_backup(conninfo: str, base: Path) -> None:
    server = conninfo_to_dict(conninfo)
    tool(
        "pg_basebackup", f"--pgdata={base}", "--checkpoint=fast",
        f"--host={server['host']}", f"--port={server['port']}", f"--username={server['user']}",
    )  # fmt: skip


async def _archived(conninfo: str) -> None:
    """Wait until the WAL that was written so far is in the archive."""
    name = _value(conninfo, b"SELECT pg_walfile_name(pg_switch_wal())")
    query = b"SELECT coalesce(last_archived_wal, '') FROM pg_stat_archiver"
    await eventually(lambda: _value(conninfo, query) >= name)
