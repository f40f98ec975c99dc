"""The caller's W3C trace context, taken from the metadata of a call.

What is not syntactically valid is left out rather than refused: a broken tracer must not break
an order.

Source: https://www.w3.org/TR/trace-context/, "Traceparent Header" and "Tracestate Header".
"""

import re
from collections.abc import Iterable, Mapping

from progressor.api.ports import CallContext

_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[\x21-\x7e]*)?"
)
_MEMBER = re.compile(
    r"[a-z0-9][a-z0-9_*/@-]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_TRACEPARENT_LENGTH = 55
_TRACESTATE_LENGTH_MAX = 512
_MEMBERS_MAX = 32
# Of what is looked at for a tracestate, the spaces and the empty members in it.
_STATES_LENGTH_MAX = 2_048

_NONE: Mapping[str, str] = {}


class Known:
    """The context of a call whose trace context has been looked at, or replaced, already."""

    __slots__ = ("_context", "trace")

    def __init__(self, context: CallContext, trace: Mapping[str, str]) -> None:
        """Take what gRPC, or the session, tells of the call, and what `trace_context_of` is."""
        self._context = context
        self.trace = trace

    def time_remaining(self) -> float | None:
        """Return seconds to the caller's deadline, 0 when past; None: it has none."""
        return self._context.time_remaining()

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]]:
        """Return what came with the call."""
        return self._context.invocation_metadata() or ()


def trace_context_of(context: CallContext) -> Mapping[str, str]:
    """Return ``traceparent`` and ``tracestate`` of a call, as far as they are valid."""
    if isinstance(context, Known):
        return context.trace
    parents: list[str] = []
    states: list[str] = []
    for name, value in context.invocation_metadata() or ():
        if name == "traceparent" and isinstance(value, str):
            parents.append(value)
        elif name == "tracestate" and isinstance(value, str):
            states.append(value)
    if len(parents) != 1 or not _is_traceparent(parents[0]):
        return _NONE
    if states and (state := _tracestate(",".join(states))):
        return {"traceparent": parents[0], "tracestate": state}
    return {"traceparent": parents[0]}


def _is_traceparent(value: str) -> bool:
    if len(value) > _TRACESTATE_LENGTH_MAX or _TRACEPARENT.fullmatch(value) is None:
        return False
    # Later versions may append fields; version 00 has none.
    return len(value) == _TRACEPARENT_LENGTH or not value.startswith("00")


def _tracestate(value: str) -> str:
    """Return a list of members without the spaces and the empty ones; "" if it is none."""
    if len(value) > _STATES_LENGTH_MAX:
        return ""
    members = [member for part in value.split(",") if (member := part.strip(" \t"))]
    state = ",".join(members)
    is_valid = (
        len(state) <= _TRACESTATE_LENGTH_MAX
        and len(members) <= _MEMBERS_MAX
        and all(map(_MEMBER.fullmatch, members))
    )
    return state if is_valid else ""
