"""Nodes of jobs between protobuf and `domain`; `domain.jobs.graph` checks them as a whole."""

import datetime as dt
from collections.abc import Sequence

from progressor.domain.gates.constraint import Constraints
from progressor.domain.jobs.graph import GRAPH_BYTES_MAX
from progressor.domain.jobs.job import NODES_PER_STEP_MAX, NodeSpec, StartNodes
from progressor.domain.processes.namespace import is_namespace_name
from progressor.domain.processes.policy import RetryPolicy, ZombiePolicy
from progressor.domain.processes.process import JobOptions
from progressor.domain.processes.task import NodeOutcome, NodeState, TaskError
from progressor.v1 import nodes_pb2, types_pb2
from progressor.wire import fields as wire
from progressor.wire import processes as process_wire
from progressor.wire.processes import (
    ZOMBIE_POLICY_FROM_WIRE,
    check_not_reserved,
    retry_policy_from_wire,
)
from progressor.wire.shapes import UNSENT, Field, Shape, enum_numbers

NODE_STATE_TO_WIRE = enum_numbers(NodeState, nodes_pb2.NodeState.DESCRIPTOR)
TASK_ERROR = Shape(TaskError, types_pb2.TaskError, rejected=UNSENT, metadata=UNSENT)

TARGET_BYTES_MAX = 512
"""More than any target of a namespace has."""

_NO_OPTIONS = JobOptions()


def start_nodes_from_wire(
    message: nodes_pb2.StartNodes, field: str, payload_bytes_max: int
) -> StartNodes:
    """Return the nodes that a step adds, and until when its job has to end."""
    check_node_count(message.nodes, f"{field}.nodes")
    size = message.ByteSize()
    if size > GRAPH_BYTES_MAX:
        wire.refuse(field, wire.too_large(size, GRAPH_BYTES_MAX))
    deadline, timeout = due_from_wire(message, f"{field}.")
    nodes = (
        node_spec_from_wire(node, f"{field}.nodes[{place}]", payload_bytes_max)
        for place, node in enumerate(message.nodes)
    )
    return StartNodes(nodes=tuple(nodes), deadline=deadline, timeout=timeout)


def check_node_count(messages: Sequence[nodes_pb2.NodeSpec], field: str) -> None:
    if not 1 <= len(messages) <= NODES_PER_STEP_MAX:
        wire.refuse(field, f"must have 1 to {NODES_PER_STEP_MAX} items, got {len(messages)}")


def due_from_wire(
    message: nodes_pb2.StartNodes, prefix: str
) -> tuple[dt.datetime | None, dt.timedelta | None]:
    """Return the deadline or the timeout of a job, at most one of them."""
    match message.WhichOneof("due"):
        case "deadline":
            return wire.timestamp_to_datetime(message.deadline, f"{prefix}deadline"), None
        case "timeout":
            field = f"{prefix}timeout"
            timeout = wire.duration_to_timedelta(message.timeout, field)
            check_timeout(timeout, field)
            return None, timeout
        case _:
            return None, None


def check_timeout(timeout: dt.timedelta, field: str) -> None:
    if not dt.timedelta(0) < timeout <= wire.TIMER_AFTER_MAX:
        days = wire.TIMER_AFTER_MAX.days
        wire.refuse(
            field,
            f"must be greater than 0 and at most {days} days, got {wire.duration_text(timeout)}",
        )


def node_spec_from_wire(
    message: nodes_pb2.NodeSpec, field: str, payload_bytes_max: int
) -> NodeSpec:
    """Return a node, checked by itself."""
    args = message.args
    if len(args) > payload_bytes_max:
        wire.check_payload(args, f"{field}.args", payload_bytes_max)
    namespace = message.namespace
    if namespace and not is_namespace_name(namespace):
        wire.refuse(
            f"{field}.namespace",
            f"must be 1 to 64 characters of [a-z0-9._-], got {namespace[:64]!r}",
        )
    check_not_reserved(namespace, f"{field}.namespace")
    return NodeSpec(
        name=message.name,
        namespace=namespace,
        process_id=message.process_id,
        predecessors=tuple(message.predecessors),
        args=args,
        constraints=_constraints_of(message, f"{field}.constraints"),
        options=_options_of(message, field),
    )


def fill_node_outcome(message: nodes_pb2.NodeOutcome, outcome: NodeOutcome) -> None:
    """Write how a node has ended into an empty message."""
    message.name = outcome.name
    message.state = NODE_STATE_TO_WIRE[outcome.state]
    if outcome.result:
        message.result = outcome.result
    if outcome.error is not None:
        TASK_ERROR.write(outcome.error, message.error)
    if outcome.skipped_because_of:
        message.skipped_because_of = outcome.skipped_because_of


def fill_constraints(message: types_pb2.Constraints, constraints: Constraints) -> None:
    """Write constraints into an empty message, every default written out."""
    if constraints.run_at is not None:
        wire.fill_timestamp(message.run_at, constraints.run_at)
    if constraints.order is not None:
        message.order.key = constraints.order.key
        message.order.version = str(constraints.order.version)
    for gate, capacity in constraints.gates.items():
        message.gates.add(gate=gate, capacity=capacity)
    message.priority = constraints.priority
    message.hold = process_wire.GATE_HOLD_TO_WIRE[constraints.hold]


CONSTRAINTS = Field(
    write=lambda message, value, _context: fill_constraints(message.constraints, value)
)
"""Constraints in whatever may have them, as `fill_constraints` writes them."""


def _constraints_of(message: nodes_pb2.NodeSpec, field: str) -> Constraints | None:
    if not message.HasField("constraints"):
        return None
    constraints = process_wire.constraints_from_wire(message.constraints, field)
    return None if constraints.is_empty else constraints


def _options_of(message: nodes_pb2.NodeSpec, field: str) -> JobOptions:
    target = message.target
    has_policy = message.HasField("retry_policy") or message.zombie_policy
    if not (message.wants_results or target or has_policy):
        return _NO_OPTIONS
    if len(target.encode()) > TARGET_BYTES_MAX or "\0" in target:
        wire.refuse(
            f"{field}.target", f"must be at most {TARGET_BYTES_MAX} bytes without NUL characters"
        )
    retry_policy: RetryPolicy | None = None
    if message.HasField("retry_policy"):
        retry_policy = retry_policy_from_wire(message.retry_policy, f"{field}.retry_policy")
    zombie_policy: ZombiePolicy | None = None
    if message.zombie_policy:
        zombie_policy = ZOMBIE_POLICY_FROM_WIRE.get(message.zombie_policy)
        if zombie_policy is None:
            wire.refuse(f"{field}.zombie_policy", f"unknown zombie policy {message.zombie_policy}")
    return JobOptions(
        takes_results=message.wants_results,
        retry_policy=retry_policy,
        zombie_policy=zombie_policy,
        target=target or None,
    )
