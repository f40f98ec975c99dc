"""What an answer costs, by component: a machine that has slowed down makes all of them dearer."""

import os
import time
from collections.abc import Mapping

from bench.cpu import cpu_seconds
from bench.disturbing.env import Env

Cost = Mapping[str, float]


def spent(env: Env) -> Cost:
    """Return the CPU seconds that each component has used so far; they grow while none is begun."""
    parts = [("engine", replica.pid) for replica in env.replicas]
    parts += [("processor", env.processor.pid), ("client", os.getpid())]
    used = cpu_seconds(parts, all_postgres=False)
    # All the others are below the client.
    used["client"] -= used["engine"] + used["processor"]
    return used


class Meter:
    """Begins when it is made."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._spent = spent(env)
        self.begun_at = time.monotonic()

    def read(self) -> tuple[float, Cost]:
        """Return the instant, and the CPU seconds since it began by component."""
        at, now = time.monotonic(), spent(self._env)
        return at, {name: now[name] - before for name, before in self._spent.items()}
