"""Checkouts of this repository, and replicas that run them on one database."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine.process import ROOT, ReplicaProcess, free_ports
from tests.support.engine.replica import serving

FROM_VARIABLE = "REHEARSE_FROM"
"""The commit to upgrade from; else the last tag, or the last commit with fewer migrations
and other functions."""

# A range for each worker of pytest-xdist: a replica that is killed is started again at its port,
# which another rehearsal must not have taken meanwhile.
_FIRST_PORT = 30_000 + 100 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
_PORTS = range(_FIRST_PORT, _FIRST_PORT + 100)
_PACKED = ("progressor", "priv", "proto")

SETTINGS: Mapping[str, str] = {"server.drain_timeout_seconds": "5", "log.format": "json"}


def previous_release(directory: Path) -> Path:
    """Put the release before this one into a directory; without a history the test is skipped."""
    commit = _earlier_commit()
    if not commit:
        pytest.skip(f"no earlier commit in the history of {ROOT}: name one in {FROM_VARIABLE}")
    directory.mkdir()
    archive = subprocess.run(
        [_tool("git"), "-C", str(ROOT), "archive", commit, *_PACKED],
        capture_output=True,
        check=True,
    ).stdout
    subprocess.run([_tool("tar"), "-x", "-C", str(directory)], input=archive, check=True)
    return directory


def run(release: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of a release to its end."""
    return subprocess.run(
        [sys.executable, "-m", "progressor", *arguments],
        cwd=release,
        env={**os.environ, "PROGRESSOR_CONFIG": ""},
        capture_output=True,
        text=True,
        check=False,
    )


async def migrated(release: Path, conninfo: str) -> str:
    """Run `progressor migrate` of a release, and return what it printed."""
    ended = await asyncio.to_thread(run, release, "migrate", "--dsn", conninfo)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


async def findings(conninfo: str) -> dict[str, str]:
    """Return what `progressor doctor --deep` does not find in order, by check."""
    ended = await asyncio.to_thread(run, ROOT, "doctor", "--dsn", conninfo, "--deep", "--json")
    found: list[dict[str, Any]] = json.loads(ended.stdout)["findings"]
    return {it["check"]: f"{it['words']} {it['offenders']}" for it in found if it["state"] != "ok"}


class Fleet:
    """Replicas by name, each at an address of its own, whichever release it runs."""

    def __init__(self, conninfo: str, directory: Path, *names: str) -> None:
        ports = free_ports(len(names), _PORTS)
        self._addresses = {
            name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)
        }
        self._conninfo, self._directory = conninfo, directory
        self._running: dict[str, ReplicaProcess] = {}
        self._started = 0

    @property
    def addresses(self) -> list[str]:
        return [*self._addresses.values()]

    async def start(self, name: str, release: Path = ROOT, *flags: str) -> None:
        self._started += 1
        address = self._addresses[name]
        settings = {
            **SETTINGS,
            "database.dsn": self._conninfo,
            "server.bind": address,
            "replica.name": name,
        }
        log = self._directory / f"{self._started}-{name}.log"
        replica = ReplicaProcess(settings, *flags, log=log, directory=release)
        self._running[name] = replica
        await replica.start()
        await serving(address)

    async def replace(self, name: str, release: Path) -> None:
        """Drain a replica, and start it from a release, as a rolling upgrade does."""
        await self.stop(name)
        await self.start(name, release)

    async def stop(self, name: str) -> None:
        replica = self._running.pop(name)
        replica.terminate()
        assert await replica.left() == 0, replica.text

    async def kill(self, name: str) -> None:
        replica = self._running.pop(name)
        replica.kill()
        await replica.left()

    async def end(self) -> None:
        for name in tuple(self._running):
            await self.kill(name)


@contextlib.asynccontextmanager
async def open_fleet(conninfo: str, directory: Path, *names: str) -> AsyncIterator[Fleet]:
    fleet = Fleet(conninfo, directory, *names)
    try:
        yield fleet
    finally:
        await fleet.end()


def _earlier_commit() -> str:
    """Return the commit to upgrade from; "" if there is none."""
    if named := os.environ.get(FROM_VARIABLE):
        commit = _git("rev-parse", "--verify", "--quiet", f"{named}^{{commit}}")
        assert commit, f"{FROM_VARIABLE}: {named!r} is not a commit in {ROOT}"
        return commit
    if tag := _git("describe", "--tags", "--abbrev=0"):
        return tag
    changed = _git("log", "-1", "--format=%H", "--", "priv/functions")
    added = changed and _git(
        "log", "-1", "--diff-filter=A", "--format=%H", changed, "--", "priv/migrations"
    )
    return added and _git("rev-parse", "--verify", "--quiet", f"{added}^")


def _git(*arguments: str) -> str:
    git = shutil.which("git")
    if git is None:
        return ""
    ended = subprocess.run(
        [git, "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    )
    return ended.stdout.strip() if ended.returncode == 0 else ""


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found
