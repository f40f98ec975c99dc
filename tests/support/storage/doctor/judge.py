"""The last judge of a fault test: what `progressor doctor --deep` says of its database.

Here it is asked by the function behind the command: a process of its own for each of some hundred
tests would cost more than the tests. It knows all invariants, and of the environment what can be
wrong of a database that only the test uses.
"""

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

from progressor.settings import config
from progressor.storage.doctor.doctor import examine
from progressor.storage.doctor.findings import Finding, State
from tests.support.engine.replica import SETTINGS, Env, Replica, open_env

_TIMEOUT = dt.timedelta(seconds=20)

EXPECTED = frozenset({"heartbeats", "clocks", "broken_processes", "retries", "dead_rows"})
"""What may be worth a warning after a fault that was survived: replicas that were killed are
silent, processes were broken on purpose, and a replica that has just started has told no clock."""


def ailments(conninfo: str) -> list[str]:
    """Return what the doctor finds to be wrong with a database, in its words. Blocks."""
    chosen = config.load(environment={}, flags={**SETTINGS, "database.dsn": conninfo})
    return [
        _worded(finding)
        for finding in examine(chosen, conninfo, deep=True, timeout=_TIMEOUT)
        if _is_ill(finding)
    ]


@contextlib.asynccontextmanager
async def judged_env(replica: Replica, **options: Any) -> AsyncIterator[Env]:
    """Make an environment as `open_env` does; the doctor looks before its processes are removed.

    Leases are lost on purpose here, so the processor does not insist on being asked one at a time.
    """
    async with open_env(replica, one_at_a_time=False, **options) as env:
        yield env
        assert await asyncio.to_thread(ailments, replica.engine.dsn) == []


def _is_ill(finding: Finding) -> bool:
    if finding.state is State.OK:
        return False
    # What could not be looked at was not judged.
    return finding.state is State.FAILED or finding.check not in EXPECTED


def _worded(finding: Finding) -> str:
    return f"{finding.check}: {finding.words} {list(finding.offenders)}"
