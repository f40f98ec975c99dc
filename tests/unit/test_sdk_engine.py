"""An engine that answers by a script, on a real socket: what the tests of the clients talk to."""

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc import (
    code_pb2,
    error_details_pb2,
    status_pb2,
)
from grpc_status import rpc_status

from progressor.v1 import namespace_service_pb2_grpc, process_service_pb2_grpc

HANG = object()
"""In a script: no answer at all."""


class ScriptedEngine:
    """Answers each request with the next entry of its script, and remembers what it was asked."""

    def __init__(self) -> None:
        self.script: list[Any] = []
        self.requests: list[Any] = []
        self.metadata: list[dict[str, str | bytes]] = []
        self.address = ""
        self.asked = asyncio.Event()

    async def answer(self, request: Message, context: Any) -> Message:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata() or ()))
        self.asked.set()
        entry = self.script.pop(0)
        if isinstance(entry, grpc.Status):
            await context.abort_with_status(entry)
        if entry is HANG:
            await asyncio.Event().wait()
        assert isinstance(entry, Message)
        return entry

    Start = Call = Notify = Repair = SimpleRepair = Get = Put = Remove = answer
    Trace = List = AwaitTask = answer
    CreateNamespace = UpdateNamespace = GetNamespace = answer
    ListNamespaces = DeleteNamespace = answer


@contextlib.asynccontextmanager
async def scripted_engine(*script: Any) -> AsyncIterator[ScriptedEngine]:
    """Serve a scripted engine on a free port."""
    engine = ScriptedEngine()
    engine.script.extend(script)
    server = grpc.aio.server()
    process_service_pb2_grpc.add_ProcessServiceServicer_to_server(engine, server)  # type: ignore[arg-type]  # by name
    namespace_service_pb2_grpc.add_NamespaceServiceServicer_to_server(engine, server)  # type: ignore[arg-type]  # by name
    engine.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield engine
    finally:
        await server.stop(None)


def refusal(  # all optional
    code: grpc.StatusCode,
    reason: str,
    *,
    domain: str = "progressor",
    message: str = "as the engine says",
    retry_after: dt.timedelta | None = None,
    violations: Sequence[tuple[str, str]] = (),
    **metadata: str,
) -> grpc.Status:
    """Return a status with the rich details that the engine sends."""
    details: list[Message] = [
        error_details_pb2.ErrorInfo(domain=domain, reason=reason, metadata=metadata)
    ]
    if retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromTimedelta(retry_after)
        details.append(retry)
    if violations:
        request = error_details_pb2.BadRequest()
        for field, description in violations:
            request.field_violations.add(field=field, description=description)
        details.append(request)
    status = status_pb2.Status(code=code_pb2.Code.Value(code.name), message=message)
    for detail in details:
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)
    return rpc_status.to_status(status)
