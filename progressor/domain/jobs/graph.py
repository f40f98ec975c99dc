"""Graphs: nodes to be added to a job, checked as a whole, and how a submitted job keeps them.

An edge may lead from a node that the job has to a new one, never the other way: so new edges close
no cycle through the old nodes, and each submission is ordered on its own.
"""

import dataclasses
import datetime as dt
import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

import msgspec

from progressor.domain.gates.constraint import Constraints
from progressor.domain.jobs.job import (
    EDGES_PER_STEP_MAX,
    NAME_BYTES_MAX,
    NODES_MAX,
    NODES_PER_STEP_MAX,
    NodeSpec,
    StartNodes,
)
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.process import NO_OPTIONS, JobOptions, ProcessKey, process_key

GRAPH_BYTES_MAX = 32 * 1024 * 1024
"""The size of one submission, as it is sent and as it is kept."""

FOLLOWER_ID_BYTES_MAX = 256
"""The size of any process's id."""

_SHOWN_MAX = 8
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class GraphError(Exception):
    """Nodes that cannot be added. ``field`` is a path such as ``nodes[3].predecessors[0]``."""

    def __init__(self, field: str, description: str) -> None:
        super().__init__(f"{field}: {description}")
        self.field = field
        self.description = description


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedNode:
    """A new node. Its ordinal, and those of its neighbours, count from 1 within the job.

    ``predecessors`` may be nodes that the job had before; ``successors`` are new ones.
    """

    ordinal: int
    spec: NodeSpec
    follower: ProcessKey
    predecessors: tuple[int, ...]
    successors: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class NodePlan:
    """New nodes by ordinal, and what nodes that the job had before get as further successors."""

    nodes: tuple[PlannedNode, ...]
    appended: Mapping[int, tuple[int, ...]]


def plan_nodes(leader: ProcessKey, action: StartNodes, known: Mapping[str, int]) -> NodePlan:
    """Return the nodes of a step with their ordinals, processes and edges.

    ``known`` are the names of the nodes that the job has with their ordinals, 1 .. n. Takes time in
    proportion to the new nodes and edges.

    Raises:
        GraphError: Too many nodes or edges; a name that is invalid, given twice, or unknown;
            a process that is given twice, is the leader, or has too long an id; a cycle.
    """
    specs = action.nodes
    _check_counts(specs, len(known))
    ordinals = _ordinals_of(specs, known)
    followers = _followers_of(leader, specs)
    predecessors = [_predecessors_of(place, spec, ordinals) for place, spec in enumerate(specs)]
    successors: dict[int, list[int]] = {}
    for ordinal, before in enumerate(predecessors, len(known) + 1):
        for each in before:
            successors.setdefault(each, []).append(ordinal)
    _check_cycles(specs, predecessors, successors, len(known))
    nodes = (
        PlannedNode(ordinal, spec, follower, before, tuple(successors.get(ordinal, ())))
        for ordinal, (spec, follower, before) in enumerate(
            zip(specs, followers, predecessors, strict=True), len(known) + 1
        )
    )
    appended = {
        ordinal: tuple(after) for ordinal, after in successors.items() if ordinal <= len(known)
    }
    return NodePlan(tuple(nodes), appended)


def namespaces_of(leader: ProcessKey, action: StartNodes) -> tuple[str, ...]:
    return tuple(dict.fromkeys(spec.namespace or leader.namespace for spec in action.nodes))


def gates_required(leader: ProcessKey, action: StartNodes) -> dict[str, tuple[str, ...]]:
    """Return the gates that nodes name without a capacity, by namespace: they must be there."""
    found: dict[str, dict[str, None]] = {}
    for spec in action.nodes:
        if spec.constraints is not None:
            named = found.setdefault(spec.namespace or leader.namespace, {})
            gates = spec.constraints.gates.items()
            named.update(dict.fromkeys(gate for gate, capacity in gates if capacity is None))
    return {namespace: tuple(named) for namespace, named in found.items() if named}


