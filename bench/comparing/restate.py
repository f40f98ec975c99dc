"""Finds Restate, and runs its server, handlers and client in place of progressor's."""

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from bench.env import Env
from bench.peers import started

HOME = Path(sys.prefix) / ".restate"
"""Where `make setup-compare` has npm install the server."""

_PROGRAM = "node_modules/@restatedev/restate-server-*/bin/restate-server"
_PACKAGES = {"restate": "restate-sdk", "granian": "granian", "aiohttp": "aiohttp"}
_HOW = "`make setup-compare` installs what the comparison needs"


class MissingError(Exception):
    """Something of Restate is not installed; says what, and how to install it."""


def find_server(named: Path | None, home: Path = HOME) -> Path:
    """Return the program of Restate's server: the one that is named, or the one from npm.

    Raises:
        MissingError: There is none.
    """
    if named is not None and not named.is_file():
        raise MissingError(f"restate-server not found at {named}")
    found = named or next(iter(sorted(home.glob(_PROGRAM))), None)
    if found is None:
        raise MissingError(
            f"restate-server not found below {home}; {_HOW}, --server names another one"
        )
    return found.resolve()


def check_packages() -> None:
    """Check that the handlers and the client can be run.

    Raises:
        MissingError: A package is not installed.
    """
    names = [name for module, name in _PACKAGES.items() if not importlib.util.find_spec(module)]
    if names:
        raise MissingError(f"not installed: {', '.join(names)}; {_HOW}")


def versions(server: Path) -> str:
    printed = subprocess.run([server, "--version"], check=True, capture_output=True, text=True)
    packages = (f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES.values())
    return ", ".join((printed.stdout.strip(), *packages))


@contextlib.asynccontextmanager
async def running(env: Env, server: Path) -> AsyncIterator[Env]:
    """Run Restate beside progressor; yields an environment whose orders go to it."""
    async with contextlib.AsyncExitStack() as stack:
        # Not on a tmpfs: a commit must reach a disk.
        folder = tempfile.TemporaryDirectory(prefix="progressor-bench-", dir="/var/tmp")
        directory = stack.enter_context(folder)
        handlers = await stack.enter_async_context(started("restate_handlers"))
        client = await stack.enter_async_context(started("restate_client"))
        restate = await stack.enter_async_context(
            started("restate_server", str(server), directory, handlers.address)
        )
        yield dataclasses.replace(
            env,
            engines=[restate],
            processors={False: handlers, True: handlers},
            clients=[client],
        )
