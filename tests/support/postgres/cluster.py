"""A PostgreSQL for one run of the tests, and databases in it.

Each pytest-xdist worker opens its own cluster, so nothing is shared and nothing is locked;
on a server named by PROGRESSOR_TEST_DSN the names of the databases keep workers apart.

The cluster of a run does not wait for the disk: a server that is killed keeps what it gave to the
operating system, and no test kills that. Servers that a test may kill are as durable as a user's.
"""

import atexit
import contextlib
import functools
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from progressor.storage.embedded.server import EmbeddedPostgres
from progressor.storage.postgres.direct import Direct
from progressor.storage.postgres.functions import Function

DSN_VARIABLE = "PROGRESSOR_TEST_DSN"
BINARIES_VARIABLE = "PROGRESSOR_TEST_BINARIES"
"""Names the directory of `postgres` and `initdb` of the embedded servers, for another version."""

_OTHER_ORDER = "ENCODING 'UTF8' LOCALE 'C' LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"


class Cluster:
    """A running server in which tests make databases; all of them go when it is closed."""

    def __init__(self, conninfo: str, embedded: EmbeddedPostgres | None, home: Path | None) -> None:
        """Take a running server; `embedded` and its `home` if it is ours to stop."""
        self.conninfo = conninfo
        self._embedded = embedded
        self._home = home
        self._prefix = f"progressor_test_{secrets.token_hex(4)}"
        self._made = 0
        self._databases: set[str] = set()
        self._templates: dict[str, str] = {}

    @property
    def is_embedded(self) -> bool:
        return self._embedded is not None

    def create_template(self, name: str, prepare: Callable[[str], None]) -> None:
        """Make the template `name` by calling `prepare` with the conninfo of an empty database.

        `prepare` closes its connections. A template that exists is kept as it is.
        """
        if name not in self._templates:
            conninfo = self.create_database()
            prepare(conninfo)
            self._templates[name] = _name_in(conninfo)

    def create_database(self, template: str | None = None) -> str:
        """Return the conninfo of a new database: empty, or a copy of a template."""
        return self._create("template0" if template is None else self._templates[template])

    def copy_database(self, conninfo: str) -> str:
        """Return the conninfo of a copy of a database that no one is connected to."""
        return self._create(_name_in(conninfo))

    def _create(self, source: str) -> str:
        self._made += 1
        name = f"{self._prefix}_{self._made}"
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        self._execute(statement.format(sql.Identifier(name), sql.Identifier(source)))
        self._databases.add(name)
        return make_conninfo(self.conninfo, dbname=name)

    def create_unordered_database(self) -> str:
        """Return the conninfo of an empty database whose collation is not that of the keys.

        Where the server has no ICU it is like any other.
        """
        self._made += 1
        name = f"{self._prefix}_{self._made}"
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            query = "SELECT FROM pg_collation WHERE collname = 'en-US-x-icu' LIMIT 1"
            order = sql.SQL(
                _OTHER_ORDER if connection.execute(query).fetchone() is not None else ""
            )
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE template0 {}")
        self._execute(statement.format(sql.Identifier(name), order))
        self._databases.add(name)
        return make_conninfo(self.conninfo, dbname=name)

    def drop_database(self, conninfo: str) -> None:
        name = _name_in(conninfo)
        assert name in self._databases, f"{name} is not of this cluster"
        self._execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        )
        self._databases.remove(name)

    def kill(self) -> None:
        embedded, home = self._owned()
        with contextlib.suppress(FileNotFoundError):
            lines = (home / "data/postgres/postmaster.pid").read_text("ascii").splitlines()
            os.kill(int(lines[0]), signal.SIGKILL)
        embedded.stop()

    def stop(self) -> None:
        embedded, _ = self._owned()
        embedded.stop()

    def restart(self) -> None:
        """Stop the server if it runs, and start it; databases and conninfos stay valid."""
        embedded, _ = self._owned()
        embedded.stop()
        started = embedded.start()
        assert started == self.conninfo, f"{started} was {self.conninfo}"

    def switch_writes(self, *, refused: bool) -> None:
        """Let all sessions of the server refuse writes from their next one on, or take them."""
        value = sql.SQL("on" if refused else "off")
        self._execute(sql.SQL("ALTER SYSTEM SET default_transaction_read_only = {}").format(value))
        self._execute(sql.SQL("SELECT pg_reload_conf()"))

    def wait_until_left(self, *, seconds: float = 30.0) -> None:
        """Return once no engine has a session here; fails after `seconds`."""
        query = "SELECT application_name FROM pg_stat_activity WHERE application_name ~ %s"
        deadline = time.monotonic() + seconds
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            while there := connection.execute(query, ["^progressor "]).fetchall():
                assert time.monotonic() < deadline, f"still connected: {there}"
                time.sleep(0.02)

    def close(self) -> None:
        if self._embedded is None:
            for name in tuple(self._databases):
                self.drop_database(make_conninfo(self.conninfo, dbname=name))
            return
        self._embedded.stop()
        assert self._home is not None, "an embedded server has a home"
        shutil.rmtree(self._home)

    def _owned(self) -> tuple[EmbeddedPostgres, Path]:
        assert self._embedded is not None, f"the server of {DSN_VARIABLE} is not ours to stop"
        assert self._home is not None, "an embedded server has a home"
        return self._embedded, self._home

    def _execute(self, statement: sql.SQL | sql.Composed) -> None:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.execute(statement)


