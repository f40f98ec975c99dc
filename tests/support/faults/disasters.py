"""Failures of PostgreSQL, or of the connection to it, while clients depend on it.

A disaster is a context: it is there when the context is entered, and over when it is left. Those
of the server itself begin then, and go on beside what is done inside.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.faults.faults import terminated
from tests.support.postgres.cluster import Cluster
from tests.support.postgres.proxy import Proxy

_SETTLE = '"settle_tasks"('
_END_THE_ENGINES = """
    SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity
    WHERE application_name LIKE 'progressor%'"""
_END_ALL = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()"""


@dataclasses.dataclass(frozen=True, slots=True)
class Ground:
    """A server that may be killed, a database in it, and a way there that may be broken."""

    cluster: Cluster
    conninfo: str
    proxy: Proxy


def terminate_all(conninfo: str) -> None:
    """End every session of a database but our own."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(_END_ALL)


def kill_and_restart(cluster: Cluster) -> None:
    """End the server as kill -9 does, and start it, which recovers."""
    cluster.kill()
    cluster.restart()


@contextlib.contextmanager
def without_connections(conninfo: str) -> Iterator[None]:
    """Hold every connection of the server, those of the engines too. Blocks."""
    elsewhere = make_conninfo(conninfo, dbname="postgres")
    database = sql.Identifier(str(conninfo_to_dict(conninfo)["dbname"]))
    allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
    with (
        contextlib.ExitStack() as held,
        psycopg.connect(elsewhere, autocommit=True) as own,
    ):
        # As long as the engines may come back, they are as quick as we are.
        own.execute(allow.format(database, sql.SQL("false")))
        own.execute(_END_THE_ENGINES)
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                held.enter_context(contextlib.closing(psycopg.connect(elsewhere)))
        own.execute(allow.format(database, sql.SQL("true")))
        yield


@contextlib.asynccontextmanager
async def stalled(ground: Ground) -> AsyncIterator[None]:
    """Pass nothing on, on the way to the server or back."""
    ground.proxy.stall()
    yield
    ground.proxy.restore()


@contextlib.asynccontextmanager
async def half_open(ground: Ground) -> AsyncIterator[None]:
    """Lose all that goes over the connections there are; new ones are as good as ever."""
    ground.proxy.half_open()
    yield
    ground.proxy.restore()


@contextlib.asynccontextmanager
async def refused(ground: Ground) -> AsyncIterator[None]:
    """Break all connections, and every new one."""
    ground.proxy.refuse()
    yield
    ground.proxy.restore()


@contextlib.asynccontextmanager
async def cut(ground: Ground) -> AsyncIterator[None]:
    """Break all connections once."""
    ground.proxy.cut()
    yield


@contextlib.asynccontextmanager
async def backend_killed(ground: Ground) -> AsyncIterator[None]:
    """End the session that is about to carry out the next settlements."""
    struck = ground.proxy.arm(terminated(_SETTLE))
    yield
    await struck.struck()


@contextlib.asynccontextmanager
async def all_backends_killed(ground: Ground) -> AsyncIterator[None]:
    """End all sessions of the database once."""
    await asyncio.to_thread(terminate_all, ground.conninfo)
    yield


@contextlib.asynccontextmanager
async def no_connection_left(ground: Ground) -> AsyncIterator[None]:
    """Leave no connection to anybody."""
    with contextlib.ExitStack() as stack:
        await asyncio.to_thread(stack.enter_context, without_connections(ground.conninfo))
        yield


@contextlib.asynccontextmanager
async def restarted(ground: Ground) -> AsyncIterator[None]:
    """Restart the server meanwhile."""
    async with _meanwhile(Cluster.restart, ground.cluster):
        yield


@contextlib.asynccontextmanager
async def killed(ground: Ground) -> AsyncIterator[None]:
    """Kill the server (-9) and start it again meanwhile."""
    async with _meanwhile(kill_and_restart, ground.cluster):
        yield


@contextlib.asynccontextmanager
async def _meanwhile(end: Callable[[Cluster], None], cluster: Cluster) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(end, cluster), name="end the server")
        yield


Disaster = Callable[[Ground], contextlib.AbstractAsyncContextManager[None]]

DISASTERS: Mapping[str, Disaster] = {
    "stalled": stalled,
    "half-open": half_open,
    "refused": refused,
    "cut": cut,
    "a backend killed": backend_killed,
    "all backends killed": all_backends_killed,
    "no connection left": no_connection_left,
    "restarted": restarted,
    "killed": killed,
}

PASSING = ("cut", "a backend killed", "all backends killed")
"""Those after which the server can be reached again at once."""

CUT_OFF = ("stalled", "half-open", "refused")
"""Those of a way, which others may have beside it."""

ABSENT = ("no connection left", "restarted", "killed")
"""Those of the server, which may last longer than a lease."""
