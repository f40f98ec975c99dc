"""Bulk operations on one engine: what each kind does and leaves alone, how one stops, and kills."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from progressor import errors
from progressor.runtime.step import bulk_steps
from progressor.sdk import (
    BulkKind,
    BulkOperation,
    BulkState,
    Client,
    Every,
    Graph,
    NamespaceConfig,
    ProcessStatus,
    ScheduledStart,
    ScheduleSpec,
)
from progressor.storage.jobs.bulks import Bulks
from tests.support.engine.replica import Env, Replica, answering, broken, open_env, running_replica
from tests.support.processor.scripted import Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPERATIONS = "progressor.operations"
RUNNING, ERROR, FINISHED = ProcessStatus.RUNNING, ProcessStatus.ERROR, ProcessStatus.FINISHED


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def env(replica: Replica) -> AsyncIterator[Env]:
    async with open_env(replica, one_at_a_time=False) as found:
        yield found


async def ended(client: Client, bulk: BulkOperation) -> BulkOperation:
    """Return an operation at its end, which is that of its process."""
    await client.result(bulk.operation_id, namespace=OPERATIONS, timeout=60)
    return await client.bulk.get(bulk.operation_id)


async def results(client: Client, bulk: BulkOperation, **which: bool) -> dict[str, tuple[str, str]]:
    listing = client.bulk.results(bulk.operation_id, page_size=2, **which)
    return {it.process_id: (it.result.value, it.reason) async for it in listing}


async def statuses(env: Env) -> dict[str, ProcessStatus]:
    return {it.process_id: it.status async for it in env.client.list()}


async def populate(env: Env) -> None:
    """Make p0 and p1, broken, p2, which runs, and q, also broken, which no filter matches."""
    for name in ("p0", "p1", "q"):
        await env.broken(name, answering())
    await env.running("p2", answering())


@pytest.mark.parametrize(
    ("kind", "matched", "after", "more_steps"),
    [
        (BulkKind.RETRY, 2, {"p0": RUNNING, "p1": RUNNING, "p2": RUNNING}, "p0 p1"),
        (BulkKind.SIMPLE_REPAIR, 2, {"p0": RUNNING, "p1": RUNNING, "p2": RUNNING}, ""),
        (BulkKind.REPAIR, 2, {"p0": RUNNING, "p1": RUNNING, "p2": RUNNING}, "p0 p1"),
        (BulkKind.TERMINATE, 3, {"p0": FINISHED, "p1": FINISHED, "p2": FINISHED}, ""),
        (BulkKind.REMOVE, 3, {}, ""),
        (BulkKind.NOTIFY, 1, {"p0": ERROR, "p1": ERROR, "p2": RUNNING}, "p2"),
    ],
)
async def test_each_kind_changes_what_matches_once(
    env: Env, kind: BulkKind, matched: int, after: dict[str, ProcessStatus], more_steps: str
) -> None:
    await populate(env)
    preview = await env.client.bulk.preview(kind, id_prefix="p")
    assert (preview.matched_count, len(preview.sample)) == (matched, matched)
    asked: dict[str, Any] = {
        "args": b"fix" if kind in {BulkKind.REPAIR, BulkKind.NOTIFY} else None,
        "operation_id": f"{kind}-{env.namespace}", "reason": "INC-1", "author": "me",
        "failed_share_max": 1.0, "id_prefix": "p",
    }  # fmt: skip

    bulk = await env.client.bulk.start(kind, **asked)
    bulk = await ended(env.client, bulk)

    for name in more_steps.split():
        await env.settled(name, 3 if after[name] is RUNNING and name != "p2" else 2)
    assert bulk.state is BulkState.DONE
    assert await statuses(env) == {**after, "q": ERROR}
    assert (bulk.matched_count, bulk.done_count) == (matched, matched)
    again = await env.client.bulk.start(kind, **asked)
    assert again == bulk
    with pytest.raises(errors.OperationAlreadyExistsError):
        await env.client.bulk.start(kind, **{**asked, "author": "you"})


async def test_the_outcomes_of_requested_steps_are_counted(env: Env) -> None:
    hang = Hang(response=answering().response)
    await env.broken("well", answering())
    await env.broken("again", broken())
    await env.broken("slow", hang)
    bulk = await ended(env.client, await env.client.bulk.start(BulkKind.RETRY))
    await env.settled("well", 3)
    await env.settled("again", 3)
    await env.asked("slow", 3)

    bulk = await env.client.bulk.get(bulk.operation_id, count_outcomes=True)
    assert (bulk.state, bulk.done_count) == (BulkState.DONE, 3)
    assert (bulk.error_count, bulk.waiting_count) == (1, 1)
    hang.released.set()
    await env.settled("slow", 3)
    bulk = await env.client.bulk.get(bulk.operation_id, count_outcomes=True)
    assert (bulk.error_count, bulk.waiting_count) == (1, 0)
    assert (await env.client.bulk.get(bulk.operation_id)).error_count is None


async def test_a_repair_that_fails_leaves_its_process_counted_as_in_error(env: Env) -> None:
    await env.broken("p", broken("no such warehouse"))
    bulk = await ended(env.client, await env.client.bulk.start(BulkKind.REPAIR, b"bad"))
    await env.settled("p", 3)

    bulk = await env.client.bulk.get(bulk.operation_id, count_outcomes=True)
    assert (bulk.done_count, bulk.failed_count) == (1, 0)
    assert (bulk.error_count, bulk.waiting_count) == (1, 0)


async def test_a_cancellation_ends_one_task_of_each(env: Env) -> None:
    hang, running = await env.busy("p0")
    behind = await env.client.call("p0", accept_only=True)
    await env.running("p1")
    preview = await env.client.bulk.preview(BulkKind.CANCEL, id_prefix="p")

    bulk = await ended(env.client, await env.client.bulk.start(BulkKind.CANCEL, id_prefix="p"))

    assert preview.matched_count == bulk.matched_count == 1
    assert [it.process_id for it in preview.sample] == ["p0"]

    assert await results(env.client, bulk) == {"p0": ("done", "")}
    with pytest.raises(errors.TaskCancelledError):
        await env.client.await_task("p0", task_id=running)
    hang.released.set()
    await env.client.await_task("p0", task_id=behind.task_id)


@pytest.mark.parametrize(
    ("kind", "status", "allowed"),
    [
        (BulkKind.RETRY, RUNNING, "error"),
        (BulkKind.NOTIFY, ERROR, "init or running"),
        (BulkKind.CANCEL, FINISHED, "init or running or error"),
        (BulkKind.TERMINATE, FINISHED, "init or running or error"),
    ],
)
async def test_statuses_that_can_never_take_an_operation_are_refused(
    env: Env, kind: BulkKind, status: ProcessStatus, allowed: str
) -> None:
    words = f"filter.statuses: must be {allowed} for {kind}, got {status}"
    with pytest.raises(errors.InvalidRequestError, match=words):
        await env.client.bulk.preview(kind, statuses=[status])
    with pytest.raises(errors.InvalidRequestError, match=words):
        await env.client.bulk.start(kind, statuses=[status], reason="why")


@pytest.mark.parametrize("everywhere", [False, True])
async def test_args_are_bounded_as_those_of_a_single_request(
    replica: Replica, everywhere: bool
) -> None:
    async with open_env(replica, payload_bytes_max=8) as env:
        with pytest.raises(errors.InvalidRequestError) as refused:
            await env.client.bulk.start(BulkKind.NOTIFY, b"123456789", all_namespaces=everywhere)

    assert f"args: must be at most 8 bytes, got 9, in namespace {env.namespace}" in str(
        refused.value
    )


async def test_what_has_changed_since_the_snapshot_is_skipped(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process is repaired, breaks again, is removed or comes back between match and chunk."""
    for name in ("gone", "new", "repaired", "again", "same"):
        await env.broken(name, broken(), answering())
    matched, go = asyncio.Event(), asyncio.Event()
    apply = bulk_steps.BulkSteps._apply

    async def late(self: bulk_steps.BulkSteps, bulk: Any) -> tuple[int, float]:
        matched.set()
        await go.wait()
        return await apply(self, bulk)

    monkeypatch.setattr(bulk_steps.BulkSteps, "_apply", late)
    bulk = await env.client.bulk.start(BulkKind.REMOVE, statuses=[ERROR])
    await matched.wait()
    await env.broken("late")
    for name in ("gone", "new"):
        await env.client.remove(name)
    await env.broken("new")
    await env.client.simple_repair("repaired")
    await env.client.retry("again")
    await env.settled("again", 3)
    go.set()
    bulk = await ended(env.client, bulk)

    assert await results(env.client, bulk) == {
        "gone": ("skipped", "PROCESS_NOT_FOUND"), "new": ("skipped", "PROCESS_NOT_FOUND"),
        "repaired": ("skipped", "PROCESS_CHANGED"), "again": ("skipped", "PROCESS_CHANGED"),
        "same": ("done", ""),
    }  # fmt: skip
    assert set(await statuses(env)) == {"new", "repaired", "again", "late"}


