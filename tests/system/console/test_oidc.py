"""Logins at an issuer of OpenID Connect: the way there and back, renewal, and failures."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import logging
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from progressor import access_errors
from progressor.console.visits.logins import BEGUN_MAX
from progressor.domain.access.rights import Role
from progressor.sdk import BYTES, Client, NamespaceConfig
from progressor.settings.config import load
from progressor.storage.access.first_admin import create_first_admin
from progressor.wire.openid import OpenIdClient
from tests.support.api.issuer import running_issuer
from tests.support.clock import ManualClock
from tests.support.console.console import Console, running_console
from tests.support.console.sign_on import CLIENT_ID, SignOn
from tests.support.console.visitor import Answer, Visitor
from tests.support.engine.points import eventually
from tests.support.engine.replica import Replica, running_replica

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning"),
]

_CONFIG = """
[access]
enabled = true

[access.issuers.corp]
issuer = "{url}"
audiences = ["progressor"]
algorithms = ["RS256"]
groups_claim = "groups"
"""
_SPACE = "orders"
_PROCESS = f"/processes/{_SPACE}/kept"
_COOKIE = "progressor_console"
_ALMOST_EXPIRED = dt.timedelta(seconds=580)
_EXPIRED = dt.timedelta(seconds=700)


@dataclasses.dataclass(frozen=True, slots=True)
class Corp:
    """An engine, an issuer that it trusts, and a console with which that is registered."""

    replica: Replica
    sign_on: SignOn
    console: Console
    clock: ManualClock

    async def arrived(self) -> tuple[Visitor, Answer]:
        """Return a browser that has begun at a page, and where that has led it."""
        visitor = self.console.visitor()
        login = await visitor.open(_PROCESS)
        return visitor, await visitor.follow(login.region.one("a", class_="primary"))

    async def sent_back(self) -> tuple[Visitor, str]:
        """Return a browser that the issuer has just sent back, and the address to which."""
        visitor = self.console.visitor()
        there = await visitor.get("/login/issuer", {"onward": _PROCESS})
        back = await Visitor(there.headers["location"]).get("")
        return visitor, back.headers["location"]

    def options(self, **changed: Any) -> OpenIdClient:
        return OpenIdClient(issuer=self.sign_on.issuer.url, client_id=CLIENT_ID, **changed)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(
    database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Replica, SignOn]]:
    file: Path = tmp_path_factory.mktemp("oidc") / "progressor.toml"
    config = load(environment={}, flags={"database.dsn": database}).database
    token = await asyncio.to_thread(create_first_admin, config, database, "admin")
    with running_issuer() as issuer:
        await asyncio.to_thread(file.write_text, _CONFIG.format(url=issuer.url))
        async with (
            running_replica(database, file=file) as replica,
            Client(replica.address, namespace=_SPACE, token=token, codec=BYTES) as admin,
        ):
            await eventually(lambda: _is_let_in(admin))
            await admin.namespaces.create(NamespaceConfig(name=_SPACE, processor_targets=("x:1",)))
            await admin.put("kept", state=b"a state")
            await admin.access.add_binding("user:corp/ada", Role.OPERATOR, _SPACE)
            await admin.access.add_binding("group:corp/staff", Role.READER, _SPACE)
            yield replica, SignOn(issuer)


async def _is_let_in(client: Client) -> bool:
    try:
        await client.access.who_am_i()
    except access_errors.UnauthenticatedError:
        return False
    return True


@pytest_asyncio.fixture(loop_scope="module")
async def corp(engine: tuple[Replica, SignOn]) -> AsyncIterator[Corp]:
    replica, before = engine
    issuer, clock = before.issuer, ManualClock()
    issuer.garbage, issuer.discovery = None, {}
    openid = OpenIdClient(issuer=issuer.url, client_id=CLIENT_ID)
    async with running_console(replica.address, clock=clock, openid=openid) as console:
        yield Corp(replica, SignOn(issuer), console, clock)


def _does(answer: Answer) -> set[str]:
    """Return the actions that a page offers."""
    return {it.get("href").partition("do=")[2] for it in answer.page.all("a")} - {""}


async def test_a_user_comes_back_to_the_page_with_the_rights_of_their_name(corp: Corp) -> None:
    visitor = corp.console.visitor()
    login = await visitor.open(_PROCESS)
    assert login.region.one("h1").text == "Log in"
    assert "token" in login.page.form(token="").fields
    before = visitor.cookies[_COOKIE]
    page = await visitor.follow(login.region.one("a", class_="primary"))
    assert page.address.endswith(_PROCESS)
    assert "kept" in page.region.one("h1").text
    assert "terminate" in _does(page)
    assert visitor.cookies[_COOKIE] != before, "a session that was there before a login"
    query, form = corp.sign_on.queries[-1], corp.sign_on.forms[-1]
    assert (query["response_type"], query["code_challenge_method"]) == ("code", "S256")
    assert query["redirect_uri"] == f"{corp.console.address}login/callback"
    assert (form["client_id"], form["redirect_uri"]) == (CLIENT_ID, query["redirect_uri"])


async def test_a_real_browser_logs_in_watches_and_logs_out(corp: Corp, browser: Browser) -> None:
    async with await browser.new_context(base_url=corp.console.address, locale="en") as context:
        window = await context.new_page()
        await window.goto(_PROCESS.removeprefix("/"))
        await window.locator("a.primary").click()
        await expect(window).to_have_url(re.compile(f"{_PROCESS}$"))
        await expect(window.locator("#live-state")).to_have_text("live")
        await expect(window.get_by_role("link", name="Terminate")).to_be_visible()
        await window.locator("header summary").click()
        await window.get_by_role("button", name="Log out").click()
        await expect(window.locator("h1")).to_have_text("Log in")
        await window.go_back()
        await expect(window.locator("h1")).to_have_text("Log in")


async def test_a_user_has_the_rights_of_their_groups(corp: Corp) -> None:
    corp.sign_on.claims = {"sub": "bob", "groups": ["staff"]}
    _, page = await corp.arrived()
    assert ("kept" in page.region.one("h1").text, _does(page)) == (True, set())


async def test_a_user_without_bindings_is_denied(corp: Corp) -> None:
    corp.sign_on.claims = {"sub": "eve"}
    _, page = await corp.arrived()
    assert (page.status, "user:corp/eve" in page.region.one(role="alert").text) == (403, True)


async def test_the_id_token_goes_to_the_engine_where_that_is_wanted(corp: Corp) -> None:
    corp.sign_on.claims = {"sub": "ada"}
    openid = corp.options(token="id")
    corp.sign_on.changed = {"sub": "bob", "groups": ["staff"]}
    async with running_console(corp.replica.address, openid=openid) as console:
        _, page = await dataclasses.replace(corp, console=console).arrived()
    assert ("kept" in page.region.one("h1").text, _does(page)) == (True, set())


async def test_no_secret_is_on_a_page_in_a_cookie_or_in_a_log(
    corp: Corp, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    openid = corp.options(client_secret="a secret/%")
    async with running_console(corp.replica.address, openid=openid) as console:
        one = dataclasses.replace(corp, console=console)
        visitor, page = await one.arrived()
        failed = await visitor.get("/login/callback", {"code": "a-code", "state": "a-state"})
        seen = [page, failed, await visitor.get("/")]
    assert corp.sign_on.issuer.authorizations[-1] == "Basic Y29uc29sZTphK3NlY3JldCUyRiUyNQ=="
    assert "client_id" not in corp.sign_on.forms[-1]
    hidden = [*corp.sign_on.given, "a secret/%", "a-code", "a-state"]
    hidden += [corp.sign_on.forms[-1][name] for name in ("code", "code_verifier")]
    shown = " ".join([it.text + str(it.headers) for it in seen])
    shown += caplog.text + str(visitor.cookies)
    assert [it for it in hidden if it in shown] == []


async def test_logging_out_ends_the_session_and_what_is_open(corp: Corp) -> None:
    visitor, page = await corp.arrived()
    cookies = dict(visitor.cookies)
    form = next(it for it in page.page.forms() if it.action.endswith("/logout"))
    async with visitor.live(_PROCESS) as stream:
        await stream.message()
        assert (await visitor.send(form)).region.one("h1").text == "Log in"
        with contextlib.suppress(StopAsyncIteration):
            while (await stream.next()).name in {"beat", "message", "stale"}:
                pass
    visitor.cookies = cookies
    assert (await visitor.get(_PROCESS)).status == 303


# --- Renewal


async def test_tokens_are_renewed_once_before_they_expire(corp: Corp) -> None:
    visitor, _ = await corp.arrived()
    for count in (1, 2):
        corp.clock.advance(_ALMOST_EXPIRED)
        answers = await asyncio.gather(*(visitor.get(_PROCESS) for _ in range(4)))
        assert {it.status for it in answers} == {200}
        assert corp.sign_on.renewal_count == count


async def test_a_page_that_is_watched_renews_them_too(corp: Corp) -> None:
    visitor, _ = await corp.arrived()
    async with visitor.live(_PROCESS) as stream:
        await stream.message()
        corp.clock.advance(_ALMOST_EXPIRED)
        while not corp.sign_on.renewal_count:
            assert (await stream.next()).name in {"beat", "message"}
        assert (await stream.next()).name in {"beat", "message"}


@pytest.mark.parametrize("answer", [None, (500, {}), (200, {}), (200, [])])
async def test_whose_tokens_cannot_be_renewed_is_led_to_the_login(
    corp: Corp, answer: tuple[int, Any] | None
) -> None:
    visitor, _ = await corp.arrived()
    corp.sign_on.refresh_tokens.clear()
    corp.sign_on.answer = answer
    corp.clock.advance(_EXPIRED)
    asked = await visitor.get(_PROCESS)
    assert (asked.status, asked.headers["location"].partition("?")[0]) == (303, "/login")
    corp.sign_on.answer = None
    login = await visitor.open(_PROCESS)
    page = await visitor.follow(login.region.one("a", class_="primary"))
    assert "kept" in page.region.one("h1").text


async def test_an_issuer_that_is_away_for_a_moment_logs_nobody_out(corp: Corp) -> None:
    visitor, _ = await corp.arrived()
    corp.sign_on.issuer.garbage = b"away"
    corp.clock.advance(_ALMOST_EXPIRED)
    assert [(await visitor.get(_PROCESS)).status for _ in range(2)] == [200, 200]
    assert corp.sign_on.renewal_count == 0
    corp.sign_on.issuer.garbage = None
    corp.clock.advance(dt.timedelta(seconds=6))
    assert (await visitor.get(_PROCESS)).status == 200
    assert corp.sign_on.renewal_count == 1


# --- Failures


async def _is_refused(visitor: Visitor, answer: Answer, status: int) -> str:
    """Check that a login has failed with a page, and has left nothing; return why."""
    assert answer.status == status, answer.text
    assert answer.region.one("h1").text == "Log in"
    assert not answer.page.all("script", src="")
    assert (await visitor.get(_PROCESS)).status == 303
    return answer.region.one(role="alert").text


async def _back(visitor: Visitor, address: str) -> Answer:
    path = address.removeprefix(visitor.address.removesuffix("/"))
    return await visitor.get(path)


@pytest.mark.parametrize("how", ["wrong", "missing", "twice", "late", "other browser"])
async def test_an_answer_to_no_login_of_this_browser_is_refused(corp: Corp, how: str) -> None:
    visitor, address = await corp.sent_back()
    match how:
        case "wrong":
            address = f"{address[:-1]}{'A' if address[-1] != 'A' else 'B'}"
        case "missing":
            address = address.partition("&state=")[0]
        case "twice":
            assert (await _back(visitor, address)).status == 303
            visitor.cookies.clear()
        case "late":
            corp.clock.advance(BEGUN_MAX)
        case _:
            visitor = corp.console.visitor()
    asked = len(corp.sign_on.forms)
    why = await _is_refused(visitor, await _back(visitor, address), 400)
    assert why.startswith("This login has expired, or was not begun in this browser.")
    assert len(corp.sign_on.forms) == asked, "a code was sent on"


async def test_a_code_counts_once_in_the_browser_that_has_logged_in(corp: Corp) -> None:
    visitor, address = await corp.sent_back()
    assert (await _back(visitor, address)).headers["location"] == _PROCESS
    assert (await _back(visitor, address)).status == 400
    assert (await visitor.get(_PROCESS)).status == 200, "another site could log a visitor out"


async def test_what_the_issuer_says_against_a_login_is_shown_as_text(corp: Corp) -> None:
    corp.sign_on.denied = {"error": "access_denied", "error_description": "<b>not\u202e today"}
    visitor, address = await corp.sent_back()
    why = await _is_refused(visitor, await _back(visitor, address), 403)
    url = corp.sign_on.issuer.url
    assert why == f"{url} refused the login: access_denied: <b>not today"
    assert corp.sign_on.forms == []


async def test_a_code_that_the_issuer_refuses_logs_nobody_in(corp: Corp) -> None:
    visitor, address = await corp.sent_back()
    corp.sign_on.codes.clear()
    why = await _is_refused(visitor, await _back(visitor, address), 403)
    assert why.endswith("refused the login: invalid_grant: unknown code")


_RUBBISH: dict[str, Callable[[SignOn], None]] = {
    "no JSON object": lambda it: setattr(it, "answer", (200, [])),
    "no tokens": lambda it: setattr(it, "answer", (200, {})),
    "no ID token": lambda it: setattr(it, "answer", (200, {"access_token": "t"})),
    "an ID token that is none": lambda it: setattr(
        it, "answer", (200, {"access_token": "t", "id_token": "a.W10.c"})
    ),
    "another nonce": lambda it: it.changed.update(nonce="other"),
    "no nonce": lambda it: it.changed.update(nonce=None),
    "another issuer": lambda it: it.changed.update(iss="https://other"),
    "another audience": lambda it: it.changed.update(aud="other"),
    "no discovery": lambda it: setattr(it.issuer, "garbage", b"<html>"),
    "an endpoint that is none": lambda it: it.issuer.discovery.update(token_endpoint=7),
}


@pytest.mark.parametrize("rubbish", _RUBBISH)
async def test_an_answer_that_cannot_be_used_logs_nobody_in(corp: Corp, rubbish: str) -> None:
    visitor, address = await corp.sent_back()
    _RUBBISH[rubbish](corp.sign_on)
    why = await _is_refused(visitor, await _back(visitor, address), 502)
    assert why.endswith("cannot be reached, or its answer cannot be used. Try again later.")


async def test_a_token_that_the_engine_refuses_logs_nobody_in(corp: Corp) -> None:
    corp.sign_on.claims = {"aud": "other"}
    corp.sign_on.changed = {"aud": CLIENT_ID}
    visitor, address = await corp.sent_back()
    why = await _is_refused(visitor, await _back(visitor, address), 401)
    assert why == "the request has no valid credentials"


async def test_an_issuer_that_is_slow_or_has_no_endpoint_leaves_the_login_page(corp: Corp) -> None:
    visitor, issuer = corp.console.visitor(), corp.sign_on.issuer
    issuer.released.clear()
    with contextlib.ExitStack() as stack:
        stack.callback(issuer.released.set)
        await _is_refused(visitor, await visitor.get("/login/issuer"), 502)
    issuer.discovery["authorization_endpoint"] = "javascript:alert(1)"
    await _is_refused(visitor, await visitor.get("/login/issuer"), 502)


async def test_another_site_can_begin_no_login(corp: Corp) -> None:
    visitor, asked = corp.console.visitor(), len(corp.sign_on.issuer.asked)
    answer = await visitor.get("/login/issuer", sec_fetch_site="cross-site")
    assert answer.headers["location"].partition("?")[0] == "/login"
    assert len(corp.sign_on.issuer.asked) == asked


async def test_a_console_without_an_issuer_offers_none(corp: Corp) -> None:
    async with running_console(corp.replica.address) as console:
        visitor = console.visitor()
        login = await visitor.open("/login/issuer")
        assert login.region.all("a") == []
        assert (await visitor.get("/login/callback", {"code": "x", "state": "x"})).status == 404


async def test_behind_a_proxy_the_issuer_sends_browsers_to_its_address(corp: Corp) -> None:
    async with running_console(
        corp.replica.address,
        openid=corp.options(),
        base_path="/progressor",
        public_url="https://ops.example/",
    ) as console:
        visitor = console.visitor({"host": "ops.example"})
        # The proxy removes the path under which it serves the console.
        visitor.address = console.address.removesuffix("progressor/")
        there = await visitor.get("/login/issuer", {"onward": "//elsewhere.example/"})
        back = (await Visitor(there.headers["location"]).get("")).headers["location"]
        ours = "https://ops.example/progressor"
        assert back.startswith(f"{ours}/login/callback?code=")
        answer = await visitor.get(back.removeprefix(ours))
        assert (answer.status, answer.headers["location"]) == (303, "/progressor/")
