"""Jobs by the SDK on a whole engine, in a few lines; `test_job_rehearsal` explores them."""

import ast
import asyncio
import contextlib
import itertools
import re
import types
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from progressor import sdk
from progressor.sdk import (
    Client,
    Fail,
    Graph,
    JobFailedError,
    JobState,
    Processor,
    RetryPolicy,
    ScheduleRunState,
    Step,
    SyncClient,
)
from progressor.sdk.client import jobs as job_client
from progressor.sdk.client import schedules as schedule_client
from progressor.sdk.testing import JobRehearsal
from progressor.sdk.values import graph as sdk_graph
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.replica import Replica

pytestmark = pytest.mark.asyncio(loop_scope="module")


_numbers = itertools.count(1)


@contextlib.asynccontextmanager
async def playing(
    replica: Replica, processor: Processor[Any], tmp_path: Path, **options: Any
) -> AsyncIterator[Client]:
    """Serve a processor in a namespace of its own, and return a client for it."""
    name = f"{processor.name}-{next(_numbers)}"
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        processor.running(f"unix:{tmp_path}/processor.sock") as target,
        replica.namespace(name, target, **options) as client,
    ):
        yield client


def counting() -> Processor[Any]:
    """Return a processor that leads jobs and carries out their nodes: a splitter in a few lines."""
    numbers: Processor[Any] = Processor("numbers")

    @numbers.init
    async def begin(step: Step[Any]) -> None:
        if isinstance(step.args, list):
            graph = Graph()
            squares = graph.fan_out("square", step.args)
            graph.node("sum", after=squares, wants_results=True)
            step.start_nodes(graph, deadline=60)
        elif step.args is None:
            step.complete(sum(step.results_as(int).values()))
        else:
            step.complete(step.args**2)

    @numbers.join
    async def end(step: Step[Any]) -> None:
        if not all(it.is_done for it in step.nodes.values()):
            raise Fail("some squares are missing")
        step.complete(step.nodes["sum"].result)

    return numbers


async def test_a_leader_of_ones_own_splits_the_work(replica: Replica, tmp_path: Path) -> None:
    numbers = counting()
    async with playing(replica, numbers, tmp_path) as client:
        await client.start("job", [1, 2, 3])
        job = await client.jobs.wait("job", check=True)
        result = (await client.get("job")).process.result
    rehearsed = await JobRehearsal.led_by(numbers, [1, 2, 3])
    await rehearsed.run_all()

    assert result == rehearsed.result == 14
    assert (job.led_by_engine, job.counts, job.state) == (False, rehearsed.counts, "done")
    assert job.deadline is not None


async def test_a_graph_in_a_few_lines_led_by_the_engine(replica: Replica, tmp_path: Path) -> None:
    async with playing(replica, counting(), tmp_path) as client:
        graph = Graph()
        parts = graph.fan_out("square", [3, 4])
        graph.node("sum", after=parts, wants_results=True)
        await client.jobs.submit("squares", graph, idempotency_key="squares")
        again = await client.jobs.submit("squares", graph, idempotency_key="squares")
        await client.jobs.wait("squares", check=True)
        view = await client.jobs.get("squares", result_type=int)
        listed = [it.job_id async for it in client.jobs.list(states=[JobState.DONE])]

    assert again.deduplicated
    assert view["sum"].result == 25
    assert [it.after for it in view.nodes] == [(), (), ("square-1", "square-2")]
    assert listed == ["squares"]


async def test_the_blocking_client_waits_and_hears_of_failures(
    replica: Replica, tmp_path: Path
) -> None:
    def ask(client: SyncClient) -> str:
        graph = Graph()
        graph.node("a", "no number")
        client.jobs.submit("j", graph)
        with pytest.raises(JobFailedError) as raised:
            client.jobs.wait("j", check=True)
        assert [it.job.state for it in client.jobs.watch("j")][-1] is JobState.FAILED
        return raised.value.job.detail

    once = RetryPolicy(attempts_max=1)
    async with playing(replica, counting(), tmp_path, retry_policy=once) as client:
        with SyncClient(replica.address, namespace=client.namespace) as blocking:
            detail = await asyncio.to_thread(ask, blocking)

    assert detail.startswith("1 of 1 nodes are not done: a failed (TypeError: unsupported operand")


def example_in(module: ModuleType) -> str:
    """Return the code in a module's docstring."""
    (code,) = re.findall(r"::\n\n((?:    .*\n|\n)+)", module.__doc__ or "")
    return "\n".join(line.removeprefix("    ") for line in code.splitlines())


async def run_example(module: ModuleType, **names: Any) -> dict[str, Any]:
    """Run the code in a module's docstring, with names that it takes for granted."""
    code = compile(example_in(module), module.__name__, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    values = {**{it: getattr(sdk, it) for it in sdk.__all__}, **names}
    running = types.FunctionType(code, values)()
    if running is not None:
        await running
    return values


async def test_the_examples_of_the_docstrings_run(replica: Replica, tmp_path: Path) -> None:
    counts: Processor[Any] = Processor("counts")

    @counts.init
    async def count(step: Step[Any]) -> None:
        if step.args is None:
            step.complete(sum(step.results_as(int).values()))
        else:
            step.complete(len(step.args))

    async with playing(replica, counts, tmp_path) as client:
        words = await run_example(job_client, client=client)
        fired = await run_example(schedule_client, client=client)
    built = await run_example(sdk_graph)

    assert words["total"] == 10
    assert fired["run"].state in {ScheduleRunState.RUNNING, ScheduleRunState.DONE}
    assert len(built["graph"]) == 4
    assert fired["nightly"].overlap_policy is sdk.OverlapPolicy.SKIP
