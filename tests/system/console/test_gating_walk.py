"""The seed's walk of a gated task, replayed while browsers in all languages watch its process.

After each transition the page must have the right colour, icon, word and cause. The bar is one
second on a quiet machine; what it was is printed.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest

from progressor.console.rendering.looks import (
    AVAILABLE,
    CANCELLED,
    DONE,
    FAILED,
    PENDING,
    RUNNING,
    Look,
)
from progressor.console.words.words import LANGUAGES, Words
from progressor.sdk import Constraints
from progressor.sdk.values.constraints import GateHold
from tests.support.console.console import Console
from tests.support.console.html import Element
from tests.support.console.visitor import Stream
from tests.support.engine.replica import Env, answering, broken
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

# It scans: an instant that is so far ahead is found by a scan.
SETTINGS = {"scanner.interval_seconds": "1", "replica.lease_timeout_seconds": "30"}
ENV_OPTIONS = {"worker_count_max": 1}

SEEN_SECONDS_MAX = 10
"""From a transition until every page shows it; the bar is 1 s on a quiet machine."""

RUN_AT_SECONDS = SEEN_SECONDS_MAX
"""Until the task may run: long enough that its first state is seen before."""

DATABASE, ROLLOUT = "database/orders", "rollout/7"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a page shows of a task: its look, and its causes by what they are about.

    ``causes``: the ids of processes and gates that its sentence links to, and the instants in it.
    ``text`` is all of it, for the message of a test that fails.
    """

    look: Look
    causes: frozenset[str] = frozenset()
    text: str = ""


def shown(region: Element, task_id: int, words: Words) -> Shown | None:
    """Return what a region shows of a task, by its wait, or by its row once it has ended."""
    found = region.all("li", id=f"wait-{task_id}") or region.all("tr", id=f"task-{task_id}")
    if not found:
        return None
    status = found[0].all(class_="status")[0]
    looks = {it.name: it for it in (PENDING, AVAILABLE, RUNNING, DONE, FAILED, CANCELLED)}
    (name,) = status.classes - {"status"}
    look = looks[name]
    assert status.one("use")["href"].endswith(f"#{name}")
    assert status.text == words(look.word)
    causes = {it.text for it in found[0].all("a", class_="id")} if found[0].tag == "li" else set()
    instants = {it["datetime"] for it in found[0].all("time")} if found[0].tag == "li" else set()
    return Shown(look=look, causes=frozenset(causes | instants), text=found[0].text)


class Watchers:
    """A page that is watched in all languages."""

    def __init__(self, streams: Mapping[str, Stream]) -> None:
        self._streams = streams
        self.seconds: dict[str, float] = {}

    async def see(
        self,
        step: str,
        task_id: int,
        look: Look,
        *,
        causes: Sequence[str] = (),
        without: Sequence[str] = (),
        since: float | None = None,
    ) -> None:
        """Wait until all of them show a task with a look, with causes and without others.

        `since`: the time of the loop at which it became so; None: now.
        """
        loop = asyncio.get_running_loop()
        began = loop.time() if since is None else since

        def fits(found: Shown | None) -> bool:
            return (
                found is not None
                and found.look is look
                and found.causes >= {*causes}
                and not found.causes & {*without}
            )

        async def until(stream: Stream, words: Words) -> None:
            found: Shown | None = None
            try:
                async with asyncio.timeout_at(began + SEEN_SECONDS_MAX):
                    while not fits(found):
                        found = shown((await stream.message()).region, task_id, words)
            except TimeoutError:
                pytest.fail(f"{step}, in {words.language}: the page shows {found}")

        async with asyncio.TaskGroup() as group:
            for language, stream in self._streams.items():
                group.create_task(until(stream, Words(language)))
        self.seconds[step] = loop.time() - began


@contextlib.asynccontextmanager
async def watching(console: Console, env: Env, process_id: str) -> AsyncIterator[Watchers]:
    """Watch the page of a process in all languages, each by a stream of its own."""
    async with contextlib.AsyncExitStack() as stack:
        streams = {}
        for language in LANGUAGES:
            visitor = console.visitor({"accept-language": language})
            stream = visitor.live(f"/processes/{env.namespace}/{process_id}")
            streams[language] = await stack.enter_async_context(stream)
        watchers = Watchers(streams)
        yield watchers
        for step, seconds in watchers.seconds.items():
            print(f"\n{seconds:6.3f} s  {step}", end="")  # noqa: T201  # the measurement


