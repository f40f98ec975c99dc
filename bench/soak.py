"""Does the engine keep its rate, its memory and its sizes?

python -m bench.soak --minutes 30 --load 0.5
python -m bench.soak --minutes 30 --short-lives --lives 3000 --retention 300
"""

import argparse
import asyncio
import contextlib
import dataclasses
import datetime as dt
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import psycopg
import uvloop

from bench.cpu import memory_mb
from bench.machine import commit, machine
from bench.parts.loads import closed_loop, open_loop
from bench.peers import Peer, started
from bench.soaking.lives import Lives
from bench.soaking.samples import Cores, Sample, read_oldest, read_sizes
from bench.soaking.short_lives import ShortLives, short_lives
from bench.soaking.verdict import judge
from progressor.sdk import Client, NamespaceConfig

_CALLERS = 64
_PEAK_WARM_UP_SECONDS = 4.0
_PEAK_SECONDS = 10.0
_SETTINGS = (
    "server.bind=127.0.0.1:0",
    "log.level=warning",
    "scanner.retention_interval_seconds=5",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Env:
    engine: Peer
    namespace: str
    lives: Lives | ShortLives
    connection: psycopg.AsyncConnection
    cores: Cores


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--load", type=float, default=0.5, help="share of the peak rate")
    parser.add_argument(
        "--lives", type=float, help="lives per second, instead of a share of the measured peak"
    )
    parser.add_argument(
        "--short-lives", action="store_true",
        help="a start and its end, by the functions of the database, without the engine",
    )  # fmt: skip
    parser.add_argument(
        "--retention", type=float, default=60.0, help="seconds for which finished processes stay"
    )
    parser.add_argument("--every", type=float, default=15.0, help="seconds between two samples")
    parser.add_argument(
        "--memory-slope-max", type=float, default=30.0, help="MB an hour; more is a failure"
    )
    parser.add_argument("--json", type=Path, help="append the lines of JSON to this file")
    parser.add_argument("--dsn", default="", help='a database to use as it is; "": one of our own')
    return parser.parse_args()


@contextlib.asynccontextmanager
async def _env(dsn: str, retention: dt.timedelta, *, is_short: bool) -> AsyncIterator[_Env]:
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        if not dsn:
            directory = tempfile.mkdtemp(prefix="progressor-soak-", dir="/var/tmp")
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            database = await enter(started("database", directory))
            dsn = str(database.ready["dsn"])
        processor = await enter(started("soak_processor"))
        engine = await enter(started("engine", "1", f"database.dsn={dsn}", *_SETTINGS))
        namespace = NamespaceConfig(
            name=f"soak-{secrets.token_hex(4)}",
            processor_targets=(processor.address,),
            history_last=0,
            finished_process_retention=retention,
        )
        async with Client(engine.address, namespace=namespace.name) as client:
            await client.namespaces.create(namespace)
        channel = await enter(grpc.aio.insecure_channel(engine.address))
        connection = await enter(await psycopg.AsyncConnection.connect(dsn, autocommit=True))
        yield _Env(
            engine=engine,
            namespace=namespace.name,
            lives=await enter(short_lives(dsn, namespace.name))
            if is_short
            else Lives(channel, namespace.name),
            connection=connection,
            cores=Cores(engine.pid, connection),
        )


def _ids() -> Iterator[tuple[int, str]]:
    prefix, number = secrets.token_hex(4), 0
    while True:
        yield number, f"{prefix}-{number}"
        number += 1


async def _peak(env: _Env) -> float:
    """Return the lives per second of so many callers, with the timers of earlier lives."""
    ids = _ids()
    await closed_loop(env.lives.live, ids, callers=_CALLERS, seconds=_PEAK_WARM_UP_SECONDS)
    found = await closed_loop(env.lives.live, ids, callers=_CALLERS, seconds=_PEAK_SECONDS)
    return env.lives.size * len(found["times"]) / float(found["seconds"])


async def _soak(env: _Env, arguments: argparse.Namespace, rate: float) -> list[Sample]:
    """Start lives at a constant rate, and take samples."""
    seconds, samples = 60 * arguments.minutes, list[Sample]()
    rate /= env.lives.size
    env.lives.come_at(rate)
    await env.cores.read()
    async with asyncio.TaskGroup() as group:
        coming = group.create_task(
            open_loop(env.lives.live, _ids(), rate=rate, seconds=seconds), name="lives"
        )
        lives, before, begun = 0, time.monotonic(), time.monotonic()
        while not coming.done():
            await asyncio.wait({coming}, timeout=arguments.every)
            now, took = time.monotonic(), sorted(env.lives.took)
            env.lives.took.clear()
            if coming.done() and now - before < arguments.every / 2 and samples:
                break  # Too short for a sample.
            lives += len(took)
            sample = await _sample(env, took, lives, at=now - begun, seconds=now - before)
            before = now
            samples.append(sample)
            _tell({"name": "soak_sample", **dataclasses.asdict(sample)}, arguments.json)
    return samples


async def _sample(env: _Env, took: list[float], lives: int, *, at: float, seconds: float) -> Sample:
    tables, indexes, dead = await read_sizes(env.connection)
    times = took or [0.0]
    return Sample(
        at=round(at, 1),
        lives=lives,
        lives_per_s=round(len(took) / seconds, 2),
        failed=env.lives.failed,
        p50_ms=round(1000 * times[len(times) // 2], 2),
        p99_ms=round(1000 * times[int(0.99 * (len(times) - 1))], 2),
        engine_mb=round(memory_mb(env.engine.pid)[0], 2),
        table_mb=tables,
        index_mb=indexes,
        dead_rows=dead,
        oldest_seconds=await read_oldest(env.connection, env.namespace),
        cores=await env.cores.read(),
    )


async def _main(arguments: argparse.Namespace) -> int:
    retention = dt.timedelta(seconds=arguments.retention)
    async with _env(arguments.dsn, retention, is_short=arguments.short_lives) as env:
        peak = await _peak(env) if arguments.lives is None else None
        rate = arguments.lives if peak is None else arguments.load * peak
        samples = await _soak(env, arguments, rate)
        steps = env.lives.steps
    verdict = judge(samples, memory_mb_per_hour_max=arguments.memory_slope_max)
    line = {
        "name": "soak",
        "minutes": arguments.minutes,
        "peak_lives_per_s": None if peak is None else round(peak, 1),
        "asked_lives_per_s": round(rate, 1),
        "load": [round(each, 2) for each in os.getloadavg()],
        "steps_per_s": round(steps * verdict.lives_per_s, 1),
        **dataclasses.asdict(verdict),
        "complaints": verdict.complaints,
        "commit": commit(),
        "machine": machine(),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }
    _tell(line, arguments.json)
    return 1 if verdict.complaints else 0


def _tell(line: dict[str, object], file: Path | None) -> None:
    text = json.dumps(line) + "\n"
    sys.stdout.write(text)
    sys.stdout.flush()
    if file is not None:
        with file.open("a", encoding="utf-8") as opened:
            opened.write(text)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(_main(_arguments())))
