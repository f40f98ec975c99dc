"""A report of each night's sales: a schedule with a time zone, and the process that it starts.

The clock on the wall in Berlin says when; the night in which that leaves an hour out, or repeats
one, has its report as well, and no more than one.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from progressor.sdk import (
    Cron,
    NamespaceConfig,
    OverlapPolicy,
    Processor,
    ScheduledStart,
    ScheduleSpec,
    Step,
)

NAMESPACE = "nightly-reports"
TIME_ZONE = "Europe/Berlin"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be reported on. A real one would read a day's sales for minutes."""

    subject: str
    seconds: float = 0.1


News = Callable[[str, str], None]
"""Told of a report's process when it begins and when it is written."""


def at_night(report: Report) -> ScheduleSpec:
    """Return the schedule: half past two in Berlin, and never two reports at once."""
    return ScheduleSpec(
        times=Cron("30 2 * * *", TIME_ZONE),
        target=ScheduledStart(report),
        overlap_policy=OverlapPolicy.SKIP,
    )


def reports(tell: News) -> Processor[Any]:
    """Return the processor; it tells as it goes."""
    processor = Processor(NAMESPACE)

    @processor.init
    async def write(step: Step[Any]) -> None:
        report: Report = step.args_as(Report)
        tell(step.process_id, "begins")
        await asyncio.sleep(report.seconds)
        step.complete({"report": report.subject})
        tell(step.process_id, "is written")

    return processor


def namespace(processor_target: str) -> NamespaceConfig:
    """Return the namespace of the reports."""
    return NamespaceConfig(name=NAMESPACE, processor_targets=(processor_target,))
