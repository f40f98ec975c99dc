"""The roles of processes in jobs, and the counts of nodes. Imports nothing: clients load it."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeCounts:
    """The number of nodes of a job in each state."""

    waiting: int = 0
    ready: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    skipped: int = 0
    cancelled: int = 0

    @property
    def total(self) -> int:
        """The number of all nodes."""
        return sum(dataclasses.astuple(self))

    @property
    def unfinished(self) -> int:
        """The number of nodes that have not ended."""
        return self.waiting + self.ready + self.running


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LedJob:
    """The job that a process leads, by its numbers of nodes."""

    unfinished_count: int
    node_count: int


@dataclasses.dataclass(frozen=True, slots=True)
class FollowedJob:
    """The job in which a process carries out a node; ``namespace`` is that of the leader."""

    namespace: str
    job_id: str
    node: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobRole:
    """The role of a process in jobs: it leads one, carries out a node of one, or both."""

    led: LedJob | None
    followed: FollowedJob | None
