"""A program on a terminal of its own: what it draws, what is typed, how it leaves the terminal."""

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import AsyncIterator, Callable
from typing import Self

from tests.support.engine.points import PATIENCE_SECONDS

COLUMNS, ROWS = 120, 30
INTERRUPT = "\x03"
ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
SHOW_CURSOR = "\x1b[?25h"

_HOME = "\x1b[H"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# A terminal belongs to the session that first asks for it.
# A shell starts what it runs in the background with SIGINT ignored, and all inherit that.
_TAKE_TERMINAL = (
    "import fcntl, os, signal, sys, termios; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


def _environment() -> dict[str, str]:
    """Return ours, but for what would say another size than the terminal has."""
    kept = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    return {**kept, "TERM": "xterm-256color", "PROGRESSOR_CONFIG": ""}


class Terminal:
    """What a program draws over a whole screen, frame by frame."""

    def __init__(self, process: asyncio.subprocess.Process, number: int) -> None:
        self.process = process
        self._number = number
        self._drawn = b""
        self._news = asyncio.Event()

    @property
    def drawn(self) -> str:
        return self._drawn.decode(errors="ignore")

    @property
    def words(self) -> str:
        return _CONTROL.sub("", self.drawn)

    @property
    def frames(self) -> list[str]:
        """What was drawn whole so far, each time from the first line on, in words alone."""
        frames = self.drawn.split(_HOME)[1:-1]
        return [_CONTROL.sub("", frame).replace("\r", "") for frame in frames]

    @property
    def settings(self) -> list[object]:
        return termios.tcgetattr(self._number)

    def type(self, keys: str) -> None:
        os.write(self._number, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._number, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def draws(self, satisfied: Callable[[str], bool], *, since: int = 0) -> str:
        """Wait until a frame was drawn that satisfies, behind the first `since`, and return it."""
        await self._reads(lambda: any(map(satisfied, self.frames[since:])))
        return next(filter(satisfied, self.frames[since:]))

    async def fills(self, rows: int) -> None:
        """Wait until what was drawn last, perhaps not whole yet, has so many rows."""
        await self._reads(lambda: self.drawn.rpartition(_HOME)[2].count("\n") == rows - 1)

    async def shows(self, text: str) -> None:
        """Wait until a text was drawn, with what commands the terminal."""
        await self._reads(lambda: text in self.drawn)

    async def ended(self) -> int:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.process.wait()

    def read(self) -> None:
        with contextlib.suppress(OSError):  # The program has gone, and its end is closed.
            self._drawn += os.read(self._number, 65_536)
        self._news.set()

    async def _reads(self, satisfied: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not satisfied():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            message = f"not drawn; the last of it is {self.drawn[-2000:]!r}"
            raise AssertionError(message) from None

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, *arguments: str) -> AsyncIterator[Self]:
        """Run `progressor` with arguments on a terminal; ended at the end if it still runs."""
        ours, theirs = pty.openpty()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _TAKE_TERMINAL,
                sys.executable, "-m", "progressor", *arguments,
                stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
                env=_environment(),
            )  # fmt: skip
            terminal = cls(process, ours)
            terminal.resize(COLUMNS, ROWS)
            asyncio.get_running_loop().add_reader(ours, terminal.read)
            try:
                yield terminal
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
                asyncio.get_running_loop().remove_reader(ours)
        finally:
            os.close(ours)
            os.close(theirs)
