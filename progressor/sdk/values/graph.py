"""Graphs of nodes, for a job or for a step of its leader.

::

    graph = Graph()
    build = graph.node("build", {"ref": "main"})
    tests = graph.fan_out("test", ["unit", "system"], after=build)
    graph.node("deploy", after=tests, wants_results=True)

A node can only come after nodes that were added before it, so a graph has no cycles.
"""

import dataclasses
import datetime as dt
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypedDict, TypeVar, Unpack, cast

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from progressor.domain.processes.policy import RetryPolicy
from progressor.sdk.codec.codecs import Codec, Payload
from progressor.sdk.codec.wire import Seconds, check_options, duration_to_wire, instant_to_wire
from progressor.sdk.values.constraints import (
    Constraints,
    constraints_from_wire,
    constraints_to_wire,
)
from progressor.sdk.values.namespaces import ZombiePolicy, policy_from_wire, policy_to_wire
from progressor.v1 import nodes_pb2 as pb

Item = TypeVar("Item")

NAME_BYTES_MAX = 128
NODES_MAX = 10_000
"""Nodes of one graph; a leader may add more graphs in later steps, up to 50,000 nodes in all."""

Deadline: TypeAlias = dt.datetime | Seconds
"""When a job fails if it has not ended: an aware datetime, or seconds or a timedelta from now."""

_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class NodeOptions(TypedDict, total=False):
    """Options of a node.

    ``namespace``: the namespace whose processor carries it out; default: the leader's.
    ``process_id``: the id of its process; default: the leader's id, a slash, and the node's name.
    ``wants_results``: its first step gets the outcomes of its predecessors as `Step.nodes` and
    `Step.results`. ``constraints``: what must hold before that step may run. ``retry_policy``,
    ``zombie_policy``: in place of the namespace's. ``target``: the one of the namespace's processor
    targets on which it must run, written as in the namespace.
    """

    namespace: str
    process_id: str
    wants_results: bool
    constraints: Constraints
    retry_policy: RetryPolicy
    zombie_policy: ZombiePolicy
    target: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NewNode:
    """A node of a graph; ``after`` has the names of its predecessors."""

    name: str
    args: Payload = dataclasses.field(repr=False)
    after: tuple[str, ...]
    options: NodeOptions
    graph: "Graph" = dataclasses.field(repr=False)


After: TypeAlias = NewNode | str | Iterable[NewNode | str]
"""Predecessors of a node: nodes of its graph, or names of nodes that the job already has."""


class Graph:
    """Nodes in the order in which they were added. A graph can be submitted several times."""

    def __init__(self) -> None:
        self._nodes: dict[str, NewNode] = {}
        self._present: dict[str, None] = {}

    def node(
        self, name: str, args: Payload = None, *, after: After = (), **options: Unpack[NodeOptions]
    ) -> NewNode:
        """Add a node, and return it, so that other nodes can come after it.

        Args:
            name: Unique within the job, 1 to 128 bytes of UTF-8 without control characters.
            args: For its first step; the codec of the client or processor encodes them.
            after: The nodes that must be done first. A name that is not in the graph is that of a
                node which the job already has; only a leader can use one.
            options: See `NodeOptions`.

        Raises:
            TypeError: An option is unknown.
            ValueError: The name is invalid or taken, or `after` has a node of another graph.
        """
        check_options(options, NodeOptions, "node")
        _check_name(name)
        if name in self._nodes:
            message = f"the graph already has a node {name!r}"
            raise ValueError(message)
        if name in self._present:
            message = f"{name!r} was used as the name of a node that the job already has"
            raise ValueError(message)
        if len(self._nodes) == NODES_MAX:
            message = f"a graph can have at most {NODES_MAX} nodes"
            raise ValueError(message)
        before = tuple(dict.fromkeys(self._name_of(it, name) for it in _listed(after)))
        self._present.update(dict.fromkeys(it for it in before if it not in self._nodes))
        node = NewNode(name=name, args=args, after=before, options=options, graph=self)
        self._nodes[name] = node
        return node

    def fan_out(
        self,
        name: str,
        items: Iterable[Item],
        *,
        args: Callable[[Item], Payload] | None = None,
        named: Callable[[Item], str] | None = None,
        after: After = (),
        **options: Unpack[NodeOptions],
    ) -> tuple[NewNode, ...]:
        """Add a node for each item, and return the nodes; they do not wait for each other.

        Args:
            name: The prefix of their names: "test" gives "test-1", "test-2" ...
            items: One for each node.
            args: Returns the args of a node for its item; None: the item itself.
            named: Returns the suffix of a node's name for its item; None: a number from 1.
            after: The nodes that must be done first.
            options: See `NodeOptions`; without ``process_id``.

        Raises:
            TypeError, ValueError: As for `node`.
        """
        check_options(options, NodeOptions, "fan_out")
        if "process_id" in options:
            message = f"nodes {name!r} cannot share the process_id {options['process_id']!r}"
            raise ValueError(message)
        before = tuple(_listed(after))
        return tuple(
            self.node(
                f"{name}-{number if named is None else named(item)}",
                item if args is None else args(item),
                after=before,
                **options,
            )
            for number, item in enumerate(items, start=1)
        )

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """All pairs of names: a predecessor and its successor."""
        return tuple((before, it.name) for it in self._nodes.values() for before in it.after)

    @property
    def present(self) -> tuple[str, ...]:
        """The predecessors that the job already has, which are not in this graph."""
        return tuple(self._present)

    def __getitem__(self, name: str) -> NewNode:
        """Return the node of this name, or raise KeyError."""
        return self._nodes[name]

    def __contains__(self, name: object) -> bool:
        """Return whether the graph has a node of this name."""
        return name in self._nodes

    def __iter__(self) -> Iterator[NewNode]:
        """Iterate over the nodes in the order in which they were added."""
        return iter(tuple(self._nodes.values()))

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self._nodes)

    def __repr__(self) -> str:
        """Return the numbers of nodes and edges."""
        return f"Graph({len(self)} nodes, {len(self.edges)} edges)"

    def _name_of(self, before: NewNode | str, name: str) -> str:
        if isinstance(before, str):
            _check_name(before)
            if before == name:
                message = f"node {name!r} cannot come after itself"
                raise ValueError(message)
            return before
        if before.graph is not self:
            message = (
                f"node {name!r} cannot come after {before.name!r}, a node of another graph; "
                "use the name of a node that the job already has"
            )
            raise ValueError(message)
        return before.name


