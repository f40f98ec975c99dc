"""Samples taken every few seconds, and their slopes."""

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from typing import LiteralString

import psycopg

from bench.cpu import cpu_seconds, on_cpu_seconds, parent_of

_SIZES: LiteralString = """
    SELECT relname, pg_table_size(relid), pg_indexes_size(relid), n_dead_tup
    FROM pg_stat_user_tables
    WHERE schemaname = 'progressor'
        AND relname IN ('processes', 'tasks', 'events', 'schedule', 'running', 'replies')
    ORDER BY relname"""
_OLDEST: LiteralString = """
    SELECT extract(epoch FROM clock_timestamp() - p.finished_at)::float8
    FROM progressor.processes p
    WHERE p.namespace = %s AND p.finished_at IS NOT NULL
    ORDER BY p.namespace, p.finished_at
    LIMIT 1"""
_SESSIONS: LiteralString = """
    SELECT application_name, pid
    FROM pg_stat_activity
    WHERE datname = current_database() AND application_name <> ''"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The engine and its tables at one moment; ``at`` is seconds from the start.

    ``lives`` and ``failed`` also count from the start; ``lives_per_s`` is without failed ones.
    ``oldest_seconds`` is the age of the process that finished first. ``cores`` are those kept busy
    since the sample before, by the engine, by PostgreSQL, and by its sessions of each application.
    """

    at: float
    lives: int
    lives_per_s: float
    failed: int
    p50_ms: float
    p99_ms: float
    engine_mb: float
    table_mb: dict[str, float]
    index_mb: dict[str, float]
    dead_rows: dict[str, int]
    oldest_seconds: float
    cores: dict[str, float]

    @property
    def stored_mb(self) -> float:
        return sum(self.relation_mb.values())

    @property
    def relation_mb(self) -> dict[str, float]:
        return self.table_mb | {f"indexes of {name}": mb for name, mb in self.index_mb.items()}


async def read_sizes(
    connection: psycopg.AsyncConnection,
) -> tuple[dict[str, float], dict[str, float], dict[str, int]]:
    """Return MB of tables, MB of their indexes, and dead rows, by table."""
    cursor = await connection.execute(_SIZES)
    rows = await cursor.fetchall()
    return (
        {name: round(size / 2**20, 2) for name, size, _, _ in rows},
        {name: round(size / 2**20, 2) for name, _, size, _ in rows},
        {name: dead for name, _, _, dead in rows},
    )


async def read_oldest(connection: psycopg.AsyncConnection, namespace: str) -> float:
    """Return how many seconds ago the first of the finished processes finished."""
    row = await (await connection.execute(_OLDEST, (namespace,))).fetchone()
    return 0.0 if row is None else round(row[0], 1)


class Cores:
    """How many cores an engine and its database keep busy; of a database elsewhere, nothing."""

    def __init__(self, engine: int, connection: psycopg.AsyncConnection) -> None:
        self._engine = engine
        self._connection = connection
        self._read_at = time.monotonic()
        self._before: dict[tuple[str, int], float] = {}

    async def read(self) -> dict[str, float]:
        """Return the cores by who used them, since the last reading."""
        parts, seconds = [("engine", self._engine)], dict[tuple[str, int], float]()
        with contextlib.suppress(KeyError):
            parts.append(("server", parent_of(self._connection.info.backend_pid)))
        for part, used in cpu_seconds(parts, all_postgres=False).items():
            seconds[part, 0] = used
        for application, pid in await (await self._connection.execute(_SESSIONS)).fetchall():
            with contextlib.suppress(OSError):
                seconds[application, pid] = on_cpu_seconds(pid)
        now, cores = time.monotonic(), dict[str, float]()
        for key, used in seconds.items():
            since = (used - self._before.get(key, used)) / (now - self._read_at)
            cores[key[0]] = cores.get(key[0], 0.0) + since
        self._read_at, self._before = now, seconds
        return {part: round(used, 4) for part, used in cores.items() if part != "server"}


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of y over x, by least squares; 0 if there are too few points."""
    if len(points) < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if not spread:
        return 0.0
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
