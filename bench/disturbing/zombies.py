"""A replica is killed with steps in flight: measures when each is retried, and how it ends."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import psycopg

from bench.disturbing import checks
from bench.disturbing.callers import insist
from bench.disturbing.env import Env, open_env, open_server
from bench.disturbing.pace import Pace
from bench.disturbing.processor import HOLD, TIMED, args_of
from bench.peers import started
from progressor import errors
from progressor.sdk import ZombiePolicy

RESUMED_SECONDS_MAX = 1.0
"""Beyond the lease timeout."""

_VICTIM = 0
_POLL_SECONDS = 0.05
_END_SECONDS_MAX = 60.0

_ENDED = """
    SELECT p.process_id, p.status::text, coalesce(p.detail, ''), p.last_event_id,
        coalesce(p.corrupted_by = t.task_id, false), t.attempt_count,
        t.status::text, behind.status::text, timer.status::text,
        extract(epoch FROM t.finished_at)
    FROM progressor.processes p
    JOIN progressor.tasks t USING (slot, namespace, process_id)
    JOIN progressor.tasks behind USING (slot, namespace, process_id)
    JOIN progressor.tasks timer USING (slot, namespace, process_id)
    WHERE p.namespace = %s AND t.idempotency_key = 'held' AND behind.idempotency_key = 'behind'
        AND timer.task_type = 'timeout'"""

_RETRIED = ("running", "", 3, False, 2, "finished", "finished", "waiting")
_FAILED = ("error", "zombie detected", 1, True, 1, "error", "cancelled", "cancelled")
"""How a process ends by each policy: as `_ENDED` says it, between the id and the time."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """Seconds from the kill, for each process whose step was in flight.

    ``asked`` until the step was retried (none if it may not be), ``settled`` until its outcome was
    written, ``answered`` until its caller knew.
    """

    asked: list[float]
    settled: list[float]
    answered: list[float]
    findings: list[str]


async def turn(pace: Pace) -> Killed:
    """Kill one of two replicas once, with all steps in flight on it."""
    policy = ZombiePolicy.FAIL if pace.fails else ZombiePolicy.RETRY
    # By default, a lease is five heartbeats.
    settings = {
        "replica.lease_timeout_seconds": f"{pace.lease_seconds:g}",
        "replica.heartbeat_interval_seconds": f"{pace.lease_seconds / 5:g}",
    }
    names = [f"held-{number}" for number in range(pace.processes)]
    async with (
        open_server() as server,
        started("disturbed_processor") as processor,
        open_env(server, processor, zombie_policy=policy, settings=settings) as env,
    ):
        await _start(env, names)
        async with asyncio.timeout(2 * _END_SECONDS_MAX), asyncio.TaskGroup() as group:
            held = [group.create_task(_call(env, name), name=name) for name in names]
            await _all_in_hand(env, names)
            await _leave_behind(env, names)
            killed_at, killed_at_epoch = time.monotonic(), time.time()
            await env.replicas[_VICTIM].kill()
        asked = (await env.processor.ask())["asked_at"]
        await _all_settled(env)
        rows = await asyncio.to_thread(_ended, env)
        found = _judged(rows, names, _FAILED if pace.fails else _RETRIED)
        found += await checks.doctor(env.dsn)
    return Killed(
        asked=[at - killed_at for name in names for at in asked[name][1:]],
        settled=[float(row[-1]) - killed_at_epoch for row in rows],
        answered=[task.result() - killed_at for task in held],
        findings=found,
    )


async def _start(env: Env, names: Sequence[str]) -> None:
    """Start processes with a timer that is due much later."""

    async def start(name: str) -> None:
        args = args_of(name, letter=TIMED)
        await env.routes[_VICTIM].client.start(name, args, idempotency_key="start")

    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(start(name), name=name)


async def _call(env: Env, name: str) -> float:
    """Call a process until its outcome is known, and return when that was."""
    args = args_of(name, letter=HOLD)
    # The possible outcomes are compared with the database.
    with contextlib.suppress(errors.ProcessFailedError):
        await insist(
            env.routes,
            _VICTIM,
            lambda client: client.call(name, args, idempotency_key="held"),
        )
    return time.monotonic()


async def _leave_behind(env: Env, names: Sequence[str]) -> None:
    """Leave one more call with each process, which waits behind the running one."""

    async def call(name: str) -> None:
        await env.routes[1 - _VICTIM].client.call(
            name, args_of(f"{name}-behind"), idempotency_key="behind", accept_only=True
        )

    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(call(name), name=name)


async def _all_in_hand(env: Env, names: Sequence[str]) -> None:
    held = 0
    while held < len(names):  # ends by the timeout around it at the latest
        await asyncio.sleep(_POLL_SECONDS)
        held = len((await env.processor.ask())["asked_at"])


async def _all_settled(env: Env) -> None:
    """Wait until those calls have ended too."""
    ends_at = time.monotonic() + _END_SECONDS_MAX
    async with await psycopg.AsyncConnection.connect(env.dsn, autocommit=True) as connection:
        while time.monotonic() < ends_at:
            cursor = await connection.execute(
                "SELECT EXISTS (SELECT FROM progressor.running)"
                " OR EXISTS (SELECT FROM progressor.schedule WHERE task_type = 'call')"
            )
            row = await cursor.fetchone()
            if row is not None and not row[0]:
                return
            await asyncio.sleep(_POLL_SECONDS)


def _ended(env: Env) -> list[tuple[Any, ...]]:
    with psycopg.connect(env.dsn) as connection:
        return connection.execute(_ENDED, (env.namespace,)).fetchall()


def _judged(
    rows: Sequence[tuple[Any, ...]], names: Sequence[str], expected: tuple[object, ...]
) -> list[str]:
    found = [f"{row[0]}: {row[1:-1]} is not {expected}" for row in rows if row[1:-1] != expected]
    missing = set(names) - {row[0] for row in rows}
    return found[:5] + [f"{name} is not there" for name in sorted(missing)[:5]]
