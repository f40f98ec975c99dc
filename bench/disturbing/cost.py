"""The CPU per answer by component; on a machine that has become slower, all of them grow."""

import os
import time
from collections.abc import Mapping

from bench.cpu import cpu_seconds
from bench.disturbing.env import Env

Cost = Mapping[str, float]


def spent(env: Env) -> Cost:
    """Return the CPU seconds of each component; they only grow, unless a component restarts."""
    parts = [("engine", replica.pid) for replica in env.replicas]
    parts += [("processor", env.processor.pid), ("client", os.getpid())]
    used = cpu_seconds(parts, all_postgres=False)
    # All other parts are descendants of the client.
    used["client"] -= used["engine"] + used["processor"]
    return used


class Meter:
    def __init__(self, env: Env) -> None:
        self._env = env
        self._spent = spent(env)
        self.begun_at = time.monotonic()

    def read(self) -> tuple[float, Cost]:
        at, now = time.monotonic(), spent(self._env)
        return at, {name: now[name] - before for name, before in self._spent.items()}
