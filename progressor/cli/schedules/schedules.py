"""Commands about schedules: create, update, get, list, next, pause, resume, trigger and so on."""

import dataclasses
import datetime as dt
import zoneinfo
from collections.abc import Iterator, Mapping
from typing import Annotated

from cyclopts.types import Int64
from rich.console import RenderableType
from rich.text import Text

from progressor.cli.input.job_documents import placed
from progressor.cli.input.options import (
    PAGE_MAX,
    ConstraintsInput,
    NamespaceOptions,
    bad_input,
    check_range,
    client_of,
    instant,
    option,
)
from progressor.cli.output import (
    Column,
    ExitCode,
    duration_text,
    facts,
    instant_text,
    one_line,
    payload_text,
    show,
    table,
)
from progressor.cli.schedules.inputs import Overlap, TargetInput, TimesInput
from progressor.sdk.client.schedules import (
    Cron,
    Every,
    NextRun,
    OverlapPolicy,
    Schedule,
    ScheduledCall,
    ScheduledJob,
    ScheduledNotify,
    ScheduledStart,
    ScheduleRun,
    ScheduleRunState,
    ScheduleSpec,
    ScheduleView,
    Target,
    Times,
)
from progressor.sdk.codec.wire import timedelta_of

_RUNS_MAX = 100

Note = Annotated[str, option("A note, shown with the schedule.")]
Revision = Annotated[Int64, option("Change it only at this revision; 0: at any.")]
OverlapOption = Annotated[
    Overlap | None, option("What a run does while the work of an earlier run has not ended.")
]


_STYLES: Mapping[str, str] = {
    "queued": "cyan", "running": "green", "done": "blue", "failed": "bold red",
    "cancelled": "magenta", "gone": "dim", "skipped": "yellow", "missed": "yellow",
    "refused": "bold red",
}  # fmt: skip
_PAUSED = Text("paused", style="yellow")
_KINDS: Mapping[type[Target], str] = {
    ScheduledStart: "start",
    ScheduledCall: "call",
    ScheduledNotify: "notify",
    ScheduledJob: "job",
}


async def create(  # noqa: PLR0913  # groups of options
    schedule_id: str,
    /,
    *,
    paused: Annotated[bool, option("Create it paused: no runs until it is resumed.")] = False,
    note: Note = "",
    times: TimesInput = TimesInput(),
    what: TargetInput = TargetInput(),
    constraints: ConstraintsInput = ConstraintsInput(),
    options: NamespaceOptions = NamespaceOptions(),
) -> None:
    """Create a schedule, which first runs at its next instant."""
    target, job = what.requested(constraints)
    if target is None:
        raise bad_input("--start", "--start, --call, --notify or --job must be given")
    spec = times.spec(target)
    async with client_of(options) as client:
        with placed(job):
            schedule = await client.schedules.create(schedule_id, spec, paused=paused, note=note)
    _show(schedule, options)


async def update(
    schedule_id: str,
    /,
    *,
    times: TimesInput = TimesInput(),
    what: TargetInput = TargetInput(),
    constraints: ConstraintsInput = ConstraintsInput(),
    options: NamespaceOptions = NamespaceOptions(),
) -> None:
    """Change the given settings of a schedule; what its runs do is replaced as a whole.

    Fails without a change if another update comes in between.
    """
    target, job = what.requested(constraints)
    if target is None and times == TimesInput():
        raise bad_input("--cron", "at least one option must be given")
    async with client_of(options) as client:
        view = await client.schedules.get(schedule_id, next_count=0, last_count=0)
        spec = times.changed(view.schedule.spec)
        if target is not None:
            spec = dataclasses.replace(spec, target=target)
        with placed(job):
            schedule = await client.schedules.update(
                schedule_id, spec, expected_revision=view.schedule.revision
            )
    _show(schedule, options)


