"""Commands about schedules: create, update, get, list, next, pause, resume, trigger and so on."""

import dataclasses
from typing import Annotated

from cyclopts.types import Int64
from rich.console import RenderableType
from rich.text import Text

from progressor.cli.input.engines import client_of
from progressor.cli.input.inputs import (
    PAGE_MAX,
    UNCONSTRAINED,
    ConstraintsInput,
    bad_input,
    check_range,
    instant,
    option,
)
from progressor.cli.input.job_documents import placed
from progressor.cli.input.options import DEFAULT_TARGET, Target
from progressor.cli.output.exit_codes import ExitCode
from progressor.cli.output.output import Output
from progressor.cli.schedules.inputs import Overlap, TargetInput, TimesInput
from progressor.cli.schedules.view import (
    firings_table,
    next_table,
    schedule_document,
    schedule_facts,
    schedules_table,
)
from progressor.sdk.values.schedules import FiringState, OverlapPolicy, Schedule, ScheduleView

_FIRINGS_MAX = 100
_NO_TIMES = TimesInput()
_NO_TARGET = TargetInput()

Note = Annotated[str, option("A note for people.")]
Revision = Annotated[Int64, option("Only if it is still at this revision.")]
OverlapOption = Annotated[
    Overlap | None, option("What it does while the work of an earlier firing has not ended.")
]


async def create(  # noqa: PLR0913  # groups of options
    schedule_id: str,
    /,
    *,
    paused: Annotated[bool, option("Do not fire until it is resumed.")] = False,
    note: Note = "",
    times: TimesInput = _NO_TIMES,
    what: TargetInput = _NO_TARGET,
    constraints: ConstraintsInput = UNCONSTRAINED,
    target: Target = DEFAULT_TARGET,
) -> None:
    """Create a schedule, which first fires at its next instant."""
    wanted = what.wanted(constraints)
    if wanted is None:
        raise bad_input("--start", "must be given, or else --call, --notify or --job")
    spec = times.spec(wanted.target)
    async with client_of(target) as client:
        with placed(wanted.document):
            schedule = await client.schedules.create(schedule_id, spec, paused=paused, note=note)
    _show(schedule, target)


async def update(
    schedule_id: str,
    /,
    *,
    times: TimesInput = _NO_TIMES,
    what: TargetInput = _NO_TARGET,
    constraints: ConstraintsInput = UNCONSTRAINED,
    target: Target = DEFAULT_TARGET,
) -> None:
    """Change the given settings of a schedule; what a firing does changes as a whole.

    If another update came in between, it is refused and changes nothing.
    """
    wanted = what.wanted(constraints)
    if wanted is None and times == _NO_TIMES:
        raise bad_input("--cron", "nothing to change")
    async with client_of(target) as client:
        view = await client.schedules.get(schedule_id, next_count=0, last_count=0)
        spec = times.changed(view.schedule.spec)
        if wanted is not None:
            spec = dataclasses.replace(spec, target=wanted.target)
        with placed(None if wanted is None else wanted.document):
            schedule = await client.schedules.update(
                schedule_id, spec, expected_revision=view.schedule.revision
            )
    _show(schedule, target)


async def get(
    schedule_id: str,
    /,
    *,
    next: Annotated[int, option("How many future firings, at most 100.")] = 5,  # noqa: A002  # the option's name
    last: Annotated[int, option("How many past firings, at most 100.")] = 10,
    target: Target = DEFAULT_TARGET,
) -> None:
    """Print a schedule, its next firings, and the outcome of the last ones."""
    check_range("--next", next, 0, _FIRINGS_MAX)
    check_range("--last", last, 0, _FIRINGS_MAX)
    async with client_of(target) as client:
        view = await client.schedules.get(schedule_id, next_count=next, last_count=last)
    Output(as_json=target.json).show(_view_document(view), *_people(view))


async def list_schedules(*, target: Target = DEFAULT_TARGET) -> None:
    """Print the schedules of a namespace in the order of their ids."""
    async with client_of(target) as client:
        found = [it async for it in client.schedules.list(page_size=PAGE_MAX)]
    people = schedules_table(found) if found else Text("no schedules")
    Output(as_json=target.json).show({"schedules": [*map(schedule_document, found)]}, people)


