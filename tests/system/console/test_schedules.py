"""The pages of schedules, and what can be done there, as a browser without scripts does."""

import datetime as dt
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from progressor import job_errors
from progressor.sdk.client.schedules import (
    Cron,
    Every,
    OverlapPolicy,
    ScheduledJob,
    ScheduledStart,
    ScheduleSpec,
)
from progressor.sdk.values.graph import Graph
from tests.support.console.html import Element
from tests.support.console.visitor import Visitor
from tests.support.engine.job_env import done
from tests.support.engine.replica import Env
from tests.support.processor.scripted import Answer

pytestmark = pytest.mark.asyncio(loop_scope="module")

NIGHTLY = Cron("0 2 * * *", "Europe/Berlin")


@pytest_asyncio.fixture(loop_scope="module")
async def nightly(env: Env) -> AsyncIterator[str]:
    """Have a schedule that starts a process each night; return the path of its page."""
    spec = ScheduleSpec(
        times=NIGHTLY,
        target=ScheduledStart(),
        jitter=60,
        overlap_policy=OverlapPolicy.QUEUE_ONE,
        catch_up_window=dt.timedelta(hours=6),
    )
    await env.client.schedules.create("nightly", spec, note="for accounting")
    yield f"/schedules/{env.namespace}/nightly"
    async for it in env.client.schedules.list():
        await env.client.schedules.delete(it.schedule_id)


def facts(region: Element) -> dict[str, str]:
    return {it.one("dt").text: it.one("dd").text for it in region.all(class_="fact")}


async def test_a_schedule_says_when_it_runs_and_how(
    env: Env, visitor: Visitor, nightly: str
) -> None:
    listed = await visitor.get("/schedules", {"namespace": env.namespace})
    (row,) = listed.region.rows()
    assert row[:3] == [
        "nightly",
        "every day at 02:00 0 2 * * * Europe/Berlin",
        "starts a process",
    ]
    assert listed.page.link("nightly")["href"] == nightly
    region = (await visitor.get(nightly)).region
    assert region.one(class_="schedule-times").text == "every day at 02:00 0 2 * * * Europe/Berlin"
    found = facts(region)
    assert found["While an earlier run has not ended"] == (
        "wait for the earlier run; at most one waits"
    )
    assert (found["Catch-up window"], found["Jitter"]) == ("6 h", "1 min")
    assert len(region.one(class_="instants").all("li")) == 10
    assert "for accounting" in region.text
    assert "It has not run yet." in region.text


async def test_a_schedule_is_paused_and_resumed_with_a_note(
    env: Env, visitor: Visitor, nightly: str
) -> None:
    page = (await visitor.get(nightly)).page
    assert "Resume" not in [it.text for it in page.all("a")]
    form = (await visitor.follow(page.link("Pause"))).page.form(do="pause")
    paused = await visitor.send(form, note="moving house")
    assert "paused" in paused.region.one("h1").text
    assert "moving house" in paused.region.text
    assert "The schedule is paused." in paused.region.text
    assert (await env.client.schedules.get("nightly")).schedule.note == "moving house"
    form = (await visitor.follow(paused.page.link("Resume"))).page.form(do="resume")
    resumed = await visitor.send(form, note="")
    assert "paused" not in resumed.region.one("h1").text
    assert not (await env.client.schedules.get("nightly")).schedule.paused
    refused = await visitor.submit(
        (await visitor.get(nightly, {"do": "pause"})).page.form(do="pause"), note="x" * 2_000
    )
    assert (refused.status, "note" in refused.page.one(role="alert").text) == (400, True)


async def test_a_run_that_was_triggered_links_to_what_it_started(
    env: Env, visitor: Visitor, nightly: str
) -> None:
    form = (await visitor.get(nightly, {"do": "trigger"})).page.form(do="trigger")
    triggered = await visitor.send(form)
    again = await visitor.send(form)
    assert triggered.page.one(class_="note").text == "The schedule has run."
    (run,) = (await env.client.schedules.get("nightly")).last_runs
    (row,) = again.region.rows()
    assert (row[2], row[3]) == ("triggered", run.process_id)
    link = again.region.link(run.process_id)
    assert run.process_id in (await visitor.follow(link)).region.one("h1").text


