"""Samples taken every few seconds, and their slopes."""

import dataclasses
from collections.abc import Sequence
from typing import LiteralString

import psycopg

_SIZES: LiteralString = """
    SELECT relname, pg_table_size(relid), pg_indexes_size(relid), n_dead_tup
    FROM pg_stat_user_tables
    WHERE schemaname = 'progressor'
        AND relname IN ('processes', 'tasks', 'events', 'schedule', 'running', 'replies')
    ORDER BY relname"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The engine and its tables at one moment; ``at`` is seconds from the start.

    ``lives`` and ``failed`` also count from the start; ``lives_per_s`` is without failed ones.
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

    @property
    def stored_mb(self) -> float:
        return sum(self.table_mb.values()) + sum(self.index_mb.values())


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
