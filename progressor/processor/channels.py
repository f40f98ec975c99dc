"""Connections to the processors: one per target, shared by the namespaces that name it."""

import asyncio
import dataclasses

import grpc

from progressor.domain.processes.namespace import Namespace
from progressor.processor.connection import Connection
from progressor.processor.stream import Stream

_FAILING = frozenset(
    {grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN}
)


@dataclasses.dataclass(slots=True)
class _Round:
    """The targets of one namespace, and whose turn it is."""

    targets: tuple[str, ...]
    connections: tuple[Connection, ...]
    turn: int = 0


class Channels:
    """Opens channels when they are first needed, and closes those that no namespace names.

    A channel with calls in flight is closed after the last of them, since closing it would cancel
    them. Not safe for use by several threads or event loops.
    """

    def __init__(self) -> None:
        self._connections: dict[str, Connection] = {}
        self._rounds: dict[str, _Round] = {}
        self._closed = False
        self._closing = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Run the streams until `close`; before and after that there are only calls.

        If it is cancelled, steps on the streams end as if their processors were unavailable.
        """
        try:
            async with asyncio.TaskGroup() as self._group:
                await self._closing.wait()
        finally:
            self._group = None

    @property
    def stream_count(self) -> int:
        """Streams open to all processors; from any thread."""
        return sum(each.stream_count for each in tuple(self._connections.values()))

    def stream_of(self, connection: Connection) -> Stream | None:
        """Return the stream of a connection that takes steps now; None: use calls."""
        return None if self._group is None else connection.stream(self._group)

    async def take(self, namespace: Namespace) -> Connection:
        """Return the next connection in turn for a call; `give_back` it after the call.

        An unreachable target is skipped while there is another. New targets of the namespace count
        from this call on.
        """
        assert not self._closed, "a processor was asked after the channels were closed"
        current, outdated = self._rounds.get(namespace.name), None
        if current is None or current.targets != namespace.processor_targets:
            current, outdated = self._renew(namespace), current
        connection = _next_in_turn(current)
        connection.call_count += 1
        if outdated is not None:
            # Only after the call is counted: a concurrent change of targets closes idle
            # connections, and must not close the one that was just chosen.
            try:
                await self._release(outdated)
            except asyncio.CancelledError:
                connection.call_count -= 1
                raise
        return connection

    def is_connected(self, namespace_name: str) -> bool | None:
        """Return whether any of a namespace's targets is connected; else try to connect.

        None: no step of this namespace was sent since it was last forgotten.
        """
        current = self._rounds.get(namespace_name)
        if current is None:
            return None
        states = [it.channel.get_state(try_to_connect=True) for it in current.connections]
        return grpc.ChannelConnectivity.READY in states

    async def give_back(self, connection: Connection) -> None:
        """End the call for which the connection was taken."""
        connection.call_count -= 1
        if connection.is_idle:
            await self._close_connection(connection)

    def forget(self, namespace_name: str) -> None:
        """Release the targets of a deleted namespace; an unknown namespace is ignored.

        `run` soon closes channels that no namespace uses. If `run` is not running,
        `close` does.
        """
        # Also forget those of nodes that are bound to one of its targets.
        bound = [name for name in self._rounds if name.startswith(f"{namespace_name}@")]
        for name in (namespace_name, *bound):
            forgotten = self._rounds.pop(name, None)
            if forgotten is None:
                continue
            if self._group is None:
                _uncount(forgotten)
                continue
            self._group.create_task(self._release(forgotten), name=f"forget {name}")

    async def close(self) -> None:
        """Close all channels; calls in flight end as if their processors were unavailable."""
        self._closed = True
        self._group = None
        self._rounds.clear()
        while self._connections:
            _, connection = self._connections.popitem()
            await connection.close()
        self._closing.set()

    def _renew(self, namespace: Namespace) -> _Round:
        assert namespace.processor_targets, f"namespace {namespace.name!r} has no targets"
        connections = tuple(self._connect(target) for target in namespace.processor_targets)
        renewed = _Round(namespace.processor_targets, connections)
        self._rounds[namespace.name] = renewed
        return renewed

    def _connect(self, target: str) -> Connection:
        connection = self._connections.get(target)
        if connection is None:
            connection = self._connections[target] = Connection(target)
        connection.namespace_count += 1
        return connection

    async def _release(self, old: _Round) -> None:
        _uncount(old)
        # A target may be named twice, so idleness is looked at after all are counted.
        for connection in old.connections:
            if connection.is_idle:
                await self._close_connection(connection)

    async def _close_connection(self, connection: Connection) -> None:
        if self._connections.get(connection.target) is connection:
            del self._connections[connection.target]
            await connection.close()


def _uncount(old: _Round) -> None:
    for connection in old.connections:
        connection.namespace_count -= 1


def _next_in_turn(current: _Round) -> Connection:
    connections, first = current.connections, current.turn
    count = len(connections)
    if count == 1:
        return connections[0]
    for step in range(count):
        index = (first + step) % count
        if connections[index].channel.get_state() not in _FAILING:
            current.turn = (index + 1) % count
            return connections[index]
    # All of them fail: the call fails at once, and each keeps trying to connect by itself.
    current.turn = (first + 1) % count
    return connections[first]
