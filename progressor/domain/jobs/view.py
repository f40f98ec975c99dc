"""What people see of jobs: one with its graph, and pages of them."""

import dataclasses

from progressor.domain.jobs.job import Job, JobState, Node


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """A job with its nodes, by their ordinals.

    ``payloads_left_out``: the args and results of some are empty here, since all would be too much.
    """

    job: Job
    nodes: tuple[Node, ...]
    payloads_left_out: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs a list is asked for; no ``states``: in any."""

    states: tuple[JobState, ...] = ()
    schedule_id: str | None = None
