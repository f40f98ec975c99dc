"""What the console does with what only somebody hostile sends, or has stored in the engine."""

from urllib.parse import quote

import pytest

from tests.support.console.visitor import Visitor
from tests.support.engine.replica import Env

pytestmark = pytest.mark.asyncio(loop_scope="module")

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
