"""Writes pictures of the console: each page in both themes and all languages.

``python -m tests.support.console.screenshots FOLDER [LANGUAGE…]``: against an engine of its own,
with the examples that the tests open. ``console.png`` is docs/console.png, on the README's first
screen.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from playwright.async_api import Browser, async_playwright

from progressor.console.words.words import LANGUAGES
from progressor.sdk import BYTES, Client, Constraints, NamespaceConfig
from progressor.storage.postgres.migrations import migrate
from tests.support.console import browser as browsers
from tests.support.console.console import Console, running_console
from tests.support.console.examples import example_pages
from tests.support.engine.replica import Env, Replica, answering, open_env, running_replica
from tests.support.postgres.cluster import open_cluster
from tests.support.processor.scripted import Answer, Hang

_SIZE = {"width": 1280, "height": 800}
_PICTURE = {"width": 1280, "height": 620}
_PATIENCE_MS = 60_000


async def _write(folder: Path, languages: Sequence[str]) -> None:
    chromium = browsers.find()
    with open_cluster() as cluster:
        database = cluster.create_database()
        await asyncio.to_thread(migrate, database)
        async with (
            running_replica(database) as replica,
            open_env(replica) as env,
            running_console(replica.address) as console,
            async_playwright() as playwright,
        ):
            pages = await example_pages(env)
            browser = await playwright.chromium.launch(
                executable_path=chromium.path,
                args=["--no-sandbox", "--disable-gpu"],
                env={**chromium.environment},
            )
            for language in languages:
                for theme in ("light", "dark"):
                    await _pages(browser, console, pages, language, theme, folder)
            await _picture(browser, console, await _scene(replica, env), folder)
            await browser.close()


async def _scene(replica: Replica, env: Env) -> str:
    """Have a process wait for a gate that another one holds; return the address of its page."""
    async with Client(replica.address, namespace="rollouts", codec=BYTES) as client:
        await client.namespaces.create(
            NamespaceConfig(name="rollouts", processor_targets=(env.processor.target,))
        )
        await client.gates.set("database/eu", 1)
        through_gate = Constraints(gates=["database/eu"])
        hang = Hang()
        env.processor.on_process("billing-1.10", answering(b'{"planned": "1.10"}'), hang)
        env.processor.on_process("orders-1.2", answering(b'{"planned": "1.2"}'), Answer())
        for process_id in ("billing-1.10", "orders-1.2"):
            await client.start(process_id)
            await client.call(
                process_id, b'{"type": "migrate"}', constraints=through_gate, accept_only=True
            )
    return "/processes/rollouts/orders-1.2"


async def _pages(
    browser: Browser,
    console: Console,
    pages: Mapping[str, str],
    language: str,
    theme: str,
    folder: Path,
) -> None:
    context = await browser.new_context(
        base_url=console.address,
        locale=language,
        color_scheme="dark" if theme == "dark" else "light",
    )
    context.set_default_timeout(_PATIENCE_MS)
    window = await context.new_page()
    await window.set_viewport_size(_SIZE)  # type: ignore[arg-type]  # a typed dictionary
    for path, address in {**pages, "/login": "/login"}.items():
        await window.goto(address.removeprefix("/"))
        await window.locator("#pause:not([hidden]), body:not(:has(#updates))").first.wait_for()
        name = path.translate({ord(it): "-" for it in "/:{}"}).strip("-") or "overview"
        await window.screenshot(path=folder / f"{name}-{theme}-{language}.png", full_page=True)
    await context.close()


async def _picture(browser: Browser, console: Console, address: str, folder: Path) -> None:
    context = await browser.new_context(base_url=console.address, locale="en")
    window = await context.new_page()
    await window.set_viewport_size(_PICTURE)  # type: ignore[arg-type]  # a typed dictionary
    await window.goto(address.removeprefix("/"))
    await window.locator("#live-state:not(:empty)").wait_for()
    await window.screenshot(path=folder / "console.png")
    await context.close()


def main() -> None:
    folder = Path(sys.argv[1])
    languages = sys.argv[2:] or list(LANGUAGES)
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(_write(folder, languages))
    print(f"screenshots in {folder}")  # noqa: T201  # a command


if __name__ == "__main__":
    main()
