"""A night on call in a real browser, by keyboard alone; the audit names who did what."""

import dataclasses
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, expect

from progressor.domain.access.audit import AuditEntry, AuditFilter
from progressor.domain.access.rights import EVERYTHING, Role
from progressor.sdk import NamespaceConfig
from progressor.sdk.client.schedules import Every, ScheduledStart, ScheduleSpec
from progressor.sdk.values.graph import Graph
from progressor.sdk.values.jobs import JobState
from progressor.sdk.values.processes import ProcessStatus
from tests.support.console.guarded import READABLE, Guarded
from tests.support.engine.job_env import done, failing
from tests.support.engine.points import PATIENCE_SECONDS, eventually
from tests.support.engine.replica import Env
from tests.support.processor.scripted import Answer, ScriptedProcessor

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATIENCE_MS = PATIENCE_SECONDS * 1000
_SRE = "night-shift"
_TABS_MAX = 60


@dataclasses.dataclass(frozen=True, slots=True)
class Keyboard:
    """Hands on the keys of a browser in which an operator has logged in."""

    window: Page

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.window.keyboard.press(key)

    async def tab_to(self, wanted: Locator) -> None:
        await expect(wanted).to_be_visible()
        for _ in range(_TABS_MAX):
            if await wanted.evaluate("it => it === document.activeElement"):
                return
            await self.press("Tab")
        pytest.fail(f"the key Tab does not reach {wanted}")

    async def fill(self, label: str, text: str) -> None:
        await self.tab_to(self.window.locator("input").and_(self.window.get_by_label(label)))
        await self.press("ControlOrMeta+a")
        await self.window.keyboard.type(text)

    async def follow(self, name: str) -> None:
        """Go to a link by its name, and open it."""
        await self.tab_to(self.window.get_by_role("link", name=name, exact=True))
        await self.press("Enter")

    async def submit(self, name: str) -> None:
        await self.tab_to(self.window.get_by_role("button", name=name, exact=True))
        await self.press("Enter")

    async def page(self, key: str, title: str) -> None:
        """Go to a page of the menu by its keys."""
        await self.press("g", key)
        await self.titled(title)
        await self.listens()

    async def listens(self) -> None:
        """Wait until the script of a page listens to keys; then it shows a button."""
        await expect(self.window.get_by_role("button", name="Pause updates")).to_be_visible()

    async def titled(self, title: str) -> None:
        await expect(self.window.get_by_role("heading", level=1)).to_contain_text(title)

    async def noted(self, note: str) -> None:
        await expect(self.window.locator(".note")).to_have_text(note)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def token(guarded: Guarded) -> str:
    """Return the token of an operator."""
    _, text = await guarded.admin.access.create_token(_SRE)
    await guarded.admin.access.add_binding(f"token:{_SRE}", Role.OPERATOR, EVERYTHING)
    return text


@pytest_asyncio.fixture(loop_scope="module")
async def orders(guarded: Guarded) -> AsyncIterator[Env]:
    """Give the namespace that the console shows a processor."""
    async with ScriptedProcessor() as processor:
        config = NamespaceConfig(name=READABLE, processor_targets=(processor.target,))
        await guarded.admin.namespaces.update(config, fields=["processor_targets"])
        for role in (Role.CALLER, Role.OPERATOR):
            await guarded.admin.access.add_binding("token:admin", role, READABLE)
        yield Env(replica=guarded.replica, processor=processor, client=guarded.admin)


@pytest_asyncio.fixture(loop_scope="module")
async def keyboard(guarded: Guarded, browser: Browser, token: str) -> AsyncIterator[Keyboard]:
    context = await browser.new_context(base_url=guarded.console.address, locale="en")
    context.set_default_timeout(PATIENCE_MS)
    hands = Keyboard(await context.new_page())
    await hands.window.goto("")
    await hands.fill("Token", token)
    await hands.press("Enter")
    await hands.titled("Overview")
    await hands.listens()
    yield hands
    await context.close()


async def _done(guarded: Guarded, method: str) -> AuditEntry:
    """Return the operator's entry of a method in the audit, once it is there."""
    wanted = AuditFilter(method=method, principal=f"token:{_SRE}")

    async def written() -> AuditEntry | None:
        return await anext(aiter(guarded.admin.access.audit(wanted)), None)

    found: AuditEntry = await eventually(written)
    assert found.result == "OK"
    return found


