"""Health and reflection as gRPC has them, but refusing what is malformed like our own services.

grpc.aio 1.85 ends a call whose deserializer raises with UNKNOWN, and logs a traceback. These
services need no credentials: anybody could fill the log.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias, cast

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

HEALTH_NAME = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

_UNPARSED = "the message could not be parsed"

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
_Method: TypeAlias = Callable[[Any, _Context], Awaitable[Any]]
_StreamMethod: TypeAlias = Callable[[AsyncIterator[Any], _Context], AsyncIterator[Any]]


def add_services(
    server: grpc.aio.Server, health: health_pb2_grpc.HealthServicer, names: Iterable[str]
) -> None:
    """Add the two services; reflection shows those in `names`, and these two."""
    guarded = cast("grpc.aio.Server", _Guarded(server))
    health_pb2_grpc.add_HealthServicer_to_server(health, guarded)
    seen = (*names, HEALTH_NAME, reflection.SERVICE_NAME)
    add_reflection: Any = reflection_pb2_grpc.add_ServerReflectionServicer_to_server
    add_reflection(reflection.aio.ReflectionServicer(seen), guarded)


class _Guarded:
    """Stands in for a server when the generated functions add a service to it."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self._server.add_generic_rpc_handlers(tuple(map(_Service, handlers)))

    def add_registered_method_handlers(self, *_: object) -> None:
        """Do nothing, as grpc.aio does."""


class _Service(grpc.GenericRpcHandler):
    def __init__(self, handler: grpc.GenericRpcHandler) -> None:
        self._handler = handler

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        found: Any = self._handler.service(handler_call_details)
        return None if found is None else _checked(found)


def _checked(found: Any) -> "grpc.RpcMethodHandler[Any, Any]":  # noqa: ANN401  # its fields are untyped
    parse, serialize = _or_none(found.request_deserializer), found.response_serializer
    if found.stream_stream is not None:
        return grpc.stream_stream_rpc_method_handler(
            _of_stream(found.stream_stream), parse, serialize
        )
    if found.unary_stream is not None:
        return grpc.unary_stream_rpc_method_handler(_of_one(found.unary_stream), parse, serialize)
    return grpc.unary_unary_rpc_method_handler(_of_one(found.unary_unary), parse, serialize)


def _or_none(parse: Callable[[bytes], object]) -> Callable[[bytes], object]:
    def parsed(data: bytes) -> object:
        try:
            return parse(data)
        except DecodeError:
            return None

    return parsed


def _of_one(method: _Method) -> Any:  # noqa: ANN401  # as gRPC takes it
    async def answer(request: object, context: _Context) -> object:
        if not inspect.iscoroutinefunction(method):
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this method is not implemented")
        if request is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _UNPARSED)
        return await method(request, context)

    return answer


def _of_stream(method: _StreamMethod) -> Any:  # noqa: ANN401  # as gRPC takes it
    async def answer(requests: AsyncIterator[object], context: _Context) -> AsyncIterator[object]:
        async def parsed() -> AsyncIterator[object]:
            async for request in requests:
                if request is None:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _UNPARSED)
                yield request

        async for message in method(parsed(), context):
            yield message

    return answer