@contextlib.contextmanager
def open_cluster(*, durable: bool = False) -> Iterator[Cluster]:
    """Yield a cluster on the server of PROGRESSOR_TEST_DSN, else on an embedded one.

    Only the second can be asked not to be `durable`.
    """
    if conninfo := os.environ.get(DSN_VARIABLE):
        cluster = Cluster(conninfo, None, None)
    else:
        cluster = _embedded_cluster(durable=durable, settings={} if durable else {"fsync": "off"})
    try:
        yield cluster
    finally:
        cluster.close()


@contextlib.contextmanager
def own_cluster(**settings: str) -> Iterator[Cluster]:
    """Yield a cluster that a test may kill, stop and demote, wherever the others run."""
    cluster = _embedded_cluster(durable=True, settings=settings)
    try:
        yield cluster
    finally:
        cluster.close()


def put_cluster(data_directory: Path) -> None:
    """Put a cluster that was never used where a server is to have its data, which is not there.

    A copy takes a tenth of the time in which initdb makes one.
    """
    data_directory.mkdir(mode=0o700)
    shutil.copytree(_unused_cluster() / "postgres", data_directory / "postgres")
    shutil.copy2(_unused_cluster() / "password", data_directory)


@functools.cache
def _unused_cluster() -> Path:
    """Return where a cluster is that no server runs on, made once per process."""
    home = Path(tempfile.mkdtemp(prefix="progressor-unused-", dir="/tmp"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    with EmbeddedPostgres(data_directory=home / "data", binaries=_binaries()):
        return home / "data"


def _embedded_cluster(*, durable: bool, settings: Mapping[str, str]) -> Cluster:
    # /tmp and not TMPDIR: the path of the socket is short, so it never changes.
    home = Path(tempfile.mkdtemp(prefix="progressor-tests-", dir="/tmp"))
    put_cluster(home / "data")
    embedded = EmbeddedPostgres(
        data_directory=home / "data", binaries=_binaries(), settings=settings, durable=durable
    )
    return Cluster(embedded.start(), embedded, home)


def _binaries() -> Path | None:
    directory = os.environ.get(BINARIES_VARIABLE)
    return Path(directory) if directory else None


def direct(statement: bytes) -> Direct[tuple[Any, ...]]:
    """Return a statement that is sent the way the hot path sends its functions."""
    return Direct(Function(statement, {}, (), tuple))


def wait_until_no_server(data_directory: Path, *, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while servers := _servers_in(data_directory):
        assert time.monotonic() < deadline, f"still running in {data_directory}: {servers}"
        time.sleep(0.02)


def _servers_in(data_directory: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "cwd").readlink().parent == data_directory:
                found.append(int(entry.name))
    return found


def _name_in(conninfo: str) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(conninfo)["dbname"])
