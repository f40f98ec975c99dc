"""Checks at the end: acknowledged requests are stored once, and the invariants of storage hold."""

import asyncio
import datetime as dt
from collections.abc import Mapping

import psycopg

from bench.disturbing.callers import Callers
from bench.disturbing.env import Env
from progressor.settings import config
from progressor.storage.doctor.doctor import examine
from progressor.storage.doctor.findings import State

_NAMED_MAX = 5
_QUESTION_TIMEOUT = dt.timedelta(seconds=300)

# Each step records one event, which names its request.
_STORED = """
    SELECT p.process_id, p.status::text, count(e.event_id), count(DISTINCT e.payload)
    FROM progressor.processes p
    LEFT JOIN progressor.events e USING (slot, namespace, process_id)
    WHERE p.namespace = %s
    GROUP BY p.process_id, p.status"""


async def findings(env: Env, callers: Callers) -> list[str]:
    """Return what is wrong; empty if nothing is."""
    found = [f"no answer for {process_id}" for process_id in callers.stuck]
    for replica in env.replicas:
        try:
            await replica.scan_found()
        except RuntimeError:
            found.append(f"the replica at {replica.address} has exited by itself")
    found += await asyncio.to_thread(_lost, env, callers.acknowledged)
    return found + await doctor(env.dsn)


async def doctor(dsn: str) -> list[str]:
    """Return the invariants that `progressor doctor --deep` finds violated."""
    chosen = config.load(environment={}, flags={"database.dsn": dsn})
    findings = await asyncio.to_thread(examine, chosen, dsn, deep=True, timeout=_QUESTION_TIMEOUT)
    return [
        f"doctor: {each.check}: {each.words} {each.offenders[:_NAMED_MAX]}"
        for each in findings
        if each.state is State.FAILED
    ]


def _lost(env: Env, acknowledged: Mapping[str, int]) -> list[str]:
    """Return the processes whose events do not match their acknowledged requests."""
    with psycopg.connect(env.dsn) as connection:
        rows = connection.execute(_STORED, (env.namespace,)).fetchall()
    stored = {process_id: rest for process_id, *rest in rows}
    wrong = [
        f"{process_id}: {count} acknowledged, stored is {stored.get(process_id, 'nothing')}"
        for process_id, count in acknowledged.items()
        if stored.get(process_id) != ["running", count, count]
    ]
    wrong += [f"{process_id}: it was never started" for process_id in stored.keys() - acknowledged]
    more = [f"... and {len(wrong) - _NAMED_MAX} more"] if len(wrong) > _NAMED_MAX else []
    return wrong[:_NAMED_MAX] + more
