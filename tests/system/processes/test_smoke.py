"""The main job, end to end: the shortest of all system tests."""

from pathlib import Path

from tests.support.engine.process import running_process
from tests.support.engine.replica import running_replica
from tests.support.processor.scripted import ScriptedProcessor


async def test_a_started_process_answers_calls(database: str) -> None:
    async with (
        running_replica(database) as replica,
        ScriptedProcessor() as processor,
        replica.namespace("smoke", processor.target) as client,
    ):
        await client.start("p1", "hello")
        answer = await client.call("p1", "world")

        assert answer.response == "world"
        assert replica.points.count("scan_found") == 0


async def test_serve_ends_well_on_sigterm(database: str, tmp_path: Path) -> None:
    async with (
        ScriptedProcessor() as processor,
        running_replica(database) as replica,
        replica.namespace("smoke2", processor.target) as client,
        running_process(database, tmp_path) as other,
    ):
        await client.start("p1", "hello")
        other.terminate()

        assert await other.left() == 0
