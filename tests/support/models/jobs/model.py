"""A model of jobs: what has become of each node, by nothing but the rules in `domain/jobs/job.py`.

No room is ever short in it: there are fewer nodes than a window has places.
"""

import dataclasses
from collections.abc import Collection, Iterable

from progressor.domain.jobs.job import state_before_start
from progressor.domain.processes.task import NodeState
from tests.support.models.jobs.graphs import Graph, ancestors

UNFINISHED = frozenset({"waiting", "ready", "running"})


@dataclasses.dataclass(slots=True, kw_only=True)
class ModelNode:
    """A node; ``inits`` are the init tasks that were ever seen of it, each once an attempt.

    ``has_constraints``: once ready it waits to be maintained. ``has_follower``: it was started, and
    its process is not removed.
    """

    before: tuple[str, ...]
    has_constraints: bool = False
    has_follower: bool = False
    state: str = "waiting"
    attempt: int = 1
    was_stopped: bool = False
    inits: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True, kw_only=True)
class ModelJob:
    """A job. ``joins`` are the tasks by which its leader was told that all nodes have ended."""

    led_by: str
    state: str = "running"
    nodes: dict[str, ModelNode] = dataclasses.field(default_factory=dict)
    joins: list[int] = dataclasses.field(default_factory=list)

    @property
    def graph(self) -> Graph:
        return {name: node.before for name, node in self.nodes.items()}

    @property
    def states(self) -> dict[str, str]:
        return {name: node.state for name, node in self.nodes.items()}

    def named(self, *states: str) -> list[str]:
        return [name for name, node in self.nodes.items() if node.state in states]

    @property
    def has_come_to_its_end(self) -> bool:
        return not self.named(*UNFINISHED)

    def add(self, graph: Graph, constrained: Collection[str] = ()) -> None:
        for name, before in graph.items():
            node = ModelNode(before=tuple(before), has_constraints=name in constrained)
            self.nodes[name] = node
        self._move()

    def maintain(self) -> None:
        for name in self.named("ready"):
            node = self.nodes[name]
            # One that was stopped begins again by this; one that has failed, by the retry.
            node.attempt += node.was_stopped
            node.was_stopped = False
            node.state, node.has_follower = "running", True

    def ends(self, name: str, state: str) -> None:
        """Let a running node end, and others move because of it."""
        node = self.nodes[name]
        assert node.state == "running", f"{name} is {node.state}, and ends as {state}"
        node.state = state
        self._move()

    def end(self, state: str) -> None:
        """End the job: what has not begun is cancelled, what runs is yet to be stopped."""
        self.state = state
        for name in self.named("waiting", "ready"):
            self.nodes[name].state = "cancelled"

    def stop(self, names: Iterable[str]) -> None:
        for name in names:
            self.nodes[name].state = "cancelled"

    def restart_nodes(self, name: str) -> None:
        """Let a node run again whose follower was brought back; what it had skipped waits."""
        node = self.nodes[name]
        node.state, node.attempt, self.state = "running", node.attempt + 1, "running"
        self._move()

    def retry(self) -> None:
        """Go on with a failed job from the nodes that failed, or were stopped."""
        self.state = "running"
        for node in self.nodes.values():
            if node.has_constraints and node.state in {"failed", "cancelled"}:
                node.was_stopped = node.state == "cancelled" and node.has_follower
                node.attempt += node.state == "failed"
                node.state = "waiting"
            elif node.state == "failed" or (node.state == "cancelled" and node.has_follower):
                node.state, node.attempt = "running", node.attempt + 1
            elif node.state == "cancelled":
                node.state = "waiting"
        self._move()

    def _move(self) -> None:
        """Have every node that has not begun be in the state that the others make it."""
        if self.state != "running":
            return
        states = self.states
        for name, node in self.nodes.items():
            if node.state not in {"waiting", "skipped"}:
                continue
            state = state_before_start(
                [NodeState(states[each]) for each in node.before],
                [NodeState(states[each]) for each in ancestors(self.graph, name)],
            )
            is_started = state is NodeState.READY and not node.has_constraints
            node.state = "running" if is_started else state.value
            node.has_follower = node.has_follower or node.state == "running"
