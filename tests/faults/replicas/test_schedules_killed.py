"""An hour of a minutely schedule, two minutes a second, while replicas are killed: each runs once.

What half of the runs start removes itself at once, so that neither its process nor anything that
hangs on it could tell a second start from the first.
"""

import asyncio
import contextlib
import datetime as dt
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

from progressor.domain.schedules.schedule import instant_text
from progressor.sdk import (
    Client,
    Cron,
    NamespaceConfig,
    OverlapPolicy,
    ScheduledStart,
    ScheduleSpec,
)
from progressor.v1.processor_service_pb2 import Complete, ProcessResponse, RemoveProcess
from tests.support.clock import FastClock
from tests.support.engine.points import eventually
from tests.support.engine.process import ChildProcess
from tests.support.engine.replica import SETTINGS, serving
from tests.support.processor.scripted import Answer, ScriptedProcessor

SPEED = 120.0
MINUTE = dt.timedelta(minutes=1)
FLAGS = {
    **SETTINGS,
    "replica.heartbeat_interval_seconds": "0.2",
    # 1 s, as fast as time goes.
    "replica.lease_timeout_seconds": "120",
    "replica.step_grace_seconds": "60",
}


class Pair:
    """Two replicas, each of which is killed and replaced again and again."""

    def __init__(self, conninfo: str, directory: Path, begun_at: float) -> None:
        self.kill_count = 0
        self.processes: dict[str, ChildProcess] = {}
        for address in (f"unix:{directory}/{name}.sock" for name in ("a", "b")):
            flags = {**FLAGS, "database.dsn": conninfo, "server.bind": address}
            self.processes[address] = ChildProcess(
                "tests.support.engine.fast_engine",
                str(SPEED),
                str(begun_at),
                *(f"{key}={value}" for key, value in flags.items()),
                log=directory / "engines.log",
            )

    async def replace(self, address: str) -> None:
        process = self.processes[address]
        process.kill()
        await process.left()
        self.kill_count += 1
        await process.start()
        await serving(address)


@contextlib.asynccontextmanager
async def pair_of(conninfo: str, directory: Path, begun_at: float) -> AsyncIterator[Pair]:
    pair = Pair(conninfo, directory, begun_at)
    async with contextlib.AsyncExitStack() as stack:
        for address, process in pair.processes.items():
            await stack.enter_async_context(process.running())
            await serving(address)
        yield pair


LEAVES = Answer(ProcessResponse(remove=RemoveProcess()))
STAYS = Answer(ProcessResponse(complete=Complete()))


@pytest.mark.slow
async def test_a_minutely_schedule_runs_each_minute_once_while_replicas_are_killed(
    own_database: str, tmp_path: Path, chance: random.Random
) -> None:
    begun_at = time.time()
    clock = FastClock(SPEED, begun_at)
    async with (
        ScriptedProcessor(one_at_a_time=False) as processor,
        pair_of(own_database, tmp_path, begun_at) as pair,
    ):
        addresses = list(pair.processes)
        first = await _made(addresses[0], processor)
        instants = [first + n * MINUTE for n in range(61)]
        for instant in instants:
            step = LEAVES if instant.minute % 2 else STAYS
            processor.on_process(f"minutely/{instant_text(instant)}", step)
        while clock.now() < instants[-1]:
            await asyncio.sleep(chance.uniform(0.1, 1.0))  # how long it lives: by chance
            await pair.replace(chance.choice(addresses))
        await _wait_for_run(own_database, instants[-1])

    with psycopg.connect(own_database) as observer:
        runs = observer.execute(
            "SELECT instant, process_id, task_id FROM progressor.schedule_runs"
            " WHERE instant <= %s ORDER BY instant",
            (instants[-1],),
        ).fetchall()
    assert pair.kill_count >= 5
    assert [row[0] for row in runs] == instants
    # A second start would have drawn a task of its own.
    tasks: dict[str, set[int]] = {}
    for request in processor.requests:
        tasks.setdefault(request.process.process_id, set()).add(request.task.task_id)
    assert {row[1]: {row[2]} for row in runs} == {
        process_id: tasks.get(process_id) for _, process_id, _ in runs
    }


async def _made(address: str, processor: ScriptedProcessor) -> dt.datetime:
    """Make the namespace and the schedule, and return its first instant."""
    async with Client(address, namespace="clocks") as client:
        targets = (processor.target,)
        await client.namespaces.create(NamespaceConfig(name="clocks", processor_targets=targets))
        spec = ScheduleSpec(
            times=Cron("* * * * *"), target=ScheduledStart(), overlap_policy=OverlapPolicy.ALLOW
        )
        schedule = await client.schedules.create("minutely", spec)
    assert schedule.next_instant is not None
    return schedule.next_instant


async def _wait_for_run(conninfo: str, last: dt.datetime) -> None:
    """Wait until the last run has happened, and all that was started has ended."""
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as observer:

        async def holds(condition: LiteralString, *values: object) -> bool:
            cursor = await observer.execute(f"SELECT {condition}", values)
            return await cursor.fetchone() == (True,)

        has_run = "EXISTS (SELECT FROM progressor.schedule_runs WHERE instant = %s)"
        await eventually(lambda: holds(has_run, last))
        # It would go on at two runs a second; and by the time of the judge, who comes last, it
        # would have been due for months.
        await observer.execute(
            "UPDATE progressor.schedules SET (paused, next_instant, next_at) = (true, NULL, NULL)"
        )
        started = "NOT EXISTS (SELECT FROM progressor.processes WHERE status = 'init')"
        await eventually(lambda: holds(started))
