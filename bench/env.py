"""The environment: the running parts, and the measured periods."""

import asyncio
import contextlib
import dataclasses
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from bench.cpu import busy_seconds, cpu_seconds
from bench.filling.plan import Plan
from bench.measurement import Turn
from bench.parts.percentiles import curve
from bench.peers import Peer
from bench.profiling import Profiler


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """A way through the parts: what the client calls and how, and how the processor is called.

    ``suffix`` is appended to the names of its measurements.
    """

    suffix: str
    session: bool = False
    stream: bool = False
    relayed: bool = False


RELAY = Variant("_relay", relayed=True)
"""Two unary hops without an engine, with which everything else is compared."""
UNARY = Variant("")
STREAM = Variant("_stream", stream=True)
"""A unary client and a streaming processor."""
SESSION = Variant("_session", session=True, stream=True)
"""A client's session and a streaming processor."""


@dataclasses.dataclass(slots=True)
class Stretch:
    """The cost of a period; filled in at its end."""

    others: float = 0.0
    """Cores that were busy with other programs."""
    cpu: dict[str, float] = dataclasses.field(default_factory=dict)

    def turn(
        self, *, count: int, seconds: float, times_ms: Sequence[float], done: int | None = None
    ) -> Turn:
        """Return a turn with the given count; `times_ms` is its curve.

        ``done`` is the work that the CPU was used for; by default, what was counted.
        """
        ops = count if done is None else done
        return Turn(
            ops_per_s=count / seconds if count else 0.0,
            curve=times_ms,
            cpu_ms_per_op={name: 1000 * used / max(ops, 1) for name, used in self.cpu.items()},
            others=self.others,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """A database of its own, filled by a plan, and an engine that serves it."""

    dsn: str
    plan: Plan
    engine: Peer
    engine_beside: Callable[[], AbstractAsyncContextManager[Peer]]
    """Runs another engine on it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Env:
    engines: list[Peer]
    """The engine under test first; there may be more."""
    replicas: int
    """How many engines, from the first, an order without targets calls."""
    processors: Mapping[bool, Peer]
    """The processors, by whether they stream."""
    namespaces: Mapping[bool, str]
    """The addresses of those processors."""
    connections: int
    """Connections of each client to each engine: workers share a port by connections."""
    relay: Peer
    clients: Sequence[Peer]
    driver: Peer
    database: Peer | None
    """None if an existing PostgreSQL is used."""
    profiler: Profiler | None
    engine_beside: Callable[..., AbstractAsyncContextManager[Peer]]
    """Runs another engine on the same database, with more settings; it is called by its address."""
    populated: Callable[[Plan], AbstractAsyncContextManager[Population]]
    """Fills a database beside it; its processes are the streaming processor's."""

    @property
    def postgres(self) -> str:
        return str(self.driver.ready["postgres"])

    def prefix(self) -> str:
        return secrets.token_hex(4)

    def processor(self, variant: Variant) -> Peer:
        return self.processors[variant.stream]

    @contextlib.asynccontextmanager
    async def measured(self, name: str) -> AsyncIterator[Stretch]:
        """Measure the body of the context; with a profiler, profile the engine as `name`."""
        stretch = Stretch()
        async with contextlib.AsyncExitStack() as stack:
            if name and self.profiler is not None:
                await stack.enter_async_context(self.profiler.watching(name))
            before, busy, begun = self._cpu(), busy_seconds(), time.monotonic()
            yield stretch
            after, busy = self._cpu(), busy_seconds() - busy
            seconds = time.monotonic() - begun
        stretch.cpu = {part: used - before.get(part, 0.0) for part, used in after.items()}
        stretch.others = max(0.0, busy - sum(stretch.cpu.values())) / seconds

    async def turn(self, name: str, order: Mapping[str, object], variant: Variant) -> Turn:
        """Have the clients carry out an order, and return its turn."""
        async with self.measured("" if variant.relayed else name) as stretch:
            answer = await self.ask(order, variant)
        return turn_of(stretch, answer)

    async def ask(self, order: Mapping[str, object], variant: Variant) -> list[dict[str, Any]]:
        """Have the clients carry out an order without measuring it, and return their answers.

        `callers`, `rate` and `count` of an order are those of all clients together.
        """
        targets = [self.relay] if variant.relayed else self.engines[: self.replicas]
        wanted = {
            "prefix": self.prefix(), "targets": [target.address for target in targets],
            "session": variant.session, "connections": 1 if variant.relayed else self.connections,
            "namespace": self.namespaces[variant.stream], **order,
        }  # fmt: skip
        share = _shared(wanted, len(self.clients))
        async with asyncio.TaskGroup() as group:
            asked = [
                group.create_task(client.ask(**share, first=number), name=f"client {number}")
                for number, client in enumerate(self.clients)
            ]
        return [task.result() for task in asked]

    async def scan_found(self) -> int:
        """Return how many tasks and gates only a scan has found; zero in a healthy engine."""
        told = [await engine.ask() for engine in self.engines]
        names = ("scan_found", "gates_scan_found")
        return sum(int(answer["counts"].get(name, 0)) for answer in told for name in names)

    def _cpu(self) -> dict[str, float]:
        parts = [*self.engines, *self.processors.values(), self.relay, *self.clients, self.driver]
        if self.database is not None:
            parts.append(self.database)
        pids = [(part.name, part.pid) for part in parts]
        return cpu_seconds(pids, all_postgres=self.database is None)


def turn_of(stretch: Stretch, answers: Sequence[Mapping[str, Any]]) -> Turn:
    """Return the result of an order that several clients carried out at once."""
    times = [each / 1e6 for answer in answers for each in answer["times_us"]]
    seconds = max(answer["seconds"] for answer in answers)
    done = sum(answer["done"] for answer in answers)
    return stretch.turn(count=len(times), seconds=seconds, times_ms=curve(times), done=done)


def _shared(order: Mapping[str, Any], clients: int) -> dict[str, Any]:
    """Return one client's share of an order."""
    share = {**order, "stride": clients}
    share["callers"] = max(1, order.get("callers", 64) // clients)
    if "rate" in order:
        share["rate"] = order["rate"] / clients
    return share
