"""The pages of jobs, and what can be done there, as a browser without scripts does."""

import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from progressor.sdk.values.graph import Graph
from progressor.sdk.values.jobs import JobState
from tests.support.console.html import Element
from tests.support.console.visitor import Visitor
from tests.support.engine.job_env import done, failing
from tests.support.engine.replica import Env
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE_BYTES_MAX = 140_000
"""Of 200,000 in all; the rest is for scripts, styles and icons."""


@pytest_asyncio.fixture(loop_scope="module")
async def failed(env: Env) -> AsyncIterator[Env]:
    """Have a job fail: build is done, lint broke, and what follows lint was skipped."""
    env.processor.on_process("job/build", Answer(done()))
    env.processor.on_process("job/lint", Answer(failing()), Answer(done()))
    env.processor.on_process("job/deploy", Answer(done()))
    graph = Graph()
    before = [graph.node("build"), graph.node("lint")]
    graph.node("deploy", after=before)
    await env.client.jobs.submit("job", graph)
    await env.client.jobs.wait("job")
    yield env


async def submitted(env: Env, job_id: str, graph: Graph) -> Hang:
    """Submit a job whose first node, "root", hangs; return what releases it."""
    hang = Hang(response=done())
    env.processor.on_process(f"{job_id}/root", hang)
    await env.client.jobs.submit(job_id, graph)
    await env.asked(f"{job_id}/root")
    return hang


def fan_out(count: int) -> Graph:
    graph = Graph()
    root = graph.node("root")
    shards = [graph.node(f"shard-{it}", after=[root]) for it in range(count)]
    graph.node("sum", after=shards)
    return graph


def boxes(region: Element) -> dict[str, str]:
    """Return the class of each box of the drawing by its name."""
    return {it.all("text")[0].text: it["class"] for it in links_of(region)}


def links_of(region: Element) -> list[Element]:
    return region.one("svg", class_="graph").all("a")


async def test_jobs_are_listed_with_the_states_of_their_nodes(
    failed: Env, visitor: Visitor
) -> None:
    query = {"namespace": failed.namespace}
    listed = await visitor.get("/jobs", query)
    (row,) = listed.region.rows()
    assert row[:2] == ["job", "failed"]
    assert row[2] == "1 done 1 skipped 1 failed"
    form = listed.page.form(namespace=failed.namespace)
    assert not (await visitor.send(form, state="done")).page.all(id="job-job")
    assert (await visitor.send(form, state="failed")).page.all(id="job-job")


async def test_a_job_shows_its_graph_and_each_node(failed: Env, visitor: Visitor) -> None:
    region = (await visitor.get(f"/jobs/{failed.namespace}/job")).region
    assert boxes(region) == {"build": "done", "lint": "failed", "deploy": "skipped"}
    links = {it.all("text")[0].text: it["href"] for it in links_of(region)}
    assert links["lint"] == f"/processes/{failed.namespace}/job%2Flint"
    assert [it.one(class_="word").text for it in links_of(region)] == ["done", "failed", "skipped"]
    assert [it.text for it in region.one("svg", class_="graph").all("title")] == [
        "build: done",
        "lint: failed",
        "deploy: skipped",
    ]
    nodes = {row[0]: row for row in region.rows()}
    assert {name: row[1] for name, row in nodes.items()} == {
        "build": "done",
        "lint": "failed",
        "deploy": "skipped",
    }
    assert nodes["deploy"][6] == "because of lint"
    assert "BROKEN: it broke" in nodes["lint"][6]
    counts = [it.text for it in region.one(class_="counts").all("a")]
    assert counts == ["1 done", "1 skipped", "1 failed"]
    because = region.one(id="n2").all("a")[-1]
    assert [row[0] for row in (await visitor.follow(because)).region.rows()] == ["lint"]


async def test_the_table_can_be_filtered_by_state(failed: Env, visitor: Visitor) -> None:
    region = (await visitor.get(f"/jobs/{failed.namespace}/job", {"state": "failed"})).region
    assert [row[0] for row in region.rows()] == ["lint"]
    assert len(boxes(region)) == 3


async def test_a_watched_job_is_sent_again_as_its_nodes_end(env: Env, visitor: Visitor) -> None:
    graph = Graph()
    graph.node("last", after=graph.node("root"))
    env.processor.on_process("job/last", Answer(done()))
    hang = await submitted(env, "job", graph)
    async with visitor.live(f"/jobs/{env.namespace}/job") as stream:
        before = boxes((await stream.message()).region)
        hang.released.set()
        while "done" not in (region := (await stream.message()).region).one("h1").text:
            pass
    assert before == {"root": "running", "last": "not-started"}
    assert boxes(region) == {"root": "done", "last": "done"}


