"""Which namespaces are paused, as this replica knows it: nothing of them may start.

A pause becomes known in two ways. A notification makes the replica read the paused namespaces.
And each heartbeat reads their names: one that is not known to be paused is *suspected*, and held at
once, until the namespace has been read. So what a replica knows is never older than its last
heartbeat, and without heartbeats it starts nothing.

What is read of a namespace is ordered by its revision. A heartbeat has no revisions: it may have
read before a resume that is already known. So a heartbeat never opens a namespace; only a read
does.

A resumed namespace stays held until `take_resumed`, so that who takes it can mark its backlog in
the same moment: nothing of it is claimed before.
"""

import asyncio
from collections.abc import Collection

from progressor.domain.processes.namespace import Namespace


class Pauses:
    """Filled by `Namespaces`; ``names`` are held, for whatever reason."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.changed = asyncio.Event()
        """Set when the paused namespaces must be read."""
        self.resumed = asyncio.Event()
        """Set while `take_resumed` has something to return."""
        self._resumed: dict[str, None] = {}
        # With the number of the heartbeat that named them last.
        self._suspects: dict[str, int] = {}
        self._heartbeat_count = 0
        self._known: dict[str, None] = {}

    def heartbeat(self, paused: Collection[str]) -> None:
        """Compare what a heartbeat has read with what is known."""
        if not paused and not self.names:
            return
        self._heartbeat_count += 1
        unknown = [name for name in paused if name not in self._known]
        for name in unknown:
            self._suspects[name] = self._heartbeat_count
            self.names[name] = None
            self._resumed.pop(name, None)
        if unknown or not self._known.keys() <= set(paused):
            self.changed.set()

    def learn(self, namespace: Namespace) -> None:
        """Take in a namespace that was read, and is newer than what was known of it."""
        name = namespace.name
        if namespace.pause is not None:
            self._known[name] = self.names[name] = None
            self._resumed.pop(name, None)
        else:
            self.forget(name)

    def forget(self, name: str) -> None:
        """Take in that a namespace is not paused, or is gone."""
        self._known.pop(name, None)
        if name in self.names and name not in self._suspects:
            self._open(name)

    def begin_reading(self) -> int:
        """Return a mark for `end_reading`; the suspects until now will have been read."""
        self.changed.clear()
        return self._heartbeat_count

    def end_reading(self, mark: int) -> None:
        for name in [name for name, number in self._suspects.items() if number <= mark]:
            del self._suspects[name]
            if name not in self._known:
                self._open(name)

    def take_resumed(self) -> tuple[str, ...]:
        """Open the namespaces that were resumed since the last call, and return them."""
        taken = tuple(self._resumed)
        self._resumed.clear()
        for name in taken:
            del self.names[name]
        self.resumed.clear()
        return taken

    def _open(self, name: str) -> None:
        self._resumed[name] = None
        self.resumed.set()
