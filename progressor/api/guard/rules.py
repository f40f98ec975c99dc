"""The right that each RPC needs, and where. The documentation is generated from this table."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from progressor.domain.access.rights import EVERYTHING, Right

_Places = Callable[[Any], Iterable[str]]


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """A right, and the namespaces of a request in which the caller must have it.

    Without a right, valid credentials suffice. An empty namespace means all namespaces. Without
    namespaces, the right in any namespace suffices, and the method covers only what is allowed.
    """

    right: Right | None
    places: _Places
    scope: str


def _none(_: Any) -> Iterable[str]:  # noqa: ANN401  # any request
    return ()


def _all(_: Any) -> Iterable[str]:  # noqa: ANN401  # any request
    return (EVERYTHING,)


def _own(request: Any) -> Iterable[str]:  # noqa: ANN401  # of many
    return (request.namespace,)


def _named(request: Any) -> Iterable[str]:  # noqa: ANN401  # of many
    return (request.name,)


def _described(request: Any) -> Iterable[str]:  # noqa: ANN401  # of two
    yield request.namespace.name
    # Otherwise a caller could have any of these tokens sent to its own machine.
    if request.namespace.processor_credentials or (
        "processor_credentials" in request.update_mask.paths
        if request.DESCRIPTOR.name == "UpdateNamespaceRequest"
        else False
    ):
        yield EVERYTHING


def _filtered(request: Any) -> Iterable[str]:  # noqa: ANN401  # of many
    return (request.filter.namespace,)


def _filtered_or_any(request: Any) -> Iterable[str]:  # noqa: ANN401  # of two
    return (request.namespace,) if request.namespace else ()


def _in_filter_or_any(request: Any) -> Iterable[str]:  # noqa: ANN401  # of two
    return (request.filter.namespace,) if request.filter.namespace else ()


def _with_nodes(request: Any) -> Iterable[str]:  # noqa: ANN401  # of a job
    # The nodes of a job start processes in the namespaces that they name.
    yield request.namespace
    yield from (node.namespace for node in request.nodes if node.namespace)


def _with_scheduled_nodes(request: Any) -> Iterable[str]:  # noqa: ANN401  # of two
    yield request.namespace
    yield from (node.namespace for node in request.spec.job.nodes if node.namespace)


ANYWHERE = "any namespace"

_PLACES: Mapping[_Places, str] = {
    _none: ANYWHERE,
    _all: "all namespaces",
    _own: "its namespace",
    _named: "its namespace",
    _described: "its namespace; with processor_credentials, all namespaces",
    _filtered: "the namespace of its filter",
    _filtered_or_any: f"{ANYWHERE}, or the one that it names",
    _in_filter_or_any: f"{ANYWHERE}, or the one that it names",
    _with_nodes: "its namespace and those of its nodes",
    _with_scheduled_nodes: "its namespace and those of its nodes",
}


def _rules(right: Right | None, places: _Places, *rpcs: str) -> dict[str, Rule]:
    return dict.fromkeys(rpcs, Rule(right, places, _PLACES[places]))


RULES: Mapping[str, Rule] = MappingProxyType(
    _rules(None, _none, "WhoAmI", "CheckAccess", "Session")
    | _rules(Right.READ, _own, "Get", "Trace", "GetJob", "ListJobs", "WatchJob")
    | _rules(Right.READ, _own, "ListGates", "GetGate", "GetSchedule", "ListSchedules")
    | _rules(Right.READ, _named, "GetNamespace")
    | _rules(Right.READ, _filtered_or_any, "ListFailures")
    | _rules(Right.READ, _in_filter_or_any, "List", "Count")
    | _rules(Right.READ, _filtered, "PreviewBulk")
    | _rules(Right.READ, _none, "ListNamespaces", "ListReplicas", "GetActivity")
    | _rules(Right.READ, _none, "GetBulk", "ListBulks", "ListBulkResults")
    | _rules(Right.CALL, _own, "Start", "Call", "Notify", "AwaitTask", "AwaitProcess")
    | _rules(Right.STEP, _own, "Remember", "Extend")
    | _rules(Right.CALL, _with_nodes, "SubmitJob")
    | _rules(Right.OPERATE, _own, "Repair", "Retry", "SimpleRepair", "Put", "Remove", "Terminate")
    | _rules(Right.OPERATE, _own, "Cancel", "CancelJob", "RetryJob", "SetGate", "DeleteGate")
    | _rules(Right.OPERATE, _with_scheduled_nodes, "CreateSchedule", "UpdateSchedule")
    | _rules(Right.OPERATE, _own, "DeleteSchedule", "PauseSchedule", "ResumeSchedule")
    | _rules(Right.OPERATE, _own, "TriggerSchedule", "BackfillSchedule")
    | _rules(Right.OPERATE, _named, "PauseNamespace", "ResumeNamespace")
    | _rules(Right.OPERATE, _filtered, "StartBulk")
    | _rules(Right.OPERATE, _none, "StopBulk")
    | _rules(Right.OPERATE, _all, "RunDoctor")
    | _rules(Right.ADMINISTER, _described, "CreateNamespace", "UpdateNamespace")
    | _rules(Right.ADMINISTER, _named, "DeleteNamespace")
    | _rules(Right.ADMINISTER, _all, "SetLogLevel", "AddBinding", "RemoveBinding", "ListBindings")
    | _rules(Right.ADMINISTER, _all, "CreateToken", "RevokeToken", "ListTokens", "GetAuditHead")
    | _rules(Right.ADMINISTER, _filtered_or_any, "ListAudit")
)

CALLS = frozenset({"Start", "Call", "Notify"})
"""What clients do all day, which has audit entries only if `audit.calls` is set."""

_READS = frozenset({"AwaitTask", "AwaitProcess"}) | frozenset(
    {"ListBindings", "ListTokens", "ListAudit", "GetAuditHead", "RunDoctor"}
)

CHANGES = (
    frozenset(
        rpc
        for rpc, rule in RULES.items()
        if rule.right in {Right.CALL, Right.OPERATE, Right.ADMINISTER}
    )
    - CALLS
    - _READS
)
"""What changes something, and so has an audit entry: all that is not known to read. What steps ask
for is part of them, and in the history."""
