"""What an environment shows of its process ``p``."""

from progressor.sdk import Process, TaskTrace
from tests.support.engine.replica import (
    Env,
)


async def process_of(env: Env) -> Process:
    return (await env.client.get("p")).process


async def tasks_of(env: Env) -> tuple[TaskTrace, ...]:
    return (await env.client.trace("p")).tasks


def types_asked(env: Env) -> list[int]:
    return [request.task.type for request in env.asked_for("p")]


async def in_line(env: Env, *args: bytes) -> list[int]:
    """Put calls behind the step in hand, in this order; return their task ids."""
    accepted = [await env.client.call("p", each, accept_only=True) for each in args]
    return [each.task_id for each in accepted]