async def test_a_namespace_is_paused_and_the_mistake_undone(
    guarded: Guarded, orders: Env, keyboard: Keyboard
) -> None:
    await keyboard.page("n", "Namespaces")
    await keyboard.follow(orders.namespace)
    await keyboard.follow("Pause")
    await keyboard.fill("Reason", "the bank is down")
    await keyboard.press("Enter")
    await keyboard.noted("Namespace orders is paused.")
    pause = (await orders.client.namespaces.get(orders.namespace)).pause
    assert pause is not None
    assert (pause.author, pause.reason) == (f"token:{_SRE}", "the bank is down")
    await keyboard.follow("Resume")
    await keyboard.submit("Resume")
    await keyboard.noted("Namespace orders is resumed.")
    assert (await orders.client.namespaces.get(orders.namespace)).pause is None
    entry = await _done(guarded, "PauseNamespace")
    assert (entry.namespace, entry.reason) == (orders.namespace, "the bank is down")
    assert (await _done(guarded, "ResumeNamespace")).namespace == orders.namespace


async def test_a_group_of_failures_is_retried_after_a_preview(
    guarded: Guarded, orders: Env, keyboard: Keyboard
) -> None:
    names = [f"order-{number}" for number in range(3)]
    for name in names:
        await orders.broken(name)
    await keyboard.page("f", "Failures")
    await keyboard.follow("Retry them all")
    await keyboard.titled("New bulk operation")
    await expect(keyboard.window.locator(".matched")).to_contain_text("3 processes match.")
    await keyboard.follow("Retry")
    await keyboard.fill("Reason", "the bank is back")
    await keyboard.fill("Type retry to confirm", "retry")
    await keyboard.press("Enter")
    await keyboard.noted("The operation was started.")
    await expect(keyboard.window.locator("h1 .status")).to_have_text("done", timeout=PATIENCE_MS)
    for name in names:
        await orders.client.call(name)
        assert (await orders.client.get(name)).process.status is ProcessStatus.RUNNING
    assert (await _done(guarded, "StartBulk")).reason == "the bank is back"


async def test_a_gate_is_lowered_and_raised_again(
    guarded: Guarded, orders: Env, keyboard: Keyboard
) -> None:
    await orders.client.gates.set("database/eu", 8)
    await keyboard.page("t", "Gates")
    await keyboard.press("j", "Enter")
    await keyboard.titled("database/eu")
    for capacity in ("1", "8"):
        await keyboard.follow("Set the capacity")
        await expect(keyboard.window.get_by_role("spinbutton", name="Capacity")).to_be_focused()
        await keyboard.fill("Capacity", capacity)
        await keyboard.press("Enter")
        await keyboard.noted(f"The capacity is now {capacity}.")
        assert (await orders.client.gates.get("database/eu")).gate.capacity == int(capacity)
    entry = await _done(guarded, "SetGate")
    assert (entry.namespace, entry.object_id) == (orders.namespace, "database/eu")


async def test_a_failed_job_is_retried(guarded: Guarded, orders: Env, keyboard: Keyboard) -> None:
    orders.processor.on_process("report/load", Answer(failing()), Answer(done()))
    graph = Graph()
    graph.node("load")
    await orders.client.jobs.submit("report", graph)
    await orders.client.jobs.wait("report")
    await keyboard.page("j", "Jobs")
    await keyboard.press("j", "Enter")
    await keyboard.titled("report")
    await keyboard.follow("Retry")
    await keyboard.submit("Retry")
    await keyboard.noted("The job runs again. Nodes that start again: 1.")
    assert (await orders.client.jobs.wait("report")).state is JobState.DONE
    assert (await _done(guarded, "RetryJob")).object_id == "report"


async def test_a_past_period_of_a_schedule_is_backfilled(
    guarded: Guarded, orders: Env, keyboard: Keyboard
) -> None:
    spec = ScheduleSpec(times=Every(3600), target=ScheduledStart())
    await orders.client.schedules.create("hourly", spec, paused=True)
    await keyboard.page("s", "Schedules")
    await keyboard.press("j", "Enter")
    await keyboard.titled("hourly")
    await keyboard.follow("Backfill")
    await keyboard.fill("From, included", "2026-01-01T00:00:00Z")
    await keyboard.fill("To, excluded", "2026-01-01T02:00:00Z")
    await keyboard.press("Enter")
    await keyboard.noted("Instants in the period: 2. Queued of these: 2.")
    runs = (await orders.client.schedules.get("hourly")).last_runs
    assert [run.cause for run in runs] == ["backfill"] * 2
    assert (await _done(guarded, "BackfillSchedule")).object_id == "hourly"
