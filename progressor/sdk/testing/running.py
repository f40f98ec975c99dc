"""Nodes of a job carried out one after the other: by their processors, or ended as a test says."""

from collections.abc import Callable, Mapping, Sequence

from progressor.sdk.codec.codecs import Payload
from progressor.sdk.testing.carried_job import CarriedJob
from progressor.sdk.testing.rehearsal import TIMERS_MAX
from progressor.sdk.values.jobs import JobState, NodeState
from progressor.sdk.values.processes import TaskError

STEPS_MAX = 1_000_000
"""Nodes that one call of `run_nodes` goes through."""

_FAILED_CODE = 9

Choice = Callable[[Sequence[str]], str]
"""Which of the running nodes goes on: `random.Random(7).choice`, say."""


def first(names: Sequence[str]) -> str:
    """Return the first of some names."""
    return names[0]


async def run_node(job: CarriedJob, name: str, *, order: Choice) -> None:
    """Carry out a running node until it ends, or has neither a timer nor nodes that can go on.

    Raises:
        ValueError: Its namespace has no processor.
        RuntimeError: Its timers follow each other without an end.
    """
    if name not in job.followers:
        await job.begin(name)
    node, follower = job.standing[name], job.followers[name]
    for _ in range(TIMERS_MAX):
        inner = job.inner.get(name)
        if inner is not None and node.state is NodeState.RUNNING:
            await run_nodes(inner, order=order)
        if follower.timer is None or node.state is not NodeState.RUNNING:
            return
        await follower.run_timer()
    message = f"{TIMERS_MAX} timers of node {name!r} have run, and another one is due"
    raise RuntimeError(message)


async def run_nodes(
    job: CarriedJob,
    *,
    order: Choice,
    failing: frozenset[str] = frozenset(),
    results: Mapping[str, Payload] | None = None,
) -> None:
    """End nodes until the job has ended, or all that runs waits for a request.

    Nodes without a processor and those in `results` are completed; those in `failing` fail.

    Raises:
        RuntimeError: Timers follow each other without an end.
    """
    results = results or {}
    stuck: set[str] = set()
    for _ in range(STEPS_MAX):
        running = job.standing.named(NodeState.RUNNING)
        candidates = [it for it in running if it not in stuck]
        if job.state is not JobState.RUNNING or not candidates:
            return
        name = order(candidates)
        if name in failing:
            await fail_node(job, name, "told to fail", "FAILED_PRECONDITION")
        elif name in results or job.namespace_of(name) not in job.cast.processors:
            await complete_node(job, name, results.get(name))
        else:
            await run_node(job, name, order=order)
            if job.standing[name].state is NodeState.RUNNING:
                stuck.add(name)


async def complete_node(job: CarriedJob, name: str, result: Payload) -> None:
    """End a running node as done.

    Raises:
        ValueError: It is not running, or leads a job.
    """
    _expect_in_hand(job, name)
    await job.end(name, NodeState.DONE, result=job.codec.encode(result))


async def fail_node(job: CarriedJob, name: str, message: str, reason: str) -> None:
    """End a running node as failed.

    Raises:
        ValueError: It is not running, or leads a job.
    """
    _expect_in_hand(job, name)
    error = TaskError(code=_FAILED_CODE, reason=reason, message=message)
    await job.end(name, NodeState.FAILED, error=error)


def expect_running(job: CarriedJob, name: str) -> None:
    """Raise ValueError unless a node is running."""
    state = job.standing[name].state
    if state is not NodeState.RUNNING:
        message = f"node {name!r} is {state}, not running"
        raise ValueError(message)


def _expect_in_hand(job: CarriedJob, name: str) -> None:
    expect_running(job, name)
    if name in job.inner:
        message = f"node {name!r} leads a job, and ends as that does: see `inner`"
        raise ValueError(message)
