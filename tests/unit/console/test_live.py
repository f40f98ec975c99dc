"""What must hold for watched pages: one load for all, a budget, and no wait for who is slow."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from progressor import errors
from progressor.console.live import (
    INTERVAL_SECONDS,
    KEPT_SECONDS,
    LOADS_PER_SECOND,
    REST_SHARE,
    Live,
    Version,
)
from tests.support.runtime.virtual_time import LoopClock, in_virtual_time


class Source:
    """What pages are loaded from: counts loads, and fails when told to."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.failure: Exception | None = None

    async def load(self, key: str) -> Mapping[str, Any]:
        self.counts[key] = self.counts.get(key, 0) + 1
        await asyncio.sleep(0.01)
        if self.failure is not None:
            raise self.failure
        return {"number": self.counts[key]}

    def watch(self, live: Live, key: str = "page") -> AsyncGenerator[Version]:
        return live.watch(key, lambda: self.load(key))


@contextlib.asynccontextmanager
async def watching(live: Live, source: Source, count: int) -> AsyncIterator[list[list[Version]]]:
    """Watch one page so many times, and return what each watcher has seen."""
    seen: list[list[Version]] = [[] for _ in range(count)]

    async def watch(versions: list[Version]) -> None:
        async with contextlib.aclosing(source.watch(live)) as found:
            async for version in found:
                versions.append(version)  # noqa: PERF401  # read while it grows

    tasks = [asyncio.create_task(watch(it)) for it in seen]
    yield seen
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@in_virtual_time
async def test_all_watchers_of_a_page_see_the_versions_of_one_load() -> None:
    live, source = Live(LoopClock()), Source()
    async with watching(live, source, 200) as seen:
        await asyncio.sleep(10)
    assert source.counts["page"] == live.load_count
    assert live.load_count == pytest.approx(10 / INTERVAL_SECONDS, abs=2)
    assert all(it == seen[0] for it in seen)
    assert [it.number for it in seen[0]] == list(range(1, len(seen[0]) + 1))


@in_virtual_time
async def test_a_page_is_loaded_no_more_once_its_last_watcher_has_left() -> None:
    live, source = Live(LoopClock()), Source()
    async with watching(live, source, 2):
        await asyncio.sleep(1)
        assert live.page_count == 1
    before = live.load_count
    await asyncio.sleep(10)
    assert (live.load_count, live.page_count) == (before, 0)
    assert [it for it in asyncio.all_tasks() if it.get_name().startswith("live")] == []


@in_virtual_time
async def test_many_pages_share_a_budget() -> None:
    live, source = Live(LoopClock()), Source()
    async with contextlib.AsyncExitStack() as stack:
        for number in range(100):
            page = source.watch(live, f"page-{number}")
            await anext(await stack.enter_async_context(contextlib.aclosing(page)))
        before = live.load_count
        await asyncio.sleep(60)
        assert live.load_count - before == pytest.approx(60 * LOADS_PER_SECOND, rel=0.1)
        assert min(source.counts.values()) >= 5


@in_virtual_time
async def test_a_page_that_takes_long_to_load_is_loaded_more_seldom() -> None:
    live = Live(LoopClock())

    async def load() -> Mapping[str, Any]:
        await asyncio.sleep(1)
        return {}

    async with contextlib.aclosing(live.watch("large job", load)) as versions:
        await anext(versions)
        await asyncio.sleep(100)
    assert live.load_count == pytest.approx(100 / (1 + REST_SHARE), abs=2)


@in_virtual_time
async def test_a_slow_watcher_misses_versions_and_delays_nobody() -> None:
    live, source = Live(LoopClock()), Source()
    async with (
        watching(live, source, 1) as seen,
        contextlib.aclosing(source.watch(live)) as slow,
    ):
        assert (await anext(slow)).number == 1
        await asyncio.sleep(10)
        assert len(seen[0]) == pytest.approx(10 / INTERVAL_SECONDS, abs=2)
        assert (await anext(slow)).number == seen[0][-1].number