async def test_it_stops_at_a_share_of_failures_or_on_request(env: Env) -> None:
    for number in range(12):
        await env.client.put(f"p{number}", status=ERROR)
    asked: dict[str, Any] = {"rate_max": 10, "statuses": [ERROR]}

    bulk = await env.client.bulk.start(
        BulkKind.RETRY, failed_share_max=0.5, failed_window=4, **asked
    )
    bulk = await ended(env.client, bulk)
    assert (bulk.state, bulk.stop_reason) == (BulkState.STOPPED, "4 of the last 4 failed")
    assert set((await results(env.client, bulk, failed=True)).values()) == {
        ("failed", "NOTHING_TO_RETRY")
    }

    slow = await env.client.bulk.start(BulkKind.REMOVE, **(asked | {"rate_max": 1}))
    await env.points.wait("bulk_chunk", operation_id=slow.operation_id)
    await env.client.bulk.stop(slow.operation_id, "enough")
    await env.client.result(slow.operation_id, namespace=OPERATIONS)
    slow = await env.client.bulk.get(slow.operation_id)
    assert (slow.state, slow.stop_reason) == (BulkState.STOPPED, "enough")
    assert len(await statuses(env)) == 12 - slow.done_count > 0
    assert [it.operation_id async for it in env.client.bulk.list(page_size=1)][:2] == [
        slow.operation_id, bulk.operation_id,
    ]  # fmt: skip


