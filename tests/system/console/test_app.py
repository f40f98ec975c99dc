"""What holds for every page: headers, forms, sessions, preferences, and who is let in."""

import contextlib
import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.console.console import Console, running_console
from tests.support.console.visitor import Visitor
from tests.support.engine.replica import Env, Replica

pytestmark = pytest.mark.asyncio(loop_scope="module")

_ID = "a/b ü?&%2F"


async def test_a_process_is_found_in_the_list_and_ended_by_its_page(
    env: Env, visitor: Visitor
) -> None:
    await env.running(_ID)
    listed = await visitor.get("/processes", {"namespace": env.namespace})
    assert [_ID, env.namespace, "running"] in [row[:3] for row in listed.page.rows()]
    page = (await visitor.follow(listed.page.link(_ID))).page
    form = (await visitor.follow(page.link("Terminate"))).page.form(do="terminate")
    ended = await visitor.send(form, reason="enough", confirmation=_ID)
    assert ended.page.one(class_="note").text == "The process was ended."
    assert "finished" in ended.region.one("h1").text
    again = await visitor.get(ended.address.removeprefix(visitor.address))
    assert not again.page.all(class_="note"), "a note is shown once"


async def test_a_watched_page_is_sent_again_once_it_changes(env: Env, visitor: Visitor) -> None:
    await env.running(_ID)
    listed = await visitor.get("/processes", {"namespace": env.namespace})
    page = (await visitor.follow(listed.page.link(_ID))).page
    url = page.one(id="updates")["hx-sse:connect"]
    async with visitor.live_at(url) as stream:
        assert "running" in (await stream.message()).region.one("h1").text
        await env.client.terminate(_ID, reason="enough")
        assert "finished" in (await stream.message()).region.one("h1").text


# --- What every response has


async def test_every_response_has_the_headers_that_protect_it(
    visitor: Visitor, pages: Mapping[str, str]
) -> None:
    answers = [await visitor.get(it) for it in pages.values()]
    answers += [await visitor.get(it) for it in ("/none", "/login", "/static/console.css")]
    answers += [await visitor.get("/live", {"page": "/none"}), await visitor.get("/static/none")]
    answers.append(await visitor.post("/logout", {}))
    answers.append(await visitor.get("/", host="elsewhere.example"))
    for it in answers:
        policy = it.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert it.headers["x-content-type-options"] == "nosniff"
        assert it.headers["x-frame-options"] == "DENY"
        assert it.headers["referrer-policy"] == "same-origin"
        assert "server" not in it.headers
        assert it.headers["cache-control"] == "no-store"
    assert [it.status for it in answers[: len(pages)]] == [200] * len(pages)


@pytest.mark.parametrize(
    ("path", "status", "named"),
    [
        ("/none", 404, "path"),
        ("/processes/none/none", 404, "none"),
        ("/processes?status=odd", 400, "status"),
        ("/processes?created_from=odd", 400, "created_from"),
        ("/processes?page=odd", 400, "page"),
        ("/processes?" + urlencode({f"n{it}": "x" for it in range(200)}), 400, "query"),
    ],
)
async def test_a_page_that_cannot_be_shown_says_why(
    visitor: Visitor, path: str, status: int, named: str
) -> None:
    answer = await visitor.get(path)
    assert (answer.status, answer.region.one("h1").text) == (status, "This page cannot be shown")
    assert named in answer.region.one(role="alert").text


