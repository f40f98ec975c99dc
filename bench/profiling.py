"""Profiles the engine with py-spy, and PostgreSQL with its function statistics."""

import asyncio
import collections
import contextlib
import dataclasses
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
from rich.console import Console
from rich.table import Table

_RATE = 100
_LINES = 25
_FLUSH_SECONDS = 1.2  # backends report their counts once a second

_FUNCTIONS = "SELECT funcname, calls, total_time FROM pg_stat_user_functions"
_EMBEDDED_SETTINGS = (
    "ALTER SYSTEM SET track_functions = 'pl'",
    "SELECT pg_reload_conf()",
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Looked:
    """The samples of one period."""

    name: str
    stacks: str
    functions: dict[str, tuple[int, float]]


class Profiler:
    """Profiles the engine during periods, and prints the results at the end."""

    def __init__(self, engine_pid: int, dsn: str) -> None:
        """Find py-spy.

        Raises:
            RuntimeError: py-spy is neither beside this Python nor on the PATH.
        """
        found = shutil.which("py-spy", path=str(Path(sys.executable).parent))
        found = found or shutil.which("py-spy")
        if found is None:
            message = "--profile needs py-spy: pip install py-spy"
            raise RuntimeError(message)
        self._py_spy = found
        self._pid = engine_pid
        self._dsn = dsn
        self._looked: list[_Looked] = []

    @contextlib.asynccontextmanager
    async def watching(self, name: str) -> AsyncIterator[None]:
        before = await self._functions()
        with tempfile.TemporaryDirectory() as directory:
            stacks = Path(directory, "stacks")
            process = await asyncio.create_subprocess_exec(
                self._py_spy, "record", "--pid", str(self._pid), "--rate", str(_RATE),
                "--format", "raw", "--duration", "unlimited", "--output", str(stacks),
                stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            try:
                yield
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGINT)
                await process.wait()
            await asyncio.sleep(_FLUSH_SECONDS)
            after = await self._functions()
            text = await asyncio.to_thread(_text_of, stacks)
        none = (0, 0.0)
        functions = {
            function: (calls - before.get(function, none)[0], ms - before.get(function, none)[1])
            for function, (calls, ms) in after.items()
        }
        self._looked.append(_Looked(name, text, functions))

    def show(self, console: Console) -> None:
        for name in dict.fromkeys(looked.name for looked in self._looked):
            mine = [looked for looked in self._looked if looked.name == name]
            console.print(_engine_table(name, [looked.stacks for looked in mine]))
            console.print(_postgres_table(name, [looked.functions for looked in mine]))

    async def _functions(self) -> dict[str, tuple[int, float]]:
        async with await psycopg.AsyncConnection.connect(self._dsn, autocommit=True) as connection:
            with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
                for statement in _EMBEDDED_SETTINGS:
                    await connection.execute(statement.encode())
            cursor = await connection.execute(_FUNCTIONS)
            return {name: (calls, ms) for name, calls, ms in await cursor.fetchall()}


def _text_of(file: Path) -> str:
    return file.read_text("utf-8") if file.exists() else ""


def _engine_table(name: str, texts: list[str]) -> Table:
    """Return the functions by their share of samples, on their own and with callees."""
    own: collections.Counter[str] = collections.Counter()
    whole: collections.Counter[str] = collections.Counter()
    for line in "".join(texts).splitlines():
        stack, _, count = line.rpartition(" ")
        frames = [_plain(frame) for frame in stack.split(";")]
        own[frames[-1]] += int(count)
        whole.update(dict.fromkeys(frames, int(count)))
    total = max(1, own.total())
    table = Table("self %", "total %", "function", title=f"{name}: the engine's Python")
    for function, samples in own.most_common(_LINES):
        share, within = 100 * samples / total, 100 * whole[function] / total
        table.add_row(f"{share:.1f}", f"{within:.1f}", function)
    return table


def _plain(frame: str) -> str:
    """Return a frame without its line: `function (file)`."""
    function, _, place = frame.rpartition(" (")
    return f"{function} ({place.rpartition(':')[0] or place.rstrip(')')})"


def _postgres_table(name: str, looked: list[dict[str, tuple[int, float]]]) -> Table:
    """Return the functions by their time, which includes waiting for locks but not the commit."""
    calls: collections.Counter[str] = collections.Counter()
    times: dict[str, float] = collections.defaultdict(float)
    for functions in looked:
        for function, (count, ms) in functions.items():
            calls[function] += count
            times[function] += ms
    table = Table("calls", "ms a call", "ms", "function", title=f"{name}: PostgreSQL's functions")
    for function in sorted(times, key=lambda each: -times[each]):
        if calls[function]:
            mean = times[function] / calls[function]
            table.add_row(str(calls[function]), f"{mean:.3f}", f"{times[function]:.0f}", function)
    return table
