"""Options of a schedule: when it runs, and what each run does."""

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from progressor.cli.input.job_documents import JobDocument, duration_of, read_job
from progressor.cli.input.options import (
    ConstraintsInput,
    PayloadInput,
    bad_input,
    instant,
    instant_of,
    json_object,
    pairs,
    parsed,
)
from progressor.sdk.client.schedules import (
    Cron,
    Every,
    OverlapPolicy,
    ScheduledCall,
    ScheduledJob,
    ScheduledNotify,
    ScheduledStart,
    ScheduleSpec,
    Target,
    Times,
)

Overlap = Literal["skip", "queue_one", "allow", "cancel_previous"]

_NONE = "none"
_TIMES = Group("Times", sort_key=3)
_TARGET = Group("What each run does", sort_key=4)


@Parameter(name="*", group=_TIMES)
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TimesInput:
    """When a schedule runs, and what happens to runs that are late or overlap."""

    cron: str | None = None
    """Minute, hour, day, month and day of week, for example "30 2 * * mon-fri"; a sixth field at
    the front is the second."""
    time_zone: str | None = None
    """The time zone of --cron, for example Europe/Berlin; UTC by default."""
    every: str | None = None
    """An interval, for example 30s, 10m or 2h, instead of --cron."""
    anchor: str | None = None
    """One of the instants of --every, from which the others are counted."""
    jitter: str | None = None
    """The maximum random delay of each run."""
    start_at: str | None = None
    """The first possible instant; "none" removes it."""
    end_at: str | None = None
    """The last possible instant; "none" removes it."""
    overlap: Overlap | None = None
    """What a run does while the work of an earlier run has not ended; skip by default."""
    catch_up_window: str | None = None
    """How late a run may be after a downtime; 1d by default."""

    def times(self) -> Times | None:
        """Return the given times; None without any."""
        if self.cron is not None:
            for option, value in {"--every": self.every, "--anchor": self.anchor}.items():
                if value is not None:
                    raise bad_input(option, "cannot be combined with --cron")
            return Cron(self.cron, self.time_zone or "")
        if self.time_zone is not None:
            raise bad_input("--time-zone", "needs --cron")
        if self.every is not None:
            every = parsed("--every", duration_of, self.every)
            return Every(every, instant("--anchor", self.anchor))
        if self.anchor is not None:
            raise bad_input("--anchor", "needs --every")
        return None

    def spec(self, target: Target) -> ScheduleSpec:
        """Return a new schedule, which needs --cron or --every."""
        times = self.times()
        if times is None:
            raise bad_input("--cron", "--cron or --every must be given")
        return self.changed(ScheduleSpec(times=times, target=target))

    def changed(self, spec: ScheduleSpec) -> ScheduleSpec:
        """Return a schedule with the given options changed."""
        changes: dict[str, Any] = {"times": self.times() or spec.times}
        parsers: Mapping[str, Callable[[str], object]] = {
            "jitter": duration_of,
            "start_at": _bound,
            "end_at": _bound,
            "catch_up_window": duration_of,
        }
        for name, parse in parsers.items():
            text = getattr(self, name)
            if text is not None:
                changes[name] = parsed(f"--{name.replace('_', '-')}", parse, text)
        if self.overlap is not None:
            changes["overlap_policy"] = OverlapPolicy(self.overlap)
        return dataclasses.replace(spec, **changes)


@Parameter(name="*", group=_TARGET)
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TargetInput(PayloadInput):
    """What a run does: one of --start, --call, --notify and --job, and its options."""

    start: Annotated[bool, Parameter(negative="")] = False
    """Start a process."""
    call: str | None = None
    """Call the process with this id; the response is stored with its task."""
    notify: str | None = None
    """Notify the process with this id."""
    job: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    """Submit the job in this file (see job submit), - for standard input; its deadline must be a
    duration."""
    id_template: str | None = None
    """The id that --start or --job gives, with {instant} and {schedule_id};
    {schedule_id}/{instant} by default."""
    context: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """KEY=VALUE, passed on to the processor; may be repeated. Not with --job."""
    metadata: str | None = None
    """The metadata of each process that --start starts, a JSON object."""

    def requested(self, constraints: ConstraintsInput) -> tuple[Target | None, JobDocument | None]:
        """Return what each run does, if an option says so, and the file of the job it submits."""
        kinds = {
            "--start": self.start,
            "--call": self.call is not None,
            "--notify": self.notify is not None,
            "--job": self.job is not None,
        }
        given = [option for option, is_given in kinds.items() if is_given]
        if len(given) > 1:
            raise bad_input(given[1], f"cannot be combined with {given[0]}")
        kind = given[0] if given else ""
        self._check(kind, constraints)
        if self.job is not None:
            document = read_job(self.job)
            return self._job(document), document
        return self._target(constraints) if kind else None, None

    def _target(self, constraints: ConstraintsInput) -> Target:
        context, passed = pairs("--context", self.context), constraints.constraints()
        if self.call is not None:
            return ScheduledCall(self.call, self.payload(), context=context, constraints=passed)
        if self.notify is not None:
            return ScheduledNotify(self.notify, self.payload(), context=context, constraints=passed)
        return ScheduledStart(
            self.payload(),
            process_id_template=self.id_template or "",
            context=context,
            metadata=json_object("--metadata", self.metadata),
            constraints=passed,
        )

    def _job(self, document: JobDocument) -> ScheduledJob:
        if isinstance(document.deadline, dt.datetime):
            words = "the deadline of a scheduled job must be a duration such as 2h"
            raise bad_input("--job", words)
        return ScheduledJob(
            document.graph,
            job_id_template=self.id_template or document.job_id,
            timeout=document.deadline,
            context=document.context,
            metadata=document.metadata,
        )

    def _check(self, kind: str, constraints: ConstraintsInput) -> None:
        payload = any(it is not None for it in (self.args, self.args_file, self.text))
        tasks = ("--start", "--call", "--notify")
        given = {
            "--args": (payload, tasks),
            "--context": (bool(self.context), tasks),
            "--gate": (constraints != ConstraintsInput(), tasks),
            "--metadata": (self.metadata is not None, ("--start",)),
            "--id-template": (self.id_template is not None, ("--start", "--job")),
        }
        for option, (is_given, kinds) in given.items():
            if is_given and kind not in kinds:
                raise bad_input(option, f"needs {' or '.join(kinds)}")


def _bound(text: str) -> dt.datetime | None:
    return None if text == _NONE else instant_of(text)