async def test_one_that_does_not_get_on_says_why(
    env: Env, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await env.broken("p0", answering())
    noted, is_slow = asyncio.Event(), True
    match, note = Bulks.match, Bulks.note_delay

    async def slow(self: Bulks, operation_id: str) -> bool:
        if is_slow:
            raise errors.StorageUnavailableError("too slow")
        return await match(self, operation_id)

    async def tell(self: Bulks, operation_id: str, why: str) -> None:
        await note(self, operation_id, why)
        noted.set()

    monkeypatch.setattr(Bulks, "match", slow)
    monkeypatch.setattr(Bulks, "note_delay", tell)
    bulk = await env.client.bulk.start(BulkKind.RETRY)
    await noted.wait()
    delayed = await env.client.bulk.get(bulk.operation_id)
    is_slow = False
    bulk = await ended(env.client, bulk)

    why = "storage is unavailable: too slow"
    assert (delayed.state, delayed.stop_reason) == (BulkState.MATCHING, why)
    assert (bulk.state, bulk.stop_reason) == (BulkState.DONE, "")
    [said, *_] = [it for it in caplog.records if it.message == "bulk step is run again"]
    assert (vars(said)["operation_id"], vars(said)["why"]) == (bulk.operation_id, why)


async def test_one_that_follows_takes_up_each_process_once_until_it_is_stopped(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_steps, "FOLLOW_SECONDS", 0.01)
    await env.broken("early", answering())
    bulk = await env.client.bulk.start(BulkKind.RETRY, follow=True, rate_max=None)
    await env.settled("early", 3)
    await env.broken("again", broken(), answering())
    await env.settled("again", 3)
    await env.broken("late", answering())
    await env.settled("late", 3)  # the search that found it has also seen the other in error

    bulk = await env.client.bulk.stop(bulk.operation_id, "enough")
    await env.client.result(bulk.operation_id, namespace=OPERATIONS)

    assert (bulk.state, bulk.stop_reason) == (BulkState.DONE, "enough")
    assert await results(env.client, bulk) == {
        "early": ("done", ""), "again": ("done", ""), "late": ("done", ""),
    }  # fmt: skip
    assert bulk.matched_count == bulk.done_count == 3
    assert await statuses(env) == {"early": RUNNING, "again": ERROR, "late": RUNNING}


async def test_nobody_else_changes_the_namespace_of_operations(env: Env) -> None:
    bulk = await ended(env.client, await env.client.bulk.start(BulkKind.REMOVE, id_prefix="none"))
    own = Client(env.replica.address, namespace=OPERATIONS)
    async with own:
        config = NamespaceConfig(name=OPERATIONS, processor_targets=("h:1",))
        spec = ScheduleSpec(target=ScheduledStart(), times=Every(1))
        graph, there = Graph(), Graph()
        graph.node("a")
        there.node("a", b"", namespace=OPERATIONS)
        for request in (
            own.start("p"), own.call(bulk.operation_id), own.put("p", status=RUNNING),
            own.namespaces.update(config), own.namespaces.delete(OPERATIONS),
            own.bulk.start(BulkKind.REMOVE), own.gates.set("g", capacity=1),
            own.jobs.submit("j", graph), own.schedules.create("s", spec),
            env.client.jobs.submit("j", there),
        ):  # fmt: skip
            with pytest.raises(errors.InvalidRequestError, match=f"must not be {OPERATIONS}"):
                await request
        await own.result(bulk.operation_id)
        await own.remove(bulk.operation_id)
        with pytest.raises(errors.OperationNotFoundError):
            await own.bulk.get(bulk.operation_id)
        with pytest.raises(errors.NamespaceNotFoundError):
            await own.bulk.preview(BulkKind.RETRY, namespace="nobody")
