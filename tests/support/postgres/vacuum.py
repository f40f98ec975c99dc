"""Waiting until autovacuum has been at a table."""

import asyncio
from typing import Any, LiteralString

import psycopg

_PATIENCE_SECONDS = 60.0

_COUNTED: LiteralString = """
    SELECT count(*)
    FROM pg_stat_user_tables
    WHERE schemaname = 'progressor' AND relname = ANY (%s) AND autovacuum_count > 0"""
_AT_WORK: LiteralString = """
    SELECT count(*)
    FROM pg_stat_activity
    WHERE backend_type = 'autovacuum worker' AND datname = current_database()"""


async def until_autovacuumed(observer: psycopg.Connection[Any], *tables: str) -> None:
    """Return once autovacuum has gone through each of the tables; fails after a minute."""
    # PostgreSQL sends no notification of it, and counts a table shortly before it commits.
    async with asyncio.timeout(_PATIENCE_SECONDS):
        for statement, values, count in (
            (_COUNTED, [list(tables)], len(tables)),
            (_AT_WORK, [], 0),
        ):
            while True:
                if observer.execute(statement, values).fetchone() == (count,):
                    break
                await asyncio.sleep(0.02)
