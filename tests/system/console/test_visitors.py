"""Visitors of an engine with access control: logging in and out, and where a token never shows."""

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from progressor import access_errors
from progressor.console.visits.sessions import IDLE_MAX, LIFETIME_MAX
from progressor.domain.access.audit import AuditFilter
from progressor.domain.access.rights import EVERYTHING, Role
from progressor.sdk import BYTES, Client, NamespaceConfig
from progressor.settings.config import load
from progressor.storage.access.first_admin import create_first_admin
from tests.support.clock import ManualClock
from tests.support.console.console import Console, logged_in, running_console
from tests.support.console.visitor import Answer
from tests.support.engine.points import eventually
from tests.support.engine.replica import Replica

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETTINGS = {"access.enabled": "true"}
_NAMESPACE = "orders"
_PROCESS = f"/processes/{_NAMESPACE}/kept"


@dataclasses.dataclass(frozen=True, slots=True)
class Guarded:
    """A console of an engine with access control, its administrator, and a token of a reader."""

    console: Console
    clock: ManualClock
    admin: Client
    admin_token: str
    reader_token: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(database: str, replica: Replica) -> AsyncIterator[Guarded]:
    config, clock = load(environment={}, flags={"database.dsn": database}).database, ManualClock()
    token = await asyncio.to_thread(create_first_admin, config, database, "admin")
    async with (
        Client(replica.address, namespace=_NAMESPACE, token=token, codec=BYTES) as admin,
        running_console(replica.address, clock=clock) as console,
    ):

        async def is_let_in() -> bool:
            try:
                await admin.access.who_am_i()
            except access_errors.UnauthenticatedError:
                return False
            return True

        await eventually(is_let_in)
        await admin.namespaces.create(NamespaceConfig(name=_NAMESPACE, processor_targets=("x:1",)))
        await admin.put("kept", state=b"a state")
        _, reader = await admin.access.create_token("reader")
        await admin.access.add_binding("token:reader", Role.READER, EVERYTHING)
        yield Guarded(console, clock, admin, token, reader)


async def test_who_has_not_logged_in_sees_the_login_and_then_the_page(guarded: Guarded) -> None:
    visitor = guarded.console.visitor()
    asked = await visitor.get(_PROCESS)
    assert (asked.status, asked.headers["location"][:6]) == (303, "/login")
    login = await visitor.open(_PROCESS)
    assert login.region.one("h1").text == "Log in"
    before = visitor.cookies["progressor_console"]
    page = await visitor.send(login.page.form(token=""), token=guarded.admin_token)
    assert "kept" in page.region.one("h1").text
    assert visitor.cookies["progressor_console"] != before, (
        "a session that was there before a login"
    )


async def test_logging_out_ends_the_session(guarded: Guarded) -> None:
    visitor = await logged_in(guarded.console, guarded.admin_token)
    cookies = dict(visitor.cookies)
    page = (await visitor.get("/")).page
    form = next(it for it in page.forms() if it.action.endswith("/logout"))
    assert (await visitor.send(form)).region.one("h1").text == "Log in"
    visitor.cookies = cookies
    assert (await visitor.get("/")).status == 303


@pytest.mark.parametrize("token", ["wrong", "progressor_wrong", "\u20ac", "x" * 10_000])
async def test_a_token_of_nobody_logs_nobody_in(guarded: Guarded, token: str) -> None:
    visitor = guarded.console.visitor()
    login = await visitor.get("/login")
    answer = await visitor.submit(login.page.form(token=""), token=token)
    assert (answer.status, bool(answer.region.one(role="alert").text)) == (401, True)
    assert not _has(answer, token)


async def test_a_token_that_is_deleted_ends_what_it_let_in(guarded: Guarded) -> None:
    kept, token = await guarded.admin.access.create_token("short")
    await guarded.admin.access.add_binding("token:short", Role.READER, EVERYTHING)
    visitor = await logged_in(guarded.console, token)
    await guarded.admin.access.revoke_token(kept.token_id)

    async def is_refused() -> bool:
        return (await visitor.get(_PROCESS)).status == 303

    await eventually(is_refused)


@pytest.mark.parametrize("how", ["idle", "old"])
async def test_a_session_ends_when_it_is_idle_or_old(guarded: Guarded, how: str) -> None:
    visitor = await logged_in(guarded.console, guarded.admin_token)
    pause = IDLE_MAX if how == "idle" else IDLE_MAX * 0.9
    for _ in range(1 if how == "idle" else LIFETIME_MAX // pause):
        assert (await visitor.get(_PROCESS)).status == 200
        guarded.clock.advance(pause)
    guarded.clock.advance(IDLE_MAX * 0.11)
    assert (await visitor.get(_PROCESS)).status == 303


async def test_a_reader_is_offered_no_action_and_the_engine_refuses_one(guarded: Guarded) -> None:
    visitor = await logged_in(guarded.console, guarded.reader_token)
    page = (await visitor.get(_PROCESS)).page
    assert not [it for it in page.all("a") if "do=" in it.get("href")]
    token = next(it for it in page.forms() if it.action.endswith("/logout")).fields["form_token"]
    fields = {"do": "terminate", "confirmation": "kept", "reason": "x", "form_token": token}
    refused = await visitor.post(_PROCESS, fields)
    assert refused.status == 403
    assert (await guarded.admin.get("kept")).process.status == "running"


async def test_what_a_visitor_does_is_recorded_under_their_name(guarded: Guarded) -> None:
    await guarded.admin.put("ended", state=b"")
    visitor = await logged_in(guarded.console, guarded.admin_token)
    path = f"/processes/{_NAMESPACE}/ended"
    form = (await visitor.get(path, {"do": "terminate"})).page.form(do="terminate")
    await visitor.send(form, reason="by hand", confirmation="ended")

    async def recorded() -> bool:
        found = [it async for it in guarded.admin.access.audit(AuditFilter(object_id="ended"))]
        return [(it.principal, it.reason) for it in found][:1] == [("token:admin", "by hand")]

    assert await eventually(recorded)


async def test_a_token_is_on_no_page_in_no_cookie_and_in_no_log(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    visitor = await logged_in(guarded.console, guarded.admin_token)
    for path in ("/", "/processes", _PROCESS, f"{_PROCESS}?do=terminate", "/none", "/login"):
        assert not _has(await visitor.get(path), guarded.admin_token)
    async with visitor.live(_PROCESS) as stream:
        assert guarded.admin_token not in (await stream.message()).data
    assert guarded.admin_token not in str(visitor.cookies)
    assert guarded.admin_token not in caplog.text


async def test_a_stream_of_a_page_is_refused_to_who_has_not_logged_in(guarded: Guarded) -> None:
    answer = await guarded.console.visitor().get("/live", {"page": _PROCESS})
    assert (answer.status, "a state" in answer.text) == (401, False)


def _has(answer: Answer, secret: str) -> bool:
    return secret in answer.text or secret in str(answer.headers)
