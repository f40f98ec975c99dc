"""The command log-level."""

import datetime as dt
from typing import Annotated, Literal

from progressor.cli.input.engines import client_of
from progressor.cli.input.inputs import bad_input, duration
from progressor.cli.input.options import DEFAULT_ENGINE, EngineOptions
from progressor.cli.output.output import show
from progressor.sdk.values.replicas import LogLevel

_UNTIL_CHANGED = dt.timedelta()


async def log_level(
    level: Literal["debug", "info", "warning", "error"],
    /,
    *,
    for_: Annotated[
        dt.timedelta,
        duration(
            "How long, for example 30s, 10m or 2h; then the previous level is restored. By "
            "default, until the next change.",
            name="--for",
        ),
    ] = _UNTIL_CHANGED,
    engine: EngineOptions = DEFAULT_ENGINE,
) -> None:
    """Change the log level of the replica at the address, and of no other.

    If several replicas share the address, the level of the one that answers is changed; the output
    names it.
    """
    if for_ < _UNTIL_CHANGED:
        raise bad_input("--for", f"must not be negative, got {for_.total_seconds():,.0f} s")
    async with client_of(engine) as client:
        change = await client.replicas.set_log_level(LogLevel(level), lasting=for_)
    document = {
        "replica_name": change.replica_name,
        "level": level,
        "previous_level": change.previous_level,
        "lasting_seconds": for_.total_seconds(),
    }
    lasting = f", for {for_}" if for_ else ""
    words = f"{change.replica_name}: {level}{lasting} (it was {change.previous_level})"
    show(document, words, as_json=engine.json)
