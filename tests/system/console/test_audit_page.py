"""The audit in the console: entries by filters, page by page, and what one of them changed."""

import asyncio
import dataclasses
import datetime as dt

import pytest

from progressor.console.pages.engine.audit import PAGE_SIZE, Difference, differences
from progressor.domain.access.audit import AuditEntry, AuditFilter
from progressor.sdk import Client
from tests.support.console.guarded import READABLE, Guarded
from tests.support.console.visitor import PATIENCE_SECONDS, Visitor
from tests.support.engine.points import eventually
from tests.support.engine.replica import Env

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _sealed(client: Client, method: str) -> AuditEntry:
    """Return the first sealed entry of a method."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for entry in client.access.follow_audit(AuditFilter(method=method), after=0):
            return entry
    raise AssertionError("it follows without end")


async def test_entries_are_found_by_the_filters_in_the_address(env: Env, visitor: Visitor) -> None:
    await env.client.put("kept", state=b"1")
    await env.client.terminate("kept", reason="not <needed>")
    query = {"namespace": env.namespace, "object_id": "kept", "method": "Terminate"}
    found = (await visitor.get("/audit", query)).region
    (row,) = found.rows()
    assert row[3:8] == ["Terminate", env.namespace, "kept", "OK", "not <needed>"]
    assert found.form(method="Terminate").fields["object_id"] == "kept"
    for other in ({"result": "X"}, {"until": "2020-01-01"}, {"principal": "token:x"}):
        assert "No entry matches" in (await visitor.get("/audit", {**query, **other})).text, other


@pytest.mark.parametrize(
    ("path", "status", "named"),
    [
        ("/audit?since=yesterday", 400, "since"),
        ("/audit?page=odd", 400, "page"),
        ("/audit/0", 400, "number"),
        ("/audit/x", 400, "number"),
        ("/audit/9999999", 404, "9999999"),
    ],
)
async def test_what_cannot_be_found_is_named(
    visitor: Visitor, path: str, status: int, named: str
) -> None:
    answer = await visitor.get(path)
    assert (answer.status, named in answer.region.one(role="alert").text) == (status, True)


async def test_pages_follow_each_other_without_a_gap(env: Env, visitor: Visitor) -> None:
    for number in range(PAGE_SIZE + 3):
        await env.client.put(f"p{number}", state=b"")
    first = await visitor.get("/audit", {"namespace": env.namespace, "method": "Put"})
    second = await visitor.follow(first.page.link("Next page"))
    objects = [row[5] for row in (*first.region.rows(), *second.region.rows())]
    assert objects == [f"p{number}" for number in reversed(range(PAGE_SIZE + 3))]
    assert "Next page" not in [it.text for it in second.page.all("a")]


async def test_an_entry_shows_what_it_changed(env: Env, visitor: Visitor) -> None:
    config = await env.client.namespaces.get(env.namespace)
    await env.client.namespaces.update(dataclasses.replace(config, worker_count_max=7))
    entry = await _sealed(env.client, "UpdateNamespace")
    page = (await visitor.get(f"/audit/{entry.number}")).page
    rows = {it[0]: it[1:] for it in page.rows()}
    assert rows["worker_count_max"] == ["changed", "1000", "7"]
    assert rows["step_timeout"][0] == "same"
    assert entry.hash in page.text
    assert not page.all(id="updates"), "what is recorded does not change"


async def test_the_head_of_the_chain_is_shown(env: Env, visitor: Visitor) -> None:
    await _sealed(env.client, "CreateNamespace")

    async def is_shown() -> bool:
        """Entries of other tests are still being added."""
        head = await env.client.access.audit_head()
        return head.hash in (await visitor.get("/audit")).region.one("dl").text

    await eventually(is_shown)


async def test_differences_are_told_value_by_value() -> None:
    before, after = '{"a": {"b": 1, "c": "x"}, "d": []}', '{"a": {"b": 1}, "d": [1], "e": null}'
    assert differences(before, after) == (
        Difference("a.c", "x", None),
        Difference("d", "[]", "[1]"),
        Difference("e", None, "null"),
        Difference("a.b", "1", "1"),
    )
    assert differences("", "not JSON") == (Difference("", None, "not JSON"),)


# --- Rights


async def test_only_who_administers_sees_the_audit(guarded: Guarded) -> None:
    for name, status in (("reader", 403), ("operator", 403), ("admin", 200)):
        visitor = guarded.visitors[name]
        assert (await visitor.get("/audit")).status == status, name
        links = [it.text for it in (await visitor.get("/")).page.one("nav").all("a")]
        assert ("Audit" in links) == (status == 200), name
    page = (await guarded.visitors["admin"].get("/audit", {"namespace": READABLE})).region
    assert page.rows()[0][2] == "token:admin"
    assert dt.datetime.fromisoformat(page.one("tbody").all("time")[0]["datetime"]).tzinfo
