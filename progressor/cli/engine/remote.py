"""Commands that ask a running engine about itself: health, replicas, log-level."""

import datetime as dt
from collections.abc import Mapping
from typing import Annotated, Literal

import grpc
from grpc_health.v1 import health_pb2

from progressor.cli.input.options import (
    PAGE_MAX,
    EngineOptions,
    bad_input,
    client_of,
    duration,
    option,
)
from progressor.cli.output import Column, ExitCode, duration_text, show, status_text, table
from progressor.sdk.client.replicas import LogLevel, Replica
from progressor.sdk.transport.failures import error_for, read_status
from progressor.sdk.transport.security import Security

_UNTIL_CHANGED = dt.timedelta()


async def health(
    *,
    service: Annotated[
        str,
        option("Check one service, such as progressor.v1.ProcessService, or a cell: cell/NAME."),
    ] = "",
    engine: EngineOptions = EngineOptions(),
) -> ExitCode:
    """Check the health of an engine; the exit code is 0 if it is serving, 5 if it is not."""
    security = Security(engine.address, **engine.identity)
    channel = security.channel(grpc.aio, engine.address, (), security.material)
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    request = health_pb2.HealthCheckRequest(service=service)
    async with channel:
        try:
            answer = await check(request, timeout=engine.timeout, metadata=security.authorization())
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                description = f"must be a service of the engine, or cell/NAME, got {service!r}"
                raise bad_input("--service", description) from error
            found = security.explained(read_status(error, engine.address))
            raise error_for(found) from error
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    show(
        {"address": engine.address, "service": service, "status": status},
        f"{service or 'engine'} at {engine.address}: {status}",
        as_json=engine.json,
    )
    serving = answer.status == health_pb2.HealthCheckResponse.SERVING
    return ExitCode.DONE if serving else ExitCode.UNAVAILABLE


async def log_level(
    level: Annotated[
        Literal["debug", "info", "warning", "error"], option("The least severe level to log.")
    ],
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
    engine: EngineOptions = EngineOptions(),
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
    lasting = f", for {duration_text(for_)}" if for_ else ""
    words = f"{change.replica_name}: {level}{lasting} (it was {change.previous_level})"
    show(document, words, as_json=engine.json)


async def replicas(*, engine: EngineOptions = EngineOptions()) -> None:
    """Print the replicas of the engine's database, and those that died within the last hour.

    steps and callers are as of the last heartbeat, leases are current; clock is how far the
    replica's clock is ahead of PostgreSQL's. A silent replica is presumed dead, and others take its
    steps.
    """
    async with client_of(engine) as client:
        found = [it async for it in client.replicas.list(page_size=PAGE_MAX)]
    columns = dict(_REPLICAS)
    if any(it.cell for it in found):
        columns["cell"] = lambda it: it.cell
    show({"replicas": found}, table(columns, found), as_json=engine.json)


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _clock(offset: dt.timedelta | None) -> str:
    return "" if offset is None else f"{offset.total_seconds():+,.3f} s"


_REPLICAS: Mapping[str, Column[Replica]] = {
    "name": lambda it: it.name,
    "id": lambda it: str(it.replica_id),
    "version": lambda it: it.version,
    "state": lambda it: status_text(it.state),
    "heartbeat": lambda it: f"{it.heartbeat_age.total_seconds():,.1f} s ago",
    "steps": lambda it: _count(it.step_count),
    "callers": lambda it: _count(it.caller_count),
    "leases": lambda it: _count(it.lease_count),
    "clock": lambda it: _clock(it.clock_offset),
}
