"""What the user typed about a schedule: when it fires, what each firing does."""

import dataclasses
import datetime as dt
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from progressor.cli.input.inputs import (
    ConstraintsInput,
    PayloadInput,
    bad_input,
    instant,
    json_object,
    pairs,
)
from progressor.cli.input.job_documents import JobDocument, duration_of, read_job
from progressor.sdk.values.schedules import (
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
_TARGET = Group("What each firing does", sort_key=4)


@Parameter(name="*", group=_TIMES)
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TimesInput:
    """When a schedule fires, and what becomes of a firing that cannot come in time."""

    cron: str | None = None
    """Minute, hour, day, month, day of week, as in "30 2 * * mon-fri"; with seconds first: six."""
    time_zone: str | None = None
    """Of --cron, as in Europe/Berlin; otherwise UTC."""
    every: str | None = None
    """In place of --cron: a distance, as in 30s, 10m or 2h."""
    anchor: str | None = None
    """Of --every: one of the instants, from which the others are counted."""
    jitter: str | None = None
    """Each firing comes up to so much later than its instant."""
    start_at: str | None = None
    """No instant before this one; none: any."""
    end_at: str | None = None
    """No instant after this one; none: any."""
    overlap: Overlap | None = None
    """What a firing does while an earlier one's work has not ended; otherwise skip."""
    catch_up_window: str | None = None
    """How late a firing may be after a downtime; otherwise 1d."""

    def times(self) -> Times | None:
        """Return the instants that are asked for; None: nothing is said of them.

        Raises:
            InvalidRequestError: Both forms are given, or what belongs to the other.
        """
        if self.cron is not None:
            other = "--every" if self.every is not None else "--anchor"
            if self.every is not None or self.anchor is not None:
                raise bad_input(other, "not with --cron")
            return Cron(self.cron, self.time_zone or "")
        if self.time_zone is not None:
            raise bad_input("--time-zone", "only with --cron")
        if self.every is not None:
            return Every(_duration("--every", self.every), instant("--anchor", self.anchor))
        if self.anchor is not None:
            raise bad_input("--anchor", "only with --every")
        return None

    def spec(self, target: Target) -> ScheduleSpec:
        """Return a new schedule.

        Raises:
            InvalidRequestError: Neither --cron nor --every is given, or an option is wrong.
        """
        times = self.times()
        if times is None:
            raise bad_input("--cron", "must be given, or else --every")
        return self.changed(ScheduleSpec(times=times, target=target))

    def changed(self, spec: ScheduleSpec) -> ScheduleSpec:
        """Return a schedule with what is given in place of what it has.

        Raises:
            InvalidRequestError: An option is wrong.
        """
        changed = dataclasses.replace(spec, times=self.times() or spec.times)
        if self.jitter is not None:
            changed = dataclasses.replace(changed, jitter=_duration("--jitter", self.jitter))
        if self.start_at is not None:
            changed = dataclasses.replace(changed, start_at=_bound("--start-at", self.start_at))
        if self.end_at is not None:
            changed = dataclasses.replace(changed, end_at=_bound("--end-at", self.end_at))
        if self.overlap is not None:
            changed = dataclasses.replace(changed, overlap_policy=OverlapPolicy(self.overlap))
        if self.catch_up_window is not None:
            window = _duration("--catch-up-window", self.catch_up_window)
            changed = dataclasses.replace(changed, catch_up_window=window)
        return changed


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What each firing is to do; ``document`` is the file of its job."""

    target: Target
    document: JobDocument | None = None


@Parameter(name="*", group=_TARGET)
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TargetInput(PayloadInput):
    """What a firing does: one of --start, --call, --notify and --job, and what it needs."""

    start: Annotated[bool, Parameter(negative="")] = False
    """Start a process."""
    call: str | None = None
    """Call the process of this id; nobody waits for the response."""
    notify: str | None = None
    """Notify the process of this id."""
    job: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    """Submit the job of a file, see job submit; - is standard input. Its deadline is a duration."""
    id_template: str | None = None
    """Of --start and --job, with {instant} and {schedule_id}; otherwise {schedule_id}/{instant}."""
    context: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """A pair KEY=VALUE handed through to the processor; may be repeated. Not of --job."""
    metadata: str | None = None
    """Of --start: a JSON object, the metadata of each process."""

    def wanted(self, constraints: ConstraintsInput) -> Wanted | None:
        """Return what is asked for; None: nothing is said of it.

        Raises:
            InvalidRequestError: More than one is asked for, or what does not go with it.
        """
        kinds = {"--start": self.start, "--call": self.call is not None}
        kinds |= {"--notify": self.notify is not None, "--job": self.job is not None}
        given = [option for option, is_given in kinds.items() if is_given]
        if len(given) > 1:
            raise bad_input(given[1], f"not with {given[0]}")
        kind = given[0] if given else ""
        self._check(kind, constraints)
        if self.job is not None:
            document = read_job(self.job)
            return Wanted(target=self._job(document), document=document)
        return Wanted(target=self._target(kind, constraints)) if kind else None

    def _target(self, kind: str, constraints: ConstraintsInput) -> Target:
        context, passed = pairs("--context", self.context), constraints.constraints()
        called = self.call if kind == "--call" else self.notify
        if called is not None:
            form = ScheduledCall if kind == "--call" else ScheduledNotify
            return form(called, self.payload(), context=context, constraints=passed)
        return ScheduledStart(
            self.payload(),
            process_id_template=self.id_template or "",
            context=context,
            metadata=json_object("--metadata", self.metadata),
            constraints=passed,
        )

    def _job(self, document: JobDocument) -> ScheduledJob:
        if isinstance(document.deadline, dt.datetime):
            raise bad_input("--job", "the deadline of a job on schedule is a duration, as in 2h")
        return ScheduledJob(
            document.graph,
            job_id_template=self.id_template or document.job_id,
            timeout=document.deadline,
            context=document.context,
            metadata=document.metadata,
        )

    def _check(self, kind: str, constraints: ConstraintsInput) -> None:
        """Refuse an option that does not go with `kind`, which would otherwise be lost."""
        payload = any(it is not None for it in (self.args, self.args_file, self.text))
        given = {
            "--args": (payload, ("--start", "--call", "--notify")),
            "--context": (bool(self.context), ("--start", "--call", "--notify")),
            "--gate": (constraints != ConstraintsInput(), ("--start", "--call", "--notify")),
            "--metadata": (self.metadata is not None, ("--start",)),
            "--id-template": (self.id_template is not None, ("--start", "--job")),
        }
        for option, (is_given, kinds) in given.items():
            if is_given and kind not in kinds:
                raise bad_input(option, f"only with {' or '.join(kinds)}")


def _duration(option: str, text: str) -> dt.timedelta:
    try:
        return duration_of(text)
    except ValueError as error:
        raise bad_input(option, str(error)) from error


def _bound(option: str, text: str) -> dt.datetime | None:
    return None if text == _NONE else instant(option, text)
