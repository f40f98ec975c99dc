"""What the console does with what only somebody hostile sends, or has stored in the engine."""

import asyncio
import gc
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import pytest

from progressor import access_errors
from progressor.console import app
from progressor.console.visits import clients, sessions
from progressor.console.visits.clients import Clients
from progressor.console.visits.sessions import Session
from progressor.domain.access.rights import EVERYTHING, Role
from progressor.sdk import Client, Tls
from progressor.settings.config import load
from progressor.storage.access.first_admin import create_first_admin
from tests.support.certificates import Pki
from tests.support.console.console import Console, logged_in, running_console
from tests.support.console.guarded import GUARDED, READABLE, Guarded
from tests.support.console.visitor import PATIENCE_SECONDS, Answer, Stream, Visitor
from tests.support.engine.points import eventually
from tests.support.engine.replica import Env, running_replica
from tests.support.postgres.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

Kind = TypeVar("Kind")

_NESTED = b"[" * 400 + b"]" * 400


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        (b"\xffPGE", "ff504745"),
        (b"\xffPGE\x01\x05abcde", "ff50474501056162636465"),
        (b"\xffPGE\x02" + b"x" * 60, "ff50474502"),
        # Indented, these 4 kB would be 1.6 MB.
        (b"[" + b",".join([_NESTED] * 4) + b"]", "[[[["),
    ],
)
async def test_a_payload_made_to_break_its_page_does_not(
    env: Env, visitor: Visitor, state: bytes, shown: str
) -> None:
    await env.client.put("hostile", state=state)
    path = f"/processes/{env.namespace}/hostile"
    page = await visitor.get(path)
    assert (page.status, len(page.text) < 20_000) == (200, True)
    assert page.region.one("pre", class_="payload").text.startswith(shown)
    async with visitor.live(path) as stream:
        assert shown in (await stream.message()).data


@pytest.mark.parametrize("value", ["[" * 40 + "]" * 40, "1e999", "9007199254740993", "\ud800"])
async def test_metadata_that_no_process_can_have_is_refused(visitor: Visitor, value: str) -> None:
    pair = quote(f"key={value}", errors="surrogatepass")
    answer = await visitor.get(f"/processes?metadata={pair}")
    assert answer.status in {200, 400}


# --- Other sites


@pytest.mark.parametrize(
    "sent",
    [
        {"sec_fetch_mode": "no-cors", "sec_fetch_dest": "image"},
        {"sec_fetch_mode": "cors", "sec_fetch_dest": "empty"},
        {"sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"},
    ],
)
async def test_another_site_can_link_to_the_console_and_load_nothing(
    visitor: Visitor, sent: Mapping[str, str]
) -> None:
    for path in ("/", "/doctor", "/live?page=/", "/region?page=/", "/static/console.css"):
        refused = await visitor.get(path, None, sec_fetch_site="cross-site", **sent)
        assert (refused.status, "cache-control" in refused.headers) == (403, True)
    linked = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert (await visitor.get("/", None, sec_fetch_site="cross-site", **linked)).status == 200


@pytest.mark.parametrize("origin", ["http://[", "file://", "//", "elsewhere"])
async def test_an_origin_that_is_no_site_is_not_ours(visitor: Visitor, origin: str) -> None:
    for path in ("/preferences", "/login"):
        form = (await visitor.get("/login")).page.form(token="")
        answer = await visitor.post(path, {**form.fields, "token": "x"}, origin=origin)
        assert (answer.status, answer.headers.get("location")) in {(400, None), (303, "/login")}
    assert set(visitor.cookies) == {"progressor_console"}


@pytest.mark.parametrize("path", ["/", "/none", "/processes/none/none", "/login", "/preferences"])
async def test_a_form_of_another_site_replaces_no_session(console: Console, path: str) -> None:
    # A browser sends it without our cookies, and would keep those in the answer.
    answer = await console.visitor().post(path, {"x": "y"}, sec_fetch_site="cross-site")
    assert "set-cookie" not in answer.headers


# --- The certificate of the console


async def test_a_visitor_has_nothing_by_the_certificate_of_the_console(
    cluster: Cluster, tmp_path: Path
) -> None:
    pki, database = Pki(tmp_path), cluster.create_database("progressor_template")
    server, shop = pki.issue("server"), pki.issue("shop", uris=["spiffe://corp/console"])
    settings = {
        **GUARDED,
        "server.tls_certificate": str(server.certificate),
        "server.tls_key": str(server.key),
        "server.tls_client_ca": str(pki.ca),
    }
    tls = Tls(ca=pki.ca, certificate=shop.certificate, key=shop.key)
    config = load(environment={}, flags={"database.dsn": database}).database
    token = await asyncio.to_thread(create_first_admin, config, database, "admin")
    async with (
        running_replica(database, settings) as replica,
        Client(replica.address, token=token, tls=tls) as admin,
        running_console(replica.address, identity={"tls": tls}) as console,
    ):

        async def is_let_in() -> bool:
            try:
                await admin.access.add_binding("cert:spiffe://corp/console", Role.ADMIN, EVERYTHING)
            except access_errors.UnauthenticatedError:
                return False
            return True

        await eventually(is_let_in)
        visitor = console.visitor()
        login = await visitor.get("/login")
        emptied = await visitor.post("/login", {**login.page.form(token="").fields, "token": " "})
        assert emptied.status == 401
        assert (await visitor.get("/namespaces")).headers["location"].startswith("/login")
        assert (await visitor.get("/region", {"page": "/namespaces"})).status == 401
        known = await logged_in(console, token)
        assert (await known.get("/namespaces")).status == 200
    cluster.drop_database(database)


