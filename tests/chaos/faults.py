"""Faults: each begins, lasts, and is fixed when it returns, whatever else is broken meanwhile."""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

import psycopg

from tests.chaos.plan import Fault, FaultKind
from tests.chaos.scene import Scene

_OURS = "chaos"
_LOCKED_COUNT = 5
_PAUSE_SECONDS = 0.02

Break = Callable[[Scene, Fault], Awaitable[None]]


async def commit(scene: Scene, fault: Fault) -> tuple[float, float]:
    """Break what the fault says, wait, and fix it; return when it began and ended.

    One fault at a time has a thing.
    """
    async with scene.lock(_thing(scene, fault)):
        began_at = time.monotonic()
        await _BREAKS[fault.kind](scene, fault)
        return began_at, time.monotonic()


def replica_of(scene: Scene, fault: Fault) -> int:
    """Return the number of the replica that a fault is for."""
    return fault.target % len(scene.replicas)


def _thing(scene: Scene, fault: Fault) -> str:
    if fault.kind in {FaultKind.KILL_REPLICA, FaultKind.FREEZE_REPLICA, FaultKind.DRAIN_REPLICA}:
        return f"replica {replica_of(scene, fault)}"
    if fault.kind in {FaultKind.KILL_PROCESSOR, FaultKind.FREEZE_PROCESSOR}:
        return f"processor {fault.target % len(scene.processors)}"
    return "callers" if fault.kind is FaultKind.CUT_CALLERS else "postgres"


async def _kill_replica(scene: Scene, fault: Fault) -> None:
    index = replica_of(scene, fault)
    await scene.replicas[index].kill()
    await asyncio.sleep(fault.seconds)
    await scene.revive(index)


async def _freeze_replica(scene: Scene, fault: Fault) -> None:
    replica = scene.replicas[replica_of(scene, fault)]
    replica.freeze()
    await asyncio.sleep(fault.seconds)
    replica.thaw()


async def _drain_replica(scene: Scene, fault: Fault) -> None:
    index = replica_of(scene, fault)
    if code := await scene.replicas[index].terminate():
        scene.accidents.append(f"replica {index} left with {code} when it was asked to")
    await asyncio.sleep(fault.seconds)
    await scene.revive(index)


async def _kill_processor(scene: Scene, fault: Fault) -> None:
    processor = scene.processors[fault.target % len(scene.processors)]
    await processor.kill()
    await asyncio.sleep(fault.seconds)
    await processor.start()


async def _freeze_processor(scene: Scene, fault: Fault) -> None:
    processor = scene.processors[fault.target % len(scene.processors)]
    processor.freeze()
    await asyncio.sleep(fault.seconds)
    processor.thaw()


async def _restart_postgres(scene: Scene, _fault: Fault) -> None:
    await asyncio.to_thread(scene.cluster.restart)


async def _kill_postgres(scene: Scene, fault: Fault) -> None:
    await asyncio.to_thread(scene.cluster.kill)
    await asyncio.sleep(fault.seconds)
    await asyncio.to_thread(scene.cluster.restart)


async def _end_backends(scene: Scene, _fault: Fault) -> None:
    def end() -> None:
        with psycopg.connect(scene.conninfo, autocommit=True) as connection:
            _end_others(connection)

    await asyncio.to_thread(end)


async def _take_connections(scene: Scene, fault: Fault) -> None:
    await asyncio.to_thread(_take, scene.conninfo, fault.seconds)


async def _hold_locks(scene: Scene, fault: Fault) -> None:
    await asyncio.to_thread(_hold, scene.conninfo, fault)


async def _cut_callers(scene: Scene, _fault: Fault) -> None:
    for relay in scene.relays:
        relay.cut()


_BREAKS: Mapping[FaultKind, Break] = MappingProxyType(
    {
        FaultKind.KILL_REPLICA: _kill_replica,
        FaultKind.FREEZE_REPLICA: _freeze_replica,
        FaultKind.DRAIN_REPLICA: _drain_replica,
        FaultKind.KILL_PROCESSOR: _kill_processor,
        FaultKind.FREEZE_PROCESSOR: _freeze_processor,
        FaultKind.RESTART_POSTGRES: _restart_postgres,
        FaultKind.KILL_POSTGRES: _kill_postgres,
        FaultKind.END_BACKENDS: _end_backends,
        FaultKind.TAKE_CONNECTIONS: _take_connections,
        FaultKind.HOLD_LOCKS: _hold_locks,
        FaultKind.CUT_CALLERS: _cut_callers,
    }
)


def _end_others(connection: psycopg.Connection[Any]) -> None:
    connection.execute(
        """
        SELECT pg_terminate_backend(pid)
        FROM pg_stat_activity
        WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'
            AND application_name <> %s
        """,
        (_OURS,),
    )


def _take(conninfo: str, seconds: float) -> None:
    """Take every connection there is, also those that the engine had, and give them back."""
    ends_at = time.monotonic() + seconds
    with contextlib.ExitStack() as taken:
        last: psycopg.Connection[Any] | None = None
        while time.monotonic() < ends_at:
            try:
                last = psycopg.connect(conninfo, autocommit=True, application_name=_OURS)
                taken.callback(last.close)
            except psycopg.OperationalError:
                # Others come back at once: each time a few less, until all is ours.
                if last is not None:
                    with contextlib.suppress(psycopg.OperationalError):
                        _end_others(last)
                time.sleep(_PAUSE_SECONDS)


def _hold(conninfo: str, fault: Fault) -> None:
    """Lock a few processes in a transaction, and fall asleep in it."""
    chosen = random.Random(fault.seed)
    # Its connection may be ended by another fault meanwhile.
    with (
        contextlib.suppress(psycopg.OperationalError),
        psycopg.connect(conninfo, application_name=_OURS) as connection,
    ):
        recent = connection.execute(
            """
            SELECT process_id
            FROM progressor.processes
            WHERE status = 'running'
            ORDER BY created_at DESC
            LIMIT 60
            """
        ).fetchall()
        names = [row[0] for row in chosen.sample(recent, min(_LOCKED_COUNT, len(recent)))]
        connection.execute(
            "SELECT FROM progressor.processes WHERE process_id = ANY (%s) FOR UPDATE", (names,)
        )
        time.sleep(fault.seconds)
        connection.rollback()
