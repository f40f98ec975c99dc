"""An asyncio loop without waiting: it jumps to the next deadline, and reports a deadlock.

A test that runs in it takes no time for sleeps and timeouts, and takes the same course every time.
What is meant for a thread of the loop's executor runs at once; sockets have no place in it.
"""

import asyncio
import datetime as dt
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from tests.support.clock import START

PATIENCE_SECONDS = 24 * 3600.0
"""Virtual seconds after which a test that only loops counts as stuck."""

Parameters = ParamSpec("Parameters")


class DeadlockError(AssertionError):
    """Every task waits for another, and nothing is due."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Time passes only when nothing else can be done, and then to the next deadline at once."""

    def __init__(self) -> None:
        self._passed = 0.0
        super().__init__(_Selector(self._skip))

    def time(self) -> float:
        return self._passed

    def run_in_executor(  # type: ignore[override]
        self, _executor: object, function: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            future.set_result(function(*args))
        except Exception as error:  # noqa: BLE001  as the executor does
            future.set_exception(error)
        return future

    def _skip(self, seconds: float | None) -> None:
        if seconds is None:
            raise DeadlockError(f"nothing is due, and these wait:\n{self._waiting()}")
        self._passed += seconds
        if self._passed > PATIENCE_SECONDS:
            raise DeadlockError(f"a day has passed, and these wait:\n{self._waiting()}")

    def _waiting(self) -> str:
        tasks = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
        return "\n".join(f"  {task.get_name()}: {_place(task)}" for task in tasks)


class LoopClock:
    """The clock of code that runs in a virtual loop; PostgreSQL's clock stands still."""

    def now(self) -> dt.datetime:
        return START + dt.timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def pinned(self) -> dt.datetime | None:
        return self.now()


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end in a loop of its own.

    Raises:
        DeadlockError: It waits for what will never come.
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main)


def in_virtual_time(
    test: Callable[Parameters, Coroutine[Any, Any, None]],
) -> Callable[Parameters, None]:
    """Make a test of a coroutine; goes under `given`, whose every example has its own loop."""

    @functools.wraps(test)
    def run_test(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        run(test(*args, **kwargs))

    return run_test


async def settled() -> None:
    """Let everybody go on until all wait; no virtual time passes."""
    loop = asyncio.get_running_loop()
    before = loop.time()
    for _ in range(20):
        await asyncio.sleep(0)
    assert loop.time() == before, "nothing but waiting takes time"


def _place(task: "asyncio.Task[Any]") -> str:
    stack = task.get_stack(limit=1)
    if not stack:
        return "not started"
    frame = stack[-1]
    return f"{frame.f_code.co_qualname}, line {frame.f_lineno} of {frame.f_code.co_filename}"


class _Selector(selectors.DefaultSelector):
    """Sees nothing but the loop's own pipe; instead of waiting, lets time pass."""

    def __init__(self, skip: Callable[[float | None], None]) -> None:
        super().__init__()
        self._skip = skip

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout != 0:
            woken = super().select(0)
            if woken:
                return woken
            self._skip(timeout)
        return []
