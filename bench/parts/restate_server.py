"""Restate's server: the program, the directory for its data, and the address of the handlers.

All else is as it comes, which is durable: a node of its own, whose log is synced to the disk before
an invocation is acknowledged.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from bench.parts import orders

_READY_SECONDS = 60.0
_POLL_SECONDS = 0.1
_END_SECONDS = 20.0
_CONFIG = """\
cluster-name = "bench"
node-name = "bench"
base-dir = "{directory}"
listen-mode = "tcp"
bind-address = "127.0.0.1:{node}"
advertised-address = "http://127.0.0.1:{node}"
disable-telemetry = true
# At its start it asks GitHub for its latest release, which no setting prevents.
log-filter = "error,octocrab=off"
log-disable-ansi-codes = true

[ingress]
bind-address = "127.0.0.1:{ingress}"

[admin]
bind-address = "127.0.0.1:{admin}"

# The defaults, written down since the comparison rests on them.
[bifrost]
default-provider = "replicated"

[log-server]
rocksdb-disable-wal-fsync = false
"""


@contextlib.asynccontextmanager
async def _serving(server: str, config: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        server, "--no-logo", "--config-file", str(config),
        stdin=asyncio.subprocess.DEVNULL, stdout=sys.stderr,
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_END_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _register(process: asyncio.subprocess.Process, admin: str, handlers: str) -> None:
    """Tell the server where the handlers are, as soon as it listens."""
    async with asyncio.timeout(_READY_SECONDS), aiohttp.ClientSession(admin) as http:
        while process.returncode is None:
            with contextlib.suppress(aiohttp.ClientError):
                async with http.post("/deployments", json={"uri": f"http://{handlers}"}) as answer:
                    if answer.ok:
                        return
            await asyncio.sleep(_POLL_SECONDS)
    message = f"restate-server has exited with code {process.returncode}"
    raise RuntimeError(message)


async def _obey(order: dict[str, Any]) -> orders.Answer:
    return order


async def _main(server: str, directory: str, handlers: str) -> None:
    node, ingress, admin = orders.free_ports(3)
    config = Path(directory) / "restate.toml"
    text = _CONFIG.format(directory=directory, node=node, ingress=ingress, admin=admin)
    config.write_text(text, "utf-8")
    async with _serving(server, config) as process:
        await _register(process, f"http://127.0.0.1:{admin}", handlers)
        orders.tell({"address": f"127.0.0.1:{ingress}"})
        await orders.obey(_obey)


if __name__ == "__main__":
    orders.run(_main(*sys.argv[1:]))
