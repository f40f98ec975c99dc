"""Runs the nodes of a simulated job, by their processors or with a given outcome."""

from collections.abc import Callable, Mapping, Sequence

from progressor.sdk.codec.codecs import Payload
from progressor.sdk.testing.rehearsal import TIMERS_MAX
from progressor.sdk.testing.simulated_job import SimulatedJob
from progressor.sdk.values.jobs import JobState, NodeState
from progressor.sdk.values.processes import TaskError

STEPS_MAX = 1_000_000
"""Nodes that one call of `run_nodes` runs."""

_FAILED_CODE = 9

Choice = Callable[[Sequence[str]], str]
"""Chooses the next of the running nodes, for example `random.Random(7).choice`."""


def first(names: Sequence[str]) -> str:
    """Return the first name."""
    return names[0]


async def run_node(job: SimulatedJob, name: str, *, order: Choice) -> None:
    """Run a node until it ends, or has neither a timer nor nodes that can run.

    Raises:
        ValueError: The namespace of the node has no processor.
        RuntimeError: `TIMERS_MAX` timers have run, and another is due.
    """
    if name not in job.followers:
        await job.begin(name)
    node, follower = job.graph[name], job.followers[name]
    for _ in range(TIMERS_MAX):
        inner = job.inner.get(name)
        if inner is not None and node.state is NodeState.RUNNING:
            await run_nodes(inner, order=order)
        if follower.timer is None or node.state is not NodeState.RUNNING:
            return
        await follower.run_timer()
    message = f"{TIMERS_MAX} timers of node {name!r} have run, and another is due"
    raise RuntimeError(message)


async def run_nodes(
    job: SimulatedJob,
    *,
    order: Choice,
    failing: frozenset[str] = frozenset(),
    results: Mapping[str, Payload] | None = None,
) -> None:
    """Run nodes until the job has ended, or every running node waits for a request.

    Nodes in `results` and nodes without a processor are completed; nodes in `failing` fail.

    Raises:
        RuntimeError: `TIMERS_MAX` timers of a node have run, and another is due.
    """
    results = results or {}
    stuck: set[str] = set()
    for _ in range(STEPS_MAX):
        running = job.graph.named(NodeState.RUNNING)
        candidates = [it for it in running if it not in stuck]
        if job.state is not JobState.RUNNING or not candidates:
            return
        name = order(candidates)
        if name in failing:
            await fail_node(job, name, "failed by the test", "FAILED_PRECONDITION")
        elif name in results or job.namespace_of(name) not in job.registry.processors:
            await complete_node(job, name, results.get(name))
        else:
            await run_node(job, name, order=order)
            if job.graph[name].state is NodeState.RUNNING:
                stuck.add(name)


async def complete_node(job: SimulatedJob, name: str, result: Payload) -> None:
    """End a running node as done.

    Raises:
        ValueError: The node is not running, or leads a job.
    """
    _expect_own_end(job, name)
    await job.end(name, NodeState.DONE, result=job.codec.encode(result))


async def fail_node(job: SimulatedJob, name: str, message: str, reason: str) -> None:
    """End a running node as failed.

    Raises:
        ValueError: The node is not running, or leads a job.
    """
    _expect_own_end(job, name)
    error = TaskError(code=_FAILED_CODE, reason=reason, message=message)
    await job.end(name, NodeState.FAILED, error=error)


def expect_running(job: SimulatedJob, name: str) -> None:
    """Raise ValueError unless a node is running."""
    state = job.graph[name].state
    if state is not NodeState.RUNNING:
        message = f"node {name!r} is {state}, not running"
        raise ValueError(message)


def _expect_own_end(job: SimulatedJob, name: str) -> None:
    expect_running(job, name)
    if name in job.inner:
        message = f"node {name!r} leads a job and ends with it: use `inner`"
        raise ValueError(message)
