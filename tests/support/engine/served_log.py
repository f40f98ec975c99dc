"""The log of a `progressor serve`, read from the file that its standard error goes to."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.replica import ReplicaProcess, running_process

_PAUSE_SECONDS = 0.05

Line = Mapping[str, Any]  # it is JSON


class ServedLog:
    """What a replica process has said so far; with ``log.format`` json, an object a line."""

    def __init__(self, process: ReplicaProcess, path: Path) -> None:
        """Take a process whose standard error is the file at `path`."""
        self.process = process
        self._path = path

    @property
    def text(self) -> str:
        return self._path.read_text()

    @property
    def lines(self) -> list[Line]:
        """Its complete lines; a line that is not JSON fails the test."""
        whole, _, _ = self.text.rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def of(self, event: str, **fields: object) -> list[Line]:
        """Return the lines with this message and these fields among theirs, in order."""
        return [
            line for line in self.lines if line["event"] == event and fields.items() <= line.items()
        ]

    async def said(self, event: str, count: int = 1, **fields: object) -> list[Line]:
        """Wait until so many lines have this message and these fields, and return them.

        Raises:
            TimeoutError: They have not, within 30 s.
        """
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                found = self.of(event, **fields)
                if len(found) >= count:
                    return found
                await asyncio.sleep(_PAUSE_SECONDS)

    async def whole(self) -> list[Line]:
        """End the replica as a supervisor does, and return all that it has said."""
        self.process.terminate()
        assert await self.process.left() == 0
        return self.lines


@contextlib.asynccontextmanager
async def served(
    conninfo: str,
    directory: Path,
    settings: Mapping[str, str] = {},
    *,
    environment: Mapping[str, str] = {},
) -> AsyncIterator[ServedLog]:
    """Run `progressor serve` on a database, with its log in `directory`."""
    path = directory / "engine.log"
    with path.open("wb") as stderr:
        async with running_process(
            conninfo,
            directory,
            {"log.format": "json", **settings},
            stderr=stderr,
            environment=environment,
        ) as process:
            yield ServedLog(process, path)
