"""Namespaces in the console: the list, one with its configuration, and pauses."""

import dataclasses
import datetime as dt

import pytest

from progressor.domain.quotas.quotas import Quotas
from progressor.sdk import RetryPolicy
from tests.support.console.guarded import HIDDEN, READABLE, Guarded
from tests.support.console.visitor import Visitor
from tests.support.engine.replica import Env

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_namespace_shows_its_processor_quotas_and_configuration(
    env: Env, visitor: Visitor
) -> None:
    config = await env.client.namespaces.get(env.namespace)
    wanted = dataclasses.replace(
        config,
        step_timeout=dt.timedelta(seconds=90),
        task_retention=None,
        retry_policies={"call": RetryPolicy(attempts_max=1234)},
        quotas=Quotas(open_processes=5000, starts_per_second=0),
    )
    await env.client.namespaces.update(wanted)
    await env.running("running")
    listed = await visitor.get("/namespaces")
    page = (await visitor.follow(listed.page.link(env.namespace))).region
    rows = {it[0]: it[1:] for it in page.rows()}
    assert page.one("h1").text == env.namespace
    for text in ("Its processes", "Jobs", "Schedules", "Gates"):
        assert (await visitor.follow(page.link(text))).status == 200, text
    assert env.processor.target in page.text
    assert rows["step_timeout"] == ["1 min 30 s"]
    assert rows["task_retention"] == ["kept with its process"]
    assert rows["unreachable_patience"] == ["no limit"]
    assert rows["retry_policies.call.attempts_max"] == ["1,234"]
    assert rows["exhausted_call_fails_alone"] == ["no"]
    assert rows["open_processes"][0] == "5,000"
    assert rows["starts_per_second"][0] == "no limit"


async def test_a_namespace_is_paused_with_a_reason_and_resumed(env: Env, visitor: Visitor) -> None:
    page = (await visitor.get(f"/namespaces/{env.namespace}")).page
    assert not page.all("a", href=f"/namespaces/{env.namespace}?do=resume")
    form = (await visitor.follow(page.link("Pause"))).page.form(do="pause")
    done = await visitor.send(form, reason="the disk is full", refuse_requests="yes")
    assert done.page.one(class_="note").text == f"Namespace {env.namespace} is paused."
    pause = (await env.client.namespaces.get(env.namespace)).pause
    assert pause is not None
    assert (pause.reason, pause.refuses_requests) == ("the disk is full", True)
    assert "the disk is full" in done.region.text
    assert "refuses requests" in done.region.text
    listed = (await visitor.get("/namespaces")).region.one(id=f"namespace-{env.namespace}")
    assert "the disk is full" in listed.text

    assert not done.page.all("a", href=f"/namespaces/{env.namespace}?do=pause")
    form = (await visitor.follow(done.page.link("Change the pause"))).page.form(do="change-pause")
    assert form.fields["reason"] == "the disk is full"
    done = await visitor.send(form, reason="a new disk", refuse_requests="")
    pause = (await env.client.namespaces.get(env.namespace)).pause
    assert pause is not None
    assert (pause.reason, pause.refuses_requests) == ("a new disk", False)

    form = (await visitor.follow(done.page.link("Resume"))).page.form(do="resume")
    resumed = await visitor.send(form)
    assert "Not paused." in resumed.region.text
    assert (await env.client.namespaces.get(env.namespace)).pause is None


async def test_a_pause_as_a_command(env: Env, visitor: Visitor) -> None:
    query = {"do": "pause", "reason": "it's full", "refuse_requests": "yes"}
    page = (await visitor.get(f"/namespaces/{env.namespace}", query)).page
    command = page.one(class_="command").one("pre").text
    expected = f"progressor namespace pause {env.namespace} --reason 'it'\"'\"'s full' --refuse"
    assert command == expected


@pytest.mark.parametrize(("reason", "named"), [("", "reason"), ("x" * 1025, "reason")])
async def test_a_pause_without_a_reason_that_fits_is_refused_and_the_form_kept(
    env: Env, visitor: Visitor, reason: str, named: str
) -> None:
    path = f"/namespaces/{env.namespace}"
    form = (await visitor.get(path, {"do": "pause"})).page.form(do="pause")
    refused = await visitor.post(path, {**form.fields, "reason": reason, "refuse_requests": "yes"})
    assert refused.status == 400
    assert named in refused.page.one(class_="error").text
    kept = refused.page.form(do="pause").fields
    assert (kept["reason"], kept["refuse_requests"]) == (reason, "yes")
    assert (await env.client.namespaces.get(env.namespace)).pause is None


async def test_a_namespace_that_does_not_exist_is_not_found(visitor: Visitor) -> None:
    answer = await visitor.get("/namespaces/none")
    assert (answer.status, "none" in answer.region.text) == (404, True)


@pytest.mark.parametrize("path", ["/namespaces", "/replicas"])
async def test_a_page_token_that_is_none_is_refused(visitor: Visitor, path: str) -> None:
    answer = await visitor.get(path, {"page": "odd"})
    assert (answer.status, "page" in answer.region.one(role="alert").text) == (400, True)


# --- Rights


async def test_a_reader_sees_no_actions_and_is_refused_by_the_engine(guarded: Guarded) -> None:
    reader, path = guarded.visitors["reader"], f"/namespaces/{READABLE}"
    page = (await reader.get(path)).page
    assert "Pause" not in [it.text for it in page.all("a")]
    form = (await guarded.visitors["operator"].get(path, {"do": "pause"})).page.form(do="pause")
    token = (await reader.get(path)).page.all("input", name="form_token")[0]["value"]
    refused = await reader.post(path, {**form.fields, "form_token": token, "reason": "mine"})
    assert (refused.status, "operate" in refused.page.one(class_="error").text) == (403, True)
    assert (await guarded.admin.namespaces.get(READABLE)).pause is None


async def test_a_reader_sees_only_the_namespaces_that_it_may(guarded: Guarded) -> None:
    reader = guarded.visitors["reader"]
    for path in ("/", "/namespaces"):
        text = (await reader.get(path)).region.text
        assert (READABLE in text, HIDDEN in text) == (True, False)
    assert (await reader.get(f"/namespaces/{HIDDEN}")).status == 403
    assert HIDDEN in (await guarded.visitors["operator"].get("/namespaces")).region.text


async def test_a_pause_by_an_operator_is_in_the_audit_with_its_name(guarded: Guarded) -> None:
    operator, path = guarded.visitors["operator"], f"/namespaces/{READABLE}"
    form = (await operator.get(path, {"do": "pause"})).page.form(do="pause")
    done = await operator.send(form, reason="audited")
    assert "token:operator" in done.region.text
    entries = [it async for it in guarded.admin.access.audit()]
    assert ("PauseNamespace", "token:operator") in [(it.method, it.principal) for it in entries]
    await guarded.admin.namespaces.resume(READABLE)
