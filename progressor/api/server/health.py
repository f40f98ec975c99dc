"""The health service: each watcher receives what has changed, however many others come and go.

In the servicer of grpcio-health-checking (1.81) a watcher that leaves silences the others, and one
that does not read delays the change.
"""

import asyncio
from collections.abc import Iterable, Mapping

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_Request = health_pb2.HealthCheckRequest
_Response = health_pb2.HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):
    """The health of services by their names, which changes together, and of each cell."""

    def __init__(self, services: Iterable[str], cells: Iterable[str] = ()) -> None:
        """Take their names; that of a cell is asked as ``cell/NAME``."""
        self._services = tuple(services)
        self._cells = tuple(f"cell/{name}" for name in cells)
        self._serving = dict.fromkeys((*self._services, *self._cells), False)
        self._leaving = False
        self._changed = asyncio.Event()

    def set_serving(self, *, serving: bool, cells: Mapping[str, bool] | None = None) -> None:
        """Set the health of the services, and of the cells; None: all have the same."""
        healths = dict.fromkeys(self._cells, serving)
        if cells is not None:
            healths = {f"cell/{name}": healthy for name, healthy in cells.items()}
        for name, healthy in (dict.fromkeys(self._services, serving) | healths).items():
            self._serving[name] = healthy and not self._leaving
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def leave(self) -> None:
        self._leaving = True
        self.set_serving(serving=False)

    async def Check(  # noqa: N802  the service's name
        self, request: _Request, context: "grpc.aio.ServicerContext[_Request, _Response]"
    ) -> _Response:
        """Return the health of a service; NOT_FOUND of one that is not here."""
        if request.service not in self._serving:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return _Response(status=self._status(request.service))

    async def Watch(  # noqa: N802  the service's name
        self, request: _Request, context: "grpc.aio.ServicerContext[_Request, _Response]"
    ) -> None:
        """Send the health of a service and each change; ends only when the watcher leaves.

        A slow watcher gets only the latest state, not those in between.
        """
        sent: int | None = None
        while True:
            changed, status = self._changed, self._status(request.service)
            if status != sent:
                await context.write(_Response(status=status))
                sent = status
            await changed.wait()

    def _status(self, service: str) -> int:
        if service not in self._serving:
            return _Response.SERVICE_UNKNOWN
        return _Response.SERVING if self._serving[service] else _Response.NOT_SERVING