async def print_next(
    schedule_id: str,
    /,
    *,
    count: Annotated[int, option("How many, at most 100.")] = 10,
    target: Target = DEFAULT_TARGET,
) -> None:
    """Print the next firings of a schedule, also in its time zone."""
    check_range("--count", count, 0, _FIRINGS_MAX)
    async with client_of(target) as client:
        view = await client.schedules.get(schedule_id, next_count=count, last_count=0)
    Output(as_json=target.json).show({"next_firings": view.next_firings}, _next(view))


async def pause(
    schedule_id: str,
    /,
    *,
    note: Note = "",
    revision: Revision = 0,
    target: Target = DEFAULT_TARGET,
) -> None:
    """Pause a schedule until it is resumed; what it has started continues."""
    async with client_of(target) as client:
        schedule = await client.schedules.pause(schedule_id, note=note, expected_revision=revision)
    _show(schedule, target)


async def resume(
    schedule_id: str,
    /,
    *,
    note: Note = "",
    revision: Revision = 0,
    target: Target = DEFAULT_TARGET,
) -> None:
    """Resume a paused schedule, from its next instant on.

    The instants of the pause are not made up for; see backfill.
    """
    async with client_of(target) as client:
        schedule = await client.schedules.resume(schedule_id, note=note, expected_revision=revision)
    _show(schedule, target)


async def trigger(
    schedule_id: str,
    /,
    *,
    overlap: OverlapOption = None,
    idempotency_key: Annotated[str, option("Makes it safe to repeat: same key, one firing.")] = "",
    target: Target = DEFAULT_TARGET,
) -> ExitCode:
    """Fire a schedule now, even if it is paused, and print the outcome."""
    async with client_of(target) as client:
        firing = await client.schedules.trigger(
            schedule_id, overlap_policy=_policy(overlap), idempotency_key=idempotency_key
        )
    Output(as_json=target.json).show(firing, firings_table([firing]))
    return ExitCode.FAILED if firing.state is FiringState.REFUSED else ExitCode.DONE


async def backfill(
    schedule_id: str,
    /,
    *,
    since: Annotated[str, option("From this instant on.")],
    until: Annotated[str, option("Before this instant, which must be past.")],
    overlap: OverlapOption = None,
    target: Target = DEFAULT_TARGET,
) -> None:
    """Fire the instants of a past period that have not fired yet.

    At most 1,000; without --overlap all at once.
    """
    begin, end = instant("--since", since), instant("--until", until)
    assert begin is not None, "it was given"
    assert end is not None, "it was given"
    async with client_of(target) as client:
        found = await client.schedules.backfill(
            schedule_id, begin, end, overlap_policy=_policy(overlap)
        )
    words = f"{found.queued_count:,} firings are queued, of {found.instant_count:,} instants"
    Output(as_json=target.json).show(found, Text(words))


async def delete(
    schedule_id: str, /, *, revision: Revision = 0, target: Target = DEFAULT_TARGET
) -> None:
    """Delete a schedule and the record of its firings; what it has started continues."""
    async with client_of(target) as client:
        await client.schedules.delete(schedule_id, expected_revision=revision)
    words = Text(f"deleted schedule {schedule_id}")
    Output(as_json=target.json).show({"deleted": schedule_id}, words)


def _show(schedule: Schedule, target: Target) -> None:
    Output(as_json=target.json).show(schedule_document(schedule), schedule_facts(schedule))


def _people(view: ScheduleView) -> list[RenderableType]:
    shown: list[RenderableType] = [schedule_facts(view.schedule)]
    if view.next_firings:
        shown += ["", Text("next", style="bold"), _next(view)]
    if view.last_firings:
        shown += ["", Text("last", style="bold"), firings_table(view.last_firings)]
    return shown


def _next(view: ScheduleView) -> RenderableType:
    if view.next_firings:
        return next_table(view.next_firings, view.schedule.spec.times)
    return Text("the schedule is paused" if view.schedule.paused else "no more firings")


def _view_document(view: ScheduleView) -> dict[str, object]:
    return {
        "schedule": schedule_document(view.schedule),
        "next_firings": view.next_firings,
        "last_firings": view.last_firings,
    }


def _policy(overlap: Overlap | None) -> OverlapPolicy:
    return OverlapPolicy.UNSPECIFIED if overlap is None else OverlapPolicy(overlap)
