"""Debian's PgBouncer in front of the cluster of the tests, in transaction mode.

Its sessions are few, so that two statements of one client rarely meet the same one: what rests on
a session fails soon.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from progressor.storage.embedded import server as embedded
from progressor.storage.embedded.server import _identity

PORT = 6432
SESSIONS = 5
_PATIENCE_SECONDS = 20.0
_GUARD = Path(embedded.__file__).with_name("guard.py")
_PREPARES = (1, 21)
"""The first release that carries prepared statements from session to session."""


def binary() -> str | None:
    """Return where pgbouncer is; None: not installed. Debian keeps it off users' PATH."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


def version() -> tuple[int, int]:
    found = binary()
    assert found is not None, "asked for the version of what is not installed"
    told = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)
    match = re.search(r"PgBouncer (\d+)\.(\d+)", told.stdout)
    assert match is not None, f"not a version of PgBouncer: {told.stdout!r}"
    return int(match[1]), int(match[2])


def carries_prepared_statements() -> bool:
    return version() >= _PREPARES


class PgBouncer:
    """A pooler between its clients and one database; under the same conninfo after a restart."""

    def __init__(self, home: Path, conninfo: str, *, prepared_statements_max: int = 0) -> None:
        self._home = home
        self._behind = conninfo_to_dict(conninfo)
        self._prepared_statements_max = prepared_statements_max
        self._guard: subprocess.Popen[str] | None = None
        self._process_id = 0

    @property
    def conninfo(self) -> str:
        return make_conninfo(
            host=str(self._home), port=PORT, user="postgres", dbname=str(self._behind["dbname"])
        )

    @property
    def log(self) -> str:
        return (self._home / "pgbouncer.log").read_text("utf-8", "replace")

    def start(self) -> None:
        found = binary()
        assert found is not None, "pgbouncer is not installed"
        config = self._home / "pgbouncer.ini"
        config.write_text(self._settings(), "utf-8")
        log = self._home / "guard.log"
        # It refuses root, as PostgreSQL does, so it starts as that does; and ends with us.
        identity = _identity(os.geteuid(), os.getegid())
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                [
                    sys.executable, "-I", "-S", str(_GUARD), identity, "SIGTERM", str(log), "",
                    found, "--quiet", str(config),
                ],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True,
                cwd="/", start_new_session=True,
            )  # fmt: skip
        assert self._guard.stdout is not None, "asked for a pipe"
        answer, _, rest = self._guard.stdout.readline().strip().partition(" ")
        assert answer == "started", f"pgbouncer was not started: {rest}"
        self._process_id = int(rest)
        self._wait_until_serving()

    def kill(self) -> None:
        assert self._guard is not None, "it does not run"
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process_id, signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            assert guard.stdin is not None, "asked for a pipe"
            assert guard.stdout is not None, "asked for a pipe"
            guard.stdin.close()
            guard.stdout.close()
            guard.wait(_PATIENCE_SECONDS)
        (self._home / f".s.PGSQL.{PORT}").unlink(missing_ok=True)

    def _settings(self) -> str:
        behind = {"port": "5432", **{key: str(value) for key, value in self._behind.items()}}
        known = ("host", "port", "user", "password", "dbname")
        target = " ".join(f"{key}='{behind[key]}'" for key in known if key in behind)
        settings = {
            "listen_addr": "",
            "listen_port": PORT,
            "unix_socket_dir": self._home,
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": SESSIONS,
            "max_client_conn": 500,
            # By default it waits for 15 s before it looks for a PostgreSQL that was away again.
            "server_login_retry": 0.2,
            "logfile": self._home / "pgbouncer.log",
            "pidfile": "",
        }
        if carries_prepared_statements():
            settings["max_prepared_statements"] = self._prepared_statements_max
        lines = [f"{key} = {value}".rstrip() for key, value in settings.items()]
        return "\n".join(["[databases]", f"* = {target}", "[pgbouncer]", *lines, ""])

    def _wait_until_serving(self) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not self._serves():
            assert time.monotonic() < deadline, f"pgbouncer does not serve; its log: {self.log}"
            time.sleep(0.02)

    def _serves(self) -> bool:
        try:
            with psycopg.connect(self.conninfo, autocommit=True) as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True


@contextlib.contextmanager
def open_pgbouncer(conninfo: str, *, prepared_statements_max: int = 0) -> Iterator[PgBouncer]:
    """Run a pooler in front of a database until the context is left."""
    # /tmp and not TMPDIR: the path of a socket must be short.
    home = Path(tempfile.mkdtemp(prefix="progressor-pgbouncer-", dir="/tmp"))
    pooler = PgBouncer(home, conninfo, prepared_statements_max=prepared_statements_max)
    try:
        pooler.start()
        yield pooler
    finally:
        pooler.stop()
        shutil.rmtree(home)
