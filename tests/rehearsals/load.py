"""A load that knows what was acknowledged: callers on processes of their own, and timers."""

import asyncio
import collections
import contextlib
import dataclasses
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from progressor import errors
from progressor.sdk import Client, NamespaceConfig, Processor, Step
from tests.support.engine.points import PATIENCE_SECONDS, eventually

NAMESPACE = "rehearsal"
TICK = "tick"
TICKS = 3
CALLS = 10
"""Per process; its events are the numbers 0 to CALLS, in order, and so many ticks among them."""

_CALLERS = 8
_TICK_SECONDS = 0.3
_PAUSE_SECONDS = 0.05


@dataclasses.dataclass(slots=True)
class Load:
    """The acknowledged numbers by process, and how often which error was met on the way."""

    acknowledged: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    refused: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    count: int = 0
    slowest_seconds: float = 0.0
    stopping: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    resends: bool = False
    """Whether a process that is not there is started again, with all that it was sent."""

    def __str__(self) -> str:
        slowest = f"the slowest took {self.slowest_seconds:.2f} s"
        return f"{self.count} requests acknowledged, {slowest}, errors {dict(self.refused)}"

    async def advance(self, count: int = 200) -> None:
        """Wait until so many more requests are acknowledged."""
        goal = self.count + count
        await eventually(lambda: self.count >= goal)

    def snapshot(self) -> dict[str, list[int]]:
        return {name: list(numbers) for name, numbers in self.acknowledged.items()}

    async def run(self, client: Client, name: str) -> None:
        for process in itertools.count():
            process_id = f"{name}-{process}"
            for number in range(CALLS + 1):
                if self.stopping.is_set():
                    return
                await self._send(client, process_id, number)

    async def _send(self, client: Client, process_id: str, number: int) -> None:
        """Send a request, with the same key again and again, until it is acknowledged."""
        clock = asyncio.get_running_loop().time
        began_at = clock()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    await send(client, process_id, number)
                except errors.ProgressorError as error:
                    self.refused[error.reason] += 1
                    await asyncio.sleep(_PAUSE_SECONDS)
                    if self.resends and isinstance(error, errors.ProcessNotFoundError):
                        with contextlib.suppress(errors.ProgressorError):
                            await send_all(client, {process_id: range(number)})
                else:
                    break
        self.acknowledged.setdefault(process_id, []).append(number)
        self.count += 1
        self.slowest_seconds = max(self.slowest_seconds, clock() - began_at)


async def send(client: Client, process_id: str, number: int) -> None:
    """Send a number to a process, 0 to start it; repeating it changes nothing."""
    key = f"{process_id}/{number}"
    ask = client.call if number else client.start
    await ask(process_id, number, idempotency_key=key)


async def send_all(client: Client, numbers: Mapping[str, Sequence[int]]) -> None:
    """Send all of these numbers, in order for each process."""

    async def one(process_id: str) -> None:
        for number in numbers[process_id]:
            await send(client, process_id, number)

    async with asyncio.TaskGroup() as group:
        for process_id in numbers:
            group.create_task(one(process_id), name=process_id)


async def histories(client: Client, process_ids: Sequence[str]) -> dict[str, list[Any]]:
    """Return the events of the processes that exist."""
    found = {}
    for process_id in process_ids:
        with contextlib.suppress(errors.ProcessNotFoundError):
            snapshot = await client.get(process_id)
            found[process_id] = [event.payload for event in snapshot.history]
    return found


async def complete_histories(
    client: Client, process_ids: Sequence[str]
) -> dict[str, tuple[list[int], int]]:
    """Return the numbers of each process and its count of ticks, once all ticks are there."""

    async def found() -> dict[str, list[Any]] | None:
        events = await histories(client, process_ids)
        return events if all(it.count(TICK) >= TICKS for it in events.values()) else None

    events = await eventually(found)
    return {
        name: ([it for it in each if it != TICK], each.count(TICK)) for name, each in events.items()
    }


def expected(numbers: Mapping[str, Sequence[int]]) -> dict[str, tuple[list[int], int]]:
    """Return what `complete_histories` has where nothing is lost, and nothing was done twice."""
    return {name: (list(each), TICKS) for name, each in numbers.items()}


def processor() -> Processor[Any]:
    made: Processor[Any] = Processor(NAMESPACE)

    @made.init
    async def begin(step: Step[Any]) -> None:
        step.state = 0
        step.emit(step.args)
        step.set_timer(after=_TICK_SECONDS)

    @made.call
    async def add(step: Step[Any]) -> None:
        step.emit(step.args)

    @made.timeout
    async def tick(step: Step[Any]) -> None:
        step.emit(TICK)
        step.state += 1
        if step.state < TICKS:
            step.set_timer(after=_TICK_SECONDS)

    return made


def client_of(addresses: Sequence[str]) -> Client:
    target = addresses[0] if len(addresses) == 1 else f"ipv4:{','.join(addresses)}"
    return Client(target, namespace=NAMESPACE, timeout=PATIENCE_SECONDS)


async def create_namespace(client: Client, target: str) -> None:
    await client.namespaces.create(NamespaceConfig(name=NAMESPACE, processor_targets=(target,)))


@contextlib.asynccontextmanager
async def running_load(addresses: Sequence[str]) -> AsyncIterator[Load]:
    """Run callers until the context is left; each is then waited for."""
    load = Load()
    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        for number in range(_CALLERS):
            # Each caller has a connection of its own, and prefers another replica than the next.
            turned = [*addresses[number % len(addresses) :], *addresses[: number % len(addresses)]]
            client = await stack.enter_async_context(client_of(turned))
            group.create_task(load.run(client, f"caller-{number}"), name=f"caller {number}")
        try:
            yield load
        finally:
            load.stopping.set()
