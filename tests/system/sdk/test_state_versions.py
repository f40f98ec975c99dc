"""Deploys that change the type of a state: upgrades, a rollout in steps, a rollback."""

import asyncio
import collections
import dataclasses
import itertools
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import Executor
from typing import Any

import pytest
import pytest_asyncio

from progressor import errors
from progressor.cli.output import render
from progressor.sdk import BYTES, Client, Processor, ProcessStatus, Step, TaskType, running
from progressor.sdk.processor.links import StepLink
from progressor.sdk.testing import Rehearsal
from progressor.v1 import processor_service_pb2 as pb
from tests.support.engine.replica import NOW_AND_THEN, Replica

pytestmark = pytest.mark.asyncio(loop_scope="module")

COUNT = 500
ATTEMPTS_MAX = NOW_AND_THEN.attempts_max
_NUMBERS = itertools.count()


@dataclasses.dataclass
class Items:
    items: list[str]


@dataclasses.dataclass
class Counts:
    counts: dict[str, int]


def _with_handlers(processor: Processor[Any], *, is_blocking: bool = False) -> Processor[Any]:
    """Add handlers: an item as args is added to the state, and None reads it."""

    def take(step: Step[Any]) -> object:
        if step.type is TaskType.INIT:
            step.set_timer(after=3600)
        state = step.state
        if step.args is not None:
            if isinstance(state, Counts):
                state.counts[step.args] = state.counts.get(step.args, 0) + 1
            else:
                state = Items([*(state.items if state else ()), step.args])
            step.state = state
        return state

    async def take_async(step: Step[Any]) -> object:
        return take(step)

    for register in (processor.init, processor.call, processor.notify):
        register(take if is_blocking else take_async)
    return processor


def first(*, is_blocking: bool = False) -> Processor[Any]:
    return _with_handlers(Processor("orders", state=Items), is_blocking=is_blocking)


def second(*, is_broken: bool = False, is_blocking: bool = False) -> Processor[Any]:
    processor = Processor("orders", state=Counts, version=2)

    @processor.upgrade(1)
    def count(old: Items) -> Counts:
        if is_broken:
            raise KeyError("price")
        return Counts(collections.Counter(old.items))

    return _with_handlers(processor, is_blocking=is_blocking)


class Deployed:
    """A target whose code is replaced at once."""

    name = "orders"

    def __init__(self, current: Processor[Any]) -> None:
        self.current = current

    async def answer(
        self, request: pb.ProcessRequest, threads: Executor, link: StepLink | None = None
    ) -> pb.ProcessResponse:
        return await self.current.answer(request, threads, link)


@pytest_asyncio.fixture(loop_scope="module")
async def deployed() -> Deployed:
    return Deployed(first())


@pytest_asyncio.fixture(loop_scope="module")
async def client(replica: Replica, deployed: Deployed) -> AsyncIterator[Client]:
    name = f"versions-{next(_NUMBERS)}"
    async with (
        running(deployed, bind="127.0.0.1:0") as target,
        replica.namespace(name, target, retry_policy=NOW_AND_THEN) as client,
    ):
        yield client


async def stored(client: Client, process_id: str) -> tuple[object, int]:
    process = (await client.get(process_id)).process
    return process.state, process.state_version


@pytest.mark.parametrize("is_blocking", [False, True])
async def test_an_old_state_is_upgraded_when_it_is_read_and_stored_with_the_next_save(
    client: Client, deployed: Deployed, *, is_blocking: bool
) -> None:
    deployed.current = first(is_blocking=is_blocking)
    await client.start("p", "tea")
    assert await stored(client, "p") == ({"items": ["tea"]}, 0)

    deployed.current = second(is_blocking=is_blocking)
    read = await client.call("p")
    after_read = await stored(client, "p")
    saved = await client.call("p", "tea")

    assert (read.response, after_read) == ({"counts": {"tea": 1}}, ({"items": ["tea"]}, 0))
    assert saved.response == {"counts": {"tea": 2}}
    assert await stored(client, "p") == (saved.response, 2)
    assert [it.state_version async for it in client.list()] == [2]


async def test_what_get_prints_of_a_process_can_be_rehearsed_with_newer_code(
    client: Client, replica: Replica
) -> None:
    await client.start("p", "tea")
    async with Client(replica.address, namespace=client.namespace, codec=BYTES) as bare:
        printed = render(await bare.get("p"))

    process = Rehearsal.from_snapshot(second(), printed)

    assert process.state == Counts({"tea": 1})
    assert process.timer is not None
    assert (await process.call("tea")).response == {"counts": {"tea": 2}}


async def test_an_imported_state_has_the_version_that_was_put(
    client: Client, deployed: Deployed
) -> None:
    deployed.current = second()
    for version in (0, 1, 2):
        state = Items(["tea"]) if version < 2 else Counts({"tea": 1})
        await client.put(f"p-{version}", state=state, state_version=version)
        assert (await stored(client, f"p-{version}"))[1] == version

        assert (await client.call(f"p-{version}")).response == {"counts": {"tea": 1}}
    with pytest.raises(errors.InvalidRequestError, match="state_version: must not be negative"):
        await client.put("q", state_version=-1)


