"""Waiting until a backend waits for a lock, so that a race can be laid out step by step."""

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg

_PATIENCE_SECONDS = 10.0


async def until_blocked(observer: psycopg.Connection[Any], count: int = 1) -> None:
    await _until(lambda: blocked_count(observer) >= count)


async def until_none_blocked(observer: psycopg.Connection[Any]) -> None:
    await _until(lambda: not blocked_count(observer))


async def _until(holds: Callable[[], bool]) -> None:
    # PostgreSQL sends no notification when a session begins or ceases to wait.
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            if holds():
                return
            await asyncio.sleep(0.002)


def blocked_count(observer: psycopg.Connection[Any]) -> int:
    row = observer.execute(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    ).fetchone()
    assert row is not None, "count returns a row"
    return int(row[0])