async def holding(env: Env, process_id: str, gate: str) -> None:
    """Have a process hold a gate until it ends."""
    env.processor.on_process(process_id, answering(), Answer())
    held = Constraints(gates={gate: 1}, hold=GateHold.PROCESS)
    await env.client.start(process_id, constraints=held)


async def test_a_gated_task_walks_through_all_its_states(console: Console, env: Env) -> None:
    await env.running("smaller")
    smaller = await env.client.call(
        "smaller",
        constraints=Constraints(order=("orders", "1.9"), run_at=in_seconds(3600)),
        accept_only=True,
    )
    await holding(env, "migrating", DATABASE)
    await holding(env, "rolling", ROLLOUT)
    hang = Hang()
    await env.running("change", hang, Answer())
    busy, occupying = await occupied(env)
    async with watching(console, env, "change") as page:
        run_at = in_seconds(RUN_AT_SECONDS)
        left = run_at - dt.datetime.now(dt.UTC)
        due = asyncio.get_running_loop().time() + left.total_seconds()
        wanted = Constraints(
            run_at=run_at,
            order=("orders", "1.10"),
            gates={DATABASE: None, ROLLOUT: None},
        )
        task = (await env.client.call("change", constraints=wanted, accept_only=True)).task_id
        until = run_at.isoformat(timespec="milliseconds")
        await page.see("pending: its time has not come", task, PENDING, causes=[until])

        await page.see(
            "pending: a smaller version waits",
            task,
            PENDING,
            causes=["smaller"],
            without=[until],
            since=due,
        )
        await env.client.cancel("smaller", task_id=smaller.task_id)
        gates = [DATABASE, ROLLOUT, "migrating", "rolling"]
        await page.see(
            "pending: another one is on its database",
            task,
            PENDING,
            causes=gates,
            without=["smaller"],
        )
        await env.client.terminate("migrating", reason="done")
        await page.see(
            "pending: too many of its rollout",
            task,
            PENDING,
            causes=[ROLLOUT, "rolling"],
            without=[DATABASE, "migrating"],
        )
        await env.client.terminate("rolling", reason="done")
        await page.see("ready: no worker is free", task, AVAILABLE, without=gates)

        await env.client.gates.set(ROLLOUT, 0)
        await page.see("pending again: its gate was lowered", task, PENDING, causes=[ROLLOUT])
        await env.client.gates.set(ROLLOUT, 1)
        await page.see("ready again: its gate was raised", task, AVAILABLE, without=gates)

        occupying.released.set()
        await env.client.await_task("busy", task_id=busy)
        await page.see("running: a worker was free", task, RUNNING, without=gates)
        hang.released.set()
        await page.see("done", task, DONE)


async def test_a_gated_task_that_fails_or_is_cancelled_says_so(console: Console, env: Env) -> None:
    hang = Hang(response=broken().response)
    await env.running("failing", hang, Answer())
    await env.running("cancelled")
    wanted = Constraints(gates={DATABASE: 1})
    async with watching(console, env, "failing") as failing:
        first = (await env.client.call("failing", constraints=wanted, accept_only=True)).task_id
        await failing.see("running", first, RUNNING)
        async with watching(console, env, "cancelled") as cancelled:
            second = await env.client.call("cancelled", constraints=wanted, accept_only=True)
            await cancelled.see(
                "pending: the gate is held", second.task_id, PENDING, causes=[DATABASE, "failing"]
            )
            await env.client.cancel("cancelled", task_id=second.task_id)
            await cancelled.see("cancelled", second.task_id, CANCELLED)
        hang.released.set()
        await failing.see("failed", first, FAILED)


def in_seconds(seconds: float) -> dt.datetime:
    """Return an instant in whole seconds, as a page shows it."""
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    return now + dt.timedelta(seconds=seconds + 1)


async def occupied(env: Env) -> tuple[int, Hang]:
    """Occupy the only worker of the namespace; return the task that does, and what ends it."""
    hang, task = await env.busy("busy")
    return task, hang
