"""Turns: calls of one process that are settled together, with the lease moved behind them."""

import asyncio

import pytest

from progressor.domain.processes.intent import Outcome, Rejected
from progressor.domain.processes.task import RunningTask, TaskStatus, TaskType
from progressor.storage.steps.settlements import LeaseLost, Written
from tests.support.storage.store import BROKEN, Store, a_request, success

pytestmark = pytest.mark.asyncio(loop_scope="module")

REFUSED = Rejected(code=3, message="no", reason="BAD")


async def called(store: Store, count: int) -> RunningTask:
    """Return a running call of a new process, behind which others wait."""
    key = await store.ready(success(events=1))
    running = await store.run_task(a_request(key, args=b"0"))
    for number in range(1, count):
        await store.admit(a_request(key, args=b"%d" % number))
    return running


async def test_a_turn_settles_each_call_and_leases_the_one_behind(store: Store) -> None:
    first = await called(store, 4)
    line = await store.turns.line(first, 10)
    outcomes: list[Outcome] = [
        success(events=2, response=b"a", aux_state=b"one"),
        REFUSED,
        success(events=1, response=b"c", metadata={"k": 1}),
    ]

    written, following = await store.settle_turn(first, line, outcomes)

    assert not isinstance(written, LeaseLost)
    assert [each.args for each in line] == [b"1", b"2", b"3"]
    tokens = [first.token, *(each.token for each in line)]
    assert tokens == sorted(set(tokens))
    found = await store.processes.get(first.key)
    assert (found.process.aux_state, found.process.last_event_id) == (b"one", 4)
    assert following.process == found.process
    results = [await store.results.await_task(first.key, it.task_id) for it in (first, *line[:2])]
    assert [(it.status, it.response) for it in results if not isinstance(it, int)] == [
        (TaskStatus.FINISHED, b"a"),
        (TaskStatus.ERROR, b""),
        (TaskStatus.FINISHED, b"c"),
    ]
    traced = await store.processes.trace(first.key, after=0, limit=10)
    assert [[event.event_id for event in each.events] for each in traced] == [
        [1], [2, 3], [], [4], [],
    ]  # fmt: skip
    assert isinstance(await store.settle(following, BROKEN), Written)


async def test_only_the_holder_of_the_lease_settles_a_turn_and_only_once(store: Store) -> None:
    first = await called(store, 3)
    line = await store.turns.line(first, 10)
    outcomes = [success(), success()]
    await store.settle_turn(first, line, outcomes)

    again, _ = await store.settle_turn(first, line, outcomes)

    assert again == LeaseLost()
    assert await store.settle(first) == LeaseLost()
    assert await store.settle(line[0]) == LeaseLost()


async def test_a_line_that_has_changed_is_not_settled(store: Store) -> None:
    first = await called(store, 4)
    line = await store.turns.line(first, 10)
    await store.cancel(first.key, line[1].task_id)

    written, _ = await store.settle_turn(first, line, [success()] * 3)

    assert written == LeaseLost()
    following = await store.next_of(first)
    assert following.task_id == line[0].task_id


async def test_a_line_ends_before_what_must_be_asked_alone(store: Store) -> None:
    first = await called(store, 2)
    await store.admit(a_request(first.key, TaskType.NOTIFY))
    await store.admit(a_request(first.key, args=bytes(600 * 1024)))
    await store.admit(a_request(first.key))

    line = await store.turns.line(first, 10)

    assert [each.task_type for each in line] == [TaskType.CALL, TaskType.NOTIFY]


async def test_turns_of_several_processes_are_settled_in_one_batch(store: Store) -> None:
    firsts = [await called(store, 3) for _ in range(5)]
    lines = [await store.turns.line(each, 10) for each in firsts]

    async with asyncio.TaskGroup() as group:
        settled = [
            group.create_task(
                store.settle_turn(first, line, [success(events=n), success(events=1)])
            )
            for n, (first, line) in enumerate(zip(firsts, lines, strict=True))
        ]

    for n, (first, each) in enumerate(zip(firsts, settled, strict=True)):
        written, following = each.result()
        assert not isinstance(written, LeaseLost)
        process = (await store.processes.get(first.key)).process
        assert process.last_event_id == n + 2
        assert process == following.process
