"""A graph of nodes to be started, built in a few lines: for a job, or for a leader's step.

::

    graph = Graph()
    build = graph.node("build", {"ref": "main"})
    tests = graph.fan_out("test", ["unit", "system"], after=build)
    graph.node("deploy", after=tests, wants_results=True)

A node comes after nodes that are there already: no name is unknown, and nothing goes in a circle.
"""

import dataclasses
import datetime as dt
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypedDict, TypeVar, Unpack

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from progressor.sdk.codec.codecs import Codec, Payload
from progressor.sdk.codec.wire import Seconds, duration_to_wire, instant_to_wire
from progressor.sdk.values.constraints import (
    Constraints,
    constraints_from_wire,
    constraints_to_wire,
)
from progressor.sdk.values.namespaces import (
    RetryPolicy,
    ZombiePolicy,
    policy_from_wire,
    policy_to_wire,
)
from progressor.v1 import namespace_service_pb2 as namespaces
from progressor.v1 import nodes_pb2 as pb

Item = TypeVar("Item")

NAME_BYTES_MAX = 128
NODES_MAX = 10_000
"""Nodes of one graph; a leader may add another one in its next step, up to 50,000."""

Deadline: TypeAlias = dt.datetime | Seconds
"""When a job fails if it has not ended: an aware datetime, or seconds or a timedelta from now."""

_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class NodeOptions(TypedDict, total=False):
    """What a node may have besides its name, its args and what it comes after.

    ``namespace``: whose processor carries it; left out: the leader's. ``process_id``: of its
    follower; left out: the leader's, a slash, and the name. ``wants_results``: its first step gets
    what it comes after as `Step.nodes` and `Step.results`. ``constraints``: what that step must
    pass. ``retry_policy``, ``zombie_policy``: in place of its namespace's. ``target``: the one of
    the namespace's processor targets where it must run, spelt as there.
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
    """A node of a graph, to be named as what others come after; ``after`` are names."""

    name: str
    args: Payload = dataclasses.field(repr=False)
    after: tuple[str, ...]
    options: NodeOptions
    graph: "Graph" = dataclasses.field(repr=False)


After: TypeAlias = NewNode | str | Iterable[NewNode | str]
"""What a node comes after: nodes of its graph, or names of nodes that the job has already."""


class Graph:
    """Nodes in the order in which they were added; it is used up by nothing, so it can be reused.

    ``len(graph)`` counts them, and iteration goes through them.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, NewNode] = {}
        self._present: dict[str, None] = {}

    def node(
        self, name: str, args: Payload = None, *, after: After = (), **options: Unpack[NodeOptions]
    ) -> NewNode:
        """Add a node, and return it, so that others can come after it.

        Args:
            name: Unique within the job: 1 .. 128 bytes of UTF-8 without control characters.
            args: For its first step, encoded by the codec of who submits it.
            after: What must be done before. The name of a node that the graph has not is taken
                for one that the job has, which a leader may add to.
            options: See `NodeOptions`.

        Raises:
            ValueError: The name is taken, or is none; `after` has a node of another graph.
        """
        _check_name(name)
        if name in self._nodes:
            message = f"the graph has a node {name!r} already"
            raise ValueError(message)
        if name in self._present:
            message = f"{name!r} was named as a node that the job has already"
            raise ValueError(message)
        if len(self._nodes) == NODES_MAX:
            message = f"a graph has {NODES_MAX} nodes at most"
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
        """Add a node for each item, and return them in order; none of them waits for another.

        Args:
            name: What their names begin with: "test" gives "test-1", "test-2" ...
            items: One for each node.
            args: Makes a node's args of its item; None: they are the item.
            named: Makes what follows the dash in a node's name, in place of its number.
            after: What each of them comes after.
            options: See `NodeOptions`; without ``process_id``, which cannot be that of several.

        Raises:
            ValueError: As for `node`.
        """
        if "process_id" in options:
            message = f"nodes {name!r} cannot all be process {options['process_id']!r}"
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
        """All pairs of names, of which the second comes after the first."""
        return tuple((before, it.name) for it in self._nodes.values() for before in it.after)

    @property
    def present(self) -> tuple[str, ...]:
        """The names that only the job has, and not this graph."""
        return tuple(self._present)

    def __getitem__(self, name: str) -> NewNode:
        """Return the node of a name, or raise KeyError."""
        return self._nodes[name]

    def __contains__(self, name: object) -> bool:
        """Tell whether the graph has a node of this name."""
        return name in self._nodes

    def __iter__(self) -> Iterator[NewNode]:
        """Go through the nodes in the order in which they were added."""
        return iter(tuple(self._nodes.values()))

    def __len__(self) -> int:
        """Count the nodes."""
        return len(self._nodes)

    def __repr__(self) -> str:
        """Count nodes and edges."""
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
                "say the name of one that the job has already"
            )
            raise ValueError(message)
        return before.name


