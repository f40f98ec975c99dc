"""Clears the payloads of an answer that the caller has no right to see.

Every bytes field of a message is a payload.
"""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

Allowed = Callable[[str], bool]


def hide(message: Message, namespace: str, allowed: Allowed) -> None:
    """Clear the payloads of a message except where its namespaces are allowed.

    Args:
        message: Changed in place.
        namespace: That of the request; a nested message may name another one.
        allowed: Whether payloads of a namespace may be shown.
    """
    plan = _plan(message.DESCRIPTOR)
    if plan is None:
        return
    if plan.has_namespace:
        namespace = getattr(message, "namespace") or namespace  # noqa: B009  # no attribute of Message
    if plan.payloads and not allowed(namespace):
        for name in plan.payloads:
            message.ClearField(name)
    for inner in _inside(message, plan):
        hide(inner, namespace, allowed)


class _Plan(NamedTuple):
    """The fields of a message that are payloads, and those that may contain payloads."""

    payloads: tuple[str, ...]
    nested: tuple[str, ...]
    lists: tuple[str, ...]
    has_namespace: bool


def _inside(message: Message, plan: _Plan) -> Iterator[Message]:
    yield from (getattr(message, name) for name in plan.nested if message.HasField(name))
    for name in plan.lists:
        yield from getattr(message, name)


@functools.cache
def _plan(message_type: Descriptor) -> _Plan | None:
    """Return the fields to examine in a message; None: it cannot contain a payload."""
    fields = message_type.fields
    payloads = [it.name for it in fields if it.type == FieldDescriptor.TYPE_BYTES]
    inner = [it for it in fields if it.message_type and _may_hide(it.message_type)]
    if not payloads and not inner:
        return None
    space = message_type.fields_by_name.get("namespace")
    return _Plan(
        payloads=tuple(payloads),
        nested=tuple(it.name for it in inner if not it.is_repeated),
        lists=tuple(it.name for it in inner if it.is_repeated),
        has_namespace=space is not None and space.type == FieldDescriptor.TYPE_STRING,
    )


def _may_hide(message_type: Descriptor) -> bool:
    """Return whether it can contain a payload; none of our messages is recursive."""
    is_ours = message_type.file.package == "progressor.v1"
    return is_ours and not message_type.GetOptions().map_entry and _plan(message_type) is not None
