"""Load under which a fault strikes: a crowd of callers who insist, and processes on their own.

Every caller has one call after the other answered, each under a key of its own, as a user does who
must know. What they were told is compared with what is in the database.
"""

import asyncio
import contextlib
import dataclasses
import functools
import time
from collections.abc import AsyncIterator, Mapping

import psycopg

from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.replica import Env, answering, timer
from tests.support.faults.ground import asked_twice, insisted, until
from tests.support.processor.scripted import Answer

CALLED = 8
CALLERS = 16
SELF_DRIVEN = 8
STEPS = 40
ATTEMPT_SECONDS = 5.0

RESUMED_SECONDS = 5.0
"""Within which calls are answered again, once what they need is back."""

NOISE_SECONDS = 15.0
"""By how much a machine that others work on may be late: a bound against a hang, not a measure."""

BRIEF: Mapping[str, str] = {
    "database.connect_timeout_seconds": "1",
    "database.statement_timeout_seconds": "1",
    "replica.lease_timeout_seconds": "2",
}
"""For an engine that is soon told of an absence, and soon finds the leases that it never heard of
because an answer was lost."""


@dataclasses.dataclass(slots=True)
class Load:
    """Callers, each of whom has one call after the other answered, and what they were told."""

    env: Env
    answered: dict[str, list[bytes]] = dataclasses.field(default_factory=dict)
    count: int = 0
    _stopped: bool = False
    _news: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    async def begin(self) -> None:
        """Bring the processes into being, the self-driven ones on their way."""
        for number in range(CALLED):
            name = f"called{number}"
            self.answered[name] = []
            await self.env.running(name, Answer())
        for number in range(SELF_DRIVEN):
            name = f"driven{number}"
            self.env.processor.on_process(
                name, *[answering(b"tick", set_timer=timer())] * (STEPS - 1), answering(b"last")
            )
            await self.env.client.start(name, accept_only=True)

    async def run(self, caller: int) -> None:
        """Call until `stop`, each call under a key of its own until its answer is there."""
        name, number = f"called{caller % CALLED}", 0
        while not self._stopped:
            number += 1
            args = b"%d/%d" % (caller, number)

            assert await called(self.env, name, args) == args
            self.answered[name].append(args)
            self.count += 1
            self._news.set()

    async def progressed(self, count: int) -> None:
        """Wait until `count` more calls were answered from now on."""
        wanted = self.count + count
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.count < wanted:
                self._news.clear()
                await self._news.wait()

    async def resumed(self) -> float:
        """Return how many seconds it takes until as many calls are answered as twice the callers.

        The first answers may be those of calls that had gone before; a second one of each had not.
        """
        begun_at = time.monotonic()
        await self.progressed(2 * CALLERS)
        return time.monotonic() - begun_at

    def stop(self) -> None:
        """Have each caller leave with the answer to its last call."""
        self._stopped = True


async def called(env: Env, process_id: str, args: bytes) -> bytes:
    """Call a process under a key of the call's own until it is answered."""

    async def attempt() -> bytes:
        answer = await env.client.call(
            process_id, args, idempotency_key=args.decode(), timeout=ATTEMPT_SECONDS
        )
        response: bytes = answer.response
        return response

    return await insisted(attempt)


@contextlib.asynccontextmanager
async def loaded(env: Env) -> AsyncIterator[Load]:
    """Have callers call while the context lasts, and all of it done when it is left."""
    load = Load(env)
    await load.begin()
    async with asyncio.TaskGroup() as group:
        for caller in range(CALLERS):
            group.create_task(load.run(caller), name=f"caller {caller}")
        await load.progressed(CALLERS)
        yield load
        load.stop()


async def judge(load: Load, conninfo: str) -> None:
    """Assert that what every caller was told has happened once, and nothing else has."""
    env = load.env
    with psycopg.connect(conninfo, autocommit=True) as observer:

        def events(name: str) -> list[bytes]:
            return [
                row[0]
                for row in observer.execute(
                    "SELECT payload FROM progressor.events"
                    " WHERE namespace = %s AND process_id = %s ORDER BY event_id",
                    [env.namespace, name],
                ).fetchall()
            ]

        def is_done(name: str) -> bool:
            return events(name)[-1:] == [b"last"]

        for number in range(SELF_DRIVEN):
            name = f"driven{number}"
            await until(env.points, functools.partial(is_done, name))
            # A step whose lease was lost is asked for again, which takes one more of the script.
            asked = {request.task.task_id for request in env.asked_for(name)}
            assert events(name) == [b"tick"] * (len(asked) - 1) + [b"last"]
        for name, answered in load.answered.items():
            # Callers wait for each answer, so what they were told is all that there is.
            assert sorted(events(name)) == sorted(answered)
        assert asked_twice(env) == []