def check_places(
    leader: ProcessKey, action: StartNodes, namespaces: Mapping[str, Namespace]
) -> None:
    """Pass if each node has a place to run: ``namespaces`` are those that exist, by name.

    Raises:
        GraphError: A node's namespace does not exist, lacks the target, or takes no args as large.
    """
    for place, spec in enumerate(action.nodes):
        name = spec.namespace or leader.namespace
        namespace = namespaces.get(name)
        if namespace is None:
            description = f"NAMESPACE_NOT_FOUND: namespace {name!r} does not exist"
            _refuse(f"nodes[{place}].namespace", description)
        target = spec.options.target
        if target is not None and target not in namespace.processor_targets:
            description = f"{_shown(target)} is not a processor target of namespace {name!r}"
            _refuse(f"nodes[{place}].target", description)
        size = len(spec.args)
        if size > namespace.payload_bytes_max:
            description = f"must be at most {namespace.payload_bytes_max} bytes, got {size}"
            _refuse(f"nodes[{place}].args", description)


def _check_counts(specs: Sequence[NodeSpec], known_count: int) -> None:
    if not specs:
        _refuse("nodes", "must not be empty")
    if len(specs) > NODES_PER_STEP_MAX:
        _refuse("nodes", f"must have at most {NODES_PER_STEP_MAX} items, got {len(specs)}")
    if known_count + len(specs) > NODES_MAX:
        got = f"got {len(specs)} besides the {known_count} that it has"
        _refuse("nodes", f"a job must have at most {NODES_MAX} nodes, {got}")
    edge_count = sum(len(spec.predecessors) for spec in specs)
    if edge_count > EDGES_PER_STEP_MAX:
        _refuse("nodes", f"must have at most {EDGES_PER_STEP_MAX} predecessors, got {edge_count}")


def _ordinals_of(specs: Sequence[NodeSpec], known: Mapping[str, int]) -> dict[str, int]:
    ordinals = dict(known)
    for place, spec in enumerate(specs):
        name = spec.name
        if not (name.isascii() and name.isprintable() and 0 < len(name) <= NAME_BYTES_MAX):
            _check_text(name, NAME_BYTES_MAX, f"nodes[{place}].name")
        ordinal = len(known) + place + 1
        first = ordinals.setdefault(name, ordinal)
        if first <= len(known):
            _refuse(f"nodes[{place}].name", f"{name!r} is a node of the job already")
        if first != ordinal:
            other = first - len(known) - 1
            _refuse(f"nodes[{place}].name", f"{name!r} is the name of nodes[{other}] too")
    return ordinals


def _followers_of(leader: ProcessKey, specs: Sequence[NodeSpec]) -> list[ProcessKey]:
    places: dict[ProcessKey, int] = {}
    for place, spec in enumerate(specs):
        field = f"nodes[{place}].process_id" if spec.process_id else f"nodes[{place}].name"
        process_id = spec.process_id or f"{leader.process_id}/{spec.name}"
        _check_text(process_id, FOLLOWER_ID_BYTES_MAX, field)
        key = process_key(spec.namespace or leader.namespace, process_id)
        if key == leader:
            _refuse(field, f"{process_id!r} is the leader itself")
        first = places.setdefault(key, place)
        if first != place:
            _refuse(field, f"{process_id!r} is the process of nodes[{first}] too")
    return list(places)


def _predecessors_of(place: int, spec: NodeSpec, ordinals: Mapping[str, int]) -> tuple[int, ...]:
    found: dict[str, int] = {}
    for index, name in enumerate(spec.predecessors):
        ordinal = ordinals.get(name)
        if ordinal is None:
            _refuse(
                f"nodes[{place}].predecessors[{index}]", f"{_shown(name)} is not a node of the job"
            )
        if name in found:
            _refuse(f"nodes[{place}].predecessors[{index}]", f"{name!r} is listed twice")
        found[name] = ordinal
    return tuple(found.values())


