"""Routes to the replicas; a failed one is avoided, as by a load balancer."""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from progressor.sdk import BYTES, Client

ATTEMPT_SECONDS = 20.0
"""Time after which a caller repeats a request under the same key: longer than any measured wait."""

_PROBE_SECONDS = 0.1
_PROBE_TIMEOUT_SECONDS = 1.0
_CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.use_local_subchannel_pool", 1),
)


class Route:
    """A session with one replica, for callers that repeat failed requests themselves.

    After `shut` it stays closed until the replica reports SERVING.
    """

    def __init__(self, address: str, namespace: str) -> None:
        self.is_open = True
        # The caller decides where to repeat a request, and when.
        self.client = Client(
            address, namespace=namespace, codec=BYTES, timeout=ATTEMPT_SECONDS, repeats=False
        )
        self._channel = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._shut = asyncio.Event()
        self._group = asyncio.TaskGroup()
        self._watch: asyncio.Task[None] | None = None

    def shut(self) -> None:
        """Close it for callers, until the replica serves."""
        self.is_open = False
        self._shut.set()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._watch = self._group.create_task(self._open_again(), name="route")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._watch is not None, "it was entered"
        self._watch.cancel()
        await self._group.__aexit__(None, None, None)
        await self.client.close()
        await self._channel.close()

    async def _open_again(self) -> None:
        stub: Any = health_pb2_grpc.HealthStub(self._channel)
        while True:  # ends by cancellation
            await self._shut.wait()
            await asyncio.sleep(_PROBE_SECONDS)
            with contextlib.suppress(grpc.aio.AioRpcError):
                told = await stub.Check(
                    health_pb2.HealthCheckRequest(), timeout=_PROBE_TIMEOUT_SECONDS
                )
                if told.status == health_pb2.HealthCheckResponse.SERVING:
                    self._shut.clear()
                    self.is_open = True


def pick(routes: Sequence[Route], number: int) -> Route:
    """Return the route of a caller by its number: its own if it is open, else another open one."""
    own = routes[number % len(routes)]
    if own.is_open:
        return own
    return random.choice([route for route in routes if route.is_open] or routes)
