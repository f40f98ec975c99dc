"""The messages of a step between protobuf and `domain`."""

import base64
import json
from collections.abc import Sequence

from progressor.domain.processes.message import MESSAGES_MAX, Message, MessageKind, Sender
from progressor.domain.processes.namespace import is_namespace_name
from progressor.domain.processes.process import process_key
from progressor.v1 import messages_pb2
from progressor.wire import fields as wire
from progressor.wire.processes import (
    check_caller_context,
    check_not_reserved,
    constraints_from_wire,
)
from progressor.wire.shapes import Shape, enum_numbers, refuse_all

KIND_TO_WIRE = enum_numbers(MessageKind, messages_pb2.MessageKind.DESCRIPTOR)
_KIND_FROM_WIRE = {number: kind for kind, number in KIND_TO_WIRE.items()}

SENDER = Shape(Sender, messages_pb2.Sender)


def messages_from_wire(
    messages: Sequence[messages_pb2.Message], *, namespace: str, payload_bytes_max: int
) -> tuple[Message, ...]:
    """Return the messages of a step of a process in `namespace`."""
    if len(messages) > MESSAGES_MAX:
        wire.refuse("messages", wire.too_many(len(messages), MESSAGES_MAX))
    return tuple(
        _message(message, f"messages[{place}]", namespace, payload_bytes_max)
        for place, message in enumerate(messages)
    )


def _message(
    message: messages_pb2.Message, field: str, namespace: str, payload_bytes_max: int
) -> Message:
    kind = _KIND_FROM_WIRE.get(message.kind)
    if kind is None:
        wire.refuse(f"{field}.kind", f"unknown kind {message.kind}")
    if message.namespace:
        namespace = message.namespace
        if not is_namespace_name(namespace):
            what = f"must be 1 to 64 characters of [a-z0-9._-], got {namespace[:64]!r}"
            wire.refuse(f"{field}.namespace", what)
        check_not_reserved(namespace, f"{field}.namespace")
    refuse_all(f"{field}.process_id", wire.id_faults(message.process_id))
    wire.check_payload(message.args, f"{field}.args", payload_bytes_max)
    check_caller_context(message.caller_context, f"{field}.caller_context")
    constraints = metadata = None
    if message.HasField("constraints"):
        constraints = constraints_from_wire(message.constraints, f"{field}.constraints")
        constraints = None if constraints.is_empty else constraints
    if message.HasField("metadata"):
        if kind is not MessageKind.START:
            wire.refuse(f"{field}.metadata", f"must not be set in a {kind}, only in a start")
        metadata = wire.struct_to_mapping(message.metadata, f"{field}.metadata")
    reply = message.reply if message.HasField("reply") else None
    if reply:
        refuse_all(f"{field}.reply", wire.id_faults(reply))
    return Message(
        kind=kind,
        receiver=process_key(namespace, message.process_id),
        args=message.args,
        caller_context=dict(message.caller_context),
        constraints=constraints,
        metadata=metadata,
        reply=reply,
    )


def fill_reply(message: messages_pb2.MessageReply, args: bytes) -> None:
    """Write the args of a reply, as settle_replies.sql stores them, into an empty message."""
    found = json.loads(args)
    for name in ("name", "namespace", "process_id", "task_id", "number"):
        setattr(message, name, found[name])
    message.kind = KIND_TO_WIRE[MessageKind(found["kind"])]
    if (error := found.get("error")) is None:
        message.response = base64.b64decode(found["response"])
        return
    message.error.code, message.error.reason = error["code"], error["reason"]
    message.error.message, message.rejected = error["message"], error["rejected"]
