"""The metrics leave the process: pushed to a collector, and printed where they are scraped."""

import asyncio
import contextlib
import datetime as dt
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Callable

import pytest

from progressor.clock import SystemClock
from progressor.settings.sections import METRICS_KEY
from progressor.telemetry import setup
from progressor.telemetry.metrics import otlp
from progressor.telemetry.metrics.otlp import Push
from progressor.telemetry.metrics.registry import METRICS, Metrics
from progressor.telemetry.setup import resource_of
from progressor.telemetry.traces import span_queue
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.process import running_supervisor
from tests.support.engine.replica import Replica, open_env, running_replica
from tests.support.telemetry.collector import running_collector
from tests.support.telemetry.metrics import (
    families,
    filled_metrics,
    read,
    scraped,
)

HOUR = dt.timedelta(hours=1)
ALL = {it.name for it in METRICS.values()}
THE_EIGHT = {it.name for it in METRICS.values() if it.name.endswith("_duration_ms")}


def push(endpoint: str, metrics: Metrics, *, interval: dt.timedelta = HOUR) -> Push:
    return Push(
        metrics,
        endpoint=endpoint,
        interval=interval,
        resource=resource_of(service_name="service", instance="replica:1"),
        clock=SystemClock(),
    )


async def test_the_last_values_are_pushed_at_the_end() -> None:
    metrics = Metrics()
    async with running_collector() as collector:
        pushing = push(collector.endpoint, metrics)
        pushing.start()
        metrics.notifications_lost.add(7)
        await asyncio.to_thread(pushing.stop)

        assert collector.count("progressor_notifications_lost") == 7


async def test_all_is_pushed_again_and_again() -> None:
    metrics = filled_metrics()
    async with running_collector() as collector:
        pushing = push(collector.endpoint, metrics, interval=dt.timedelta(milliseconds=20))
        pushing.start()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await collector.pushed(3)
        await asyncio.to_thread(pushing.stop)

        assert collector.names == ALL


async def test_one_that_accepts_and_says_nothing_does_not_hold_up_the_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pushing = push(f"http://127.0.0.1:{silent.getsockname()[1]}", Metrics())
        pushing.start()

        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.to_thread(pushing.stop)

    assert not pushing.is_running


async def test_serve_prints_where_all_metrics_are_read(database: str) -> None:
    settings = {"database.dsn": database, "telemetry.metrics_bind": "127.0.0.1:0"}
    async with running_supervisor(settings, count=1) as engine:
        url = (await engine.log_record("engine serves"))["metrics"]
        text = await scraped(url)

        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", url)
        assert (await engine.log_record("engine listening"))["metrics"] == url
    assert families(text).keys() >= ALL
    assert len(THE_EIGHT & ALL) == 8
    assert 0 <= read(text)["progressor_heartbeat_age_seconds", ()] < PATIENCE_SECONDS


async def test_dev_prints_where_all_metrics_are_read(own_database: str) -> None:
    settings = {
        "database.dsn": own_database,
        "server.bind": "127.0.0.1:0",
        "telemetry.metrics_bind": "127.0.0.1:0",
    }
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "progressor", "dev", *flags,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PROGRESSOR_CONFIG": "", "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    printed = ""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (found := re.search(r"^metrics at (\S+)$", printed, re.MULTILINE)):
                line = await process.stdout.readline()
                assert line, printed
                printed += line.decode()
            text = await scraped(found[1])
    finally:
        process.kill()
        await process.communicate()

    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", found[1])
    assert families(text).keys() >= ALL


async def test_each_worker_prints_where_its_own_are_read(own_database: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        bind = f"127.0.0.1:{port}+"
        settings = {"database.dsn": own_database, "telemetry.metrics_bind": bind}
        async with running_supervisor(settings) as supervisor:
            urls = (await supervisor.log_record("engine serves"))["metrics"]
            texts = [await scraped(url) for url in urls]

    assert len(set(urls)) == 2
    assert f"http://{bind[:-1]}/metrics" not in urls
    assert [families(text).keys() >= ALL for text in texts] == [True, True]


async def test_a_port_in_use_of_a_replica_process_ends_all_with_its_key(database: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = {
            "database.dsn": database,
            "telemetry.metrics_bind": f"127.0.0.1:{taken.getsockname()[1] - 1}",
        }
        async with running_supervisor(settings) as supervisor:
            code = await supervisor.left()
            printed = supervisor.text.splitlines()

    assert code == 2
    assert any(METRICS_KEY in line for line in printed if line.startswith("error: "))


Collector = Callable[[], contextlib.AbstractAsyncContextManager[str]]

ROOM = 16
CALLS = 50


@contextlib.asynccontextmanager
async def away() -> AsyncIterator[str]:
    """Return an address where nothing listens, now or later."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{holder.getsockname()[1]}"


@contextlib.asynccontextmanager
async def hanging() -> AsyncIterator[str]:
    """Give an address where connections are taken, and never a word is said."""
    over = asyncio.Event()

    async def take(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.transport.abort()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        over.set()


def fates(replica: Replica) -> dict[str, float]:
    found = replica.engine.metrics.spans.snapshot().values
    return {labels[0]: float(value) for labels, value in found.items()}  # type: ignore[arg-type]


@pytest.mark.parametrize("collector", [away, hanging])
async def test_steps_go_on_spans_are_lost_and_counted_and_the_replica_leaves_in_time(
    own_database: str,
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(span_queue, "QUEUE_MAX", ROOM)
    for module in (otlp, setup):
        monkeypatch.setattr(module, "LAST_PUSH_SECONDS", 0.2)
    async with (
        collector() as endpoint,
        running_replica(own_database, {"telemetry.otlp_endpoint": endpoint}) as replica,
    ):
        async with open_env(replica) as env:
            await env.running("p")
            async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
                for _ in range(CALLS):
                    group.create_task(env.client.call("p"))
        during = fates(replica)

    assert during["pushed"] == 0
    assert during["no_room"] > 0
    left = fates(replica)
    # A call has five spans: of the request, its admission, its step, and that one's two parts.
    assert left["pushed"] == 0
    assert left["no_room"] + left["not_taken"] >= 5 * CALLS
