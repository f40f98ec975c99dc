"""What do 200 open browsers cost the engine, and how long do the console's pages take?"""

import asyncio
import contextlib
import datetime as dt
import statistics
import time
from collections.abc import AsyncIterator, Mapping
from urllib.parse import urlsplit

from bench.cpu import cpu_seconds
from bench.env import SESSION, Env, Population, Stretch
from bench.filling.plan import Plan
from bench.measurement import Measurement, Pace, Turn, ratio, summed_up
from bench.parts.percentiles import curve
from bench.peers import Peer, started
from bench.questions.rounds import processes
from progressor.sdk import BYTES, Client, Constraints, Graph

_BROWSERS = {"console_watched_1": 1, "console_watched_200": 200}
_PAGES = ("console_first", "console_list", "console_process", "console_job")
NAMES = (*_BROWSERS, *_PAGES)

_RATE = 200
"""Calls per second while browsers watch: the load is the same, so that its cost can be compared."""

_CALLED_COUNT = 1000
_PROCESS_COUNT = 1_000_000
_PROCESS_COUNT_MIN = 3_000
_TASK_COUNT = 10_000
_NODE_COUNT = 10_000
_NAMESPACE = "shown"
_JOB = "job"
_REQUESTS = 50
"""Of a page in a turn, one after the other."""