def nodes_to_wire(graph: Graph, codec: Codec) -> list[pb.NodeSpec]:
    """Return the nodes of a graph, at least one, as messages."""
    if not graph:
        message = "the graph must have at least one node"
        raise ValueError(message)
    return [_node_to_wire(it, codec) for it in graph]


def graph_from_wire(specs: Iterable[pb.NodeSpec], codec: Codec) -> Graph:
    """Return the graph of messages, each node after its predecessors."""
    left = {it.name: it for it in specs}
    graph = Graph()
    while left:  # each round removes at least one node: an accepted graph has no cycle
        ready = [it for it in left.values() if not any(name in left for name in it.predecessors)]
        assert ready, "the engine has accepted a graph with a cycle"
        for spec in ready:
            del left[spec.name]
            graph.node(
                spec.name,
                codec.decode(spec.args),
                after=tuple(spec.predecessors),
                **_options_from_wire(spec),
            )
    return graph


class _Due(TypedDict, total=False):
    """The field of a message that has a deadline, or none."""

    deadline: Timestamp
    timeout: Duration


def due_to_wire(deadline: Deadline | None) -> _Due:
    """Return a deadline as the field of a message."""
    if deadline is None:
        return {}
    if isinstance(deadline, dt.datetime):
        return {"deadline": instant_to_wire(deadline)}
    return {"timeout": duration_to_wire(deadline)}


_PLAIN = ("namespace", "process_id", "wants_results", "target")
"""Options that a message holds as they are."""


def _options_from_wire(spec: pb.NodeSpec) -> NodeOptions:
    options: dict[str, Any] = {it: getattr(spec, it) for it in _PLAIN if getattr(spec, it)}
    if spec.HasField("constraints"):
        options["constraints"] = constraints_from_wire(spec.constraints)
    if spec.HasField("retry_policy"):
        options["retry_policy"] = policy_from_wire(spec.retry_policy)
    if spec.zombie_policy:
        options["zombie_policy"] = ZombiePolicy.from_number(spec.zombie_policy)
    return cast("NodeOptions", options)


def _node_to_wire(node: NewNode, codec: Codec) -> pb.NodeSpec:
    options: dict[str, Any] = dict(node.options)
    fields = {it: options[it] for it in _PLAIN if it in options}
    if options.get("constraints") is not None:
        fields["constraints"] = constraints_to_wire(options["constraints"])
    if options.get("retry_policy") is not None:
        fields["retry_policy"] = policy_to_wire(options["retry_policy"])
    if options.get("zombie_policy") is not None:
        fields["zombie_policy"] = ZombiePolicy(options["zombie_policy"]).number
    args = codec.encode(node.args)
    return pb.NodeSpec(name=node.name, predecessors=node.after, args=args, **fields)


def _listed(after: After) -> Sequence[NewNode | str]:
    return (after,) if isinstance(after, NewNode | str) else tuple(after)


def _check_name(name: Any) -> None:  # noqa: ANN401  # callers without a type checker
    if not isinstance(name, str):
        message = f"the name of a node must be a string, got {name!r}"
        raise TypeError(message)
    size = len(name.encode())
    if not 1 <= size <= NAME_BYTES_MAX:
        message = (
            f"the name of a node must be 1 to {NAME_BYTES_MAX} bytes, got {size}: {name[:40]!r}"
        )
        raise ValueError(message)
    if _CONTROL_CHARACTER.search(name):
        message = f"the name of a node must not contain control characters, got {name!r}"
        raise ValueError(message)
