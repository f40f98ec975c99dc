"""A backlog: timers that are all due at one instant, in a namespace of their own."""

import asyncio
import datetime as dt
import math
import time

import psycopg

from bench.disturbing.pace import Pace
from bench.filling.load import fill
from bench.filling.plan import Plan

_NAMESPACE = "backlog"
_RUNNING_SHARE = 0.9
"""The share of running processes; the others have finished or are broken."""
_PER_SECOND_MIN = 8_000
_SETTING_SECONDS = 15.0
"""Until replicas serve, and callers have their processes."""
_POLL_SECONDS = 0.5

_DUE_AT = """
    SELECT extract(epoch FROM min(due_at) - now())
    FROM progressor.schedule
    WHERE namespace = %s"""
# By the index of due tasks, like the engine: reading whole tables would slow it down.
_LEFT = """
    SELECT EXISTS (SELECT FROM progressor.running WHERE namespace = %(namespace)s)
        OR (
            SELECT due_at
            FROM progressor.schedule
            WHERE namespace = %(namespace)s AND status = 'waiting' AND due_at IS NOT NULL
            ORDER BY due_at
            LIMIT 1
        ) IS NOT NULL"""
_UNDONE = """
    SELECT count(*) FILTER (WHERE status <> 'finished'), count(*)
    FROM progressor.tasks
    WHERE namespace = %s AND task_type = 'timeout'"""


def create(dsn: str, pace: Pace, *, processor: str) -> float:
    """Store it before replicas start; return when it is due, on the monotonic clock. Blocks."""
    before = _SETTING_SECONDS + pace.warm_up + pace.seconds
    plan = Plan(
        process_count=math.ceil(pace.backlog / _RUNNING_SHARE) + 10,
        timer_count=0,
        due_count=pace.backlog,
        due_after=dt.timedelta(seconds=before + pace.backlog / _PER_SECOND_MIN),
        namespace=_NAMESPACE,
        prefix=_NAMESPACE,
    )
    fill(dsn, plan, processor=processor)
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(_DUE_AT, (_NAMESPACE,)).fetchone()
    assert row is not None, "an aggregate has one row"
    return time.monotonic() + float(row[0])


async def worked_off(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        while True:  # ends with the backlog
            cursor = await connection.execute(_LEFT, {"namespace": _NAMESPACE})
            row = await cursor.fetchone()
            if row is not None and not row[0]:
                return
            await asyncio.sleep(_POLL_SECONDS)


def undone(dsn: str, pace: Pace) -> list[str]:
    """Return what is wrong with the backlog after it was worked off. Blocks."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(_UNDONE, (_NAMESPACE,)).fetchone()
    assert row is not None, "an aggregate has one row"
    unfinished, count = row
    if unfinished or count != pace.backlog:
        return [f"of {count} timers of the backlog {unfinished} did not finish"]
    return []
