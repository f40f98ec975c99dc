"""The command replicas, which shows who runs on a database and how they are."""

from rich.text import Text

from progressor.cli.input.engines import client_of
from progressor.cli.input.options import DEFAULT_ENGINE, Engine
from progressor.cli.output.output import Output, status_text, table
from progressor.sdk.values.replicas import Replica

_COLUMNS = (
    "name", "id", "version", "state", "heartbeat", "steps", "callers", "leases", "clock",
)  # fmt: skip


async def replicas(*, engine: Engine = DEFAULT_ENGINE) -> None:
    """Print the replicas on the engine's database, also those that died within the last hour.

    steps and callers are as of the last heartbeat, leases of now; clock is by how much the
    replica's is ahead of PostgreSQL's. A silent replica is presumed dead, its steps are taken by
    others.
    """
    async with client_of(engine) as client:
        found = [it async for it in client.replicas.list(page_size=1000)]
    Output(as_json=engine.json).show({"replicas": found}, table(_COLUMNS, [*map(_row, found)]))


def _row(replica: Replica) -> list[str | Text]:
    offset = replica.clock_offset
    return [
        replica.name,
        str(replica.replica_id),
        replica.version,
        status_text(replica.state),
        f"{replica.heartbeat_age.total_seconds():,.1f} s ago",
        _count(replica.step_count),
        _count(replica.caller_count),
        f"{replica.lease_count:,}",
        "" if offset is None else f"{offset.total_seconds():+,.3f} s",
    ]


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
