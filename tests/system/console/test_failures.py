"""The page of failures, before a real engine."""

import pytest

from progressor.sdk.values.graph import Graph
from tests.support.console.visitor import Visitor
from tests.support.engine.job_env import failing
from tests.support.engine.replica import Env, broken, refusal
from tests.support.processor.scripted import Answer

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_failures_are_shown_in_groups_that_lead_to_their_processes_and_to_a_retry(
    env: Env, visitor: Visitor
) -> None:
    for it in range(3):
        await env.running(f"bank-{it}", broken(f"account {it} is <closed>"))
        await refusal(env.client.call(f"bank-{it}"))
    await env.broken("other")
    page = await visitor.get("/failures", {"namespace": env.namespace})
    rows = page.region.rows()
    assert [(row[2], row[3]) for row in rows] == [("3", "3"), ("1", "1")]
    assert "account * is <closed>" in rows[0][0]
    assert (rows[0][1], rows[0][6]) == (env.namespace, "call")
    first = page.region.one("tbody").all("tr")[0]
    listed = await visitor.follow(first.one("th").one("a"))
    assert {row[0] for row in listed.region.rows()} == {"bank-0", "bank-1", "bank-2"}
    sample = await visitor.follow(first.all("td")[-2].one("a"))
    assert sample.region.one("h1").text.startswith("bank-")
    retry = await visitor.follow(first.link("Retry them all"))
    assert "3 processes match." in retry.region.one(class_="matched").text


async def test_failed_jobs_lead_to_their_list_as_a_retry_of_their_processes_runs_no_node(
    env: Env, visitor: Visitor
) -> None:
    env.processor.on_process("job/load", Answer(failing()))
    graph = Graph()
    graph.node("load")
    await env.client.jobs.submit("job", graph)
    await env.client.jobs.wait("job")
    page = await visitor.get("/failures", {"namespace": env.namespace})
    (row,) = (
        it
        for it in page.region.one("tbody").all("tr")
        if it.one("th").text.startswith("JOB_FAILED")
    )
    assert [it.text for it in row.all("td")[-1].all("a")] == ["Jobs"]
    jobs = await visitor.follow(row.link("Jobs"))
    assert [it[:2] for it in jobs.region.rows()] == [["job", "failed"]]


async def test_groups_without_a_broken_process_are_shown_on_request(
    env: Env, visitor: Visitor
) -> None:
    await env.broken("p")
    await env.client.terminate("p", reason="enough")
    page = await visitor.get("/failures", {"namespace": env.namespace})
    assert page.region.rows() == [["Nothing is broken."]]
    form = page.region.forms()[0]
    everything = await visitor.submit(form, all="yes")
    assert [(row[2], row[3]) for row in everything.region.rows()] == [("0", "1")]
    assert not [it for it in everything.region.all("a") if it.text == "Retry them all"]


async def test_failures_of_all_namespaces_are_shown_together(env: Env, visitor: Visitor) -> None:
    await env.broken("p")
    page = await visitor.get("/failures")
    assert env.namespace in {row[1] for row in page.region.rows()}


@pytest.mark.parametrize(("query", "named"), [("page=odd", "page_token"), ("namespace=A", "name")])
async def test_a_wrong_parameter_is_named(visitor: Visitor, query: str, named: str) -> None:
    answer = await visitor.get(f"/failures?{query}")
    assert (answer.status, named in answer.region.one(role="alert").text) == (400, True)
