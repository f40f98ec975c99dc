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

_END_THE_ENGINES = """
    SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity
    WHERE application_name LIKE 'progressor%'"""
_END_ALL = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()"""


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A server that may be killed, a database in it, and a way there that may be broken."""

    cluster: Cluster
    conninfo: str
    proxy: Proxy


def terminate_all(conninfo: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(_END_ALL)


def kill_and_restart(cluster: Cluster) -> None:
    cluster.kill()
    cluster.restart()


ENDS: Mapping[str, Callable[[Cluster, str], None]] = {
    "restart": lambda cluster, _conninfo: cluster.restart(),
    "kill -9": lambda cluster, _conninfo: kill_and_restart(cluster),
    "sessions terminated": lambda _cluster, conninfo: terminate_all(conninfo),
}
"""What may end of a cluster and a database in it. They block."""


@contextlib.contextmanager
def without_connections(conninfo: str) -> Iterator[None]:
    """Hold every connection of the server, those of the engines too. Blocks."""
    elsewhere = make_conninfo(conninfo, dbname="template1")
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


Disaster = Callable[[Target], contextlib.AbstractAsyncContextManager[None]]


def _of_the_way(break_it: Callable[[Proxy], None]) -> Disaster:
    @contextlib.asynccontextmanager
    async def broken(target: Target) -> AsyncIterator[None]:
        break_it(target.proxy)
        yield
        target.proxy.restore()

    return broken


def _meanwhile(end: Callable[[Cluster, str], None]) -> Disaster:
    @contextlib.asynccontextmanager
    async def ended(target: Target) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(end, target.cluster, target.conninfo))
            yield

    return ended


@contextlib.asynccontextmanager
async def _backend_killed(target: Target) -> AsyncIterator[None]:
    """End the session that is about to carry out the next settlements."""
    struck = target.proxy.arm(terminated('"settle_tasks"('))
    yield
    await struck.struck()


@contextlib.asynccontextmanager
async def _all_backends_killed(target: Target) -> AsyncIterator[None]:
    await asyncio.to_thread(terminate_all, target.conninfo)
    yield


@contextlib.asynccontextmanager
async def _no_connection_left(target: Target) -> AsyncIterator[None]:
    with contextlib.ExitStack() as stack:
        await asyncio.to_thread(stack.enter_context, without_connections(target.conninfo))
        yield


DISASTERS: Mapping[str, Disaster] = {
    "stalled": _of_the_way(Proxy.stall),
    "half-open": _of_the_way(Proxy.half_open),
    "refused": _of_the_way(Proxy.refuse),
    "cut": _of_the_way(Proxy.cut),
    "a backend killed": _backend_killed,
    "all backends killed": _all_backends_killed,
    "no connection left": _no_connection_left,
    "restarted": _meanwhile(ENDS["restart"]),
    "killed": _meanwhile(ENDS["kill -9"]),
}

PASSING = ("cut", "a backend killed", "all backends killed")
"""Those after which the server can be reached again at once."""

CUT_OFF = ("stalled", "half-open", "refused")
"""Those of a way, which others may have beside it."""

ABSENT = ("no connection left", "restarted", "killed")
"""Those of the server, which may last longer than a lease."""
