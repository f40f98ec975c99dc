"""What a scripted processor can be told to do with a step."""

import asyncio
import dataclasses

import grpc
from google.protobuf.message import Message

from progressor.v1 import processor_service_pb2

GARBAGE = b"\xff\xfe this is not a ProcessResponse"


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """Answer with this; None: one event, and the args as the response."""

    response: processor_service_pb2.ProcessResponse | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Refuse:
    """End the call with a gRPC status, with rich details (ErrorInfo, RetryInfo) if any."""

    code: grpc.StatusCode
    text: str = ""
    details: tuple[Message, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Hang:
    """Answer only once `released` is set, if ever."""

    released: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    response: processor_service_pb2.ProcessResponse | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Late:
    """Answer after so many seconds."""

    seconds: float
    response: processor_service_pb2.ProcessResponse | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Drop:
    """Cut every connection in the middle of the call."""


@dataclasses.dataclass(frozen=True, slots=True)
class Garble:
    """Answer with bytes that are not a ProcessResponse."""

    answer: bytes = GARBAGE


@dataclasses.dataclass(frozen=True, slots=True)
class Twice:
    """Answer as by default, and again in a frame that follows; a call can only answer once."""


@dataclasses.dataclass(frozen=True, slots=True)
class GarbleFrame:
    """Write a frame of the stream that is none; by a call: as `Answer`."""


@dataclasses.dataclass(frozen=True, slots=True)
class EndStream:
    """End the stream with a status, whatever else is on it; by a call: as `Answer`."""

    code: grpc.StatusCode = grpc.StatusCode.OK
    text: str = ""


Step = Answer | Refuse | Hang | Late | Drop | Garble | Twice | GarbleFrame | EndStream
