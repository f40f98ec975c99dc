"""Connections: three bulkheads, and the one place where the driver's errors become ours.

*front* serves requests (admissions, reads), *worker* settlements and claims, *scan* the scanners: a
flood of requests cannot keep steps from settling. Everything runs in autocommit, one statement a
transaction, and keeps no session state, so a transaction-mode pooler may stand in between.
"""

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import psycopg_pool
from psycopg import conninfo

from progressor import errors
from progressor.settings.sections import Database
from progressor.storage import arrays

RECONNECT_SECONDS = 5.0

Connection = psycopg.AsyncConnection[tuple[Any, ...]]
Pool = psycopg_pool.AsyncConnectionPool[Connection]

_UNDONE = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.LockNotAvailable,
)
# A connection in one of these states, or gone, is no good to the next user either.
_TRANSIENT = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg_pool.PoolTimeout,
    psycopg_pool.PoolClosed,
    psycopg_pool.TooManyRequests,
)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn the driver's errors into ours.

    Raises:
        StorageConflictError: PostgreSQL undid the transaction for the sake of another; it may be
            repeated at once.
        StorageUnavailableError: The connection, the server or the pool gave way; whether a write
            in flight was done is unknown.
        StorageRefusedError: PostgreSQL refused a value; nothing was written.
    """
    try:
        yield
    except _UNDONE as error:
        raise errors.StorageConflictError(str(error).strip()) from error
    except _TRANSIENT as error:
        raise errors.StorageUnavailableError(str(error).strip() or type(error).__name__) from error
    except TimeoutError as error:
        raise errors.StorageUnavailableError("the statement timed out") from error
    except psycopg.Error as error:
        raise errors.StorageRefusedError(str(error).strip()) from error


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """The three bulkheads."""

    front: Pool
    worker: Pool
    scan: Pool

    async def close(self) -> None:
        """Close all connections; statements in flight are given up."""
        for pool in (self.front, self.worker, self.scan):
            await pool.close()


def connection_string(config: Database, dsn: str, *, application: str) -> str:
    """Return `dsn` with our timeouts and name; what the operator wrote there wins."""
    given = conninfo.conninfo_to_dict(dsn)
    ours: dict[str, Any] = {
        "application_name": application,
        "connect_timeout": max(2, round(config.connect_timeout.total_seconds())),
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 20_000,
    }
    return conninfo.make_conninfo(**(ours | given))


async def open_pools(config: Database, dsn: str) -> Pools:
    """Return pools that connect in the background, so that PostgreSQL may still be away."""

    async def prepare(connection: Connection) -> None:
        arrays.register(connection)

    def pool(name: str, size: int) -> Pool:
        return psycopg_pool.AsyncConnectionPool(
            connection_string(config, dsn, application=f"progressor {name}"),
            connection_class=psycopg.AsyncConnection[tuple[Any, ...]],
            # Statements are calls of functions whose plans live in PL/pgSQL; preparing them by name
            # would be session state, which a pooler takes away. (`direct` prepares, and does
            # without where that happens.)
            kwargs={"autocommit": True, "prepare_threshold": None},
            min_size=min(1, size),
            max_size=size,
            name=name,
            open=False,
            configure=prepare,
            timeout=config.connect_timeout.total_seconds(),
            # The pool doubles the pause between its attempts without end. When it gives up after
            # these seconds, whoever asks next makes it begin anew.
            reconnect_timeout=RECONNECT_SECONDS,
        )

    pools = Pools(
        front=pool("front", config.front_connections_max),
        worker=pool("worker", config.worker_connections_max),
        scan=pool("scan", config.scan_connections_max),
    )
    for each in (pools.front, pools.worker, pools.scan):
        await each.open(wait=False)
    return pools


@contextlib.asynccontextmanager
async def connection_of(pool: Pool) -> AsyncIterator[Connection]:
    """Lend a connection for one statement, with the driver's errors translated."""
    with translated():
        async with pool.connection() as connection:
            yield connection
