"""Requests of NamespaceService from protobuf to domain, and namespaces back.

A namespace is decoded field by field into changes of a `Namespace`, so that creating one is all
changes applied to the defaults, and an update is those that its mask names applied to what is
stored.
"""

import dataclasses
from collections.abc import Iterable
from functools import reduce

from progressor.api.calls import page_tokens
from progressor.api.calls.validation import (
    Violations,
    check_namespace_name,
    page_size_from_wire,
    shown,
)
from progressor.api.namespaces.fields import DECODERS, Change
from progressor.domain.processes.namespace import HistoryMode, Namespace
from progressor.v1 import namespace_service_pb2
from progressor.wire.shapes import UNSENT, Shape

_NAMESPACE = Shape(
    Namespace, namespace_service_pb2.Namespace, history_mode=UNSENT, history_last=UNSENT
)
_SET_BY_THE_ENGINE = frozenset({"created_at", "updated_at", "revision"})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """An UpdateNamespace: what to change of which namespace; revision 0: whatever it is at."""

    name: str
    change: Change
    expected_revision: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A ListNamespaces: at most `limit` with names above `after`."""

    after: str
    limit: int


def create_from_wire(message: namespace_service_pb2.CreateNamespaceRequest) -> Namespace:
    """Return the namespace to create, with defaults for what was left out."""
    violations = Violations()
    name = message.namespace.name
    check_namespace_name(name, "namespace.name", violations)
    change = _change_of(message.namespace, DECODERS, violations)
    violations.raise_any()
    return change(Namespace(name=name, processor_targets=()))


def update_from_wire(message: namespace_service_pb2.UpdateNamespaceRequest) -> Update:
    """Return the changes that the mask names, or without a mask those of the fields given."""
    violations = Violations()
    name = message.namespace.name
    check_namespace_name(name, "namespace.name", violations)
    if message.expected_revision < 0:
        violations.add("expected_revision", f"{message.expected_revision} is below 0")
    paths = list(message.update_mask.paths)
    if paths:
        _check_mask(paths, violations)
    else:
        paths = [field.name for field, _ in message.namespace.ListFields()]
    change = _change_of(message.namespace, paths, violations)
    violations.raise_any()
    return Update(name=name, change=change, expected_revision=message.expected_revision)


def name_from_wire(
    message: namespace_service_pb2.GetNamespaceRequest
    | namespace_service_pb2.DeleteNamespaceRequest,
) -> str:
    """Return the name that a Get or Delete is about."""
    violations = Violations()
    check_namespace_name(message.name, "name", violations)
    violations.raise_any()
    return message.name


def list_from_wire(message: namespace_service_pb2.ListNamespacesRequest) -> Listing:
    """Return a ListNamespaces."""
    violations = Violations()
    limit = page_size_from_wire(message.page_size, violations)
    after = page_tokens.namespace_of_token(message.page_token, violations)
    violations.raise_any()
    return Listing(after=after, limit=limit)


def namespace_to_wire(namespace: Namespace) -> namespace_service_pb2.Namespace:
    """Return a namespace as a message, every default written out."""
    message = _NAMESPACE.message(namespace)
    message.history.CopyFrom(_history_to_wire(namespace))
    return message


def page_to_wire(
    namespaces: tuple[Namespace, ...], *, page_size: int
) -> namespace_service_pb2.ListNamespacesResponse:
    """Return a page of at most `page_size`; one more says that there is a next."""
    page = namespaces[:page_size]
    has_next = len(namespaces) > page_size
    return namespace_service_pb2.ListNamespacesResponse(
        namespaces=map(namespace_to_wire, page),
        next_page_token=page_tokens.token_of_namespace(page[-1].name) if has_next else "",
    )


def _check_mask(paths: Iterable[str], violations: Violations) -> None:
    for index, path in enumerate(paths):
        field = f"update_mask.paths[{index}]"
        if path in _SET_BY_THE_ENGINE:
            violations.add(field, f"{path} is set by the engine")
        elif path not in DECODERS and path != "name":
            violations.add(field, f"{shown(path)} is not a field of Namespace")


def _change_of(
    message: namespace_service_pb2.Namespace, paths: Iterable[str], violations: Violations
) -> Change:
    # The changes are computed now, so that errors are reported before anything is read.
    changes = [
        change
        for path in dict.fromkeys(paths)
        if path in DECODERS and (change := DECODERS[path](message, violations)) is not None
    ]
    return lambda current: reduce(lambda namespace, change: change(namespace), changes, current)


def _history_to_wire(namespace: Namespace) -> namespace_service_pb2.HistoryPolicy:
    match namespace.history_mode:
        case HistoryMode.ALL:
            return namespace_service_pb2.HistoryPolicy(all=True)
        case HistoryMode.LAST:
            return namespace_service_pb2.HistoryPolicy(last=namespace.history_last)
        case HistoryMode.NONE:
            return namespace_service_pb2.HistoryPolicy(none=True)
