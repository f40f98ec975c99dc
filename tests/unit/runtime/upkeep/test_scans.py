"""Scans: repeated whatever happens, and observed; what a step counts."""

import asyncio
import itertools
import logging
import random

import pytest

from progressor.domain.processes.intent import Rejected
from progressor.domain.views.replica import StepTally
from progressor.runtime.core.context import Context
from progressor.runtime.core.measures import Measures
from progressor.telemetry.metrics.registry import Metrics
from tests.support.builders import (
    make_entry,
    make_failure,
    make_success,
    make_task,
    seconds,
)
from tests.support.runtime.harness import (
    make_context,
    running,
)
from tests.support.runtime.memory import (
    away,
)
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


async def scanned(scan: Scan, *, during: float) -> Context:
    context = make_context(spread=random.Random(1))
    async with running(lambda: context.repeat(scan, name="due", interval=seconds(10))):
        await asyncio.sleep(during)
    return context


async def test_a_scan_is_repeated_about_every_interval() -> None:
    scan = Scan()

    await scanned(scan, during=35)

    pauses = [later - earlier for earlier, later in itertools.pairwise(scan.at)]
    assert scan.at[0] == 0
    assert len(pauses) == 3
    assert all(9 <= pause <= 11 for pause in pauses)
    assert len(set(pauses)) == 3


async def test_an_outage_is_a_warning_and_the_next_scan_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        context = await scanned(Scan(away()), during=15)

    assert context.observers.counts == {"scan_failed": 1, "scanned": 2}
    assert counted(context.metrics.scans_failed) == {("due",): 1}
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


async def test_a_bug_is_an_error_with_its_traceback_and_the_next_scan_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        context = await scanned(Scan(ZeroDivisionError()), during=15)

    assert context.observers.counts == {"scan_failed": 1, "scanned": 2}
    assert counted(context.metrics.scans_failed) == {("due",): 1}
    assert caplog.records[0].exc_info is not None


def test_a_step_is_counted_in_its_namespace_with_its_answer_and_with_its_settlement() -> None:
    measures, task = Measures(Metrics()), make_task()
    rejected = Rejected(code=9, message="no")
    for outcome in (make_success(), make_failure(), make_failure(), rejected):
        measures.answered(task, outcome, 0.25)
    measures.settled(make_entry(), 1.0)

    assert measures.tally_of("orders") == StepTally(
        settled_count=1, attempt_count=4, failed_count=2, processor_time=seconds(1)
    )
    assert measures.tally_of("payments") == StepTally()
    for namespace in ("orders", "payments"):
        measures.forget(namespace)
    assert measures.tally_of("orders") == StepTally()
