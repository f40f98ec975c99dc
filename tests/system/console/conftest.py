"""A console of the module's replica, somebody who visits it, and a browser that shows it."""

from collections.abc import AsyncIterator, Mapping

import pytest
import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright

from tests.support.console import browser as browsers
from tests.support.console.console import Console, running_console
from tests.support.console.examples import example_pages
from tests.support.console.guarded import GUARDED, Guarded, running_guarded
from tests.support.console.visitor import Visitor
from tests.support.engine.replica import Replica, open_env, running_replica
from tests.support.postgres.cluster import Cluster

PATIENCE_MS = 30_000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def console(replica: Replica) -> AsyncIterator[Console]:
    async with running_console(replica.address) as console:
        yield console


@pytest_asyncio.fixture(loop_scope="module")
async def visitor(console: Console) -> Visitor:
    return console.visitor()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pages(replica: Replica) -> AsyncIterator[Mapping[str, str]]:
    """Return the address of an example of each page, by its path."""
    async with open_env(replica) as env:
        yield await example_pages(env)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    try:
        chromium, _ = browsers.find(), browsers.axe()
    except browsers.NoBrowserError as error:
        if browsers.REQUIRED:
            raise
        pytest.skip(str(error))
    async with async_playwright() as playwright:
        # Without its sandbox, which root and containers do not have.
        browser = await playwright.chromium.launch(
            executable_path=chromium.path,
            args=["--no-sandbox", "--disable-gpu"],
            env={**chromium.environment},
        )
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def window(browser: Browser, console: Console) -> AsyncIterator[Page]:
    """Return a window of a browser that reads English; nothing may go wrong in it."""
    context = await browser.new_context(base_url=console.address, locale="en")
    context.set_default_timeout(PATIENCE_MS)
    window, wrong = await context.new_page(), list[str]()
    window.on("pageerror", lambda error: wrong.append(str(error)))

    def read(message: ConsoleMessage) -> None:
        # A page with a status of its own, such as 404, is an error to a browser as well.
        if message.type == "error" and message.location["url"] != window.url:
            wrong.append(message.text)

    window.on("console", read)
    yield window
    await context.close()
    assert wrong == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(cluster: Cluster) -> AsyncIterator[Guarded]:
    """Return a console of an engine with access control, on a database of its own."""
    database = cluster.create_database("progressor_template")
    async with (
        running_replica(database, GUARDED) as replica,
        running_guarded(database, replica) as found,
    ):
        yield found
    cluster.drop_database(database)
