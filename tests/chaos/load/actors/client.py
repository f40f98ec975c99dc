"""Clients of actors: each starts one, asks it for much, awaits its end, and ends it."""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg

from progressor import errors
from progressor.sdk import Client, UnexpectedStatusError
from tests.chaos.load.actors.lives import Asked, Fate, Life, Lives
from tests.chaos.load.actors.orders import Order, draw, draw_batch, draw_slow
from tests.chaos.load.actors.steps import NAMESPACE
from tests.chaos.load.connections import NO_WORD, NOTHING_ACCEPTED, Connections, Notes

ACTOR_CLIENTS = 4
FLOOD_CLIENTS = 12

_FATES = {Fate.OPEN: 20.0, Fate.COMPLETE: 20.0, Fate.TERMINATE: 45.0, Fate.REMOVE: 15.0}
_CALLERS = 3
_WAITERS = 2
_REQUESTS = (4, 12)
_BATCHES = (20, 50)
_PAUSE_SECONDS = 0.25
_BATCH_PAUSE_SECONDS = 0.15
_TIMEOUT_SECONDS = 6.0
_PATIENCE_SECONDS = 300.0
"""Longer than an engine is away on a slow machine: a request that is given up says nothing."""
_SLOW = 0.1
_NEVER = frozenset(
    {"IDEMPOTENCY_KEY_REUSED", "INVALID_REQUEST", "NAMESPACE_NOT_FOUND", "NOTHING_TO_RETRY"}
)

_BROKEN = """
    SELECT process_id FROM progressor.processes WHERE namespace = %s AND status = 'error'"""

Send = Callable[[Client], Awaitable[Any]]


