"""The caller's W3C trace context and baggage, taken from the metadata of a call.

What is not syntactically valid is left out rather than refused: a broken tracer must not break
an order.

Source: https://www.w3.org/TR/trace-context/, "Traceparent Header" and "Tracestate Header";
https://www.w3.org/TR/baggage/, "Definition" and "Limits".
"""

import re
from collections.abc import Iterable, Mapping

from progressor.api.calls.ports import CallContext

_OTHERS = ("tracestate", "baggage")
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[\x21-\x7e]*)?"
)
_MEMBER = re.compile(
    r"[a-z0-9][a-z0-9_*/@-]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_TRACEPARENT_LENGTH = 55
_TRACESTATE_LENGTH_MAX = 512
_MEMBERS_MAX = 32
_BAGGAGE_MEMBER = re.compile(
    r"[!#-'*+.^_`|~0-9A-Za-z-]+ *= *[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*"
    r"(?: *;[\x20-\x2b\x2d-\x7e]*)?"
)
_BAGGAGE_LENGTH_MAX = 8_192
_BAGGAGE_MEMBERS_MAX = 64
# Of a tracestate before its spaces and empty members are removed.
_STATES_LENGTH_MAX = 2_048

_NONE: Mapping[str, str] = {}


class Known:
    """The context of a call whose trace context has already been parsed or replaced."""

    __slots__ = ("inner", "trace")

    def __init__(self, context: CallContext, trace: Mapping[str, str]) -> None:
        self.inner = context
        self.trace = trace

    def time_remaining(self) -> float | None:
        """Return seconds to the caller's deadline, 0 when past; None: it has none."""
        return self.inner.time_remaining()

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]]:
        """Return the metadata of the call."""
        return self.inner.invocation_metadata() or ()


def trace_context_of(context: CallContext) -> Mapping[str, str]:
    """Return ``traceparent``, ``tracestate`` and ``baggage`` of a call, if they are valid."""
    if isinstance(context, Known):
        return context.trace
    parents: list[str] = []
    others: list[tuple[str, str]] = []
    for name, value in context.invocation_metadata() or ():
        if name == "traceparent" and isinstance(value, str):
            parents.append(value)
        elif name in _OTHERS and isinstance(value, str):
            others.append((name, value))
    found: Mapping[str, str] = _NONE
    if len(parents) == 1 and _is_traceparent(parents[0]):
        found = {"traceparent": parents[0]}
    return _with_others(found, others) if others else found


def _with_others(found: Mapping[str, str], others: list[tuple[str, str]]) -> Mapping[str, str]:
    state, baggage = (",".join(value for key, value in others if key == name) for name in _OTHERS)
    more: dict[str, str] = {}
    # A tracestate is meaningless without its traceparent.
    if found and (state := _tracestate(state)):
        more["tracestate"] = state
    if baggage := _baggage(baggage):
        more["baggage"] = baggage
    return {**found, **more}


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


def _baggage(value: str) -> str:
    """Return the valid members of a list, as many as there is room for, without spaces around."""
    kept: list[str] = []
    length = -1
    # The rest of a far too long one is not parsed.
    for part in value[: 2 * _BAGGAGE_LENGTH_MAX].split(","):
        member = part.strip(" \t")
        if not _BAGGAGE_MEMBER.fullmatch(member):
            continue
        length += 1 + len(member)
        if length > _BAGGAGE_LENGTH_MAX or len(kept) >= _BAGGAGE_MEMBERS_MAX:
            break
        kept.append(member)
    return ",".join(kept)
