"""The client that sees to the receivers of messages, whatever is broken."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from progressor import errors
from progressor.sdk import Client
from tests.chaos.load.connections import Connections, Notes
from tests.chaos.load.messages import LASTING, REMOVABLE, start

_PAUSE_SECONDS = 0.2
_NEVER = frozenset({"INVALID_REQUEST", "INTERNAL"})


class MessageClient:
    """Retries or repairs receivers in error, and removes some and starts them again."""

    def __init__(self, *, connections: Connections, notes: Notes, seed: int) -> None:
        self._random = random.Random(f"{seed}:message client")
        self._connections, self._notes = connections, notes

    async def run(self, ending: asyncio.Event) -> None:
        while not ending.is_set():
            await asyncio.sleep(self._random.uniform(0.0, _PAUSE_SECONDS))
            receiver = self._random.choice((*LASTING, *REMOVABLE))
            fate = self._random.random()
            if receiver in REMOVABLE and fate < 0.1:
                await self._ask("remove receiver", Client.remove, receiver)
            elif receiver in REMOVABLE and fate < 0.5:
                await self._ask("start receiver", start, receiver)
            elif fate < 0.75:
                await self._ask("retry receiver", Client.retry, receiver)
            else:
                await self._ask("repair receiver", Client.simple_repair, receiver)

    async def _ask(
        self, word: str, request: Callable[[Client, str], Awaitable[object]], receiver: str
    ) -> None:
        outcome = "done"
        try:
            async with asyncio.timeout(5.0):
                await request(self._connections.another().client, receiver)
        except TimeoutError:
            outcome = "timeout"
        except errors.ProgressorError as error:
            outcome = error.reason
            if outcome in _NEVER:
                self._notes.surprises.append(f"a message client's {word}: {error}")
        self._notes.totals[word, outcome] += 1
