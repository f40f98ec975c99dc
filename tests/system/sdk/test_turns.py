"""Turns: many call one process, and its steps are asked and settled together."""

import asyncio
import collections
import contextlib
import dataclasses
import datetime as dt
import functools
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from progressor.sdk import (
    Client,
    Fail,
    ProcessFailedError,
    Processor,
    Reject,
    RejectedError,
    Step,
    TaskCancelledError,
)
from tests.support.engine.points import eventually
from tests.support.engine.replica import Replica, running_replica

pytestmark = pytest.mark.asyncio(loop_scope="module")

_numbers = itertools.count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database) as replica:
        yield replica


@dataclasses.dataclass
class Actor:
    """A process "p" that many call: the first call holds up the others until `gate`."""

    client: Client
    gate: asyncio.Event
    asked: list[str]

    async def crowd(self, *words: str) -> list["asyncio.Task[Any]"]:
        """Call with each word, in this order, and let the calls run once all of them wait."""
        calls = []
        for count, word in enumerate(("first", *words), 1):
            calls.append(asyncio.create_task(self._call(word)))
            await eventually(functools.partial(self._are_waiting, count))
        await eventually(lambda: "first" in self.asked)
        self.gate.set()
        return calls[1:]

    async def _are_waiting(self, count: int) -> bool:
        return len((await self.client.get("p")).waits) == count

    async def _call(self, word: str) -> Any:
        return (await self.client.call("p", word)).response

    async def answers(self, *words: str) -> list[Any]:
        return list(await asyncio.gather(*await self.crowd(*words), return_exceptions=True))


@contextlib.asynccontextmanager
async def acting(
    replica: Replica,
    handler: Callable[[Step[Any]], Any],
    *,
    streaming: bool = True,
    **options: Any,
) -> AsyncIterator[Actor]:
    gate, asked = asyncio.Event(), list[str]()
    processor: Processor[Any] = Processor(f"turns-{next(_numbers)}")
    processor.timeout(lambda _: None)

    @processor.init
    async def init(step: Step[Any]) -> None:
        step.state = 0

    @processor.call
    async def call(step: Step[Any]) -> Any:
        asked.append(step.args)
        if step.args == "first":
            await gate.wait()
        step.state += 1
        step.emit(step.args)
        returned = handler(step)
        return await returned if asyncio.iscoroutine(returned) else returned

    options = {"turn_max": 16, **options}
    async with (
        processor.running("127.0.0.1:0", streaming=streaming) as address,
        replica.namespace(processor.name, address, **options) as client,
    ):
        await client.start("p")
        yield Actor(client, gate, asked)


def settled_ahead(database: str, client: Client) -> int:
    """Return how many steps were settled by turns: they have begun in the same transaction."""
    with psycopg.connect(database) as connection:
        row = connection.execute(
            "SELECT count(*) FROM progressor.tasks"
            " WHERE namespace = %s AND started_at = finished_at",
            [client.namespace],
        ).fetchone()
    assert row is not None
    return int(row[0])


async def test_each_caller_gets_the_answer_of_its_own_call_in_order(
    replica: Replica, database: str
) -> None:
    words = [f"w{n}" for n in range(40)]
    async with acting(replica, lambda step: [step.args, step.state]) as actor:
        answers = await actor.answers(*words)

        assert answers == [[word, n] for n, word in enumerate(words, 2)]
        found = await actor.client.get("p")
        assert found.process.state == 41
        assert [event.payload for event in found.history] == ["first", *words]
        assert settled_ahead(database, actor.client) >= 30
    assert actor.asked == ["first", *words]


async def test_a_rejected_call_leaves_the_others_as_they_are(
    replica: Replica, database: str
) -> None:
    def handle(step: Step[Any]) -> int:
        if step.args == "bad":
            raise Reject("no")
        return int(step.state)

    async with acting(replica, handle) as actor:
        answers = await actor.answers("a", "b", "bad", "c")

        assert [it if isinstance(it, int) else type(it) for it in answers] == [
            2, 3, RejectedError, 4,
        ]  # fmt: skip
        assert settled_ahead(database, actor.client) >= 1


async def test_a_turn_is_settled_up_to_the_first_step_that_fails(replica: Replica) -> None:
    def handle(step: Step[Any]) -> int:
        if step.args == "bad":
            raise Fail("it broke")
        return int(step.state)

    async with acting(replica, handle) as actor:
        answers = await actor.answers("a", "b", "bad", "c")

        assert answers[:2] == [2, 3]
        assert [it.own for it in answers[2:] if isinstance(it, ProcessFailedError)] == [True, False]
        assert (await actor.client.get("p")).process.state == 3
    assert actor.asked == ["first", "a", "b", "bad"]


