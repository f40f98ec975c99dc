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

from progressor.v1 import (
    bulk_service_pb2_grpc,
    gate_service_pb2_grpc,
    job_service_pb2_grpc,
    namespace_service_pb2_grpc,
    process_service_pb2_grpc,
    replica_service_pb2_grpc,
    schedule_service_pb2_grpc,
    step_service_pb2_grpc,
)
from progressor.v1 import process_service_pb2 as messages

HANG = object()
"""In a script: no answer at all."""


class ScriptedEngine:
    """Answers each request with the next entry of its script, and remembers what it was asked.

    A request may come as a call or in a session; ``sessions`` tells how many were opened.
    """

    has_sessions = True

    def __init__(self) -> None:
        self.script: list[Any] = []
        self.requests: list[Any] = []
        self.metadata: list[dict[str, str | bytes]] = []
        self.cancelled: list[int] = []
        self.sessions = 0
        self.address = ""
        self.asked = asyncio.Event()
        self.told = asyncio.Event()

    async def answer(self, request: Message, context: Any) -> Message:
        entry = await self._next(request, dict(context.invocation_metadata() or ()))
        if isinstance(entry, grpc.Status):
            await context.abort_with_status(entry)
        assert isinstance(entry, Message)
        return entry

    async def Session(self, requests: Any, context: Any) -> None:  # noqa: N802 - as in the contract
        if not self.has_sessions:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such method")
        self.sessions += 1
        # An answer that the client has may still be under way here: gRPC takes one at a time.
        writing = asyncio.Lock()
        async with asyncio.TaskGroup() as group:
            async for frame in requests:
                for call in frame.calls:
                    group.create_task(self._answer_in_session(call, context, writing))
                self.cancelled.extend(frame.cancelled)
                if frame.cancelled:
                    self.told.set()

    async def WatchJob(self, request: Message, context: Any) -> Any:  # noqa: N802 - as in the contract
        """Stream the messages of the next entry, which is a list; a status in it ends it."""
        for entry in await self._next(request, dict(context.invocation_metadata() or ())):
            if isinstance(entry, grpc.Status):
                await context.abort_with_status(entry)
            elif entry is HANG:
                await asyncio.Event().wait()
            yield entry

    async def _answer_in_session(
        self, call: messages.SessionCall, context: Any, writing: asyncio.Lock
    ) -> None:
        field = call.WhichOneof("request")
        assert field is not None
        entry = await self._next(getattr(call, field), dict(call.trace_context))
        answer = messages.SessionAnswer(call_id=call.call_id)
        if isinstance(entry, grpc.Status):
            code, message = entry.code.value[0], entry.details
            answer.error.MergeFrom(messages.SessionError(code=code, message=message))
            for _, value in entry.trailing_metadata or ():
                assert isinstance(value, bytes)
                answer.error.ParseFromString(value)
        else:
            # A response of the wrong type is read as if it were of the right one, as gRPC does.
            getattr(answer, field).MergeFromString(entry.SerializeToString())
            getattr(answer, field).SetInParent()
        async with writing:
            await context.write(messages.SessionResponse(answers=[answer]))

    async def _next(self, request: Message, metadata: dict[str, Any]) -> Any:
        self.requests.append(request)
        self.metadata.append(metadata)
        self.asked.set()
        entry = self.script.pop(0)
        if entry is HANG:
            await asyncio.Event().wait()
        return entry

    Start = Call = Notify = Repair = Retry = SimpleRepair = Get = Put = Remove = answer
    Trace = List = Count = ListFailures = AwaitTask = Cancel = Terminate = AwaitProcess = answer
    CreateNamespace = UpdateNamespace = GetNamespace = answer
    PauseNamespace = ResumeNamespace = answer
    ListNamespaces = DeleteNamespace = ListReplicas = SetLogLevel = RunDoctor = answer
    GetActivity = ListGates = GetGate = SetGate = DeleteGate = answer
    SubmitJob = GetJob = ListJobs = CancelJob = RetryJob = answer
    CreateSchedule = UpdateSchedule = GetSchedule = ListSchedules = DeleteSchedule = answer
    Remember = Extend = answer
    PreviewBulk = StartBulk = GetBulk = StopBulk = ListBulks = ListBulkResults = answer
    PauseSchedule = ResumeSchedule = TriggerSchedule = BackfillSchedule = answer


@contextlib.asynccontextmanager
async def scripted_engine(*script: Any) -> AsyncIterator[ScriptedEngine]:
    """Serve a scripted engine on a free port."""
    engine = ScriptedEngine()
    engine.script.extend(script)
    server = grpc.aio.server()
    process_service_pb2_grpc.add_ProcessServiceServicer_to_server(engine, server)  # type: ignore[arg-type]  # by name
    namespace_service_pb2_grpc.add_NamespaceServiceServicer_to_server(engine, server)  # type: ignore[arg-type]  # by name
    gate_service_pb2_grpc.add_GateServiceServicer_to_server(engine, server)  # type: ignore[arg-type]  # by name
    job_service_pb2_grpc.add_JobServiceServicer_to_server(engine, server)  # type: ignore[arg-type]  # by name
    schedule_service_pb2_grpc.add_ScheduleServiceServicer_to_server(engine, server)  # type: ignore[arg-type]  # by name
    step_service_pb2_grpc.add_StepServiceServicer_to_server(engine, server)  # type: ignore[arg-type]  # by name
    replica_service_pb2_grpc.add_ReplicaServiceServicer_to_server(engine, server)  # type: ignore[arg-type]  # by name
    bulk_service_pb2_grpc.add_BulkServiceServicer_to_server(engine, server)  # type: ignore[arg-type]  # by name
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
