"""Callers: each calls its own processes one after the other, and repeats failed requests."""

import array
import asyncio
import contextlib
import dataclasses
import random
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from bench.disturbing.processor import ARGS_SIZE, args_of
from bench.disturbing.routes import Route, pick
from progressor import errors
from progressor.sdk import Client, EngineUnavailableError

LARGE_SIZE = 1024 * 1024

_START_SHARE = 0.2
"""Of requests; the others are calls. By chance: starts and calls are written apart, and callers who
take turns alike fill one batch together, until something has brought them out of step for good."""
_OWN_COUNT = 24
"""The number of processes that a caller calls in turn, the newest ones."""
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.5
_LAST_ANSWER_SECONDS_MAX = 60.0

_WORTH_ANOTHER = (
    EngineUnavailableError,
    errors.StorageError,
    errors.OverloadedError,
    errors.DeadlineExceededError,
)

Ask = Callable[[Client], Awaitable[object]]


async def insist(routes: Sequence[Route], number: int, ask: Ask) -> int:
    """Repeat a request until it is answered; return the number of failed attempts.

    A closed route is replaced by another one. `ask` sends the same request with the same
    idempotency key each time.

    Raises:
        ProgressorError: An answer that a repetition cannot change.
    """
    pause, failed = _FIRST_PAUSE_SECONDS, 0
    while True:  # ends with an answer
        route = pick(routes, number)
        try:
            await ask(route.client)
        except _WORTH_ANOTHER:
            route.shut()
            failed += 1
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        else:
            return failed


@dataclasses.dataclass(slots=True, eq=False)
class Caller:
    """A caller; ``answered_at`` and ``sent_at`` are on the monotonic clock."""

    number: int
    answered_at: "array.array[float]" = dataclasses.field(default_factory=lambda: array.array("d"))
    sent_at: float | None = None
    asking: str = ""
    failed: int = 0


class Callers:
    """All callers; ``acknowledged`` counts the answered requests of each process."""

    def __init__(self, routes: Sequence[Route], *, count: int) -> None:
        self.all = [Caller(number) for number in range(count)]
        self.acknowledged: Counter[str] = Counter()
        self.large_share = 0.0
        """The share of calls with a payload of LARGE_SIZE."""
        self.stuck: list[str] = []
        """Callers that never got an answer."""
        self._doors = routes
        self._ending = asyncio.Event()

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Run all callers within the context, then wait for the last answers.

        Raises:
            ExceptionGroup: A request was refused.
        """
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._run(each), name=f"caller {each.number}")
                for each in self.all
            ]
            try:
                yield
            finally:
                self._ending.set()
            _, undone = await asyncio.wait(tasks, timeout=_LAST_ANSWER_SECONDS_MAX)
            self.stuck = [each.asking for each in self.all if not tasks[each.number].done()]
            for task in undone:
                task.cancel()

    @property
    def failed(self) -> int:
        return sum(caller.failed for caller in self.all)

    @property
    def answered_count(self) -> int:
        return sum(len(caller.answered_at) for caller in self.all)

    async def _run(self, caller: Caller) -> None:
        own: deque[str] = deque(maxlen=_OWN_COUNT)
        turn = 0
        while not self._ending.is_set():
            turn += 1
            name = f"{caller.number}-{turn}"
            if len(own) < _OWN_COUNT or random.random() < _START_SHARE:
                await self._ask(caller, name, _start(name))
                self.acknowledged[name] += 1
                own.append(name)
            else:
                process_id = own[turn % _OWN_COUNT]
                size = LARGE_SIZE if random.random() < self.large_share else ARGS_SIZE
                await self._ask(caller, process_id, _call(process_id, name, size))
                self.acknowledged[process_id] += 1

    async def _ask(self, caller: Caller, process_id: str, ask: Ask) -> None:
        caller.sent_at, caller.asking = time.monotonic(), process_id
        caller.failed += await insist(self._doors, caller.number, ask)
        caller.answered_at.append(time.monotonic())
        caller.sent_at = None


def _start(name: str) -> Ask:
    args = args_of(name)
    return lambda client: client.start(name, args, idempotency_key=name)


def _call(process_id: str, name: str, size: int) -> Ask:
    args = args_of(name, size=size)
    return lambda client: client.call(process_id, args, idempotency_key=name)