async def test_a_console_ends_under_watching_browsers_without_an_error(
    replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    async with contextlib.AsyncExitStack() as stack, running_console(replica.address) as console:
        stream = await stack.enter_async_context(console.visitor().live("/"))
        await stream.message()

    assert [it.getMessage() for it in caplog.records if it.levelno >= logging.ERROR] == []


async def test_nothing_is_streamed_of_an_address_that_is_no_page(visitor: Visitor) -> None:
    answer = await visitor.get("/live", {"page": "/none"})
    assert (answer.status, answer.text) == (404, "no such page")


# --- Forms


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://elsewhere.example"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
async def test_a_form_that_another_site_sends_is_refused(
    env: Env, visitor: Visitor, headers: Mapping[str, str]
) -> None:
    await env.running("kept")
    path = f"/processes/{env.namespace}/kept"
    form = (await visitor.get(path, {"do": "terminate"})).page.form(do="terminate")
    fields = {**form.fields, "reason": "enough", "confirmation": "kept"}
    refused = await visitor.post(path, fields, **headers)
    assert (refused.status, "form_token" in refused.text) == (400, True)
    preferences = await visitor.post("/preferences", {"language": "de"}, **headers)
    assert (preferences.status, set(visitor.cookies)) == (400, {"progressor_console"})
    process = (await env.client.get("kept")).process
    assert process.status == "running"


@pytest.mark.parametrize("token", ["", "guessed"])
async def test_a_form_needs_the_token_of_its_session(
    env: Env, console: Console, visitor: Visitor, token: str
) -> None:
    await env.running("kept")
    path = f"/processes/{env.namespace}/kept"
    form = (await visitor.get(path, {"do": "terminate"})).page.form(do="terminate")
    fields = {**form.fields, "reason": "enough", "confirmation": "kept"}
    refused = [
        await visitor.post(path, {**fields, "form_token": token}),
        await console.visitor().post(path, fields),
    ]
    assert [it.status for it in refused] == [400, 400]
    assert (await env.client.get("kept")).process.status == "running"


async def test_a_form_is_checked_before_the_engine_is_asked_and_keeps_what_was_entered(
    env: Env, visitor: Visitor
) -> None:
    await env.running("kept")
    path = f"/processes/{env.namespace}/kept"
    form = (await visitor.get(path, {"do": "terminate"})).page.form(do="terminate")
    answer = await visitor.submit(form, reason="<b>enough</b>", confirmation="another")
    assert answer.status == 400
    assert "confirmation" in answer.page.one(class_="action").one(role="alert").text
    assert answer.page.form(do="terminate").fields["reason"] == "<b>enough</b>"
    assert "--reason '<b>enough</b>'" in answer.page.one("details", class_="command").text


async def test_a_form_that_is_too_large_is_refused(visitor: Visitor) -> None:
    answer = await visitor.post("/preferences", {"zone": "x" * 2_100_000})
    assert (answer.status, "bytes" in answer.region.text) == (400, True)


# --- Preferences


async def test_language_theme_and_zone_are_kept_in_cookies(visitor: Visitor) -> None:
    form = (await visitor.get("/processes")).page.form(theme="system")
    kept = await visitor.send(form, language="de", theme="dark", zone="Europe/Berlin")
    html = kept.page.one("html")
    assert (html["lang"], html["data-theme"]) == ("de", "dark")
    assert kept.page.form(theme="dark").fields["zone"] == "Europe/Berlin"
    assert kept.address.endswith("/processes")
    await visitor.send(kept.page.form(theme="dark"), language="xx", theme="odd", zone="../etc")
    assert (await visitor.get("/")).page.one("html")["lang"] == "de"


@pytest.mark.parametrize(
    ("accepted", "language"),
    [("ru,en;q=0.5", "ru"), ("fr, de-AT;q=0.8, en;q=0.7", "de"), ("fr", "en"), (";q=a,", "en")],
)
async def test_the_language_is_that_of_the_browser_at_first(
    console: Console, accepted: str, language: str
) -> None:
    page = (await console.visitor({"accept-language": accepted}).get("/login")).page
    assert page.one("html")["lang"] == language


@pytest.mark.parametrize(
    "onward", ["//elsewhere.example", "https://elsewhere.example", "/\\x", "//["]
)
async def test_no_form_leads_to_another_site(visitor: Visitor, onward: str) -> None:
    answer = await visitor.post("/preferences", {"onward": onward})
    assert (answer.status, answer.headers["location"]) == (303, "/")


# --- Where it listens


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("127.0.0.1:1", 200), ("[::1]:80", 200), ("elsewhere.example", 421),
        ("127.0.0.1.elsewhere.example", 421), ("", 421), ("[", 421), ("ops.example", 421),
    ],
)  # fmt: skip
async def test_a_console_of_this_machine_answers_only_to_names_of_this_machine(
    visitor: Visitor, host: str, status: int
) -> None:
    assert (await visitor.get("/login", host=host)).status == status


async def test_a_console_behind_a_proxy_answers_to_its_name_and_takes_its_forms(
    replica: Replica,
) -> None:
    starting = running_console(
        replica.address, public_url="https://ops.example", base_path="/progressor"
    )
    async with starting as console:
        visitor = console.visitor({"host": "ops.example", "origin": "https://ops.example"})
        # The proxy removes the path under which it serves the console.
        visitor.address = console.address.removesuffix("progressor/")
        answer = await visitor.get("/processes")
        form = answer.page.form(theme="system")
        assert form.action == "/progressor/preferences"
        assert answer.page.link("Processes")["href"] == "/progressor/processes"
        assert "Secure" in answer.headers["set-cookie"]
        assert "Path=/progressor/" in answer.headers["set-cookie"]
        kept = await visitor.post("/preferences", {**form.fields, "theme": "dark"})
        assert (kept.status, kept.headers["location"]) == (303, "/progressor/processes")
        refused = await visitor.get("/", host="other.example")
        assert refused.status == 421


async def test_a_console_that_others_can_reach_answers_to_any_name(replica: Replica) -> None:
    async with running_console(replica.address, is_local=False) as console:
        answer = await console.visitor().get("/login", host="ops.example")
        assert answer.status == 200


@pytest.mark.parametrize(
    "options", [{"is_read_only": True}, {"is_local": False, "allows_actions": False}]
)
async def test_a_console_that_only_reads_offers_no_action_and_takes_none(
    replica: Replica, env: Env, options: dict[str, Any]
) -> None:
    await env.running("kept")
    path = f"/processes/{env.namespace}/kept"
    async with running_console(replica.address, **options) as console:
        visitor = console.visitor()
        page = (await visitor.get(path, {"do": "terminate"})).page
        assert not [it for it in page.all("a") if "do=" in it.get("href")]
        token = (await visitor.get("/login")).page.form(token="").fields["form_token"]
        fields = {"do": "terminate", "confirmation": "kept", "reason": "x", "form_token": token}
        refused = await visitor.post(path, fields)
        assert (refused.status, "only reads" in refused.text) == (400, True)
    assert (await env.client.get("kept")).process.status == "running"


async def test_an_engine_that_is_away_is_a_page_and_not_an_end() -> None:
    async with running_console("127.0.0.1:1") as console:
        answer = await console.visitor().get("/")
        assert (answer.status, "127.0.0.1:1" in answer.region.text) == (503, True)
