"""A report of each night's sales: a schedule with a time zone, and the process that it starts.

The schedule follows local time in Berlin. A night in which the clocks change also has exactly one
report.
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
    """The subject of a report. A real one would read the sales of a day, which takes minutes."""

    subject: str
    seconds: float = 0.1


Observer = Callable[[str, str], None]
"""Called with the process id of a report when it begins and when it is written."""


def at_night(report: Report) -> ScheduleSpec:
    """Return the schedule: half past two in Berlin, never two reports at once."""
    return ScheduleSpec(
        times=Cron("30 2 * * *", TIME_ZONE),
        target=ScheduledStart(report),
        overlap_policy=OverlapPolicy.SKIP,
    )


def reports(observe: Observer) -> Processor[Any]:
    """Return the processor, which calls the observer."""
    processor = Processor(NAMESPACE)

    @processor.init
    async def write(step: Step[Any]) -> None:
        report: Report = step.args_as(Report)
        observe(step.process_id, "begins")
        await asyncio.sleep(report.seconds)
        step.complete({"report": report.subject})
        observe(step.process_id, "is written")

    return processor


def namespace(processor_target: str) -> NamespaceConfig:
    """Return the namespace of the reports."""
    return NamespaceConfig(name=NAMESPACE, processor_targets=(processor_target,))
