"""A primary and its standby, as two embedded servers; and what operators do with them."""

import contextlib
import os
import shutil
import signal
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
_COPIES_MAX = 100

# A standby follows again soon after the primary is back, and finds the WAL since it was stopped.
_SETTINGS = {"wal_retrieve_retry_interval": "100ms", "wal_keep_size": "512MB"}


class Server(Cluster):
    def __init__(self, embedded: EmbeddedPostgres, home: Path) -> None:
        super().__init__(embedded.conninfo, embedded, home)
        self._data = home / "data/postgres"
        self._settings = self._data / "postgresql.auto.conf"
        self._signal = self._data / "standby.signal"

    def demote(self, leader: "Server") -> None:
        """Start as a standby of `leader`, having been stopped in good order."""
        with self._settings.open("a", encoding="ascii") as settings:
            settings.write(f"primary_conninfo = '{_quoted(leader.conninfo)}'\n")
        self._signal.touch(mode=0o600)
        self.restart()

    def rebuild(self, leader: "Server") -> None:
        """Start as a standby copied from `leader`, which may be restarted meanwhile."""
        for attempt in range(1, _COPIES_MAX + 1):
            shutil.rmtree(self._data, ignore_errors=True)
            try:
                _copy(leader, self._data)
            except subprocess.CalledProcessError as error:
                if attempt == _COPIES_MAX:
                    error.add_note(error.stderr.decode())
                    raise
                time.sleep(_POLL_SECONDS * attempt)
            else:
                self.restart()
                return

    def stop_immediately(self) -> None:
        """Stop as `pg_ctl stop -m immediate` does."""
        self._signal_first(signal.SIGQUIT)
        self.stop()

    def lose_power(self) -> None:
        """End all processes at once.

        After `kill`, which ends the first of them, the others end when they notice. A commit that
        has waited for the standby until then becomes visible to those that have not noticed yet.
        """
        first = self._signal_first(signal.SIGSTOP)  # It starts no more processes.
        children = Path(f"/proc/{first}/task/{first}/children").read_text("ascii")
        for process in (*map(int, children.split()), first):
            os.kill(process, signal.SIGKILL)
        self.stop()

    def _signal_first(self, number: signal.Signals) -> int:
        process = int((self._data / "postmaster.pid").read_text("ascii").split()[0])
        os.kill(process, number)
        return process

    def promote(self) -> None:
        """Take writes from now on, as after `pg_ctl promote`."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            row = connection.execute("SELECT pg_promote(true, 60)").fetchone()
        assert row == (True,), "it was not promoted"

    def insist_on_standby(self) -> None:
        """Answer commits once a standby has them too; waits for the standby."""
        self.insist_when_primary()
        self._wait("SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'")

    def insist_when_primary(self) -> None:
        """Answer commits once a standby has them too, as long as it takes writes."""
        self._configure("synchronous_standby_names = '*'")

    def leave_primary(self) -> None:
        """As a standby, receive nothing more."""
        self._configure("primary_conninfo = ''")

    def wait_until_replayed(self) -> None:
        """Wait until the standby has all that was committed so far."""
        with psycopg.connect(self.conninfo) as connection:
            row = connection.execute("SELECT pg_current_wal_lsn()").fetchone()
        assert row is not None, "a SELECT without FROM has one row"
        self._wait(f"SELECT replay_lsn >= '{row[0]}' FROM pg_stat_replication")  # noqa: S608  ours

    def wait_until_alone(self) -> None:
        self._wait("SELECT count(*) = 0 FROM pg_stat_replication")

    def _configure(self, setting: str) -> None:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM SET {setting}".encode())
            connection.execute("SELECT pg_reload_conf()")

    def _wait(self, question: str) -> None:
        deadline = time.monotonic() + _FOLLOW_SECONDS
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            while connection.execute(question.encode()).fetchone() != (True,):
                assert time.monotonic() < deadline, f"never true: {question}"
                time.sleep(_POLL_SECONDS)


class Pair:
    """A primary and its standby, which may change places."""

    def __init__(self, primary: Server, standby: Server) -> None:
        self.primary, self.standby = primary, standby
        self._hosts = [str(conninfo_to_dict(each.conninfo)["host"]) for each in (primary, standby)]

    def both(self, database: str) -> str:
        """Return how to connect to whichever takes writes, by the conninfo of a database."""
        return make_conninfo(database, host=",".join(self._hosts), port="5432,5432")

    def cut_off_standby(self) -> None:
        """Let the standby, once it has all that was committed so far, receive nothing more."""
        self.primary.wait_until_replayed()
        self.standby.leave_primary()
        self.primary.wait_until_alone()

    def fail_over(self) -> None:
        """End the primary as kill -9 does, and promote the standby; it has no standby itself."""
        self.primary.kill()
        self.standby.promote()

    def insist_for_ever(self) -> None:
        """Answer commits once both servers have them, whichever is the primary."""
        self.standby.insist_when_primary()
        self.primary.insist_on_standby()

    def take_over(self) -> None:
        """Promote the standby in place of the primary, which has ended."""
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary

    def switch_over(self) -> None:
        """Stop the primary in good order, promote the standby, and let the two change places."""
        self.primary.stop()
        self.standby.promote()
        self.primary.demote(self.standby)
        self.primary, self.standby = self.standby, self.primary
        self.primary.insist_on_standby()


@contextlib.contextmanager
def open_pair(*, synchronous: bool = True) -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(_server())
        standby = stack.enter_context(_server(copied_from=primary))
        if synchronous:
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
        embedded = EmbeddedPostgres(data_directory=data, settings=_SETTINGS)
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
        capture_output=True,
    )  # fmt: skip


def _quoted(conninfo: str) -> str:
    return conninfo.replace("'", "''")


def writing(both: str) -> str:
    """Return how to connect to the one of two servers that takes writes."""
    return make_conninfo(both, target_session_attrs="read-write")
