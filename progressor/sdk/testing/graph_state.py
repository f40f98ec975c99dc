"""The states of a job's graph in memory: which node is ready, and which is skipped.

The rules are the engine's, applied to one node at a time; a test runs the same graphs on both.

=========  =======================================================
waiting    while a predecessor is not done
ready      then, until there is room to start it
running    until it is done or failed, or its job has ended
skipped    once a direct or indirect predecessor has failed
cancelled  its job ended first
=========  =======================================================
"""

import dataclasses
from collections.abc import Iterable, Iterator

from progressor.domain.jobs.roles import NodeCounts
from progressor.sdk.values.jobs import NodeState
from progressor.sdk.values.replies import TaskError
from progressor.v1 import nodes_pb2

WINDOW = 512
"""Running nodes without a settled step; further ready nodes wait."""

_UNFINISHED = frozenset({NodeState.WAITING, NodeState.READY, NodeState.RUNNING})
_KEEPING = frozenset({NodeState.FAILED, NodeState.CANCELLED, NodeState.SKIPPED})


@dataclasses.dataclass(slots=True, kw_only=True)
class GraphNode:
    """A node and its state; ``waits_for`` counts the predecessors that are not done.

    ``has_settled``: a step of it has been settled, so it no longer counts for `WINDOW`.
    """

    spec: nodes_pb2.NodeSpec
    successors: list[str] = dataclasses.field(default_factory=list)
    state: NodeState = NodeState.WAITING
    waits_for: int = 0
    has_settled: bool = False
    attempt: int = 1
    result: bytes = b""
    error: TaskError | None = None
    skipped_because_of: str = ""

    @property
    def name(self) -> str:
        """Its name."""
        return self.spec.name

    def reset(self, state: NodeState) -> None:
        """Set an unfinished state, and clear the outcome."""
        self.state, self.has_settled = state, state is NodeState.RUNNING
        self.result, self.error, self.skipped_because_of = b"", None, ""


class GraphState:
    """All nodes of a job, in the order in which they were added."""

    def __init__(self) -> None:
        self._nodes: dict[str, GraphNode] = {}

    def __getitem__(self, name: str) -> GraphNode:
        """Return the node of a name."""
        if name not in self._nodes:
            message = f"the job has no node {name!r}; it has {', '.join(self._nodes)}"
            raise KeyError(message)
        return self._nodes[name]

    def __iter__(self) -> Iterator[GraphNode]:
        """Iterate over all nodes."""
        return iter(tuple(self._nodes.values()))

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self._nodes)

    @property
    def counts(self) -> NodeCounts:
        """The number of nodes in each state."""
        counts = dict.fromkeys((it.name for it in dataclasses.fields(NodeCounts)), 0)
        for node in self:
            counts[node.state.value] += 1
        return NodeCounts(**counts)

    @property
    def is_whole(self) -> bool:
        """Whether all nodes have ended."""
        return not any(it.state in _UNFINISHED for it in self)

    def named(self, *states: NodeState) -> tuple[str, ...]:
        """Return the names of the nodes in any of these states."""
        return tuple(it.name for it in self if it.state in states)

    def add(self, specs: Iterable[nodes_pb2.NodeSpec]) -> None:
        """Add nodes; those that depend on a failed node are skipped at once."""
        added = [GraphNode(spec=it) for it in specs]
        known = set(self._nodes)
        for node in added:
            if node.name in self._nodes:
                message = f"the job already has a node {node.name!r}"
                raise ValueError(message)
            self._nodes[node.name] = node
        for node in added:
            for name in node.spec.predecessors:
                if name not in self._nodes:
                    message = f"node {node.name!r} comes after {name!r}, which does not exist"
                    raise ValueError(message)
                self._nodes[name].successors.append(node.name)
                node.waits_for += self._nodes[name].state is not NodeState.DONE
            node.state = NodeState.WAITING if node.waits_for else NodeState.READY
        for node in self:
            if node.name in known and node.state in _KEEPING:
                self._skip_after(node, because_of=node.skipped_because_of or node.name)

    def start(self) -> None:
        """Start ready nodes, as many as there is room for."""
        room = WINDOW - sum(it.state is NodeState.RUNNING and not it.has_settled for it in self)
        for name in self.named(NodeState.READY)[: max(0, room)]:
            self._nodes[name].state = NodeState.RUNNING

    def end(
        self, name: str, state: NodeState, *, result: bytes = b"", error: TaskError | None = None
    ) -> None:
        """End an unfinished node; its successors become ready or skipped."""
        node = self[name]
        node.state, node.has_settled, node.result, node.error = state, True, result, error
        if state is not NodeState.DONE:
            self._skip_after(node, because_of=name)
            return
        for successor in map(self.__getitem__, node.successors):
            successor.waits_for -= 1
            if successor.state is NodeState.WAITING and successor.waits_for == 0:
                successor.state = NodeState.READY

    def cancel_unstarted(self) -> None:
        """Cancel the waiting and the ready nodes of a job that has ended."""
        for name in self.named(NodeState.WAITING, NodeState.READY):
            self._nodes[name].state = NodeState.CANCELLED

    def retry(self) -> tuple[str, ...]:
        """Reset all nodes that are not done; return the names of those that had failed."""
        failed = self.named(NodeState.FAILED)
        for node in self:
            if node.state in _KEEPING:
                was_stopped = node.state is NodeState.CANCELLED and node.has_settled
                node.attempt += was_stopped or node.state is NodeState.FAILED
                node.reset(NodeState.WAITING if node.waits_for else NodeState.READY)
        return failed

    def reopen(self, name: str) -> None:
        """Set a failed node running; nodes skipped only because of it wait again."""
        node = self[name]
        node.attempt += 1
        node.reset(NodeState.RUNNING)
        below = {it.name for it in self._below(node, NodeState.SKIPPED)}
        for skipped in self:
            # Predecessors were added first, so those in `below` are already updated.
            if skipped.name not in below:
                continue
            causes = [self[it] for it in skipped.spec.predecessors if self[it].state in _KEEPING]
            if causes:
                skipped.skipped_because_of = causes[0].skipped_because_of or causes[0].name
            else:
                skipped.reset(NodeState.WAITING)

    def _skip_after(self, node: GraphNode, *, because_of: str) -> None:
        """Skip the waiting nodes that depend on a failed node."""
        for waiting in self._below(node, NodeState.WAITING):
            waiting.state, waiting.skipped_because_of = NodeState.SKIPPED, because_of

    def _below(self, node: GraphNode, state: NodeState) -> list[GraphNode]:
        """Return the nodes in a state that depend on a node, through nodes in that state."""
        found: dict[str, GraphNode] = {}
        left = [node]
        while left:  # a node is found once
            for successor in map(self.__getitem__, left.pop().successors):
                if successor.state is state and successor.name not in found:
                    found[successor.name] = successor
                    left.append(successor)
        return list(found.values())
