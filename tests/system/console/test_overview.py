"""The overview: rates, namespaces, what waits, failures, and an engine that is idle or away."""

import asyncio
import contextlib
import datetime as dt
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import pytest

from progressor.console.pages.engine.charts import HEIGHT, WIDTH, chart_of
from progressor.console.visits.meters import SHOWN, Rate
from tests.support.console.console import running_console
from tests.support.console.html import Element
from tests.support.console.visitor import PATIENCE_SECONDS, Visitor
from tests.support.engine.replica import Env, running_replica

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


async def shows(visitor: Visitor, is_it: Callable[[Element], object], path: str = "/") -> Element:
    """Return the region of a live page once it is like this."""
    async with asyncio.timeout(PATIENCE_SECONDS), visitor.live(path) as stream:
        while not is_it(region := (await stream.message()).region):
            pass
    return region


async def test_counts_by_status_lead_to_the_processes_that_they_count(
    env: Env, visitor: Visitor
) -> None:
    await env.running("running")
    await env.broken("broken")
    await env.broken("as broken")
    await env.finished("finished")

    def counts(region: Element) -> list[str]:
        cells = [cell for row in _row(region, env) for cell in row.all("td", "number")]
        return [it.text for it in cells][3:]

    region = await shows(visitor, lambda it: counts(it) == ["0", "1", "2", "1"])
    listed = await visitor.follow(_row(region, env)[0].one("a", "bad"))
    assert sorted(it[0] for it in listed.page.rows()) == ["as broken", "broken"]


def _row(region: Element, env: Env) -> list[Element]:
    return region.all(id=f"namespace-{env.namespace}")


async def test_what_waits_is_counted_by_its_cause_and_found(env: Env, visitor: Visitor) -> None:
    await env.timed("timed")
    region = await shows(visitor, lambda it: it.all(id="waiting-timer"))
    row = region.one(id="waiting-timer")
    assert row.one("td", "number").text == "1"
    listed = await visitor.follow(row.one("a"))
    assert [it[0] for it in listed.page.rows()] == ["timed"]
    assert parse_qs(urlsplit(listed.address).query) == {"cause": ["timer"]}


async def test_failures_lead_to_the_processes_that_broke(env: Env, visitor: Visitor) -> None:
    await env.broken("broken")
    region = (await visitor.get("/")).region
    (failure,) = [it for it in region.one(class_="failures").all("li") if env.namespace in it.text]
    assert (failure.one("a").text, "it broke" in failure.text) == (
        "1 \N{MULTIPLICATION SIGN} BROKEN",
        True,
    )
    assert [it[0] for it in (await visitor.follow(failure.one("a"))).page.rows()] == ["broken"]


async def test_a_pause_shows_its_reason_and_since_when(env: Env, visitor: Visitor) -> None:
    paused = await env.client.namespaces.pause(env.namespace, reason="the disk is full")
    assert paused.pause is not None
    region = await shows(visitor, lambda it: "the disk is full" in it.text)
    shown = dt.datetime.fromisoformat(_row(region, env)[0].all("time")[-1]["datetime"])
    assert abs(shown - paused.pause.paused_at) < dt.timedelta(milliseconds=1)


async def test_an_idle_engine_says_so_and_one_that_works_does_not(
    env: Env, visitor: Visitor
) -> None:
    await shows(visitor, lambda it: "Idle" in it.text)
    hang, _ = await env.busy("busy")
    await shows(visitor, lambda it: "Idle" not in it.text)
    hang.released.set()
    await env.settled("busy", 2)


async def test_an_engine_that_is_away_shows_what_it_said_and_since_when(database: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with running_replica(database) as replica:
            console = await stack.enter_async_context(running_console(replica.address))
            visitor = console.visitor()
            before = await visitor.get("/")
        away = await visitor.get("/")
    assert (before.status, before.region.all(role="alert")) == (200, [])
    alert = away.region.one(role="alert")
    assert alert.text.startswith("The engine has not answered since ")
    since = dt.datetime.fromisoformat(alert.one("time")["datetime"])
    assert dt.timedelta() < dt.datetime.now(dt.UTC) - since < dt.timedelta(minutes=5)
    assert away.region.all("table"), "what it showed before is still there"


# --- The chart


def _rates(*settled: float) -> list[Rate]:
    return [Rate(NOON + n * SHOWN / 10, it, it / 10) for n, it in enumerate(settled)]


async def test_a_chart_has_a_scale_of_round_numbers_and_ends_at_the_last_rate() -> None:
    chart = chart_of(_rates(0, 130, 65))
    assert chart is not None
    assert (chart.top, chart.last.settled) == (200, 65)
    places = [tuple(map(float, it.split(","))) for it in chart.settled.split()]
    assert places[0] == (WIDTH * 0.8, HEIGHT)
    assert places[-1] == (WIDTH, HEIGHT * (1 - 65 / 200))


async def test_nothing_is_drawn_of_one_rate() -> None:
    assert chart_of(_rates(5)) is None


async def test_the_scale_of_an_idle_engine_is_not_empty() -> None:
    chart = chart_of(_rates(0, 0))
    assert chart is not None
    assert chart.top == 1
