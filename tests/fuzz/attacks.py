"""Ways to send malformed things to an engine, each counted by how it ended."""

import asyncio
import contextlib
import random
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import ModuleType
from typing import TypeAlias

import grpc
from google.protobuf.descriptor import MethodDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from progressor.v1 import (
    access_service_pb2,
    bulk_service_pb2,
    gate_service_pb2,
    job_service_pb2,
    namespace_service_pb2,
    process_service_pb2,
    replica_service_pb2,
    schedule_service_pb2,
    step_service_pb2,
)
from progressor.v1 import process_service_pb2 as pb
from tests.fuzz.inputs import Inputs

_MODULES: tuple[ModuleType, ...] = (
    access_service_pb2, bulk_service_pb2, gate_service_pb2, job_service_pb2,
    namespace_service_pb2, process_service_pb2, replica_service_pb2, schedule_service_pb2,
    step_service_pb2, health_pb2, reflection_pb2,
)  # fmt: skip
METHODS: tuple[MethodDescriptor, ...] = tuple(
    method
    for module in _MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
)
_CALL_SECONDS = 3.0
_READ_SECONDS = 0.3
_SESSION_FRAMES = 20
_HELD_SECONDS = 20.0
_OF_CLIENT = "Internal error from Core"
"""What grpc.aio says of a frame that its own core does not take."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS = b"\0\0\0\4\0\0\0\0\0"

_Metadata: TypeAlias = tuple[tuple[str, str], ...]
_Unary: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"
_Stream: TypeAlias = "grpc.aio.StreamStreamCall[bytes, bytes]"
_Streams: TypeAlias = "grpc.aio.StreamStreamMultiCallable[bytes, bytes]"


class Attacker:
    """Sends malformed requests, frames and connections; `counts` says how they ended."""

    def __init__(self, address: str, scrape: str, token: str, seed: int) -> None:
        self._address, self._scrape, self._token = address, scrape, token
        self._chance = random.Random(seed)
        self._inputs = Inputs(self._chance)
        self._channel = grpc.aio.insecure_channel(address)
        self.counts: Counter[str] = Counter()
        self._ways: Mapping[Callable[[], Awaitable[int]], int] = {
            self._unary: 80, self._session: 2, self._http2: 12, self._scraped: 2, self._slow: 1,
        }  # fmt: skip

    async def attack(self) -> int:
        """Send something; return how many requests or frames it was."""
        (way,) = self._chance.choices(list(self._ways), list(self._ways.values()))
        return await way()

    async def well_formed(self, namespace: str, process_id: str) -> int:
        """Send a request that is right, for comparison: read a process."""
        request = pb.GetRequest(namespace=namespace, process_id=process_id).SerializeToString()
        await self._call(_named("Get"), request, self._credentials(valid=True))
        return 1

    async def close(self) -> None:
        await self._channel.close()

    # --- Over gRPC

    async def _unary(self) -> int:
        method = self._chance.choice(METHODS)
        metadata = self._credentials(valid=self._chance.random() < 0.9)
        await self._call(method, self._inputs.message(method.input_type), metadata)
        return 1

    async def _call(self, method: MethodDescriptor, request: bytes, metadata: _Metadata) -> None:
        assert method.containing_service is not None, "of a service"
        path = f"/{method.containing_service.full_name}/{method.name}"
        try:
            if method.server_streaming or method.client_streaming:
                call = self._stream(path, metadata)
                await call.write(request)
                await call.done_writing()
                # Any: a watch may have no end.
                await call.read()
                call.cancel()
                code = grpc.StatusCode.OK
            else:
                unary: _Unary = self._channel.unary_unary(path)
                await unary(request, metadata=metadata, timeout=_CALL_SECONDS)
                code = grpc.StatusCode.OK
        except grpc.aio.AioRpcError as error:
            code = error.code()
            is_bug = code in {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
            if is_bug and error.details() != _OF_CLIENT:
                self.counts[f"bug: {method.name}: {code.name}: {error.details()}"[:300]] += 1
        except (asyncio.CancelledError, asyncio.InvalidStateError):
            code = grpc.StatusCode.CANCELLED
        self.counts[f"unary {code.name}"] += 1

    async def _session(self) -> int:
        session = _named("Session")
        path = "/progressor.v1.ProcessService/Session"
        call = self._stream(path, self._credentials(valid=True))
        sent = 0
        ends = (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError)
        with contextlib.suppress(*ends):
            for _ in range(_SESSION_FRAMES):
                await call.write(self._inputs.message(session.input_type))
                sent += 1
                if self._chance.random() < 0.5:
                    async with asyncio.timeout(_READ_SECONDS):
                        await call.read()
        call.cancel()
        self.counts["session frames"] += sent
        return sent or 1

    def _stream(self, path: str, metadata: _Metadata) -> _Stream:
        stream: _Streams = self._channel.stream_stream(path)
        return stream(metadata=metadata, timeout=_CALL_SECONDS)

    def _credentials(self, *, valid: bool) -> _Metadata:
        if valid:
            return (("authorization", f"Bearer {self._token}"),)
        alphabet = "abcdef0123456789_ .-=~"
        noise = "".join(self._chance.choices(alphabet, k=self._chance.randrange(300)))
        return self._chance.choice(
            (
                (),
                (("authorization", noise),),
                (("authorization", f"Bearer {noise}"),),
                (("authorization", f"Bearer {self._token[:-1]}"),),
                (("authorization", "Bearer x"), ("authorization", f"Bearer {self._token}")),
                (("traceparent", noise), ("tracestate", noise), ("baggage", noise)),
            )
        )

    # --- Beside gRPC

    async def _http2(self) -> int:
        data = b"".join(self._frames())
        if self._chance.random() < 0.3:
            data = self._inputs.mutated(data)
        await self._raw(self._address, data)
        self.counts["connections with broken HTTP/2"] += 1
        return 1

    def _frames(self) -> Iterator[bytes]:
        if self._chance.random() < 0.9:
            yield _PREFACE
        if self._chance.random() < 0.8:
            yield _SETTINGS
        for _ in range(self._chance.choice((1, 3, 200))):
            payload = self._chance.randbytes(self._chance.choice((0, 4, 8, 40, 16_384)))
            length = self._chance.choice((len(payload), len(payload), 2**24 - 1, 0))
            kind, flags = self._chance.randrange(12), self._chance.randrange(256)
            stream = self._chance.choice((0, 1, 1, 2, 3, 2**31 - 1, 2**32 - 1))
            yield struct.pack(">I", length)[1:] + bytes((kind, flags))
            yield struct.pack(">I", stream) + payload

    async def _scraped(self) -> int:
        good = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: text/plain\r\n\r\n"
        await self._raw(self._scrape, self._inputs.mutated(good))
        self.counts["broken scrapes"] += 1
        return 1

    async def _slow(self) -> int:
        """Leave a connection half-way through something, for a while."""
        address = self._chance.choice((self._address, self._address, self._scrape))
        beginning = _PREFACE + _SETTINGS + b"\0\1\0\1\4\0\0\0\1"
        half = beginning[: self._chance.randrange(len(beginning) + 1)]
        held = asyncio.create_task(self._raw(address, half, seconds=_HELD_SECONDS))
        _HELD.add(held)
        held.add_done_callback(_HELD.discard)
        self.counts["slow senders"] += 1
        return 1

    async def _raw(self, address: str, data: bytes, *, seconds: float = _READ_SECONDS) -> None:
        host, _, port = address.rpartition(":")
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(seconds):
                reader, writer = await asyncio.open_connection(host, int(port))
                try:
                    writer.write(data)
                    await writer.drain()
                    while await reader.read(65_536):
                        pass
                finally:
                    writer.close()


_HELD: set[asyncio.Task[None]] = set()


def _named(name: str) -> MethodDescriptor:
    return next(method for method in METHODS if method.name == name)