async def get(
    schedule_id: str,
    /,
    *,
    next: Annotated[int, option("The number of future runs, at most 100.")] = 5,  # noqa: A002  # the option's name
    last: Annotated[int, option("The number of past runs, at most 100.")] = 10,
    options: NamespaceOptions = NamespaceOptions(),
) -> None:
    """Print a schedule, its next runs, and the outcome of the last ones."""
    check_range("--next", next, 0, _RUNS_MAX)
    check_range("--last", last, 0, _RUNS_MAX)
    async with client_of(options) as client:
        view = await client.schedules.get(schedule_id, next_count=next, last_count=last)
    document = {
        "schedule": schedule_document(view.schedule),
        "next_runs": view.next_runs,
        "last_runs": view.last_runs,
    }
    show(document, *_people(view), as_json=options.json)


async def list_schedules(*, options: NamespaceOptions = NamespaceOptions()) -> None:
    """Print the schedules of a namespace in the order of their ids."""
    async with client_of(options) as client:
        found = [it async for it in client.schedules.list(page_size=PAGE_MAX)]
    document = {"schedules": [*map(schedule_document, found)]}
    show(document, table(_SCHEDULES, found) if found else "no schedules", as_json=options.json)


async def print_next(
    schedule_id: str,
    /,
    *,
    count: Annotated[int, option("The number of runs, at most 100.")] = 10,
    options: NamespaceOptions = NamespaceOptions(),
) -> None:
    """Print the next runs of a schedule, also in its time zone."""
    check_range("--count", count, 0, _RUNS_MAX)
    async with client_of(options) as client:
        view = await client.schedules.get(schedule_id, next_count=count, last_count=0)
    show({"next_runs": view.next_runs}, _next(view), as_json=options.json)


async def pause(
    schedule_id: str,
    /,
    *,
    note: Note = "",
    revision: Revision = 0,
    options: NamespaceOptions = NamespaceOptions(),
) -> None:
    """Pause a schedule until it is resumed; started work continues."""
    async with client_of(options) as client:
        schedule = await client.schedules.pause(schedule_id, note=note, expected_revision=revision)
    _show(schedule, options)


async def resume(
    schedule_id: str,
    /,
    *,
    note: Note = "",
    revision: Revision = 0,
    options: NamespaceOptions = NamespaceOptions(),
) -> None:
    """Resume a paused schedule from its next instant on.

    The instants of the pause are not run; see backfill.
    """
    async with client_of(options) as client:
        schedule = await client.schedules.resume(schedule_id, note=note, expected_revision=revision)
    _show(schedule, options)


async def trigger(
    schedule_id: str,
    /,
    *,
    overlap: OverlapOption = None,
    idempotency_key: Annotated[str, option("Makes it safe to repeat: one run per key.")] = "",
    options: NamespaceOptions = NamespaceOptions(),
) -> ExitCode:
    """Run a schedule now, even if it is paused, and print the outcome."""
    async with client_of(options) as client:
        run = await client.schedules.trigger(
            schedule_id, overlap_policy=_policy(overlap), idempotency_key=idempotency_key
        )
    show(run, table(_RUNS, [run]), as_json=options.json)
    return ExitCode.FAILED if run.state is ScheduleRunState.REFUSED else ExitCode.DONE


async def backfill(
    schedule_id: str,
    /,
    *,
    since: Annotated[str, option("The start of the period, included.")],
    until: Annotated[str, option("The end of the period, excluded; must be in the past.")],
    overlap: OverlapOption = None,
    options: NamespaceOptions = NamespaceOptions(),
) -> None:
    """Run the instants of a past period that have not run yet.

    At most 1,000; without --overlap, all at once.
    """
    begin, end = instant("--since", since), instant("--until", until)
    assert begin is not None, "a required option"
    assert end is not None, "a required option"
    async with client_of(options) as client:
        found = await client.schedules.backfill(
            schedule_id, begin, end, overlap_policy=_policy(overlap)
        )
    words = f"queued {found.queued_count:,} runs of {found.instant_count:,} instants"
    show(found, words, as_json=options.json)


