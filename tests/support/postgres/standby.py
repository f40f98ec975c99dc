"""A standby that follows a server of ours synchronously, and takes over from it.

What the primary has answered is on the disk of the standby too (`synchronous_commit` is on), so a
failover may lose nothing of it.
"""

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from progressor.storage.embedded.binaries import find_binaries
from progressor.storage.embedded.server import EmbeddedPostgres
from tests.support.postgres.cluster import Cluster, put_cluster

_COPY_SECONDS = 60.0
_FOLLOW_SECONDS = 60.0
_POLL_SECONDS = 0.02


class Server(Cluster):
    def __init__(self, embedded: EmbeddedPostgres, home: Path) -> None:
        super().__init__(embedded.conninfo, embedded, home)
        self._settings = home / "data/postgres/postgresql.auto.conf"
        self._signal = home / "data/postgres/standby.signal"

    def demote(self, leader: "Server") -> None:
        """Start as a standby of `leader`, having been stopped in good order."""
        with self._settings.open("a", encoding="ascii") as settings:
            settings.write(f"primary_conninfo = '{_quoted(leader.conninfo)}'\n")
        self._signal.touch(mode=0o600)
        self.restart()

    def promote(self) -> None:
        """Take writes from now on, as after `pg_ctl promote`."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            row = connection.execute("SELECT pg_promote(true, 60)").fetchone()
        assert row == (True,), "it was not promoted"

    def insist_on_standby(self) -> None:
        """Answer commits once a standby has them too; waits for the standby."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
            deadline = time.monotonic() + _FOLLOW_SECONDS
            question = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
            while connection.execute(question).fetchone() != (1,):
                assert time.monotonic() < deadline, "no standby follows"
                time.sleep(_POLL_SECONDS)


class Pair:
    """A primary and its standby, which may change places."""

    def __init__(self, primary: Server, standby: Server) -> None:
        self.primary, self.standby = primary, standby
        self._hosts = [str(conninfo_to_dict(it.conninfo)["host"]) for it in (primary, standby)]

    def both(self, database: str) -> str:
        """Return how to connect to whichever takes writes, by the conninfo of a database."""
        return make_conninfo(database, host=",".join(self._hosts), port="5432,5432")

    def fail_over(self) -> None:
        """End the primary as kill -9 does, and promote the standby; it has no standby itself."""
        self.primary.kill()
        self.standby.promote()

    def switch_over(self) -> None:
        """Stop the primary in good order, promote the standby, and let the two change places."""
        self.primary.stop()
        self.standby.promote()
        self.primary.demote(self.standby)
        self.primary, self.standby = self.standby, self.primary
        self.primary.insist_on_standby()


@contextlib.contextmanager
def open_pair() -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(_server())
        standby = stack.enter_context(_server(copied_from=primary))
        primary.insist_on_standby()
        yield Pair(primary, standby)


@contextlib.contextmanager
def _server(*, copied_from: Server | None = None) -> Iterator[Server]:
    # /tmp and not TMPDIR: the path of the socket is short, so it never changes.
    home = Path(tempfile.mkdtemp(prefix="progressor-tests-", dir="/tmp"))
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, home, ignore_errors=True)
        data = home / "data"
        if copied_from is not None:
            data.mkdir(mode=0o700)
            _copy(copied_from, data / "postgres")
        else:
            put_cluster(data)
        embedded = EmbeddedPostgres(data_directory=data)
        undo.callback(embedded.stop)
        embedded.start()
        yield Server(embedded, home)


def _copy(leader: Server, cluster: Path) -> None:
    """Copy a running server into a standby of it that has not started yet."""
    subprocess.run(
        [
            find_binaries() / "pg_basebackup", f"--pgdata={cluster}",
            f"--dbname={leader.conninfo}", "--write-recovery-conf", "--wal-method=stream",
            "--checkpoint=fast", "--no-sync",
        ],
        check=True, timeout=_COPY_SECONDS, env={"LC_ALL": "C"}, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def _quoted(conninfo: str) -> str:
    return conninfo.replace("'", "''")
