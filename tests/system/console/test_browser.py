"""The console in a real browser: live pages, keys, no scripts, narrow screens, accessibility."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import pytest
from playwright.async_api import Browser, Locator, Page, Route, expect

from progressor.console.pages.pages import PAGES
from progressor.domain.access.rights import Role
from tests.support.console.browser import axe
from tests.support.console.console import Console
from tests.support.console.guarded import READABLE, Guarded
from tests.support.engine.replica import Env

pytestmark = pytest.mark.asyncio(loop_scope="module")

expect.set_options(timeout=8_000)

_TABS_MAX = 60
_AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
_AXE_COLOURS = ["color-contrast", "link-in-text-block"]
"""Those of its rules that look at colours."""

_OF_NO_PAGE = ("/login", "/none", "?do=terminate")
_PLACES = (*(it.path for it in PAGES), *_OF_NO_PAGE)


def _address(pages: Mapping[str, str], place: str) -> str:
    if place.startswith("?"):
        return pages["/processes/{namespace}/{name:path}"] + place
    return pages.get(place, place)


async def _open(window: Page, address: str) -> None:
    await window.goto(address.removeprefix("/"))


def _process(env: Env, process_id: str) -> str:
    return f"/processes/{env.namespace}/{quote(process_id, safe='')}"


# --- Live


async def test_a_page_follows_what_happens_and_keeps_the_focus(env: Env, window: Page) -> None:
    await env.running("kept")
    await _open(window, f"/processes?namespace={env.namespace}")
    await window.keyboard.press("j")
    await expect(window.locator(":focus")).to_have_text("kept")
    await env.running("new")
    await expect(window.get_by_role("link", name="new", exact=True)).to_be_visible()
    await expect(window.locator(":focus")).to_have_text("kept")
    await expect(window.locator("#live-state")).to_have_text("live")


async def test_a_page_that_is_paused_stays_as_it_is_and_then_catches_up(
    env: Env, window: Page
) -> None:
    await env.running("paused")
    await _open(window, _process(env, "paused"))
    await expect(window.locator("#live-state")).to_have_text("live")
    await window.get_by_role("button", name="Pause updates").click()
    await env.client.terminate("paused", reason="enough")
    await _events(window, "htmx:sse:before:message", 3)
    await expect(window.locator("h1 .status")).to_have_text("running")
    await window.get_by_role("button", name="Pause updates").click()
    await expect(window.locator("h1 .status")).to_have_text("finished")


async def _events(window: Page, name: str, count: int) -> None:
    """Wait until the page has had so many events of a name, whatever elements it replaces."""
    await window.evaluate(
        """([name, count]) => document.addEventListener(
          name, () => { document.documentElement.dataset.left = --count; }, true)""",
        [name, count],
    )
    # Bounded, as waiting for a promise of the page is not.
    await expect(window.locator("html")).to_have_attribute("data-left", re.compile(r"^(0|-\d+)$"))


async def test_a_page_is_streamed_however_late_the_script_for_it_comes(
    env: Env, window: Page
) -> None:
    await env.running("late")

    async def delay(route: Route) -> None:
        # A timer that htmx sets as it is loaded comes first.
        await window.evaluate(
            """() => new Promise((resolve) => {
              const look = () => setTimeout(window.htmx ? resolve : look, 50);
              look();
            })"""
        )
        await route.continue_()

    await window.route("**/hx-sse.min.js", delay)
    async with window.expect_request("**/live?*"):
        await window.goto(_process(env, "late").removeprefix("/"), wait_until="commit")


async def test_a_page_follows_by_polling_where_streams_are_cut(
    env: Env, browser: Browser, console: Console
) -> None:
    await env.running("polled")
    context = await browser.new_context(base_url=console.address, locale="en")
    window = await context.new_page()

    async def cut(route: Route) -> None:
        await route.abort()

    await window.route("**/live?*", cut)
    await _open(window, _process(env, "polled"))
    await expect(window.locator("h1 .status")).to_have_text("running")
    await env.client.terminate("polled", reason="enough")
    await expect(window.locator("h1 .status")).to_have_text("finished")
    await context.close()


async def test_a_page_leads_to_the_login_once_its_token_is_revoked(
    guarded: Guarded, browser: Browser
) -> None:
    token, text = await guarded.admin.access.create_token("leaving")
    await guarded.admin.access.add_binding("token:leaving", Role.READER, READABLE)
    context = await browser.new_context(base_url=guarded.console.address, locale="en")
    window = await context.new_page()
    await _open(window, f"/processes?namespace={READABLE}")
    await expect(window).to_have_title("Log in · progressor")
    await expect(window.locator("nav a")).to_have_count(0)
    await window.get_by_label("Token").fill(text)
    await window.get_by_role("button", name="Log in").click()
    await expect(window.locator("#live-state")).to_have_text("live")
    await guarded.admin.access.revoke_token(token.token_id)
    await expect(window.get_by_label("Token")).to_be_visible(timeout=30_000)
    await context.close()


async def test_instants_say_how_long_ago_they_were(env: Env, window: Page) -> None:
    await env.running("old")
    await _open(window, _process(env, "old"))
    await expect(window.locator("#region time").first).to_have_attribute(
        "title", re.compile("ago|in \\d+|now")
    )


# --- Keys


async def test_keys_walk_rows_pages_and_fields(env: Env, window: Page) -> None:
    for it in ("first", "second"):
        await env.running(it)
    await _open(window, f"/processes?namespace={env.namespace}")
    rows = await window.locator("table.rows tbody th a").all_inner_texts()
    for key, row in (("j", 0), ("j", 1), ("j", 1), ("k", 0), ("k", 0)):
        await window.keyboard.press(key)
        await expect(window.locator(":focus")).to_have_text(rows[row])
    await window.keyboard.press("/")
    await expect(window.locator("#filter")).to_be_focused()
    await window.keyboard.type("gj?/")
    await expect(window.locator("#filter")).to_have_value("gj?/")
    await window.locator("h1").click()
    await window.keyboard.press("?")
    await expect(window.get_by_role("dialog")).to_be_visible()
    await expect(window.get_by_role("dialog")).to_contain_text(re.compile(r"g\s*t\s*Gates"))
    await window.keyboard.press("Escape")
    await expect(window.get_by_role("dialog")).to_be_hidden()
    await window.keyboard.press("g")
    await window.keyboard.press("o")
    await expect(window.get_by_role("heading", level=1)).to_have_text("Overview")
    # The script shows it, and then listens to keys.
    await expect(window.get_by_role("button", name="Pause updates")).to_be_visible()
    await window.keyboard.press("g")
    await window.keyboard.press("p")
    await expect(window.get_by_role("heading", level=1)).to_have_text("Processes")


async def test_a_process_is_ended_by_keys_alone(env: Env, window: Page) -> None:
    await env.running("by-keys")
    await _open(window, f"/processes?namespace={env.namespace}")
    await window.keyboard.press("j")
    await window.keyboard.press("Enter")
    await _tab_to(window, window.get_by_role("link", name="Terminate"))
    await window.keyboard.press("Enter")
    await _tab_to(window, window.get_by_label("Reason"))
    await window.keyboard.type("enough")
    await _tab_to(window, window.get_by_label("Type by-keys to confirm"))
    await window.keyboard.type("by-keys")
    await window.keyboard.press("Enter")
    await expect(window.locator(".note")).to_have_text("The process was ended.")
    assert (await env.client.get("by-keys")).process.status == "finished"


async def _tab_to(window: Page, wanted: Locator) -> None:
    await expect(wanted).to_be_visible()
    for _ in range(_TABS_MAX):
        await window.keyboard.press("Tab")
        if await wanted.evaluate("it => it === document.activeElement"):
            return
    pytest.fail(f"the key Tab does not reach {wanted}")


# --- Every browser


async def test_everything_works_without_scripts(
    env: Env, browser: Browser, console: Console
) -> None:
    await env.running("plain")
    context = await browser.new_context(
        base_url=console.address, locale="en", java_script_enabled=False
    )
    window = await context.new_page()
    await _open(window, "/")
    await window.get_by_role("link", name="Processes").click()
    await window.get_by_label("Id begins with").fill("pla")
    await window.get_by_role("button", name="Filter").click()
    await window.get_by_role("link", name="plain").click()
    await window.get_by_role("link", name="Terminate").click()
    await window.get_by_label("Reason").fill("enough")
    await window.get_by_label("Type plain to confirm").fill("plain")
    await window.get_by_role("button", name="Terminate").click()
    await expect(window.locator(".note")).to_have_text("The process was ended.")
    await window.get_by_text("Settings").click()
    await window.get_by_label("Language").select_option("ru")
    await window.get_by_role("button", name="Save").click()
    assert await window.locator("html").get_attribute("lang") == "ru"
    await context.close()


@pytest.mark.parametrize("place", _PLACES)
async def test_a_page_fits_a_narrow_screen(
    window: Page, pages: Mapping[str, str], place: str
) -> None:
    await window.set_viewport_size({"width": 320, "height": 640})
    await _open(window, _address(pages, place))
    width = await window.evaluate("document.documentElement.scrollWidth")
    assert width <= 320, await window.evaluate(
        """[...document.querySelectorAll("body *")]
          .filter((it) => it.getBoundingClientRect().right > 320 && !it.closest(".scroll"))
          .map((it) => it.outerHTML.slice(0, 200))"""
    )


@pytest.mark.parametrize("place", _PLACES)
async def test_a_page_is_accessible_in_both_themes(
    window: Page, pages: Mapping[str, str], place: str
) -> None:
    await window.emulate_media(reduced_motion="reduce")  # a colour is there at once
    await _open(window, _address(pages, place))
    await window.evaluate(axe())
    await window.evaluate(
        "document.querySelectorAll('details').forEach((it) => { it.open = true; })"
    )
    wrong = await _violations(window, "light", _AXE_TAGS)
    # The page is the same but for its colours.
    wrong += await _violations(window, "dark", {"type": "rule", "values": _AXE_COLOURS})

    assert wrong == [], "\n".join(wrong)


async def _violations(window: Page, theme: str, rules: Any) -> list[str]:
    found = await window.evaluate(
        """([theme, runOnly]) => {
          document.documentElement.dataset.theme = theme;
          return axe.run(document, {runOnly, resultTypes: ['violations']});
        }""",
        [theme, rules],
    )
    return [
        f"{theme}: {it['id']}: {node['html'][:300]} {node['failureSummary']}"
        for it in found["violations"]
        for node in it["nodes"]
    ]