_WARM_UP = 3
_CHUNK_BYTES = 1 << 20
_DAY = dt.timedelta(days=1)


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Watch the overview of an engine under load, with one browser and with many; then load pages.

    The browsers read live streams in the bench's own process. ``engine_cpu_ratio`` and
    ``postgres_cpu_ratio`` compare the cost of a call with that beside one browser,
    ``steps_ratio`` the rates. ``console_cpu`` is in cores.
    """
    found = []
    if any(map(pace.wants, _BROWSERS)):
        found += await _watched(env, pace)
    if any(map(pace.wants, _PAGES)):
        found += await _pages(env, pace)
    return found


# --- Browsers that watch


async def _watched(env: Env, pace: Pace) -> list[Measurement]:
    count = pace.count(_CALLED_COUNT, least=64)
    prefix = await processes(env, SESSION, count)
    order = {
        "what": "call", "rate": _RATE, "seconds": pace.seconds, "prefix": prefix, "distinct": count,
    }  # fmt: skip
    turns: dict[str, list[Turn]] = {name: [] for name in _BROWSERS}
    facts: dict[str, list[tuple[float, float]]] = {name: [] for name in _BROWSERS}
    async with started("console", env.engines[0].address) as console:
        for _ in range(pace.turns):
            for name, browsers in _BROWSERS.items():
                async with _browsers(console, browsers) as heard:
                    await asyncio.sleep(pace.warm_up)
                    before, cpu, begun = sum(heard), _cpu(console), time.monotonic()
                    turns[name].append(await env.turn(name, order, SESSION))
                    seconds = time.monotonic() - begun
                    updates = (sum(heard) - before) / browsers / seconds
                    facts[name].append((updates, (_cpu(console) - cpu) / seconds))
    one = turns["console_watched_1"]
    return [
        summed_up(
            name,
            own,
            browsers=_BROWSERS[name],
            updates_per_s=round(statistics.median(it[0] for it in facts[name]), 2),
            console_cpu=round(statistics.median(it[1] for it in facts[name]), 3),
            steps_ratio=round(ratio(own, one), 3),
            engine_cpu_ratio=_cost_ratio("engine", own, one),
            postgres_cpu_ratio=_cost_ratio("postgres", own, one),
        )
        for name, own in turns.items()
    ]


def _cost_ratio(part: str, turns: list[Turn], others: list[Turn]) -> float:
    pairs = zip(turns, others, strict=True)
    ratios = [own.cpu_ms_per_op[part] / other.cpu_ms_per_op[part] for own, other in pairs]
    return round(statistics.median(ratios), 3)


def _cpu(console: Peer) -> float:
    return cpu_seconds([("console", console.pid)], all_postgres=False)["console"]


@contextlib.asynccontextmanager
async def _browsers(console: Peer, count: int) -> AsyncIterator[list[int]]:
    """Watch the overview in so many browsers; yields how many updates each has received."""
    heard = [0] * count

    async def watch(number: int, reader: asyncio.StreamReader) -> None:
        while chunk := await reader.read(_CHUNK_BYTES):
            heard[number] += chunk.count(b"\n\n")

    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        watches = []
        for number in range(count):
            cookie = await _cookie(console)
            reader = await stack.enter_async_context(_asked(console, "/live?page=/", cookie))
            watches.append(group.create_task(watch(number, reader), name=f"browser {number}"))
        yield heard
        for it in watches:
            it.cancel()


async def _cookie(console: Peer) -> str:
    """Return the cookie of a new session: one browser may watch only so many pages."""
    async with _answered(console, "/login", "") as (head, _):
        found = next(it for it in head if it.lower().startswith("set-cookie: progressor_console="))
        return found.partition(": ")[2].partition(";")[0]


@contextlib.asynccontextmanager
async def _asked(console: Peer, path: str, cookie: str = "") -> AsyncIterator[asyncio.StreamReader]:
    """Send a GET on a connection of its own; yields what follows the head of the response."""
    async with _answered(console, path, cookie) as (head, reader):
        assert " 200 " in head[0], f"{path}: {head[0]!r}"
        yield reader


@contextlib.asynccontextmanager
async def _answered(
    console: Peer, path: str, cookie: str
) -> AsyncIterator[tuple[list[str], asyncio.StreamReader]]:
    place = urlsplit(console.address)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        fields = f"Host: {place.netloc}\r\nCookie: {cookie}\r\nConnection: close"
        writer.write(f"GET {path} HTTP/1.1\r\n{fields}\r\n\r\n".encode())
        head = []
        while (line := await reader.readline()) not in {b"\r\n", b""}:
            head.append(line.decode().strip())
        yield head, reader
    finally:
        writer.close()


# --- Pages of a large database


async def _pages(env: Env, pace: Pace) -> list[Measurement]:
    count = pace.count(_PROCESS_COUNT, least=_PROCESS_COUNT_MIN)
    tasks, nodes = (pace.count(it, least=100) for it in (_TASK_COUNT, _NODE_COUNT))
    plan = Plan(process_count=count, timer_count=0, namespace=_NAMESPACE, long_event_count=tasks)
    async with (
        env.populated(plan) as population,
        started("console", population.engine.address) as console,
    ):
        await _submit(population, nodes)
        paths = _paths(plan)
        turns: Mapping[str, list[Turn]] = {it: [] for it in paths if pace.wants(it)}
        sizes = {it: await _loaded(console, paths[it]) for it in turns for _ in range(_WARM_UP)}
        for _ in range(pace.turns):
            for name, own in turns.items():
                async with env.measured(name) as stretch:
                    times = [await _timed(console, paths[name]) for _ in range(_REQUESTS)]
                own.append(_turn(stretch, times))
    return [
        summed_up(name, own, processes=count, tasks=tasks, nodes=nodes, bytes=sizes[name])
        for name, own in turns.items()
    ]


def _paths(plan: Plan) -> Mapping[str, str]:
    paths = (
        "/",
        f"/processes?namespace={_NAMESPACE}",
        f"/processes/{_NAMESPACE}/{plan.prefix}-long",
        f"/jobs/{_NAMESPACE}/{_JOB}",
    )
    return dict(zip(_PAGES, paths, strict=True))


async def _submit(population: Population, count: int) -> None:
    """Submit a job whose nodes all wait: the first for tomorrow, the others for it."""
    graph = Graph()
    tomorrow = Constraints(run_at=dt.datetime.now(dt.UTC) + _DAY)
    first = graph.node("first", constraints=tomorrow)
    for number in range(1, count):
        graph.node(f"node-{number}", after=first)
    async with Client(
        population.engine.address, namespace=_NAMESPACE, codec=BYTES, timeout=60.0
    ) as client:
        await client.jobs.submit(_JOB, graph)


async def _loaded(console: Peer, path: str) -> int:
    """Load a page, and return the bytes of its body."""
    async with _asked(console, path) as reader:
        return len(await reader.read())


async def _timed(console: Peer, path: str) -> float:
    begun = time.perf_counter()
    await _loaded(console, path)
    return time.perf_counter() - begun


def _turn(stretch: Stretch, times: list[float]) -> Turn:
    return stretch.turn(count=len(times), seconds=sum(times), times_ms=curve(times))