def _check_cycles(
    specs: Sequence[NodeSpec],
    predecessors: Sequence[tuple[int, ...]],
    successors: Mapping[int, Sequence[int]],
    known_count: int,
) -> None:
    waits_for = {
        ordinal: sum(each > known_count for each in before)
        for ordinal, before in enumerate(predecessors, known_count + 1)
    }
    free = [ordinal for ordinal, count in waits_for.items() if not count]
    while free:
        ordinal = free.pop()
        del waits_for[ordinal]
        for each in successors.get(ordinal, ()):
            waits_for[each] -= 1
            if not waits_for[each]:
                free.append(each)
    if waits_for:
        _refuse_cycle(specs, predecessors, waits_for, known_count)


def _refuse_cycle(
    specs: Sequence[NodeSpec],
    predecessors: Sequence[tuple[int, ...]],
    stuck: Mapping[int, int],
    known_count: int,
) -> NoReturn:
    # Every node left has a predecessor among those left: going back from any finds a cycle.
    path: dict[int, None] = {}
    ordinal = next(iter(stuck))
    while ordinal not in path:
        path[ordinal] = None
        ordinal = next(it for it in predecessors[ordinal - known_count - 1] if it in stuck)
    backwards = list(path)
    cycle = backwards[backwards.index(ordinal) :][::-1]
    turn = cycle.index(min(cycle))
    cycle = cycle[turn:] + cycle[:turn]
    place = cycle[0] - known_count - 1
    index = predecessors[place].index(cycle[-1])
    names = [specs[it - known_count - 1].name for it in cycle]
    if len(names) > _SHOWN_MAX:
        names[_SHOWN_MAX - 1 : -1] = [f"({len(names) - _SHOWN_MAX} more)"]
    description = f"closes a cycle: {' -> '.join([*names, names[0]])}"
    _refuse(f"nodes[{place}].predecessors[{index}]", description)


def _check_text(text: str, bytes_max: int, field: str) -> None:
    if not text:
        _refuse(field, "must not be empty")
    size = len(text.encode())
    if size > bytes_max:
        _refuse(field, f"must be at most {bytes_max} bytes, got {size}")
    if _CONTROL_CHARACTER.search(text):
        _refuse(field, "must not contain control characters")


def _shown(name: str) -> str:
    return repr(name if len(name) <= NAME_BYTES_MAX else name[:NAME_BYTES_MAX] + "…")


def _refuse(field: str, description: str) -> NoReturn:
    raise GraphError(field, description)


class _Node(msgspec.Struct, omit_defaults=True):
    """A `NodeSpec` without its defaults. Fields that a later release adds have a default."""

    name: str
    namespace: str = ""
    process_id: str = ""
    predecessors: tuple[str, ...] = ()
    args: bytes = b""
    constraints: Constraints | None = None
    options: JobOptions | None = None


class _Graph(msgspec.Struct, omit_defaults=True):
    nodes: list[_Node]
    deadline: dt.datetime | None = None
    timeout: dt.timedelta | None = None
    schedule_id: str | None = None
    caller_context: dict[str, str] = {}


_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_decode = msgspec.msgpack.Decoder(StartNodes).decode


def encode_graph(action: StartNodes) -> bytes:
    """Return a graph as the args of its leader's init keep it: equal bytes for equal graphs."""
    nodes = [
        _Node(
            spec.name,
            spec.namespace,
            spec.process_id,
            spec.predecessors,
            spec.args,
            spec.constraints,
            None if spec.options == NO_OPTIONS else spec.options,
        )
        for spec in action.nodes
    ]
    graph = _Graph(
        nodes, action.deadline, action.timeout, action.schedule_id, dict(action.caller_context)
    )
    return _encode(graph)


def decode_graph(encoded: bytes) -> StartNodes:
    """Return the graph that `encode_graph` wrote, in this release or another."""
    return _decode(encoded)
