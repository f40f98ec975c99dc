"""A collector that is away, or hangs, costs spans, and nothing else."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import pytest

from progressor.telemetry import setup
from progressor.telemetry.metrics import otlp
from progressor.telemetry.traces import span_queue
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.replica import Replica, open_env, running_replica

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
