"""What holds for every page: headers, forms, sessions, preferences, and who is let in."""

import pytest

from tests.support.console.visitor import Visitor
from tests.support.engine.replica import Env

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_process_is_found_in_the_list_and_ended_by_its_page(
    env: Env, visitor: Visitor
) -> None:
    await env.running("found")
    listed = await visitor.get("/processes", {"namespace": env.namespace})
    assert ["found", env.namespace, "running"] in [row[:3] for row in listed.page.rows()]
    page = (await visitor.follow(listed.page.link("found"))).page
    form = (await visitor.follow(page.link("Terminate"))).page.form(do="terminate")
    ended = await visitor.send(form, reason="enough", confirmation="found")
    assert ended.page.one(class_="note").text == "The process was ended."
    assert "finished" in ended.region.one("h1").text
    assert "enough" in ended.region.text


async def test_a_watched_page_is_sent_again_once_it_changes(env: Env, visitor: Visitor) -> None:
    await env.running("watched")
    path = f"/processes/{env.namespace}/watched"
    async with visitor.live(path) as stream:
        assert "running" in (await stream.message()).region.one("h1").text
        await env.client.terminate("watched", reason="enough")
        assert "finished" in (await stream.message()).region.one("h1").text