async def test_a_failed_job_is_retried_from_its_failed_nodes(failed: Env, visitor: Visitor) -> None:
    page = (await visitor.get(f"/jobs/{failed.namespace}/job")).page
    assert "Cancel" not in [it.text for it in page.all("a")]
    form = (await visitor.follow(page.link("Retry"))).page.form(do="retry")
    wrong = await visitor.submit(form, deadline="soon")
    alert = wrong.page.one(class_="action").one(role="alert").text
    assert (wrong.status, "deadline" in alert) == (400, True)
    retried = await visitor.send(form, deadline="")
    assert "1" in retried.page.one(class_="note").text
    assert (await failed.client.jobs.wait("job")).state is JobState.DONE


async def test_a_running_job_is_cancelled_once_its_name_was_typed(
    env: Env, visitor: Visitor
) -> None:
    hang = await submitted(env, "job", fan_out(2))
    path = f"/jobs/{env.namespace}/job"
    form = (await visitor.get(path, {"do": "cancel"})).page.form(do="cancel")
    wrong = await visitor.submit(form, reason="enough", confirmation="another")
    assert (wrong.status, (await env.client.jobs.get("job")).job.state) == (400, "running")
    cancelled = await visitor.send(form, reason="enough", confirmation="job")
    hang.released.set()
    assert "cancelled" in cancelled.region.one("h1").text
    view = await env.client.jobs.get("job")
    assert view.job.state is JobState.CANCELLED
    late = await visitor.submit(form, reason="again", confirmation="job")
    assert late.status == 409


@pytest.mark.parametrize(
    ("count", "drawn"),
    [(147, "shard-146"), (148, "shard-#")],
    ids=["149 nodes", "150 nodes"],
)
async def test_fan_outs_are_folded_from_150_nodes_on(
    env: Env, visitor: Visitor, count: int, drawn: str
) -> None:
    hang = await submitted(env, "job", fan_out(count))
    answer = await visitor.get(f"/jobs/{env.namespace}/job")
    region = answer.region
    found = boxes(region)
    assert drawn in found
    assert len(answer.text.encode()) < PAGE_BYTES_MAX
    box = next(it for it in links_of(region) if it.all("text")[0].text == drawn)
    table = (await visitor.follow(box)).region
    assert all("shard-" in row[0] for row in table.rows())
    await env.client.jobs.cancel("job")
    hang.released.set()


async def test_a_graph_without_likeness_is_only_a_table(env: Env, visitor: Visitor) -> None:
    graph = Graph()
    last = graph.node("root")
    for number in range(160):
        last = graph.node(f"step-{number}", after=last)
    hang = await submitted(env, "job", graph)
    region = (await visitor.get(f"/jobs/{env.namespace}/job")).region
    assert not region.all("svg", class_="graph")
    assert "too many parts" in region.text
    rows = region.rows()
    while any(it.text == "Next page" for it in region.all("a")):
        region = (await visitor.follow(region.link("Next page"))).region
        rows += region.rows()
    assert [row[0] for row in rows] == ["root", *(f"step-{it}" for it in range(160))]
    assert (await visitor.follow(region.link("First page"))).region.rows()[0][0] == "root"
    await env.client.jobs.cancel("job")
    hang.released.set()


async def test_a_job_of_10000_nodes_is_shown_within_a_second(env: Env, visitor: Visitor) -> None:
    hang = await submitted(env, "job", fan_out(9_998))
    path = f"/jobs/{env.namespace}/job"
    began = time.perf_counter()
    answer = await visitor.get(path)
    seconds = time.perf_counter() - began
    size = len(answer.text.encode())
    print(f"\n10,000 nodes: {seconds:.3f} s, {size:,} bytes")  # noqa: T201  # the measurement
    waiting = await visitor.get(path, {"state": "waiting", "after": "9000"})
    await env.client.jobs.cancel("job")
    hang.released.set()
    assert size < PAGE_BYTES_MAX
    assert seconds < 10, "the bar is 1 s on a quiet machine"
    assert boxes(answer.region) == {
        "root": "running",
        "shard-#": "not-started",
        "sum": "not-started",
    }
    assert waiting.region.rows()[0][0] == "shard-9000"


@pytest.mark.parametrize(
    ("path", "status", "named"),
    [
        ("/jobs/{namespace}/none", 404, "none"),
        ("/jobs?namespace={namespace}&state=odd", 400, "state"),
        ("/jobs?namespace={namespace}&page=odd", 400, "page"),
        ("/jobs/{namespace}/job?state=odd", 400, "state"),
        ("/jobs/{namespace}/job?after=-1", 400, "after"),
        ("/jobs/{namespace}/job?layer=x", 400, "layer"),
    ],
)
async def test_a_wrong_address_says_what_is_wrong(
    env: Env, visitor: Visitor, path: str, status: int, named: str
) -> None:
    answer = await visitor.get(path.format(namespace=env.namespace))
    assert (answer.status, named in answer.region.one(role="alert").text) == (status, True)
