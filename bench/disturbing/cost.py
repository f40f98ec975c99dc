"""What an answer costs, by component: a machine that has slowed down makes all of them dearer."""

import os
import time
from collections.abc import Mapping

from bench.cpu import cpu_seconds
from bench.disturbing.scene import Scene

Cost = Mapping[str, float]


def spent(scene: Scene) -> Cost:
    """Return the CPU seconds that each component has used so far; they grow while none is begun."""
    parts = [("engine", replica.pid) for replica in scene.replicas]
    parts += [("processor", scene.processor.pid), ("client", os.getpid())]
    used = cpu_seconds(parts, all_postgres=False)
    # All the others are below the client.
    used["client"] -= used["engine"] + used["processor"]
    return used


class Meter:
    """Begins when it is made."""

    def __init__(self, scene: Scene) -> None:
        """Look what was spent so far."""
        self._scene = scene
        self._spent = spent(scene)
        self.begun_at = time.monotonic()

    def read(self) -> tuple[float, Cost]:
        """Return the instant, and the CPU seconds since it began by component."""
        at, now = time.monotonic(), spent(self._scene)
        return at, {name: now[name] - before for name, before in self._spent.items()}
