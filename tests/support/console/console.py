"""A console in this process, over real HTTP."""

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Mapping
from typing import Any

from progressor.clock import Clock
from progressor.console.app import build
from progressor.console.options import Options
from progressor.console.serving import serving
from progressor.settings.addresses import HttpBind
from tests.support.console.visitor import Visitor

ANY_PORT = HttpBind(host="127.0.0.1", port=0, or_above=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Console:
    """``address`` ends with a slash."""

    address: str
    options: Options

    def visitor(self, headers: Mapping[str, str] | None = None) -> Visitor:
        """Return a new browser, which has logged in nowhere; it reads English."""
        return Visitor(self.address, {"accept-language": "en", **(headers or {})})


@contextlib.asynccontextmanager
async def running_console(
    engine: str, *, clock: Clock | None = None, bind: HttpBind = ANY_PORT, **options: Any
) -> AsyncIterator[Console]:
    """Serve a console of the engine at an address, until the context is left."""
    chosen = Options(address=engine, **options)
    app = build(chosen, clock=clock)
    async with serving(app, bind, base_path=chosen.base_path) as address:
        yield Console(address, chosen)


async def logged_in(console: Console, token: str) -> Visitor:
    """Return a browser that has logged in with a token."""
    visitor = console.visitor()
    answer = await visitor.open("/login")
    found = await visitor.submit(answer.page.form(token=""), token=token)
    assert found.status == 303, found.text
    return visitor
