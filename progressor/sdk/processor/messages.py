"""Adds the messages of a step to its answer."""

from collections.abc import Mapping

from progressor.domain.processes.message import MESSAGES_MAX
from progressor.domain.processes.namespace import is_namespace_name
from progressor.sdk.codec.codecs import Codec, Payload
from progressor.sdk.codec.wire import check_options, object_to_wire, optional
from progressor.sdk.values.constraints import constraints_to_wire
from progressor.sdk.values.messages import MessageKind, MessageOptions
from progressor.v1 import messages_pb2 as pb
from progressor.v1.processor_service_pb2 import ProcessResponse
from progressor.wire.fields import id_faults


def add_message(  # noqa: PLR0913  # the parts of a message
    response: ProcessResponse,
    kind: MessageKind,
    process_id: str,
    args: Payload,
    options: MessageOptions,
    codec: Codec,
    *,
    metadata: Mapping[str, Payload] | None = None,
) -> None:
    """Add a message to the answer of a step; raise ValueError for what the engine would refuse.

    An unknown option, or a name that is not a str, raises TypeError.
    """
    check_options(options, MessageOptions, kind)
    namespace, reply = options.get("namespace", ""), options.get("reply")
    for name, value in (("process_id", process_id), ("namespace", namespace), ("reply", reply)):
        if not isinstance(value, str) and (name, value) != ("reply", None):
            problem = f"{name} must be a str, got {value!r}"
            raise TypeError(problem)
    messages = response.messages
    if len(messages) == MESSAGES_MAX:
        problem = f"a step can send at most {MESSAGES_MAX} messages"
        raise ValueError(problem)
    for fault in id_faults(process_id):
        problem = f"process_id {fault}"
        raise ValueError(problem)
    if "namespace" in options and not is_namespace_name(namespace):
        problem = f"namespace must be 1 to 64 characters of [a-z0-9._-], got {namespace!r}"
        raise ValueError(problem)
    for fault in id_faults(reply or "reply"):
        problem = f"reply {fault}"
        raise ValueError(problem)
    message = pb.Message(
        kind=kind.number,
        namespace=namespace,
        process_id=process_id,
        args=codec.encode(args),
        caller_context=options.get("context"),
        constraints=optional(constraints_to_wire, options.get("constraints")),
        metadata=optional(object_to_wire, metadata),
        reply=reply,
    )
    messages.append(message)