def nodes_to_wire(graph: Graph, codec: Codec) -> list[pb.NodeSpec]:
    """Return the nodes of a graph as messages.

    Raises:
        ValueError: The graph is empty.
        TypeError: The codec has no form for a node's args.
    """
    if not graph:
        message = "a graph has one node at least"
        raise ValueError(message)
    return [_node_to_wire(it, codec) for it in graph]


def graph_from_wire(specs: Iterable[pb.NodeSpec], codec: Codec) -> Graph:
    """Return the graph of messages, each node behind those that it comes after."""
    left = {it.name: it for it in specs}
    graph = Graph()
    while left:  # each round takes one out at least: what was taken once has no cycle
        ready = [it for it in left.values() if not any(name in left for name in it.predecessors)]
        assert ready, "an engine has no graph with a cycle"
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
    """Return a deadline as the field of a message.

    Raises:
        ValueError: It is a datetime without a time zone.
    """
    if deadline is None:
        return {}
    if isinstance(deadline, dt.datetime):
        return {"deadline": instant_to_wire(deadline)}
    return {"timeout": duration_to_wire(deadline)}


def _options_from_wire(spec: pb.NodeSpec) -> NodeOptions:
    options: NodeOptions = {}
    if spec.namespace:
        options["namespace"] = spec.namespace
    if spec.process_id:
        options["process_id"] = spec.process_id
    if spec.wants_results:
        options["wants_results"] = True
    if spec.HasField("constraints"):
        options["constraints"] = constraints_from_wire(spec.constraints)
    if spec.HasField("retry_policy"):
        options["retry_policy"] = policy_from_wire(spec.retry_policy)
    if spec.zombie_policy:
        options["zombie_policy"] = ZombiePolicy.from_number(spec.zombie_policy)
    if spec.target:
        options["target"] = spec.target
    return options


def _node_to_wire(node: NewNode, codec: Codec) -> pb.NodeSpec:
    options = node.options
    retry_policy, zombie_policy = options.get("retry_policy"), options.get("zombie_policy")
    return pb.NodeSpec(
        name=node.name,
        namespace=options.get("namespace", ""),
        process_id=options.get("process_id", ""),
        predecessors=node.after,
        args=codec.encode(node.args),
        wants_results=options.get("wants_results", False),
        constraints=constraints_to_wire(options.get("constraints")),
        retry_policy=None if retry_policy is None else policy_to_wire(retry_policy),
        zombie_policy=(
            namespaces.ZOMBIE_POLICY_UNSPECIFIED
            if zombie_policy is None
            else namespaces.ZombiePolicy.ValueType(zombie_policy.number)
        ),
        target=options.get("target", ""),
    )


def _listed(after: After) -> Sequence[NewNode | str]:
    return (after,) if isinstance(after, NewNode | str) else tuple(after)


def _check_name(name: Any) -> None:  # noqa: ANN401  # callers without a type checker
    if not isinstance(name, str):
        message = f"a node's name is text, not {name!r}"
        raise TypeError(message)
    size = len(name.encode())
    if not 1 <= size <= NAME_BYTES_MAX:
        message = f"a node's name has 1 .. {NAME_BYTES_MAX} bytes, not {size}: {name[:40]!r}"
        raise ValueError(message)
    if _CONTROL_CHARACTER.search(name):
        message = f"a node's name has no control characters: {name!r}"
        raise ValueError(message)
