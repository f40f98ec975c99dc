"""An engine that answers as told, on a real socket, and how a command against it ended."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2_grpc
from grpc_status import rpc_status

from progressor.cli.main import main
from progressor.v1 import (
    access_service_pb2,
    bulk_service_pb2,
    gate_service_pb2,
    job_service_pb2,
    namespace_service_pb2,
    process_service_pb2,
    replica_service_pb2,
    schedule_service_pb2,
)

SERVICES: tuple[ServiceDescriptor, ...] = tuple(
    service
    for file in (
        process_service_pb2,
        namespace_service_pb2,
        access_service_pb2,
        gate_service_pb2,
        replica_service_pb2,
        job_service_pb2,
        schedule_service_pb2,
        bulk_service_pb2,
    )
    for service in file.DESCRIPTOR.services_by_name.values()
)
"""All that an engine offers."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An answer that is an error, as the engine tells one."""

    code: grpc.StatusCode
    reason: str
    message: str = "refused"
    domain: str = "progressor"
    metadata: dict[str, str] = dataclasses.field(default_factory=dict)
    violations: dict[str, str] = dataclasses.field(default_factory=dict)
    """What is wrong with which field."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:  # it is JSON
        return json.loads(self.out)

    @property
    def error(self) -> Any:  # it is JSON
        return json.loads(self.err)["error"]


Cli = Callable[..., Ended]
"""Runs a command, given its arguments, to its end."""


class ScriptedEngine:
    """Answers each RPC as told, or with an empty message, and keeps the requests.

    A stream is given as a list of messages, which it uses up; a refusal among them ends it, and
    what is behind that is for the next one.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Message | Refusal | list[Message | Refusal]] = {}
        self.requests: list[Any] = []
        self.health = health.HealthServicer()
        self._server = grpc.server(ThreadPoolExecutor(4))
        for service in SERVICES:
            self._server.add_generic_rpc_handlers((self._handlers(service),))
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    @contextlib.contextmanager
    def running(self) -> Iterator["ScriptedEngine"]:
        self._server.start()
        try:
            yield self
        finally:
            # Without grace the clients get an error, which gRPC logs into the next test's stderr.
            self._server.stop(1).wait()

    def _handlers(self, service: ServiceDescriptor) -> grpc.GenericRpcHandler:
        # Without sessions: what is asked of it comes as calls.
        methods = {
            method.name: self._handler(method)
            for method in service.methods
            if not method.client_streaming
        }
        return grpc.method_handlers_generic_handler(service.full_name, methods)

    def _handler(self, method: MethodDescriptor) -> "grpc.RpcMethodHandler[Any, Any]":
        answer_class = GetMessageClass(method.output_type)

        def handle(request: Message, context: grpc.ServicerContext) -> Message:
            self.requests.append(request)
            answer = self.answers.get(method.name, answer_class())
            if isinstance(answer, Refusal):
                context.abort_with_status(_status_of(answer))
            assert isinstance(answer, Message)
            return answer

        def stream(request: Message, context: grpc.ServicerContext) -> Iterator[Message]:
            self.requests.append(request)
            answers = self.answers.get(method.name, [])
            assert isinstance(answers, list)
            while answers:
                answer = answers.pop(0)
                if isinstance(answer, Refusal):
                    context.abort_with_status(_status_of(answer))
                assert isinstance(answer, Message)
                yield answer

        forms: dict[str, Any] = {
            "request_deserializer": GetMessageClass(method.input_type).FromString,
            "response_serializer": answer_class.SerializeToString,
        }
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(stream, **forms)
        return grpc.unary_unary_rpc_method_handler(handle, **forms)


def _status_of(refusal: Refusal) -> Any:  # a private class of grpc_status
    status = status_pb2.Status(code=refusal.code.value[0], message=refusal.message)
    info = error_details_pb2.ErrorInfo(
        domain=refusal.domain, reason=refusal.reason, metadata=refusal.metadata
    )
    status.details.add().Pack(info)
    if refusal.violations:
        fields = error_details_pb2.BadRequest()
        for field, description in refusal.violations.items():
            fields.field_violations.add(field=field, description=description)
        status.details.add().Pack(fields)
    return rpc_status.to_status(status)


def command_line(engine: ScriptedEngine, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Return the command line, whose commands go to an engine and print into a capture."""

    def run(*arguments: str) -> Ended:
        capfd.readouterr()
        code = main([*arguments, "--address", engine.address])
        captured = capfd.readouterr()
        return Ended(code=code, out=captured.out, err=captured.err)

    return run
