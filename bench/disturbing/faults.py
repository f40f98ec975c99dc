"""Faults: each lasts until it is repaired, and returns further figures to report."""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

import psycopg

from bench.disturbing.backlog import worked_off
from bench.disturbing.callers import Callers
from bench.disturbing.env import Env
from bench.disturbing.pace import Pace
from progressor.storage.embedded.binaries import find_binaries
from tests.support.faults.disasters import terminate_all, without_connections

STEP_SECONDS = 0.005
"""How long a step takes with a slower processor."""
SLOWER = 10
LARGE_SHARE = 0.05

_DOWN_SECONDS = 1.0
"""Until a supervisor has started a replica again."""
_TAKEN_SECONDS = 5.0
_KILL_COUNT = 4
_PIECE, _PIECE_SECONDS = 2**17, 0.05
"""2.6 MB a second."""
_BETWEEN_KILLS_SECONDS = 2.0

Facts = Mapping[str, Any]


async def nothing(_env: Env, _callers: Callers, pace: Pace) -> Facts:
    """No fault, for the length of a window."""
    await asyncio.sleep(pace.seconds)
    return {}


async def nothing_for_long(_env: Env, _callers: Callers, pace: Pace) -> Facts:
    """No fault, for as long as xmin is held: the cost of the time and of the data stored in it."""
    await asyncio.sleep(pace.hold_seconds)
    return {"hold_seconds": pace.hold_seconds}


async def restart(env: Env, _callers: Callers, _pace: Pace) -> Facts:
    await asyncio.to_thread(env.server.stop)
    await asyncio.to_thread(env.server.start)
    return {}


async def kill_postgres(env: Env, _callers: Callers, _pace: Pace) -> Facts:
    await asyncio.to_thread(env.server.kill)
    await asyncio.to_thread(env.server.start)
    return {}


async def end_backends(env: Env, _callers: Callers, _pace: Pace) -> Facts:
    await asyncio.to_thread(terminate_all, env.dsn)
    return {}


async def take_connections(env: Env, _callers: Callers, _pace: Pace) -> Facts:
    """Take all connections for some seconds, also those that the engine had."""
    with contextlib.ExitStack() as taken:
        await asyncio.to_thread(taken.enter_context, without_connections(env.dsn))
        await asyncio.sleep(_TAKEN_SECONDS)
    return {}


async def kill_one(env: Env, _callers: Callers, _pace: Pace) -> Facts:
    await _kill(env, 0)
    return {}


async def kill_many(env: Env, _callers: Callers, _pace: Pace) -> Facts:
    """Kill each replica in turn, several times."""
    for number in range(_KILL_COUNT):
        if number:
            await asyncio.sleep(_BETWEEN_KILLS_SECONDS)
        await _kill(env, number % len(env.replicas))
    return {"kills": _KILL_COUNT}


async def hold_xmin(env: Env, _callers: Callers, pace: Pace) -> Facts:
    """Keep a session idle in a transaction whose snapshot holds back vacuum."""
    async with await psycopg.AsyncConnection.connect(env.dsn) as connection:
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await connection.execute("SELECT FROM progressor.processes LIMIT 1")
        await asyncio.sleep(pace.hold_seconds)
        await connection.rollback()
    return {"hold_seconds": pace.hold_seconds}


async def dump(env: Env, _callers: Callers, pace: Pace) -> Facts:
    """Let pg_dump write to something slow, again and again: it holds its snapshot meanwhile."""
    dumps, bytes_ = 0, 0
    ends_at = time.monotonic() + pace.hold_seconds
    while time.monotonic() < ends_at:
        dumps += 1
        process = await asyncio.create_subprocess_exec(
            find_binaries() / "pg_dump", "--schema=progressor", env.dsn,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None, "as asked for"
        while time.monotonic() < ends_at and (read := await process.stdout.read(_PIECE)):
            bytes_ += len(read)
            await asyncio.sleep(_PIECE_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return {"hold_seconds": pace.hold_seconds, "dumps": dumps, "dumped_mb": bytes_ // 10**6}


async def work_off(env: Env, _callers: Callers, pace: Pace) -> Facts:
    """Wait until the backlog, which is due now, is worked off."""
    begun_at = time.monotonic()
    await worked_off(env.dsn)
    seconds = time.monotonic() - begun_at
    return {
        "backlog": pace.backlog,
        "worked_off_seconds": round(seconds, 1),
        "worked_off_per_s": round(pace.backlog / seconds),
    }


async def slow_down(env: Env, _callers: Callers, pace: Pace) -> Facts:
    await env.processor.ask(seconds=SLOWER * STEP_SECONDS)
    await asyncio.sleep(pace.seconds)
    await env.processor.ask(seconds=STEP_SECONDS)
    return {"step_ms": 1000 * STEP_SECONDS, "slow_step_ms": 1000 * SLOWER * STEP_SECONDS}


async def send_large(_env: Env, callers: Callers, pace: Pace) -> Facts:
    callers.large_share = LARGE_SHARE
    await asyncio.sleep(pace.seconds)
    callers.large_share = 0.0
    return {"large_share": LARGE_SHARE}


async def _kill(env: Env, number: int) -> None:
    await env.replicas[number].kill()
    await asyncio.sleep(_DOWN_SECONDS)
    await env.replicas[number].start()
