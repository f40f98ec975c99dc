"""Faults: each begins, lasts, and is fixed when it returns, whatever else is broken meanwhile."""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

import psycopg

from tests.chaos.plan import Fault, FaultKind
from tests.chaos.scene import Scene
from tests.support.engine.process import ChildProcess
from tests.support.faults.disasters import terminate_all, without_connections

_LOCKED_COUNT = 5
_OF_PROCESSORS = frozenset({FaultKind.KILL_PROCESSOR, FaultKind.FREEZE_PROCESSOR})
_OF_REPLICAS = frozenset(
    {FaultKind.KILL_REPLICA, FaultKind.FREEZE_REPLICA, FaultKind.DRAIN_REPLICA}
)
_THINGS = {
    FaultKind.CUT_CALLERS: "callers",
    FaultKind.STOP_STANDBY: "standby",
    FaultKind.PROMOTE_STANDBY: "standby",  # it also holds "postgres" until a primary is back
}

Break = Callable[[Scene, Fault], Awaitable[None]]


async def commit(scene: Scene, fault: Fault) -> tuple[float, float]:
    """Break what the fault says, wait, and fix it; return when it began and ended.

    One fault at a time has a thing.
    """
    if fault.kind in _OF_REPLICAS | _OF_PROCESSORS:
        thing = _process(scene, fault)[0]
    else:
        thing = _THINGS.get(fault.kind, "postgres")
    async with scene.lock(thing):
        began_at = time.monotonic()
        await _BREAKS[fault.kind](scene, fault)
        return began_at, time.monotonic()


def _process(scene: Scene, fault: Fault) -> tuple[str, ChildProcess]:
    """Return the process that a fault is for, with its name."""
    processes: Mapping[str, ChildProcess] = scene.replicas
    if fault.kind in _OF_PROCESSORS:
        processes = scene.processors
    return list(processes.items())[fault.target % len(processes)]


async def _kill(scene: Scene, fault: Fault) -> None:
    _, process = _process(scene, fault)
    process.kill()
    await process.left()
    await asyncio.sleep(fault.seconds)
    await scene.revive(process)


async def _freeze(scene: Scene, fault: Fault) -> None:
    _, process = _process(scene, fault)
    process.freeze()
    await asyncio.sleep(fault.seconds)
    process.thaw()


async def _drain(scene: Scene, fault: Fault) -> None:
    name, process = _process(scene, fault)
    process.terminate()
    if code := await process.left():
        scene.accidents.append(f"{name} left with {code} when it was asked to")
    await asyncio.sleep(fault.seconds)
    await scene.revive(process)


async def _restart_postgres(scene: Scene, _fault: Fault) -> None:
    await asyncio.to_thread(scene.cluster.restart)


async def _kill_postgres(scene: Scene, fault: Fault) -> None:
    await asyncio.to_thread(scene.cluster.kill)
    await asyncio.sleep(fault.seconds)
    await asyncio.to_thread(scene.cluster.restart)


async def _end_backends(scene: Scene, _fault: Fault) -> None:
    await asyncio.to_thread(terminate_all, scene.conninfo)


async def _take_connections(scene: Scene, fault: Fault) -> None:
    with contextlib.ExitStack() as taken:
        await asyncio.to_thread(taken.enter_context, without_connections(scene.conninfo))
        await asyncio.sleep(fault.seconds)


async def _hold_locks(scene: Scene, fault: Fault) -> None:
    await asyncio.to_thread(_hold, scene.conninfo, fault)


async def _cut_callers(scene: Scene, _fault: Fault) -> None:
    for relay in scene.relays:
        relay.cut()


async def _stop_standby(scene: Scene, fault: Fault) -> None:
    standby = scene.pair.standby
    await asyncio.to_thread(standby.kill if fault.target % 2 else standby.stop)
    await asyncio.sleep(fault.seconds)
    await asyncio.to_thread(standby.restart)


async def _promote_standby(scene: Scene, fault: Fault) -> None:
    """End the primary, promote the standby, and make another one, for which commits wait.

    Other faults may strike the new primary while its standby is made.
    """
    pair = scene.pair
    async with scene.lock("postgres"):
        # What became visible when sessions were ended is not yet known to be there.
        await asyncio.to_thread(pair.primary.wait_until_replayed)
        dies = pair.primary.lose_power if fault.target % 2 else pair.primary.stop_immediately
        await asyncio.to_thread(dies)
        await asyncio.sleep(fault.seconds)
        await asyncio.to_thread(pair.take_over)
    await asyncio.to_thread(pair.standby.rebuild, pair.primary)


_BREAKS: Mapping[FaultKind, Break] = MappingProxyType(
    {
        FaultKind.KILL_REPLICA: _kill,
        FaultKind.FREEZE_REPLICA: _freeze,
        FaultKind.DRAIN_REPLICA: _drain,
        FaultKind.KILL_PROCESSOR: _kill,
        FaultKind.FREEZE_PROCESSOR: _freeze,
        FaultKind.RESTART_POSTGRES: _restart_postgres,
        FaultKind.KILL_POSTGRES: _kill_postgres,
        FaultKind.END_BACKENDS: _end_backends,
        FaultKind.TAKE_CONNECTIONS: _take_connections,
        FaultKind.HOLD_LOCKS: _hold_locks,
        FaultKind.CUT_CALLERS: _cut_callers,
        FaultKind.STOP_STANDBY: _stop_standby,
        FaultKind.PROMOTE_STANDBY: _promote_standby,
    }
)


def _hold(conninfo: str, fault: Fault) -> None:
    """Lock a few processes in a transaction, and fall asleep in it."""
    chosen = random.Random(fault.seed)
    # Its connection may be ended by another fault meanwhile.
    with (
        contextlib.suppress(psycopg.OperationalError),
        psycopg.connect(conninfo) as connection,
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