async def test_an_unknown_overlap_policy_is_refused(
    env: Env, visitor: Visitor, nightly: str
) -> None:
    form = (await visitor.get(nightly, {"do": "trigger"})).page.form(do="trigger")
    refused = await visitor.submit(form, overlap_policy="odd")
    alert = refused.page.one(class_="action").one(role="alert").text
    assert (refused.status, "overlap_policy" in alert) == (400, True)
    assert not (await env.client.schedules.get("nightly")).last_runs


async def test_a_run_of_a_job_links_to_the_job(env: Env, visitor: Visitor, nightly: str) -> None:
    graph = Graph()
    graph.node("only")
    spec = ScheduleSpec(times=Every(900), target=ScheduledJob(graph))
    await env.client.schedules.create("jobs", spec)
    run = await env.client.schedules.trigger("jobs")
    env.processor.on_process(f"{run.process_id}/only", Answer(done()))
    await env.settled(run.process_id)
    region = (await visitor.get(nightly.replace("nightly", "jobs"))).region
    assert region.one(class_="schedule-times").text == "every 15 minutes"
    job = await visitor.follow(region.link(run.process_id))
    assert job.status == 200, job.region.text
    assert job.region.link("jobs")["href"] == f"/schedules/{env.namespace}/jobs"
    listed = await visitor.follow(region.link("Jobs of this schedule"))
    assert [row[0] for row in listed.region.rows()] == [run.process_id]


async def test_a_past_period_is_backfilled(env: Env, visitor: Visitor, nightly: str) -> None:
    form = (await visitor.get(nightly, {"do": "backfill"})).page.form(do="backfill")
    filled = await visitor.send(form, since="2026-01-01T00:00:00Z", until="2026-01-04T00:00:00Z")
    note = filled.page.one(class_="note").text
    assert note == "Instants in the period: 3. Queued of these: 3."
    runs = (await env.client.schedules.get("nightly")).last_runs
    assert {it.cause for it in runs} == {"backfill"}
    again = await visitor.send(form, since="2026-01-01", until="2026-01-04")
    assert again.page.one(class_="note").text.endswith("Queued of these: 0.")


@pytest.mark.parametrize(
    ("since", "until", "named"),
    [
        ("yesterday", "2026-01-04", "since"),
        ("2026-01-04", "2026-13-01", "until"),
        ("2026-01-04", "2999-01-01", "until"),
    ],
)
async def test_a_wrong_period_is_refused_and_kept(
    env: Env, visitor: Visitor, nightly: str, since: str, until: str, named: str
) -> None:
    form = (await visitor.get(nightly, {"do": "backfill"})).page.form(do="backfill")
    refused = await visitor.submit(form, since=since, until=until)
    alert = refused.page.one(class_="action").one(role="alert").text
    assert (refused.status, named in alert) == (400, True)
    assert refused.page.form(do="backfill").fields["since"] == since
    assert f"--since {since}" in refused.page.one("details", class_="command").text
    assert not (await env.client.schedules.get("nightly")).last_runs


async def test_a_schedule_is_deleted_once_its_name_was_typed(
    env: Env, visitor: Visitor, nightly: str
) -> None:
    form = (await visitor.get(nightly, {"do": "delete"})).page.form(do="delete")
    wrong = await visitor.submit(form, confirmation="night")
    assert wrong.status == 400
    deleted = await visitor.send(form, confirmation="nightly")
    assert "nightly" in deleted.page.one(class_="note").text
    with pytest.raises(job_errors.ScheduleNotFoundError):
        await env.client.schedules.get("nightly")
    assert (await visitor.get(nightly)).status == 404


@pytest.mark.parametrize(
    ("path", "status", "named"),
    [
        ("/schedules/{namespace}/none", 404, "none"),
        ("/schedules?namespace={namespace}&page=odd", 400, "page"),
    ],
)
async def test_a_wrong_address_says_what_is_wrong(
    env: Env, visitor: Visitor, path: str, status: int, named: str
) -> None:
    answer = await visitor.get(path.format(namespace=env.namespace))
    assert (answer.status, named in answer.region.one(role="alert").text) == (status, True)