async def delete(
    schedule_id: str, /, *, revision: Revision = 0, options: NamespaceOptions = NamespaceOptions()
) -> None:
    """Delete a schedule and the record of its runs; started work continues."""
    async with client_of(options) as client:
        await client.schedules.delete(schedule_id, expected_revision=revision)
    show({"deleted": schedule_id}, f"deleted schedule {schedule_id}", as_json=options.json)


def _show(schedule: Schedule, options: NamespaceOptions) -> None:
    show(schedule_document(schedule), schedule_facts(schedule), as_json=options.json)


def _people(view: ScheduleView) -> Iterator[RenderableType]:
    yield schedule_facts(view.schedule)
    if view.next_runs:
        yield from ("", Text("next", style="bold"), _next(view))
    if view.last_runs:
        yield from ("", Text("last", style="bold"), table(_RUNS, view.last_runs))


def _next(view: ScheduleView) -> RenderableType:
    """Return future runs, with their instants in the schedule's time zone, and their delays."""
    if not view.next_runs:
        return "the schedule is paused" if view.schedule.paused else "no more runs"
    zone = _zone_of(view.schedule.spec.times)
    columns: Mapping[str, Column[NextRun]] = {
        "at": lambda it: instant_text(it.instant),
        f"in {zone}" if zone else "": lambda it: _wall_text(it.instant, zone),
        "later by": lambda it: _optional_duration(it.due_at - it.instant),
    }
    return table(columns, view.next_runs)


def _policy(overlap: Overlap | None) -> OverlapPolicy:
    return OverlapPolicy.UNSPECIFIED if overlap is None else OverlapPolicy(overlap)


def schedule_facts(schedule: Schedule) -> RenderableType:
    spec = schedule.spec
    return facts(
        {
            "schedule": f"{one_line(schedule.schedule_id)} in {schedule.namespace}",
            "times": _times_text(spec.times),
            "jitter": _optional_duration(timedelta_of(spec.jitter)),
            "not before": instant_text(spec.start_at),
            "not after": instant_text(spec.end_at),
            "does": _target_text(spec.target),
            **_target_facts(spec.target),
            "overlap": spec.overlap_policy,
            "catch-up window": duration_text(timedelta_of(spec.catch_up_window)),
            "paused": Text("yes", style="yellow") if schedule.paused else "",
            "note": one_line(schedule.note),
            "next": _next_text(schedule),
            "runs": _counts(schedule),
            "revision": str(schedule.revision),
            "created": instant_text(schedule.created_at),
            "updated": instant_text(schedule.updated_at),
        }
    )


def _times_text(times: Times) -> str:
    match times:
        case Cron(expression, time_zone):
            return f"{one_line(expression)} {time_zone or 'UTC'}"
        case Every(interval, anchor):
            since = "" if anchor is None else f", counted from {instant_text(anchor)}"
            return f"every {duration_text(timedelta_of(interval))}{since}"


def _target_text(target: Target) -> str:
    match target:
        case ScheduledStart():
            return "starts a process"
        case ScheduledCall():
            return f"calls {one_line(target.process_id)}"
        case ScheduledNotify():
            return f"notifies {one_line(target.process_id)}"
        case ScheduledJob():
            count = len(target.graph)
            nodes = "node" if count == 1 else "nodes"
            return f"submits a job of {count:,} {nodes}" if count else "submits a job"


def _next_text(schedule: Schedule) -> str:
    """Return the instant of the next run, also in its time zone; "" without one."""
    if schedule.next_instant is None:
        return ""
    wall = _wall_text(schedule.next_instant, _zone_of(schedule.spec.times))
    return f"{instant_text(schedule.next_instant)}{f', {wall}' if wall else ''}"


