"""Values become messages: the parts that several requests, and the processor's answer, share."""

from google.protobuf.struct_pb2 import Struct

from progressor.sdk.codec.codecs import Codec, Payload
from progressor.sdk.codec.wire import duration_to_wire, fill_object, instant_to_wire, object_to_wire
from progressor.sdk.values.constraints import constraints_to_wire
from progressor.sdk.values.processes import HistoryRange, NewEvent, NewTimer
from progressor.v1 import types_pb2 as types


def range_to_wire(history: HistoryRange | None) -> types.HistoryRange | None:
    """Return a range of history; None: the namespace's choice."""
    if history is None:
        return None
    return types.HistoryRange(
        after=history.after,
        limit=history.limit,
        direction=types.Direction.ValueType(history.direction.number),
    )


def event_to_wire(event: NewEvent, codec: Codec) -> types.NewEvent:
    """Return an event about to be recorded."""
    message = types.NewEvent(
        payload=codec.encode(event.payload), format_version=event.format_version
    )
    if event.metadata is not None:
        fill_object(message.metadata, event.metadata)
    if event.occurred_at is not None:
        message.occurred_at.CopyFrom(instant_to_wire(event.occurred_at))
    return message


def timer_to_wire(timer: NewTimer, codec: Codec) -> types.SetTimer:
    """Return a timer about to be set; neither `at` nor `after`: due now.

    Raises:
        ValueError: Both `at` and `after` are given.
    """
    if timer.at is not None and timer.after is not None:
        message = "a timer is due either `at` an instant or `after` a duration, not both"
        raise ValueError(message)
    wire = types.SetTimer(
        remove=timer.remove,
        args=codec.encode(timer.args),
        history_range=range_to_wire(timer.history),
        constraints=constraints_to_wire(timer.constraints),
    )
    if timer.at is not None:
        wire.at.CopyFrom(instant_to_wire(timer.at))
    if timer.after is not None:
        wire.after.CopyFrom(duration_to_wire(timer.after))
    if timer.step_timeout is not None:
        wire.step_timeout.CopyFrom(duration_to_wire(timer.step_timeout))
    return wire


def metadata_to_wire(metadata: Payload) -> Struct | None:
    """Return metadata as a JSON object; None stays absent."""
    return None if metadata is None else object_to_wire(metadata)