async def test_a_step_that_does_more_ends_its_turn_and_the_rest_is_asked_again(
    replica: Replica,
) -> None:
    def handle(step: Step[Any]) -> int:
        if step.args == "timer":
            step.set_timer(after=dt.timedelta(hours=1))
        return int(step.state)

    async with acting(replica, handle) as actor:
        answers = await actor.answers("a", "timer", "b", "c")

        assert answers == [2, 3, 4, 5]
        assert len((await actor.client.get("p")).timers) == 1
    assert actor.asked == ["first", "a", "timer", "b", "c"]


async def test_a_step_of_a_turn_can_store_what_it_has_done_once(
    replica: Replica, database: str
) -> None:
    done: collections.Counter[str] = collections.Counter()

    def do(word: str) -> str:
        done[word] += 1
        return word

    async def handle(step: Step[Any]) -> str:
        if step.args != "b":
            return "none"
        await step.extend(60)
        return await step.once("effect", do, step.args, type=str)

    async with acting(replica, handle) as actor:
        answers = await actor.answers("a", "b", "c")

        assert answers == ["none", "b", "none"]
        assert done == {"b": 1}
        with psycopg.connect(database) as connection:
            assert connection.execute("SELECT count(*) FROM progressor.memos").fetchone() == (0,)


async def test_no_caller_waits_for_the_slow_step_of_a_later_call(replica: Replica) -> None:
    slow = asyncio.Event()

    async def handle(step: Step[Any]) -> int:
        if step.args == "slow":
            await slow.wait()
        return int(step.state)

    async with acting(replica, handle) as actor:
        a, b, late, c = await actor.crowd("a", "b", "slow", "c")

        assert [await a, await b] == [2, 3]
        assert not late.done()
        slow.set()
        assert [await late, await c] == [4, 5]


async def test_a_call_that_is_cancelled_while_its_turn_runs_does_not_count(
    replica: Replica,
) -> None:
    held, running = asyncio.Event(), asyncio.Event()

    async def handle(step: Step[Any]) -> int:
        if step.args == "a" and not held.is_set():
            running.set()
            await held.wait()
        return int(step.state)

    async with acting(replica, handle) as actor:
        calls = await actor.crowd("a", "b", "c")
        await running.wait()
        waits = (await actor.client.get("p")).waits
        await actor.client.cancel("p", task_id=waits[2].task_id)
        held.set()

        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert (answers[0], answers[1]) == (2, 3)
        assert isinstance(answers[2], Exception)
        assert (await actor.client.get("p")).process.state == 3


async def test_what_is_done_once_waits_until_its_step_has_a_lease(replica: Replica) -> None:
    """The step is asked again, since the turn is not settled; its function must not have run."""
    held, running = asyncio.Event(), asyncio.Event()
    done: list[str] = []

    async def handle(step: Step[Any]) -> None:
        if step.args == "a":
            running.set()
            await held.wait()
        if step.args == "c":
            await step.once("effect", done.append, step.args)

    async with acting(replica, handle) as actor:
        a, b, c = await actor.crowd("a", "b", "c")
        await running.wait()
        waits = (await actor.client.get("p")).waits
        await actor.client.cancel("p", task_id=waits[1].task_id)
        held.set()

        await asyncio.gather(a, c)
        with pytest.raises(TaskCancelledError):
            await b
    assert actor.asked.count("c") == 2
    assert done == ["c"]


async def test_a_processor_without_streams_is_asked_one_at_a_time(
    replica: Replica, database: str
) -> None:
    async with acting(replica, lambda step: step.state, streaming=False) as actor:
        assert await actor.answers("a", "b", "c") == [2, 3, 4]
        assert settled_ahead(database, actor.client) == 0


async def test_turns_are_off_by_default(replica: Replica, database: str) -> None:
    async with acting(replica, lambda step: step.state, turn_max=1) as actor:
        assert await actor.answers("a", "b", "c") == [2, 3, 4]
        assert settled_ahead(database, actor.client) == 0


@pytest.mark.parametrize(("last", "seen"), [(None, 5), (2, 2), (0, 0)])
async def test_each_step_of_a_turn_sees_the_events_of_those_before(
    replica: Replica, last: int | None, seen: int
) -> None:
    async with acting(
        replica,
        lambda step: [event.event_id for event in step.history],
        history_last=last,
    ) as actor:
        answers = await actor.answers("a", "b", "c", "d", "e", "f")

        whole = list(range(1, 7))
        assert answers[-1] == (whole if last is None else whole[len(whole) - seen :])
