"""Send an engine malformed things: does it stand, and do others notice? python -m tests.fuzz ..."""

import argparse
import asyncio
import contextlib
import dataclasses
import datetime as dt
import itertools
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from progressor.sdk import BYTES, Client, NamespaceConfig, RetryPolicy, Role, running
from progressor.settings.config import load
from progressor.storage.access.first_admin import create_first_admin
from progressor.storage.postgres.migrations import migrate
from tests.fuzz.attacks import Attacker
from tests.fuzz.neighbour import answering
from tests.fuzz.processor import MalformedProcessor
from tests.support.engine.points import PATIENCE_SECONDS, eventually
from tests.support.engine.process import ChildProcess, ReplicaProcess, free_ports
from tests.support.engine.replica import serving
from tests.support.postgres.cluster import own_cluster

_STREAMED, _UNARY, _GOOD = "fuzzed", "fuzzed-unary", "fuzzed-good"
_ROLES = (Role.PAYLOAD_READER, Role.CALLER, Role.PROCESSOR, Role.OPERATOR, Role.ADMIN)
_AT_ONCE = 32
_STARTS = 6
"""Requests for each process that is started, for a processor to answer."""
_ROUNDS = 6
"""By turns, so that what else the machine does from minute to minute matters to all alike."""
_COUNT_MIN = 600
_GROWTH_MAX = 1.15
"""Of the engine's memory, from a third of the way to the end."""
_SLOWER_MAX = 2.0
"""The neighbour's p99 beside malformed requests, as a multiple of that beside good ones: the median
of the rounds."""
_FIRST_PORT, _LAST_PORT = 21_000, 21_400


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    add = parser.add_argument
    add("--count", type=int, default=20_000, help="requests, frames and answers [20000]")
    add("--seed", type=int, default=1, help="decides what is sent [1]")
    add("--rate", type=float, default=300.0, help="a second [300]")
    add(
        "--alone",
        type=float,
        default=10.0,
        help="seconds of each round in which the neighbour is alone [10]",
    )
    add("--untimed", action="store_true", help="do not judge how much the neighbour is slowed down")
    arguments = parser.parse_args()
    if arguments.count < _COUNT_MIN or arguments.alone < 1:
        parser.error(f"a p99 needs --count of {_COUNT_MIN} and --alone of 1 at least")
    return arguments


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@dataclasses.dataclass(frozen=True, slots=True)
class _Round:
    """The neighbour's p99 in milliseconds, and the engine's memory at the end in MiB."""

    alone: float
    good: float
    malformed: float
    memory: float

    @property
    def slower(self) -> float:
        return self.malformed / self.good

    def __str__(self) -> str:
        return (
            f"neighbour's p99 alone {self.alone:.1f} ms, beside good requests {self.good:.1f}, "
            f"beside malformed ones {self.malformed:.1f}; {self.memory:.0f} MiB"
        )


