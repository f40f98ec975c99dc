"""The loop of a scanner: again and again, whatever happens."""

import asyncio
import itertools
import logging
import random

import pytest

from progressor.runtime.core.loop import repeat
from progressor.runtime.core.observer import Observers
from progressor.telemetry.metrics.registry import Metrics
from tests.support.builders import seconds
from tests.support.runtime.memory import away
from tests.support.runtime.virtual_time import in_virtual_time
from tests.support.telemetry.measured import counted


class Scan:
    """Fails as the script says."""

    def __init__(self, *script: Exception) -> None:
        self.script = list(script)
        self.at: list[float] = []

    async def __call__(self) -> None:
        self.at.append(asyncio.get_running_loop().time())
        if self.script:
            raise self.script.pop(0)


async def scanned(scan: Scan, *, during: float, metrics: Metrics | None = None) -> Observers:
    observers = Observers()
    scanning = asyncio.ensure_future(
        repeat(
            scan,
            name="due",
            interval=seconds(10),
            spread=random.Random(1),
            observers=observers,
            metrics=metrics or Metrics(),
        )
    )
    await asyncio.sleep(during)
    scanning.cancel()
    await asyncio.wait({scanning})
    return observers


@in_virtual_time
async def test_a_scan_is_repeated_about_every_interval() -> None:
    scan = Scan()

    await scanned(scan, during=35)

    pauses = [later - earlier for earlier, later in itertools.pairwise(scan.at)]
    assert scan.at[0] == 0
    assert len(pauses) == 3
    assert all(9 <= pause <= 11 for pause in pauses)
    assert len(set(pauses)) == 3


@in_virtual_time
async def test_an_outage_is_a_warning_and_the_next_scan_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = Metrics()
    with caplog.at_level(logging.WARNING):
        observers = await scanned(Scan(away()), during=15, metrics=metrics)

    assert observers.counts == {"scan_failed": 1, "scanned": 2}
    assert counted(metrics.scans_failed) == {("due",): 1}
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@in_virtual_time
async def test_a_bug_is_an_error_with_its_traceback_and_the_next_scan_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = Metrics()
    with caplog.at_level(logging.WARNING):
        observers = await scanned(Scan(ZeroDivisionError()), during=15, metrics=metrics)

    assert observers.counts == {"scan_failed": 1, "scanned": 2}
    assert counted(metrics.scans_failed) == {("due",): 1}
    assert caplog.records[0].exc_info is not None
