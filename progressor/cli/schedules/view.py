"""How schedules are shown: facts, tables of runs, JSON documents."""

import dataclasses
import datetime as dt
import zoneinfo
from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from progressor.cli.output.output import (
    Column,
    duration_text,
    facts,
    instant_text,
    one_line,
    payload_text,
    table,
)
from progressor.sdk.client.schedules import (
    Cron,
    Every,
    NextRun,
    Schedule,
    ScheduledCall,
    ScheduledJob,
    ScheduledNotify,
    ScheduledStart,
    ScheduleRun,
    ScheduleSpec,
    Target,
    Times,
)
from progressor.sdk.codec.wire import timedelta_of

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


def schedule_facts(schedule: Schedule) -> RenderableType:
    """Return the fields of a schedule."""
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


def schedules_table(schedules: Sequence[Schedule]) -> RenderableType:
    return table(_SCHEDULES, schedules) if schedules else "no schedules"


def next_table(runs: Sequence[NextRun], times: Times) -> RenderableType:
    """Return future runs, with their instants in the schedule's time zone, and their delays."""
    zone = _zone_of(times)
    columns: Mapping[str, Column[NextRun]] = {
        "at": lambda it: instant_text(it.instant),
        f"in {zone}" if zone else "": lambda it: _wall_text(it.instant, zone),
        "later by": lambda it: _optional_duration(it.due_at - it.instant),
    }
    return table(columns, runs)


def runs_table(runs: Sequence[ScheduleRun]) -> RenderableType:
    return table(_RUNS, runs)


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
