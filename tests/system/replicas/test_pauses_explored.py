"""Random pauses among random requests to two replicas: nothing begins in one, all is done after."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from progressor import errors
from progressor.sdk import Client, RetryPolicy
from tests.support.engine.points import Points, eventually
from tests.support.engine.replica import (
    Env,
    Replica,
    answering,
    open_env,
    running_replica,
    timer,
    unavailable,
)
from tests.support.processor.scripted import Answer, Step

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCRIPTS: dict[str, list[Step]] = {
    "plain": [Answer()],
    "timed": [answering(b"t", set_timer=timer()), Answer()],
    "retried": [unavailable(), Answer()],
    "late": [answering(b"t", set_timer=timer(0.1)), unavailable(), Answer()],
}
REQUESTS = "start", "call", "notify", "call", "notify", "terminate", "remove", "cancel", "retry"
ACTIONS = st.tuples(
    st.sampled_from([*REQUESTS, "pause", "refuse", "resume", "pause", "resume"]),
    st.sampled_from(sorted(SCRIPTS)),
    st.booleans(),
)
EXAMPLES = 12


@pytest_asyncio.fixture(loop_scope="module")
async def third(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database, {"replica.name": "third"}) as replica:
        yield replica


@dataclasses.dataclass(slots=True)
class Explorer:
    """Does one action after the other through two replicas, and keeps what must be done."""

    env: Env
    there: Client
    other: Points
    paused: str = ""
    may_refuse: bool = False
    begun_count: int = 0
    open: dict[int, str] = dataclasses.field(default_factory=dict)
    """Processes by the tasks that were admitted, and have not been taken back."""

    async def act(self, action: str, process_id: str, is_there: bool) -> None:
        client = self.there if is_there else self.env.client
        match action:
            case "pause" | "refuse":
                await self.pause(client, action)
            case "resume":
                await self.resume(client)
            case _:
                await self.request(client, action, process_id)

    async def pause(self, client: Client, how: str) -> None:
        before = [points.count("beat") for points in (self.env.points, self.other)]
        await client.namespaces.pause(client.namespace, reason="explored", refuse=how == "refuse")
        if not self.paused:
            # What began before has come, and what it led to is known, within some heartbeats.
            for points, count in zip((self.env.points, self.other), before, strict=True):
                await points.wait("beat", count + 4)
            self.begun_count = len(self.env.processor.requests)
        self.paused = how
        self.may_refuse |= how == "refuse"

    async def resume(self, client: Client) -> None:
        if self.paused:
            assert len(self.env.processor.requests) == self.begun_count
        self.paused = ""
        await client.namespaces.resume(client.namespace)

    async def request(self, client: Client, action: str, process_id: str) -> None:
        before = await self.tasks_of(process_id) if self.paused else ()
        try:
            await self.send(client, action, process_id)
        except errors.NamespacePausedError:
            # The other replica may not know yet that the last pause, or its end, refuses nothing.
            assert self.may_refuse
            assert action in {"start", "call", "notify"}
        except errors.RequestError:
            pass
        else:
            return
        if self.paused:
            assert await self.tasks_of(process_id) == before

    async def send(self, client: Client, action: str, process_id: str) -> None:
        match action:
            case "start":
                task = await client.start(process_id, accept_only=True)
                self.open[task.task_id] = process_id
            case "call":
                task = await client.call(process_id, accept_only=True)
                self.open[task.task_id] = process_id
            case "notify":
                self.open[(await client.notify(process_id)).task_id] = process_id
            case "terminate" | "remove":
                if action == "remove":
                    await client.remove(process_id)
                else:
                    await client.terminate(process_id, "explored")
                self.open = {key: value for key, value in self.open.items() if value != process_id}
            case "cancel":
                own = [key for key, value in self.open.items() if value == process_id]
                if own:
                    await client.cancel(process_id, task_id=own[-1])
                    del self.open[own[-1]]
            case _:
                await client.retry(process_id)

    async def tasks_of(self, process_id: str) -> tuple[int, ...]:
        with contextlib.suppress(errors.ProcessNotFoundError):
            trace = await self.env.client.trace(process_id)
            return tuple(task.task_id for task in trace.tasks)
        return ()

    async def nothing_waits(self) -> bool:
        found = [it.process_id async for it in self.there.list()]
        views = [await self.there.get(process_id) for process_id in found]
        return not any(view.waits for view in views)


async def explore(first: Replica, second: Replica, actions: list[tuple[str, str, bool]]) -> None:
    policy = RetryPolicy(initial_interval=dt.timedelta(milliseconds=50))
    async with (
        open_env(first, retry_policy=policy, one_at_a_time=False) as env,
        env.client_at(second.address) as there,
    ):
        for process_id, script in SCRIPTS.items():
            env.processor.on_process(process_id, *script)
        explorer = Explorer(env, there, second.points)
        for action in actions:
            await explorer.act(*action)
        await explorer.resume(there)
        for task_id, process_id in explorer.open.items():
            await there.await_task(process_id, task_id=task_id)
        await eventually(explorer.nothing_waits)
        asked = [(it.task.task_id, it.task.attempt) for it in env.processor.requests]
        assert sorted(set(asked)) == sorted(asked)
        assert {task_id for task_id, _ in asked} >= explorer.open.keys()


@pytest.mark.slow
async def test_nothing_begins_in_a_pause_and_all_is_done_once_after_it(
    second_replica: Replica, third: Replica
) -> None:
    loop = asyncio.get_running_loop()

    @settings(
        max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(st.lists(ACTIONS, min_size=5, max_size=25))
    def explored(actions: list[tuple[str, str, bool]]) -> None:
        work = explore(second_replica, third, actions)
        asyncio.run_coroutine_threadsafe(work, loop).result()

    await asyncio.to_thread(explored)