# --- Watched pages


async def test_no_watcher_chooses_the_links_that_others_see(env: Env, visitor: Visitor) -> None:
    await env.running("kept")
    path = f"/processes/{env.namespace}/kept"
    first = await visitor.get("/region", {"page": f"{path}#elsewhere"})
    again = await visitor.get("/region", {"page": path})
    assert "elsewhere" not in first.text + again.text
    assert f'href="{path}?do=terminate"' in again.text


async def test_watching_ends_with_a_role_and_begins_anew_with_another(guarded: Guarded) -> None:
    await guarded.admin.put("watched", state=b"a state")
    token, text = await guarded.admin.access.create_token("changing")
    await guarded.admin.access.add_binding("token:changing", Role.OPERATOR, READABLE)
    visitor = await logged_in(guarded.console, text)
    path = f"/processes/{READABLE}/watched"
    async with visitor.live(path) as stream:
        assert "do=terminate" in (await stream.message()).data
        await guarded.admin.access.remove_binding("token:changing", Role.OPERATOR, READABLE)
        await guarded.admin.access.add_binding("token:changing", Role.READER, READABLE)
        with pytest.raises(StopAsyncIteration):
            await _to_its_end(stream)
    async with visitor.live(path) as stream:
        assert "do=terminate" not in (await stream.message()).data
    await guarded.admin.access.revoke_token(token.token_id)


# --- Many visitors


async def test_visitors_who_never_log_in_end_no_session_of_others(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 10)
    for _ in range(20):
        await guarded.console.visitor().get("/login")
    found = [(await it.get("/processes")).status for it in guarded.visitors.values()]
    assert found == [200] * len(guarded.visitors)


async def test_tokens_of_nobody_close_no_connection_of_others(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "CLIENTS_MAX", 3)
    closed = list[Client]()
    close = Client.close

    async def seen(client: Client) -> None:
        closed.append(client)
        await close(client)

    for visitor in guarded.visitors.values():
        await visitor.get("/processes")
    monkeypatch.setattr(Client, "close", seen)

    async def guess(number: int) -> Answer:
        guessing = guarded.console.visitor()
        form = (await guessing.get("/login")).page.form(token="")
        return await guessing.submit(form, token=f"prg_{number:012}_{'0' * 64}")

    guessed = await asyncio.gather(*(guess(it) for it in range(10)))
    assert [it.status for it in guessed] == [401] * 10
    assert len(closed) == len(guessed)


async def test_a_token_is_forgotten_with_its_last_session(guarded: Guarded) -> None:
    token, text = await guarded.admin.access.create_token("forgotten")
    first = await logged_in(guarded.console, text)
    second = await logged_in(guarded.console, text)
    for visitor, is_kept in ((first, True), (second, False)):
        page = (await visitor.get("/processes")).page
        await visitor.submit(next(it for it in page.forms() if it.action.endswith("/logout")))
        gc.collect()
        assert any(it.token == text for it in _all(Session)) is is_kept
        assert any(text in it._known for it in _all(Clients)) is is_kept
    await guarded.admin.access.revoke_token(token.token_id)


async def test_one_browser_watches_so_many_pages_and_no_more(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await visitor.get("/login")
    monkeypatch.setattr(app, "SESSION_STREAMS_MAX", 2)
    async with visitor.live("/processes?x=1") as one, visitor.live("/processes?x=2") as two:
        await one.message()
        await two.message()
        refused = await visitor.get("/live", {"page": "/"})
        assert (refused.status, "too many" in refused.text) == (429, True)
        # What the page then does instead.
        assert (await visitor.get("/region", {"page": "/"})).status == 200

    async def is_let_in() -> bool:
        try:
            async with visitor.live("/"):
                return True
        except AssertionError:
            return False

    await eventually(is_let_in)


@pytest.mark.parametrize("path", ["/login", "/logout", "/preferences"])
async def test_a_form_that_anybody_can_send_is_small(visitor: Visitor, path: str) -> None:
    answer = await visitor.post(path, {"token": "x" * 70_000})
    assert (answer.status, "64,000 bytes" in answer.region.text) == (400, True)


async def _to_its_end(stream: Stream) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            await stream.next()


def _all(kind: type[Kind]) -> list[Kind]:
    return [it for it in gc.get_objects() if isinstance(it, kind)]
