"""Requests of NamespaceService from protobuf to domain, and namespaces back.

A namespace is decoded field by field into changes of a `Namespace`, so that creating one is all
changes applied to the defaults, and an update is those that its mask names applied to what is
stored.
"""

import dataclasses
from collections.abc import Iterable

from progressor.api.calls import page_tokens
from progressor.api.calls.validation import (
    Violations,
    at_least_0,
    check_namespace_name,
    shown,
)
from progressor.api.namespaces.fields import CHANGEABLE, NAMESPACE, Change, change_of
from progressor.domain.processes.namespace import HistoryMode, Namespace
from progressor.v1 import namespace_service_pb2

_SET_BY_THE_ENGINE = frozenset({"created_at", "updated_at", "revision"})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """An UpdateNamespace: what to change of which namespace; revision 0: whatever it is at."""

    name: str
    change: Change
    expected_revision: int


def create_from_wire(message: namespace_service_pb2.CreateNamespaceRequest) -> Namespace:
    """Return the namespace to create, with defaults for what was left out."""
    violations = Violations()
    name = message.namespace.name
    violations.attempt(check_namespace_name, name, "namespace.name")
    change = change_of(message.namespace, CHANGEABLE, violations)
    violations.raise_any()
    return change(Namespace(name=name, processor_targets=()))


def update_from_wire(message: namespace_service_pb2.UpdateNamespaceRequest) -> Update:
    """Return the changes that the mask names, or without a mask those of the fields given."""
    violations = Violations()
    name = message.namespace.name
    violations.attempt(check_namespace_name, name, "namespace.name")
    violations.attempt(at_least_0, message.expected_revision, "expected_revision")
    paths = list(message.update_mask.paths)
    if paths:
        _check_mask(paths, violations)
    else:
        paths = [field.name for field, _ in message.namespace.ListFields()]
    change = change_of(message.namespace, paths, violations)
    violations.raise_any()
    return Update(name=name, change=change, expected_revision=message.expected_revision)


def name_from_wire(
    message: namespace_service_pb2.GetNamespaceRequest
    | namespace_service_pb2.DeleteNamespaceRequest,
) -> str:
    """Return the name that a Get or Delete is about."""
    check_namespace_name(message.name, "name")
    return message.name


list_from_wire = page_tokens.NAMESPACES.listing(namespace_service_pb2.ListNamespacesRequest).read


def namespace_to_wire(namespace: Namespace) -> namespace_service_pb2.Namespace:
    """Return a namespace as a message, every default written out."""
    message = NAMESPACE.message(namespace)
    message.history.CopyFrom(_history_to_wire(namespace))
    return message


def page_to_wire(
    namespaces: tuple[Namespace, ...], *, page_size: int
) -> namespace_service_pb2.ListNamespacesResponse:
    """Return a page of at most `page_size`; one more says that there is a next."""
    page, token = page_tokens.NAMESPACES.page(namespaces, page_size, lambda it: it.name)
    return namespace_service_pb2.ListNamespacesResponse(
        namespaces=map(namespace_to_wire, page), next_page_token=token
    )


def _check_mask(paths: Iterable[str], violations: Violations) -> None:
    for index, path in enumerate(paths):
        field = f"update_mask.paths[{index}]"
        if path in _SET_BY_THE_ENGINE:
            violations.add(field, f"must not name {path}, which the engine sets")
        elif path not in CHANGEABLE and path != "name":
            violations.add(field, f"unknown field {shown(path)} of Namespace")


def _history_to_wire(namespace: Namespace) -> namespace_service_pb2.HistoryPolicy:
    match namespace.history_mode:
        case HistoryMode.ALL:
            return namespace_service_pb2.HistoryPolicy(all=True)
        case HistoryMode.LAST:
            return namespace_service_pb2.HistoryPolicy(last=namespace.history_last)
        case HistoryMode.NONE:
            return namespace_service_pb2.HistoryPolicy(none=True)
