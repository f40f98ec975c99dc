"""The engine: what `progressor serve` runs, with its counters to be read from outside.

Arguments are settings, KEY=VALUE.
"""

import collections
import functools
import sys
from typing import Any

from bench.parts import orders
from progressor import app, config
from progressor.cli.hosting import host, run_loop
from progressor.worker.observer import Observers


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
        orders.tell({"address": engine.addresses[0], "dsn": engine.dsn})
        await orders.obey(obey)

    loaded = config.load(environment={}, flags=settings)
    run_loop(
        host(loaded, open_engine=functools.partial(app.engine, observers=observers), work=work)
    )


if __name__ == "__main__":
    _serve(dict(argument.split("=", 1) for argument in sys.argv[1:]))
