"""Load under which a fault strikes: a crowd of callers who insist, and processes on their own.

Every caller has one call after the other answered, each under a key of its own, as a user does who
must know. The answers are compared with what is in the database.
"""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Mapping

import psycopg

from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.replica import Env, answering, timer
from tests.support.faults.env import asked_twice, insist, rows, until
from tests.support.processor.scripted import Answer

CALLED = 8
CALLERS = 16
SELF_DRIVEN = 8
STEPS = 40
ATTEMPT_SECONDS = 5.0

RESUMED_SECONDS = 20.0
"""Within which calls are answered again, once what they need is back: 5 s, and 15 s by which a
machine that others work on may be late. A bound against a hang, not a measure."""

BRIEF: Mapping[str, str] = {
    "database.connect_timeout_seconds": "1",
    "database.statement_timeout_seconds": "1",
    "replica.lease_timeout_seconds": "2",
}
"""For an engine that soon notices an absence, and soon finds the leases that it never heard of
because an answer was lost."""

_EVENTS = """
    SELECT payload FROM progressor.events
    WHERE namespace = %(namespace)s AND process_id = %(process_id)s ORDER BY event_id"""


@dataclasses.dataclass(slots=True)
class Load:
    env: Env
    answered: dict[str, list[bytes]] = dataclasses.field(default_factory=dict)
    count: int = 0
    stopped: bool = False
    _changed: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    async def begin(self) -> None:
        for number in range(CALLED):
            name = f"called{number}"
            self.answered[name] = []
            await self.env.running(name, Answer())
        for number in range(SELF_DRIVEN):
            name = f"driven{number}"
            self.env.processor.on_process(
                name, *[answering(b"tick", set_timer=timer())] * (STEPS - 1), answering(b"last")
            )
            # With a key it is repeated, should a connection be left that an earlier disaster broke.
            await self.env.client.start(name, accept_only=True, idempotency_key=name)

    async def run(self, caller: int) -> None:
        name, number = f"called{caller % CALLED}", 0
        while not self.stopped:
            number += 1
            args = b"%d/%d" % (caller, number)

            assert await called(self.env, name, args) == args
            self.answered[name].append(args)
            self.count += 1
            self._changed.set()

    async def progressed(self, count: int) -> None:
        wanted = self.count + count
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.count < wanted:
                self._changed.clear()
                await self._changed.wait()

    async def resumed(self) -> float:
        """Return how many seconds it takes until as many calls are answered as twice the callers.

        The first answers may be those of calls that had gone before; a second one of each had not.
        """
        begun_at = time.monotonic()
        await self.progressed(2 * CALLERS)
        return time.monotonic() - begun_at


async def called(env: Env, process_id: str, args: bytes) -> bytes:
    answer = await insist(
        env.client.call, process_id, args, idempotency_key=args.decode(), timeout=ATTEMPT_SECONDS
    )
    response: bytes = answer.response
    return response


@contextlib.asynccontextmanager
async def judged_load(env: Env, conninfo: str) -> AsyncIterator[Load]:
    """Have callers call while the context lasts, and have them and the processes end behind it.

    Leaving it asserts that what every caller was answered has happened once, and nothing else has.
    """
    load = Load(env)
    await load.begin()
    async with asyncio.TaskGroup() as group:
        for caller in range(CALLERS):
            group.create_task(load.run(caller), name=f"caller {caller}")
        await load.progressed(CALLERS)
        yield load
        # Each caller leaves with the answer to its last call.
        load.stopped = True
    with psycopg.connect(conninfo, autocommit=True) as observer:
        await _judge(load, observer)


async def _judge(load: Load, observer: "psycopg.Connection[object]") -> None:
    env = load.env

    def events(name: str) -> list[bytes]:
        return [payload for (payload,) in rows(observer, env, _EVENTS, process_id=name)]

    driven = [f"driven{number}" for number in range(SELF_DRIVEN)]
    await until(env.points, lambda: all(events(name)[-1:] == [b"last"] for name in driven))
    for name in driven:
        # A step whose lease was lost is asked for again, which takes one more of the script.
        asked = {request.task.task_id for request in env.asked_for(name)}
        assert events(name) == [b"tick"] * (len(asked) - 1) + [b"last"]
    for name, answered in load.answered.items():
        # Callers wait for each answer, so what they were answered is all that there is.
        assert sorted(events(name)) == sorted(answered)
    assert asked_twice(env) == []
