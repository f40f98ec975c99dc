"""The command health."""

from typing import Annotated

import grpc
from grpc_health.v1 import health_pb2

from progressor.cli.input.engines import credentials_of
from progressor.cli.input.inputs import option
from progressor.cli.input.options import DEFAULT_ENGINE, EngineOptions
from progressor.cli.output.exit_codes import ExitCode
from progressor.cli.output.output import show
from progressor.sdk.transport.failures import error_for, read_status


async def health(
    *,
    service: Annotated[
        str, option("Check one service, for example progressor.v1.ProcessService.")
    ] = "",
    engine: EngineOptions = DEFAULT_ENGINE,
) -> ExitCode:
    """Check the health of an engine; the exit code is 0 if it is serving, 5 if it is not."""
    credentials = credentials_of(engine)
    channel = (
        grpc.aio.insecure_channel(engine.address)
        if credentials is None
        else grpc.aio.secure_channel(engine.address, credentials)
    )
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    async with channel:
        try:
            answer = await check(
                health_pb2.HealthCheckRequest(service=service), timeout=engine.timeout
            )
        except grpc.aio.AioRpcError as error:
            raise error_for(read_status(error, engine.address)) from error
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    serving = answer.status == health_pb2.HealthCheckResponse.SERVING
    show(
        {"address": engine.address, "service": service, "status": status},
        f"{service or 'engine'} at {engine.address}: {status}",
        as_json=engine.json,
    )
    return ExitCode.DONE if serving else ExitCode.UNAVAILABLE
