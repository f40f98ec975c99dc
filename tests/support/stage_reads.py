"""What a stage shows of its process ``p``."""

from progressor.sdk import Process, TaskTrace
from tests.support.replica import (
    Stage,
)


async def process_of(stage: Stage) -> Process:
    return (await stage.client.get("p")).process


async def tasks_of(stage: Stage) -> tuple[TaskTrace, ...]:
    return (await stage.client.trace("p")).tasks


def types_asked(stage: Stage) -> list[int]:
    return [request.task.type for request in stage.asked_for("p")]


async def in_line(stage: Stage, *args: bytes) -> list[int]:
    """Put calls behind the step in hand, in this order; return their task ids."""
    accepted = [await stage.client.call("p", each, accept_only=True) for each in args]
    return [each.task_id for each in accepted]