async def test_a_newer_state_waits_for_the_newer_processor_and_the_older_handler_never_sees_it(
    client: Client, deployed: Deployed, replica: Replica
) -> None:
    await client.put("p", state=Counts({"tea": 1}), state_version=2)
    accepted = await client.call("p", "tea", accept_only=True)
    await replica.points.wait("settled", task_id=accepted.task_id, settlement="Retry")
    [wait] = (await client.get("p")).waits

    deployed.current = second()
    answer = await client.await_task("p", task_id=accepted.task_id)

    assert "STATE_TOO_NEW: the state has version 2, newer than version 1" in wait.explanation
    assert answer.response == {"counts": {"tea": 2}}
    [task] = [it for it in (await client.trace("p")).tasks if it.task_id == accepted.task_id]
    assert 1 < task.attempt_count <= ATTEMPTS_MAX


async def test_while_both_versions_run_every_call_is_applied_once_and_nothing_breaks(
    replica: Replica,
) -> None:
    policy = dataclasses.replace(NOW_AND_THEN, attempts_max=50)
    ids, calls = [f"p-{number}" for number in range(20)], 10
    async with (
        first().running("127.0.0.1:0") as old,
        second().running("127.0.0.1:0") as new,
        replica.namespace(
            "both-versions", old, processor_targets=(old, new), retry_policy=policy
        ) as client,
    ):
        async with asyncio.TaskGroup() as group:
            for process_id in ids:
                group.create_task(client.start(process_id, "tea"))
        async with asyncio.TaskGroup() as group:
            for process_id in ids * calls:
                group.create_task(client.call(process_id, "tea"))
        snapshots = [await client.get(it) for it in ids]

    for process in (it.process for it in snapshots):
        assert second().upgraded(process.state, process.state_version) == Counts({"tea": calls + 1})
    # The newer version has saved some, so that the older one refused steps.
    assert 2 in {it.process.state_version for it in snapshots}
    assert {it.process.status for it in snapshots} == {ProcessStatus.RUNNING}


@pytest.mark.parametrize(
    ("bad", "reason", "attempts"),
    [
        pytest.param(
            lambda: _with_handlers(Processor("orders", state=Counts)),
            "ValidationError",
            ATTEMPTS_MAX,
            id="a type that cannot read the states",
        ),
        pytest.param(
            lambda: second(is_broken=True), "STATE_UPGRADE_FAILED", 1, id="an upgrade that raises"
        ),
    ],
)
async def test_all_that_a_bad_deploy_breaks_is_as_before_after_a_rollback_and_retries(
    client: Client, deployed: Deployed, bad: Any, reason: str, attempts: int
) -> None:
    ids = [f"p-{number}" for number in range(COUNT)]
    async with asyncio.TaskGroup() as group:
        for process_id in ids:
            group.create_task(client.start(process_id, "tea"))
    before = await _timers(client, ids, {"items": ["tea"]})
    deployed.current = bad()
    async with asyncio.TaskGroup() as group:
        broken = [group.create_task(_break(client, it)) for it in ids]
    assert {it.result() for it in broken} == {(reason, attempts)}
    assert await _timers(client, ids, {"items": ["tea"]}) == before
    listed = [it.process_id async for it in client.list(statuses=[ProcessStatus.ERROR])]
    assert sorted(listed) == sorted(ids)

    deployed.current = first()
    async with asyncio.TaskGroup() as group:
        for process_id in ids:
            group.create_task(_retry(client, process_id))

    found = [it async for it in client.list(page_size=1000)]
    assert {it.status for it in found} == {ProcessStatus.RUNNING}
    assert await _timers(client, ids, {"items": ["tea", "milk"]}) == before


async def _break(client: Client, process_id: str) -> tuple[str | None, int]:
    """Notify a process that breaks by it; return the reason and the number of attempts."""
    accepted = await client.notify(process_id, "milk", idempotency_key="milk")
    with pytest.raises(errors.ProcessFailedError) as raised:
        await client.await_task(process_id, task_id=accepted.task_id)
    return raised.value.failure_reason, (await client.trace(process_id)).tasks[-1].attempt_count


async def _timers(client: Client, ids: Iterable[str], state: object) -> list[object]:
    """Return when the timers of processes are due, all of which have this state."""
    async with asyncio.TaskGroup() as group:
        found = [group.create_task(client.get(it)) for it in ids]
    snapshots = [it.result() for it in found]
    assert all((it.process.state, it.process.state_version) == (state, 0) for it in snapshots)
    return [it.timer and it.timer.due_at for it in snapshots]


async def _retry(client: Client, process_id: str) -> None:
    retried = await client.retry(process_id)
    await client.await_task(process_id, task_id=retried.task_id)
