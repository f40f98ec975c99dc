"""The engine: what `progressor serve` runs, with counters that the bench can read.

Arguments are the number of workers, settings, KEY=VALUE, and perhaps a file with more of them,
file=PATH. With several workers the bench runs the command itself and cannot read the counters.
"""

import asyncio
import collections
import functools
import sys
from pathlib import Path
from typing import Any

from bench.parts import orders
from progressor.cli.engine.hosting import host
from progressor.cli.input.signals import run_loop
from progressor.engine import engine as app
from progressor.runtime.core.context import Observers
from progressor.sdk import Client
from progressor.settings import config

_READY_SECONDS = 60.0


def _serve(settings: dict[str, str]) -> None:
    observers = Observers()
    batches: collections.Counter[str] = collections.Counter()

    def count_batch(point: str, facts: dict[str, object]) -> None:
        if point == "batch":
            batches[str(facts["write"])] += 1

    observers.add(count_batch)

    async def obey(_order: dict[str, Any]) -> orders.Answer:
        return {"counts": observers.counts, "batches": batches}

    async def work(engine: Any) -> None:  # noqa: ANN401  hosting shows less than app.Engine has
        await engine.serving.wait()
        orders.tell({"address": engine.addresses[0]})
        await orders.obey(obey)

    file = settings.pop("file", None)
    loaded = config.load(file=Path(file) if file else None, environment={}, flags=settings)
    run_loop(
        host(loaded, open_engine=functools.partial(app.engine, observers=observers), work=work)
    )


async def _serve_with_workers(count: int, settings: dict[str, str]) -> None:
    """Run the command on a port that was free a moment ago, which its workers share."""
    (port,) = orders.free_ports(1)
    address = f"127.0.0.1:{port}"
    settings["server.bind"] = address
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "progressor", "serve", "--workers", str(count),
        *(f"--set={key}={value}" for key, value in settings.items()),
        stdin=asyncio.subprocess.DEVNULL, stdout=sys.stderr,
    )  # fmt: skip

    async def obey(_order: dict[str, Any]) -> orders.Answer:
        return {"counts": {}, "batches": {}}

    try:
        await _until_serving(address)
        orders.tell({"address": address})
        await orders.obey(obey)
    finally:
        process.terminate()
        await process.wait()


async def _until_serving(address: str) -> None:
    async with (
        asyncio.timeout(_READY_SECONDS),
        Client(address, timeout=_READY_SECONDS, session=False) as client,
    ):
        # Reads are retried until an engine has connected to PostgreSQL.
        async for _ in client.namespaces.list():
            return


if __name__ == "__main__":
    workers = int(sys.argv[1])
    chosen = dict(argument.split("=", 1) for argument in sys.argv[2:])
    if workers == 1:
        _serve(chosen)
    else:
        orders.run(_serve_with_workers(workers, chosen))