def _zone_of(times: Times) -> str:
    return times.time_zone if isinstance(times, Cron) else ""


def _wall_text(instant: dt.datetime, zone: str) -> str:
    """Return an instant in the local time of a zone; "" for UTC and unknown zones."""
    try:
        shown = instant.astimezone(zoneinfo.ZoneInfo(zone)) if zone else None
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):
        return ""
    return "" if shown is None else f"{shown:%a %Y-%m-%d %H:%M:%S %Z}"


def _why(run: ScheduleRun) -> str:
    """Return how many runs were missed, or the error of a run, in one line."""
    if run.missed_count:
        last = f", the last at {instant_text(run.missed_until)}" if run.missed_until else ""
        return f"{run.missed_count:,} missed{last}"
    if run.error is None:
        return ""
    return f"{one_line(run.error.reason)}: {one_line(run.error.message)}"


def schedule_document(schedule: Schedule) -> dict[str, object]:
    """Return a schedule as a document, with its target by kind, as in ``{"start": {...}}``."""
    spec, target = schedule.spec, _fields(schedule.spec.target)
    if isinstance(spec.target, ScheduledJob):
        graph = spec.target.graph
        target["graph"] = {
            it.name: {"after": it.after, "args": it.args, **it.options} for it in graph
        }
        target["timeout"] = (
            None if spec.target.timeout is None else timedelta_of(spec.target.timeout)
        )
    document = _fields(spec) | {
        "jitter": timedelta_of(spec.jitter),
        "catch_up_window": timedelta_of(spec.catch_up_window),
        "target": {_KINDS[type(spec.target)]: target},
    }
    del document["times"]
    if isinstance(spec.times, Every):
        every = timedelta_of(spec.times.interval)
        document["interval"] = {"every": every, "anchor": spec.times.anchor}
    else:
        document["cron"] = spec.times
    return _fields(schedule) | {"spec": document}


def _fields(value: Schedule | ScheduleSpec | Target) -> dict[str, object]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _target_facts(target: Target) -> dict[str, str]:
    if isinstance(target, ScheduledJob):
        timeout = "" if target.timeout is None else duration_text(timedelta_of(target.timeout))
        return {"id": one_line(target.job_id_template), "job's timeout": timeout}
    found = {"args": payload_text(target.args)}
    if isinstance(target, ScheduledStart):
        found["id"] = one_line(target.process_id_template)
    return found


def _counts(schedule: Schedule) -> Text:
    counts = {
        "started": schedule.started_count,
        "skipped": schedule.skipped_count,
        "missed": schedule.missed_count,
        "refused": schedule.refused_count,
    }
    return Text(", ").join(
        Text(f"{count:,} {name}", style=_STYLES.get(name, ""))
        for name, count in counts.items()
        if count
    )


def _took(run: ScheduleRun) -> str:
    """Return the time until the end of the work was noticed, at the next run or later."""
    if run.started_at is None or run.ended_at is None:
        return ""
    return duration_text(run.ended_at - run.started_at)


def _optional_duration(duration: dt.timedelta) -> str:
    return duration_text(duration) if duration else ""


_SCHEDULES: Mapping[str, Column[Schedule]] = {
    "schedule": lambda it: one_line(it.schedule_id),
    "times": lambda it: _times_text(it.spec.times),
    "does": lambda it: _target_text(it.spec.target),
    "next": lambda it: _PAUSED if it.paused else instant_text(it.next_instant),
    "runs": _counts,
    "note": lambda it: one_line(it.note),
}
_RUNS: Mapping[str, Column[ScheduleRun]] = {
    "at": lambda it: instant_text(it.instant),
    "status": lambda it: Text(it.state, style=_STYLES.get(it.state, "")),
    "cause": lambda it: it.cause,
    "process": lambda it: one_line(it.process_id),
    "task": lambda it: "" if it.task_id is None else str(it.task_id),
    "took at most": _took,
    "why": _why,
}