class _Run:
    def __init__(
        self, engine: ReplicaProcess, attacker: Attacker, admin: Client, neighbour: Path
    ) -> None:
        self._engine = engine
        self._attacker = attacker
        self._admin = admin
        self._neighbour = neighbour
        self._sent = itertools.count(1)
        self._started = ""

    async def play(
        self, arguments: argparse.Namespace, processors: list[MalformedProcessor]
    ) -> list[str]:
        """Run all phases, say what was seen, and return what was wrong."""
        await eventually(lambda: bool(self._neighbour.exists() and self._times(0.0)))
        rounds: list[_Round] = []
        for number in range(_ROUNDS):
            rounds.append(await self._round(arguments))
            _say(f"round {number + 1} of {_ROUNDS}: {rounds[-1]}")
        earlier, later = rounds[_ROUNDS // 3 - 1].memory, rounds[-1].memory
        answers = sum((it.counts for it in processors), start=Counter[str]())
        for name, count in sorted((self._attacker.counts + answers).items()):
            _say(f"{count:9,}  {name}")
        slower = statistics.median(it.slower for it in rounds)
        _say(f"neighbour's p99 beside malformed requests: {slower:.2f} times that beside good ones")
        _say(
            f"memory of the engine: {earlier:.0f} MiB at a third of the way, {later:.0f} at the end"
        )
        wrong = [name for name in self._attacker.counts if name.startswith("bug")]
        if later > earlier * _GROWTH_MAX:
            wrong.append(f"the memory grew from {earlier:.0f} to {later:.0f} MiB")
        if not arguments.untimed and slower > _SLOWER_MAX:
            wrong.append("the neighbour was slowed down")
        if failed := sum(taken < 0 for taken in self._times(0.0)):
            wrong.append(f"{failed} calls of the neighbour failed")
        return [*wrong, *await self._after()]

    async def _round(self, arguments: argparse.Namespace) -> "_Round":
        """Leave the neighbour alone, then beside good requests, then beside malformed ones.

        As many of both: in a short phase a p99 misses what happens once a minute, such as a vacuum.
        """
        count, rate = arguments.count // _ROUNDS, arguments.rate
        begun = time.monotonic()
        await asyncio.sleep(arguments.alone)
        alone = self._times(begun)
        begun = time.monotonic()
        await self._send(self._good, count, rate)
        good = self._times(begun)
        begun = time.monotonic()
        await self._send(self._malformed, count, rate)
        return _Round(_p99(alone), _p99(good), _p99(self._times(begun)), self._memory())

    async def _good(self) -> int:
        """Send something right: as many starts, of processes whose processor answers, and reads."""
        sent = next(self._sent)
        if not self._started or sent % _STARTS == 0:
            self._started = f"given-{sent}"
            return await self._start(_GOOD, self._started)
        # Of a process that no malformed request has made larger.
        return await self._attacker.well_formed(_GOOD, self._started)

    async def _malformed(self) -> int:
        sent = next(self._sent)
        if sent % _STARTS == 0:
            return await self._start(_STREAMED if sent % (2 * _STARTS) else _UNARY, f"given-{sent}")
        return await self._attacker.attack()

    async def _start(self, namespace: str, process_id: str) -> int:
        with contextlib.suppress(Exception):
            await self._admin.start(process_id, b"", namespace=namespace, accept_only=True)
        return 1

    async def _send(self, one: Callable[[], Awaitable[int]], count: float, rate: float) -> None:
        """Send at a rate, or slower if the engine takes longer."""
        begun, sent, taken = time.monotonic(), 0, asyncio.Semaphore(_AT_ONCE)

        async def send() -> None:
            nonlocal sent
            try:
                more = await one() - 1
                sent += more
            finally:
                taken.release()

        async with asyncio.TaskGroup() as group:
            while sent < count:
                await taken.acquire()
                sent += 1
                group.create_task(send())
                if (ahead := begun + sent / rate - time.monotonic()) > 0:
                    await asyncio.sleep(ahead)

    async def _after(self) -> list[str]:
        """Return what the engine has not got over."""
        wrong = []
        if self._engine.has_left_by_itself:
            wrong.append("the engine has ended")
        records = self._engine.records
        _say(f"{len(records):,} lines in the log, {len(self._engine.text) / 2**20:.1f} MiB")
        # What gRPC's core says of a broken connection, it says as an error.
        errors = [
            it
            for it in records
            if it["level"] in {"error", "critical"} and it["logger"] != "grpc_core"
        ]
        wrong += sorted(
            {f"logged as an error: {it['event']}: {it.get('exception', '')}" for it in errors}
        )

        async def nobody_waits() -> bool:
            (replica,) = [it async for it in self._admin.replicas.list()]
            # The neighbour's own calls.
            return (replica.caller_count or 0) <= 4

        try:
            await eventually(nobody_waits)
        except TimeoutError:
            wrong.append("requests are still waiting in the engine")
        return wrong

    def _times(self, since: float) -> list[float]:
        """Return the milliseconds of the neighbour's calls since an instant."""
        whole, _, _ = self._neighbour.read_text().rpartition("\n")
        pairs = (map(float, line.split()) for line in whole.splitlines())
        return [taken for begun, taken in pairs if begun >= since]

    def _memory(self) -> float:
        status = Path(f"/proc/{self._engine.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024


def _p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


@contextlib.asynccontextmanager
async def _open(seed: int) -> AsyncIterator[tuple[_Run, list[MalformedProcessor]]]:
    with own_cluster() as cluster, tempfile.TemporaryDirectory(prefix="progressor-fuzz-") as name:
        folder, database = Path(name), cluster.create_database()
        migrate(database)
        config = load(environment={}, flags={"database.dsn": database}).database
        token = folder / "token"
        token.write_text(create_first_admin(config, database, "all"))
        port, scrape = free_ports(2, range(_FIRST_PORT, _LAST_PORT))
        engine = ReplicaProcess(
            {
                "database.dsn": database, "server.bind": f"127.0.0.1:{port}",
                "telemetry.metrics_bind": f"127.0.0.1:{scrape}", "log.format": "json",
                "access.enabled": "true",
            },
            log=folder / "engine.log",
        )  # fmt: skip
        async with engine.running(), contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await serving(engine.address)
            _say(f"seed {seed}; the log is {folder / 'engine.log'}")
            processors = [MalformedProcessor(seed), MalformedProcessor(seed + 1)]
            admin = await stack.enter_async_context(
                Client(engine.address, namespace=_STREAMED, token=token, codec=BYTES)
            )
            for namespace, processor in zip((_STREAMED, _UNARY), processors, strict=True):
                address = await stack.enter_async_context(
                    processor.serving(streaming=namespace == _STREAMED)
                )
                await _create(admin, namespace, address)
            good = await stack.enter_async_context(running(answering(_GOOD), bind="127.0.0.1:0"))
            await _create(admin, _GOOD, good)
            await admin.access.add_binding("token:all", Role.CALLER, "*")
            attacking = await _attacking(admin)
            attacker = Attacker(engine.address, f"127.0.0.1:{scrape}", attacking, seed)
            stack.push_async_callback(attacker.close)
            out = folder / "neighbour"
            neighbour = ChildProcess("tests.fuzz.neighbour", engine.address, str(token), str(out))
            await stack.enter_async_context(neighbour.running())
            yield _Run(engine, attacker, admin, out), processors


async def _create(admin: Client, namespace: str, address: str) -> None:
    soon = dt.timedelta(milliseconds=10)
    await admin.namespaces.create(
        NamespaceConfig(
            name=namespace, processor_targets=(address,),
            retry_policy=RetryPolicy(initial_interval=soon, coefficient=1.0, attempts_max=2),
        )
    )  # fmt: skip


async def _attacking(admin: Client) -> str:
    """Return a token that may do everything in the namespaces of the malformed processors."""
    _, text = await admin.access.create_token("attacker")
    for role in _ROLES:
        await admin.access.add_binding("token:attacker", role, "fuzzed*")
    return text


async def _main(arguments: argparse.Namespace) -> int:
    async with _open(arguments.seed) as (run, processors):
        wrong = await run.play(arguments, processors)
    for line in wrong:
        _say(f"WRONG: {line}")
    _say("failed" if wrong else "passed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(_arguments())))
