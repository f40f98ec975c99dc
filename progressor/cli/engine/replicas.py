"""The command replicas."""

from collections.abc import Mapping

from progressor.cli.input.engines import client_of
from progressor.cli.input.inputs import PAGE_MAX
from progressor.cli.input.options import DEFAULT_ENGINE, EngineOptions
from progressor.cli.output.output import Column, show, status_text, table
from progressor.sdk.values.replicas import Replica


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _clock(replica: Replica) -> str:
    offset = replica.clock_offset
    return "" if offset is None else f"{offset.total_seconds():+,.3f} s"


_COLUMNS: Mapping[str, Column[Replica]] = {
    "name": lambda it: it.name,
    "id": lambda it: str(it.replica_id),
    "version": lambda it: it.version,
    "state": lambda it: status_text(it.state),
    "heartbeat": lambda it: f"{it.heartbeat_age.total_seconds():,.1f} s ago",
    "steps": lambda it: _count(it.step_count),
    "callers": lambda it: _count(it.caller_count),
    "leases": lambda it: _count(it.lease_count),
    "clock": _clock,
}


async def replicas(*, engine: EngineOptions = DEFAULT_ENGINE) -> None:
    """Print the replicas of the engine's database, and those that died within the last hour.

    steps and callers are as of the last heartbeat, leases are current; clock is how far the
    replica's clock is ahead of PostgreSQL's. A silent replica is presumed dead, and others take its
    steps.
    """
    async with client_of(engine) as client:
        found = [it async for it in client.replicas.list(page_size=PAGE_MAX)]
    show({"replicas": found}, table(_COLUMNS, found), as_json=engine.json)
