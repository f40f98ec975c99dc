"""The caller's W3C trace context, taken from the metadata of a call.

What is not syntactically valid is left out rather than refused: a broken tracer must not break
an order.

Source: https://www.w3.org/TR/trace-context/, "Traceparent Header" and "Tracestate Header".
"""

import re
from collections.abc import Mapping

from progressor.api.ports import CallContext

_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?"
)
_MEMBER = re.compile(
    r"[a-z0-9][a-z0-9_*/@-]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_TRACEPARENT_LENGTH = 55
_TRACESTATE_LENGTH_MAX = 512
_MEMBERS_MAX = 32


def trace_context_of(context: CallContext) -> Mapping[str, str]:
    """Return ``traceparent`` and ``tracestate`` of a call, as far as they are valid."""
    parents: list[str] = []
    states: list[str] = []
    for name, value in context.invocation_metadata() or ():
        if name == "traceparent" and isinstance(value, str):
            parents.append(value)
        elif name == "tracestate" and isinstance(value, str):
            states.append(value)
    if len(parents) != 1 or not _is_traceparent(parents[0]):
        return {}
    state = ",".join(states)
    if state and _is_tracestate(state):
        return {"traceparent": parents[0], "tracestate": state}
    return {"traceparent": parents[0]}


def _is_traceparent(value: str) -> bool:
    if len(value) > _TRACESTATE_LENGTH_MAX or _TRACEPARENT.fullmatch(value) is None:
        return False
    # Later versions may append fields; version 00 has none.
    return len(value) == _TRACEPARENT_LENGTH or not value.startswith("00")


def _is_tracestate(value: str) -> bool:
    if len(value) > _TRACESTATE_LENGTH_MAX:
        return False
    members = [member for part in value.split(",") if (member := part.strip(" \t"))]
    return len(members) <= _MEMBERS_MAX and all(map(_MEMBER.fullmatch, members))