@in_virtual_time
async def test_a_page_that_cannot_be_loaded_now_says_why_and_comes_back() -> None:
    live, source = Live(LoopClock()), Source()
    source.failure = errors.StorageUnavailableError("away")
    async with contextlib.aclosing(source.watch(live)) as versions:
        version = await anext(versions)
        assert (version.facts, version.error) == (None, source.failure)
        source.failure = None
        assert (await anext(versions)).facts == {"number": 2}


@in_virtual_time
async def test_a_bug_in_a_load_ends_all_watchers_and_is_logged_once() -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[assignment]  # keeps them
    log = logging.getLogger("progressor.console.live")
    log.addHandler(handler)
    live, source = Live(LoopClock()), Source()
    try:
        async with watching(live, source, 3) as seen:
            await asyncio.sleep(1)
            source.failure = ZeroDivisionError("a bug")
            async with asyncio.timeout(10):
                ends = [it async for it in source.watch(live)]
            assert ends in ([], seen[0][-1:])
            assert live.page_count == 0
            with pytest.raises(RuntimeError):
                await live.read("page", lambda: source.load("page"))
    finally:
        log.removeHandler(handler)
    assert [it.exc_info[1] for it in records if it.exc_info] == [source.failure] * 2
    source.failure = None
    async with contextlib.aclosing(source.watch(live)) as versions:
        assert (await anext(versions)).number == 1


@in_virtual_time
async def test_who_reads_now_and_then_costs_no_more_than_who_watches() -> None:
    live, source = Live(LoopClock()), Source()

    async def read() -> Version:
        return await live.read("page", lambda: source.load("page"))

    found = await asyncio.gather(*[read() for _ in range(50)])
    assert len({it.number for it in found}) == 1
    await asyncio.sleep(KEPT_SECONDS / 2)
    assert (await read(), live.load_count) == (found[0], 1)
    await asyncio.sleep(KEPT_SECONDS)
    await read()
    assert (live.load_count, live.page_count) == (2, 0)


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.sampled_from("abc")),
        st.tuples(st.just("leave"), st.integers(0, 5)),
        st.tuples(st.just("wait"), st.floats(0, 3)),
        st.tuples(st.just("fail"), st.booleans()),
        st.tuples(st.just("read"), st.sampled_from("abc")),
    ),
    max_size=30,
)


class Visitors:
    """Watchers of pages, who come and go, and when each last had a version."""

    def __init__(self) -> None:
        self.live, self.source = Live(LoopClock()), Source()
        self.watchers: list[tuple[str, asyncio.Task[None]]] = []
        self.seen_at: dict[str, float] = {}

    @property
    def watched(self) -> set[str]:
        return {key for key, _ in self.watchers}

    async def watch(self, key: str, name: str) -> None:
        async with contextlib.aclosing(self.source.watch(self.live, key)) as versions:
            async for version in versions:
                self.seen_at[name] = version.loaded_at

    async def step(self, what: str, value: Any) -> None:
        match what:
            case "join":
                name = f"watcher {len(self.seen_at)} of {value}"
                self.seen_at.setdefault(name, -1.0)
                task = asyncio.create_task(self.watch(value, name), name=name)
                self.watchers.append((value, task))
            case "leave" if value < len(self.watchers):
                self.watchers.pop(value)[1].cancel()
            case "wait":
                await asyncio.sleep(value)
            case "fail":
                self.source.failure = errors.StorageUnavailableError("away") if value else None
            case "read":
                await self.live.read(value, lambda: self.source.load(value))
            case _:
                pass  # nobody is there to leave


@given(_STEPS)
@in_virtual_time
async def test_whoever_comes_and_goes_all_watchers_are_served_and_nothing_is_left(
    steps: list[tuple[str, Any]],
) -> None:
    visitors = Visitors()
    for what, value in steps:
        await visitors.step(what, value)
    now = asyncio.get_running_loop().time()
    await asyncio.sleep(2 * INTERVAL_SECONDS)
    seen = [visitors.seen_at[task.get_name()] for _, task in visitors.watchers]
    assert all(it >= now for it in seen), "a watcher hangs"
    assert visitors.live.page_count == len(visitors.watched)
    for _, task in visitors.watchers:
        task.cancel()
    await asyncio.sleep(1)
    assert (visitors.live.page_count, len(asyncio.all_tasks())) == (0, 1)
