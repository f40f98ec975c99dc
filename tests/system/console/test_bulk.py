"""The pages of bulk operations: preview, start, progress, stop; before a real engine."""

import pytest

from progressor.domain.views.bulk import OPERATIONS
from progressor.sdk.client.bulk import BulkKind, BulkOperation, BulkState
from progressor.sdk.values.processes import ProcessStatus
from tests.support.console.visitor import Answer, Visitor
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.replica import Env

pytestmark = pytest.mark.asyncio(loop_scope="module")


def alert(answer: Answer) -> str:
    return answer.page.one(class_="action").one(role="alert").text


async def ended(env: Env, operation_id: str) -> BulkOperation:
    """Return an operation once it has ended; its end is the end of its process."""
    await env.client.result(operation_id, namespace=OPERATIONS, timeout=PATIENCE_SECONDS)
    return await env.client.bulk.get(operation_id)


def operation_of(answer: Answer) -> str:
    return answer.region.one("h1").one(class_="id").text


async def test_processes_of_a_list_are_retried_after_a_preview_and_a_typed_word(
    env: Env, visitor: Visitor
) -> None:
    for it in range(3):
        await env.broken(f"b-{it}")
    await env.running("b-running")
    listed = await visitor.get(
        "/processes", {"namespace": env.namespace, "status": "error", "id_prefix": "b-"}
    )
    new = await visitor.follow(listed.region.link("Act on all that match"))
    matched = new.region.one(class_="matched").text
    assert "3 processes match. It takes about 1 s at 100 per second." in matched
    assert {row[0] for row in new.region.rows()} == {"b-0", "b-1", "b-2"}
    assert not new.page.all(id="updates"), "a preview is not asked for again and again"
    form = (await visitor.follow(new.region.link("Retry"))).page.form(do="retry")
    refused = await visitor.send(form, confirmation="b")
    assert (refused.status, "'retry'" in alert(refused)) == (400, True)
    started = await visitor.send(form, confirmation="retry", reason="bank is back")
    await ended(env, operation_of(started))
    again = await visitor.send(form, confirmation="retry", reason="bank is back")
    assert operation_of(again) == operation_of(started), "one form starts one operation"
    done = await visitor.get(f"/bulk/{operation_of(started)}")
    assert "done" in done.region.one("h1").text
    assert "Processes with a result: 3 of 3" in done.region.text
    assert "bank is back" in done.region.text
    assert [row[2] for row in done.region.rows()] == ["done"] * 3
    assert "with the status in error" in done.region.text
    for it in range(3):
        await env.client.call(f"b-{it}")
        assert (await env.client.get(f"b-{it}")).process.status is ProcessStatus.RUNNING


async def test_everything_is_ended_only_once_that_is_typed(env: Env, visitor: Visitor) -> None:
    await env.running("p")
    query = {"namespace": env.namespace, "kind": "terminate", "do": "terminate"}
    page = (await visitor.get("/bulk/new", query)).page
    form = page.form(do="terminate")
    assert "reason" in form.required
    refused = await visitor.send(form, confirmation="terminate", reason="x")
    assert (refused.status, "terminate all" in alert(refused)) == (400, True)
    assert "bulk terminate -n" in refused.page.one("details", class_="command").text
    started = await visitor.send(form, confirmation="terminate all", reason="the end")
    await ended(env, operation_of(started))
    process = (await env.client.get("p")).process
    assert (process.status, process.detail) == (ProcessStatus.FINISHED, "the end")


async def test_a_notification_takes_args_and_wrong_fields_are_named(
    env: Env, visitor: Visitor
) -> None:
    await env.running("p")
    query = {"namespace": env.namespace, "id_prefix": "p", "kind": "notify", "do": "notify"}
    form = (await visitor.get("/bulk/new", query)).page.form(do="notify")
    for fields in ({"args": "{"}, {"rate_max": "0"}, {"failed_percent": "101"}):
        refused = await visitor.send(form, confirmation="notify", **fields)
        assert (refused.status, next(iter(fields)) in alert(refused)) == (400, True)
        assert refused.page.form(do="notify").fields["operation_id"] == form.fields["operation_id"]
    started = await visitor.send(form, confirmation="notify", args='{"now": 1}')
    await env.asked("p", 2)
    assert env.asked_for("p")[1].task.args == b'{"now": 1}'
    assert (await ended(env, operation_of(started))).done_count == 1


async def test_an_operation_is_listed_watched_and_stopped(env: Env, visitor: Visitor) -> None:
    for it in range(5):
        await env.running(f"p-{it}")
    operation = await env.client.bulk.start(
        BulkKind.NOTIFY, id_prefix="p-", rate_max=1, reason="slowly", author="somebody"
    )
    listed = await visitor.get("/bulk")
    row = next(it for it in listed.region.rows() if it[0] == operation.operation_id)
    assert (row[1], row[7], row[8]) == ("Notify", "somebody", "slowly")
    assert "whose id begins with p-" in row[5]
    page = await visitor.follow(listed.region.link(operation.operation_id))
    bar = page.region.one("svg", class_="progress")
    assert bar["aria-label"].startswith("Processes with a result:")
    form = (await visitor.follow(page.region.link("Stop"))).page.form(do="stop")
    stopped = await visitor.send(form, reason="enough <of it>")
    found = await ended(env, operation.operation_id)
    assert (found.state, found.stop_reason) == (BulkState.STOPPED, "enough <of it>")
    after = await visitor.get(f"/bulk/{operation.operation_id}")
    assert "enough <of it>" in after.region.text
    assert not [it for it in after.region.all("a") if it.text == "Stop"]
    assert "was stopped" in stopped.page.one(class_="note").text


async def test_an_operation_on_nothing_cannot_be_started(env: Env, visitor: Visitor) -> None:
    query = {"namespace": env.namespace, "kind": "retry"}
    page = await visitor.get("/bulk/new", query)
    assert "No process matches." in page.region.one(class_="matched").text
    assert not page.region.all("p", class_="buttons")


@pytest.mark.parametrize(
    ("path", "status", "named"),
    [
        ("/bulk/none", 404, "none"), ("/bulk/new?kind=odd", 400, "kind"),
        ("/bulk/new?status=odd", 400, "status"), ("/bulk?page=odd", 400, "page_token"),
    ],
)  # fmt: skip
async def test_what_does_not_exist_is_named(
    visitor: Visitor, path: str, status: int, named: str
) -> None:
    answer = await visitor.get(path)
    assert (answer.status, named in answer.region.one(role="alert").text) == (status, True)


async def test_a_form_does_what_it_is_titled_or_nothing(env: Env, visitor: Visitor) -> None:
    await env.broken("p")
    query = {"namespace": env.namespace, "id_prefix": "p", "kind": "remove", "do": "retry"}
    form = (await visitor.get("/bulk/new", query)).page.form(do="retry")
    refused = await visitor.send(form, confirmation="remove", reason="x")
    assert (refused.status, "kind" in alert(refused)) == (400, True)
    assert (await env.client.get("p")).process.status is ProcessStatus.ERROR


async def test_a_wrong_form_token_starts_nothing(env: Env, visitor: Visitor) -> None:
    await env.broken("p")
    query = {"namespace": env.namespace, "id_prefix": "p", "kind": "retry", "do": "retry"}
    form = (await visitor.get("/bulk/new", query)).page.form(do="retry")
    fields = {**form.fields, "confirmation": "retry", "form_token": "x"}
    refused = await visitor.post(form.action, fields)
    assert (refused.status, "form_token" in refused.text) == (400, True)
    assert (await env.client.get("p")).process.status is ProcessStatus.ERROR
