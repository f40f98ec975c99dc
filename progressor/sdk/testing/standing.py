"""The rules of a job's graph, in memory: who is ready after whom, who is skipped because of whom.

They are the engine's, one node at a time; a test runs the same graphs through both.

=========  =======================================================
waiting    while a predecessor is not done
ready      from then on until there is room for it
running    until it is done, has failed, or its job has ended
skipped    once a predecessor has failed, directly or not
cancelled  its job has ended without it
=========  =======================================================
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from progressor.sdk.values.jobs import NodeCounts, NodeState
from progressor.sdk.values.processes import TaskError
from progressor.v1 import nodes_pb2

WINDOW = 512
"""Nodes that are running without having had a step settled; others that are ready wait."""

_UNFINISHED = frozenset({NodeState.WAITING, NodeState.READY, NodeState.RUNNING})
_KEEPING = frozenset({NodeState.FAILED, NodeState.CANCELLED, NodeState.SKIPPED})


@dataclasses.dataclass(slots=True, kw_only=True)
class StandingNode:
    """A node as it stands; ``waits_for`` counts the predecessors that are not done.

    ``begun``: a step of it has been settled, so that it takes no room any more.
    """

    spec: nodes_pb2.NodeSpec
    successors: list[str] = dataclasses.field(default_factory=list)
    state: NodeState = NodeState.WAITING
    waits_for: int = 0
    begun: bool = False
    attempt: int = 1
    result: bytes = b""
    error: TaskError | None = None
    skipped_because_of: str = ""

    @property
    def name(self) -> str:
        """Its name."""
        return self.spec.name

    def begin_again(self, state: NodeState) -> None:
        """Take it for one that has not ended, and has no end to tell of."""
        self.state, self.begun = state, state is NodeState.RUNNING
        self.result, self.error, self.skipped_because_of = b"", None, ""


class Standing:
    """All nodes of a job, in the order in which they were added."""

    def __init__(self) -> None:
        self._nodes: dict[str, StandingNode] = {}

    def __getitem__(self, name: str) -> StandingNode:
        """Return the node of a name.

        Raises:
            KeyError: There is none; the message names those that there are.
        """
        if name not in self._nodes:
            message = f"the job has no node {name!r}; it has {', '.join(self._nodes)}"
            raise KeyError(message)
        return self._nodes[name]

    def __iter__(self) -> Iterator[StandingNode]:
        """Go through all nodes."""
        return iter(tuple(self._nodes.values()))

    def __len__(self) -> int:
        """Count them."""
        return len(self._nodes)

    @property
    def counts(self) -> NodeCounts:
        """How many are in which state."""
        counts = dict.fromkeys((it.name for it in dataclasses.fields(NodeCounts)), 0)
        for node in self:
            counts[node.state.value] += 1
        return NodeCounts(**counts)

    @property
    def is_whole(self) -> bool:
        """Whether all have ended."""
        return not any(it.state in _UNFINISHED for it in self)

    def named(self, *states: NodeState) -> tuple[str, ...]:
        """Return the names of the nodes in any of some states."""
        return tuple(it.name for it in self if it.state in states)

    def add(self, specs: Iterable[nodes_pb2.NodeSpec]) -> None:
        """Add nodes; what depends on one that has failed before is skipped at once.

        Raises:
            ValueError: A name is taken, or is not there.
        """
        added = [StandingNode(spec=it) for it in specs]
        known = set(self._nodes)
        for node in added:
            if node.name in self._nodes:
                message = f"the job has a node {node.name!r} already"
                raise ValueError(message)
            self._nodes[node.name] = node
        for node in added:
            for name in node.spec.predecessors:
                if name not in self._nodes:
                    message = f"node {node.name!r} comes after {name!r}, which is not there"
                    raise ValueError(message)
                self._nodes[name].successors.append(node.name)
                node.waits_for += self._nodes[name].state is not NodeState.DONE
            node.state = NodeState.WAITING if node.waits_for else NodeState.READY
        for node in self:
            if node.name in known and node.state in _KEEPING:
                self._skip_after(node, because_of=node.skipped_because_of or node.name)

    def start(self) -> None:
        """Have ready nodes run, as many as there is room for."""
        room = WINDOW - sum(it.state is NodeState.RUNNING and not it.begun for it in self)
        for name in self.named(NodeState.READY)[: max(0, room)]:
            self._nodes[name].state = NodeState.RUNNING

    def end(
        self, name: str, state: NodeState, *, result: bytes = b"", error: TaskError | None = None
    ) -> None:
        """End a node that has not ended: its successors are lowered, or skipped."""
        node = self[name]
        node.state, node.begun, node.result, node.error = state, True, result, error
        if state is not NodeState.DONE:
            self._skip_after(node, because_of=name)
            return
        for successor in map(self.__getitem__, node.successors):
            successor.waits_for -= 1
            if successor.state is NodeState.WAITING and successor.waits_for == 0:
                successor.state = NodeState.READY

    def cancel_unstarted(self) -> None:
        """Cancel what waits, and what is ready: the job has ended."""
        for name in self.named(NodeState.WAITING, NodeState.READY):
            self._nodes[name].state = NodeState.CANCELLED

    def retry(self) -> tuple[str, ...]:
        """Have all that is not done wait or be ready again; return the names of what had failed."""
        failed = self.named(NodeState.FAILED)
        for node in self:
            if node.state in _KEEPING:
                was_stopped = node.state is NodeState.CANCELLED and node.begun
                node.attempt += was_stopped or node.state is NodeState.FAILED
                node.begin_again(NodeState.WAITING if node.waits_for else NodeState.READY)
        return failed

    def reopen(self, name: str) -> None:
        """Have a broken node run again; what was skipped waits again, unless others keep it."""
        node = self[name]
        node.attempt += 1
        node.begin_again(NodeState.RUNNING)
        below = self._skipped_below(node)
        for skipped in self:
            # In the order of adding, predecessors come first: those of `below` are decided.
            if skipped.name not in below:
                continue
            causes = [self[it] for it in skipped.spec.predecessors if self[it].state in _KEEPING]
            if causes:
                skipped.skipped_because_of = causes[0].skipped_because_of or causes[0].name
            else:
                skipped.begin_again(NodeState.WAITING)

    def _skip_after(self, node: StandingNode, *, because_of: str) -> None:
        """Skip what waits and depends on a node that is not done."""
        left: list[Sequence[str]] = [node.successors]
        while left:  # a node is skipped once
            for successor in map(self.__getitem__, left.pop()):
                if successor.state is NodeState.WAITING:
                    successor.state = NodeState.SKIPPED
                    successor.skipped_because_of = because_of
                    left.append(successor.successors)

    def _skipped_below(self, node: StandingNode) -> set[str]:
        below: set[str] = set()
        left: list[Sequence[str]] = [node.successors]
        while left:  # a node is found once
            for successor in map(self.__getitem__, left.pop()):
                if successor.state is NodeState.SKIPPED and successor.name not in below:
                    below.add(successor.name)
                    left.append(successor.successors)
        return below