class ActorClient:
    """Owns one actor at a time. One that floods has it send many messages."""

    def __init__(
        self,
        number: int,
        *,
        connections: Connections,
        lives: Lives,
        notes: Notes,
        seed: int,
    ) -> None:
        self._random = random.Random(f"{seed}:actor client {number}")
        self._number, self._floods = number, number < FLOOD_CLIENTS
        self._connections, self._lives, self._notes = connections, lives, notes
        self._count = 0

    async def run(self, ending: asyncio.Event) -> None:
        while not ending.is_set():
            await self._live(ending)

    async def _live(self, ending: asyncio.Event) -> None:
        chosen = self._random
        self._count += 1
        fate = chosen.choices(list(_FATES), list(_FATES.values()))[0]
        life = self._lives.begin(
            Life(process_id=f"a{self._number}-{self._count}", fate=fate, is_flood=self._floods)
        )
        await self._request(life, Client.start, {"id": f"{life.process_id}.s", "do": "append"})
        if life.requests[0].outcome != "done":
            self._surprise(life, "start", life.requests[0].outcome)
            return
        life.started = True
        async with asyncio.TaskGroup() as group:
            if fate is not Fate.OPEN:
                for _ in range(_WAITERS):
                    group.create_task(self._await_end(life))
            async with asyncio.TaskGroup() as asking:
                for caller in range(1 if self._floods else _CALLERS):
                    asking.create_task(self._ask(life, caller, ending))
                if not self._floods:
                    # While others ask.
                    asking.create_task(self._end(life, chosen.uniform(0.5, 6.0), ending))
            if self._floods:
                await self._end(life, 0.0, ending)

    async def _ask(self, life: Life, caller: int, ending: asyncio.Event) -> None:
        chosen = self._random
        for number in range(chosen.randint(*(_BATCHES if self._floods else _REQUESTS))):
            pause = _BATCH_PAUSE_SECONDS if self._floods else chosen.uniform(0.0, _PAUSE_SECONDS)
            await asyncio.sleep(pause)
            if life.over or (self._floods and ending.is_set()):
                return
            element = f"{life.process_id}.{caller}.{number}"
            peers = self._lives.peers(chosen, life)
            if self._floods:
                await self._request(life, Client.call, draw_batch(chosen, element, peers))
            elif chosen.random() < _SLOW:
                await self._ask_and_cancel(life, draw_slow(chosen, element))
            else:
                send = Client.notify if chosen.random() < 0.2 else Client.call
                await self._request(life, send, draw(chosen, element, peers))

    async def _ask_and_cancel(self, life: Life, order: Order) -> None:
        asked = self._asked(life, order)
        asked.cancelled = True
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send(life, Client.call, order, asked))
            await asyncio.sleep(self._random.uniform(0.0, 1.0))
            await self._insist(
                life,
                "cancel",
                lambda client: client.cancel(life.process_id, idempotency_key=asked.key),
            )

    async def _request(self, life: Life, send: Callable[..., Any], order: Order) -> None:
        await self._send(life, send, order, self._asked(life, order))

    def _asked(self, life: Life, order: Order) -> Asked:
        asked = Asked(element=order["id"], key=f"key-{order['id']}")
        life.requests.append(asked)
        return asked

    async def _send(self, life: Life, send: Callable[..., Any], order: Order, asked: Asked) -> None:
        """Send a request until it is known what became of it; elsewhere each time."""
        asked.is_notify = send is Client.notify
        asked.outcome, answer = await self._insist(
            life,
            send.__name__,
            lambda client: send(client, life.process_id, order, idempotency_key=asked.key),
        )
        if answer is not None and not asked.is_notify:
            asked.memo = answer.response["memo"]
            if answer.response["id"] != asked.element:
                self._surprise(life, asked.element, f"answered by {answer.response}")

    async def _end(self, life: Life, after: float, ending: asyncio.Event) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ending.wait(), after)
        match life.fate:
            case Fate.COMPLETE:
                order = {"id": f"{life.process_id}.e", "do": "complete"}
                await self._request(life, Client.call, order)
            case Fate.TERMINATE:
                async with asyncio.TaskGroup() as group:
                    for reason in ("one", "two"):
                        group.create_task(self._terminate(life, reason))
            case Fate.REMOVE:
                await self._insist(life, "remove", lambda client: client.remove(life.process_id))
            case Fate.OPEN:
                pass
        if life.fate is not Fate.OPEN:
            life.ended_at = time.monotonic()
        self._lives.end(life)

    async def _terminate(self, life: Life, reason: str) -> None:
        word, _ = await self._insist(
            life, "terminate", lambda client: client.terminate(life.process_id, reason)
        )
        if word == "done":
            life.terminated.append(reason)

    async def _await_end(self, life: Life) -> None:
        """Await the end of an actor until it is known, elsewhere each time."""
        chosen, since_end = self._random, time.monotonic()
        while time.monotonic() < since_end + _PATIENCE_SECONDS:
            if not life.over:
                since_end = time.monotonic()
            try:
                # Some waits are cut short, and some are still there when their replica dies.
                result: Any = await self._client().result(
                    life.process_id,
                    until_finished=chosen.random() < 0.8,
                    timeout=chosen.uniform(0.5, 8.0),
                )
            except errors.ProcessTerminatedError as error:
                end: tuple[str, Any] = ("terminated", error.detail)
            except (errors.ProcessRemovedError, errors.ProcessNotFoundError):
                end = ("removed", None)
            except errors.ProgressorError as error:
                self._notes.totals["await actor", error.reason] += 1
                self._look_at(life, "await actor", error)
                await asyncio.sleep(0.05)
                continue
            else:
                end = ("completed", result)
            self._notes.totals["await actor", end[0]] += 1
            life.ends.append(end)
            return
        self._surprise(life, "await actor", "its end never came")

    async def _insist(self, life: Life, word: str, send: Send) -> tuple[str, Any]:
        """Send until there is an answer, and retry the actor if it is in error.

        Return "done" and the answer, or the reason of the error that it is; "" if there is none.
        """
        begun_at = time.monotonic()
        while time.monotonic() < begun_at + _PATIENCE_SECONDS:
            try:
                async with asyncio.timeout(_TIMEOUT_SECONDS):
                    answer = await send(self._client())
            except TimeoutError:
                self._notes.totals[f"actor {word}", "timeout"] += 1
            except errors.ProcessFailedError as error:
                self._notes.totals[f"actor {word}", error.reason] += 1
                if life.ended_at is not None:
                    # It broke the actor, which ended before a retry: its key says so forever.
                    return "", None
                await self._retry(life)
            except errors.ProgressorError as error:
                self._notes.totals[f"actor {word}", error.reason] += 1
                self._look_at(life, word, error)
                if not isinstance(error, (*NO_WORD, *NOTHING_ACCEPTED, UnexpectedStatusError)):
                    return error.reason, None
                await asyncio.sleep(0.05)
            else:
                self._notes.totals[f"actor {word}", "done"] += 1
                return "done", answer
        return "", None

    async def _retry(self, life: Life) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                await self._client().retry(life.process_id)
        except TimeoutError:
            pass
        except errors.ProgressorError as error:
            self._look_at(life, "retry", error)

    def _client(self) -> Client:
        return self._connections.another().client

    def _look_at(self, life: Life, word: str, error: errors.ProgressorError) -> None:
        """Note an error that no client should ever get."""
        if error.reason in _NEVER or isinstance(error, UnexpectedStatusError):
            self._surprise(life, word, error)

    def _surprise(self, life: Life, word: str, what: object) -> None:
        self._notes.surprises.append(f"{life.process_id}: {word}: {what}")


async def retry_broken(connection: psycopg.AsyncConnection[Any], client: Client) -> None:
    """Retry actors in error, so that what they hold is done and their senders are answered."""
    for (process_id,) in await (await connection.execute(_BROKEN, [NAMESPACE])).fetchall():
        with contextlib.suppress(errors.RequestError):
            await client.retry(process_id, namespace=NAMESPACE)
