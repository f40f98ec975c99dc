"""Commands about schedules: create, update, get, list, next, pause, resume, trigger and so on."""

import dataclasses
from collections.abc import Iterator
from typing import Annotated

from cyclopts.types import Int64
from rich.console import RenderableType
from rich.text import Text

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
from progressor.cli.input.options import IN_DEFAULT_NAMESPACE, NamespaceOptions, client_of
from progressor.cli.output.failures import ExitCode
from progressor.cli.output.output import show
from progressor.cli.schedules.inputs import Overlap, TargetInput, TimesInput
from progressor.cli.schedules.view import (
    next_table,
    runs_table,
    schedule_document,
    schedule_facts,
    schedules_table,
)
from progressor.sdk.client.schedules import OverlapPolicy, Schedule, ScheduleRunState, ScheduleView

_RUNS_MAX = 100
_NO_TIMES = TimesInput()
_NO_TARGET = TargetInput()

Note = Annotated[str, option("A note, shown with the schedule.")]
Revision = Annotated[Int64, option("Change it only at this revision.")]
OverlapOption = Annotated[
    Overlap | None, option("What a run does while the work of an earlier run has not ended.")
]


async def create(  # noqa: PLR0913  # groups of options
    schedule_id: str,
    /,
    *,
    paused: Annotated[bool, option("Create it paused: no runs until it is resumed.")] = False,
    note: Note = "",
    times: TimesInput = _NO_TIMES,
    what: TargetInput = _NO_TARGET,
    constraints: ConstraintsInput = UNCONSTRAINED,
    options: NamespaceOptions = IN_DEFAULT_NAMESPACE,
) -> None:
    """Create a schedule, which first runs at its next instant."""
    requested = what.requested(constraints)
    if requested is None:
        raise bad_input("--start", "--start, --call, --notify or --job must be given")
    spec = times.spec(requested.target)
    async with client_of(options) as client:
        with placed(requested.document):
            schedule = await client.schedules.create(schedule_id, spec, paused=paused, note=note)
    _show(schedule, options)


async def update(
    schedule_id: str,
    /,
    *,
    times: TimesInput = _NO_TIMES,
    what: TargetInput = _NO_TARGET,
    constraints: ConstraintsInput = UNCONSTRAINED,
    options: NamespaceOptions = IN_DEFAULT_NAMESPACE,
) -> None:
    """Change the given settings of a schedule; what its runs do is replaced as a whole.

    Fails without a change if another update comes in between.
    """
    requested = what.requested(constraints)
    if requested is None and times == _NO_TIMES:
        raise bad_input("--cron", "at least one option must be given")
    async with client_of(options) as client:
        view = await client.schedules.get(schedule_id, next_count=0, last_count=0)
        spec = times.changed(view.schedule.spec)
        if requested is not None:
            spec = dataclasses.replace(spec, target=requested.target)
        with placed(None if requested is None else requested.document):
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
    options: NamespaceOptions = IN_DEFAULT_NAMESPACE,
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


async def list_schedules(*, options: NamespaceOptions = IN_DEFAULT_NAMESPACE) -> None:
    """Print the schedules of a namespace in the order of their ids."""
    async with client_of(options) as client:
        found = [it async for it in client.schedules.list(page_size=PAGE_MAX)]
    document = {"schedules": [*map(schedule_document, found)]}
    show(document, schedules_table(found), as_json=options.json)


async def print_next(
    schedule_id: str,
    /,
    *,
    count: Annotated[int, option("The number of runs, at most 100.")] = 10,
    options: NamespaceOptions = IN_DEFAULT_NAMESPACE,
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
    options: NamespaceOptions = IN_DEFAULT_NAMESPACE,
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
    options: NamespaceOptions = IN_DEFAULT_NAMESPACE,
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
    options: NamespaceOptions = IN_DEFAULT_NAMESPACE,
) -> ExitCode:
    """Run a schedule now, even if it is paused, and print the outcome."""
    async with client_of(options) as client:
        run = await client.schedules.trigger(
            schedule_id, overlap_policy=_policy(overlap), idempotency_key=idempotency_key
        )
    show(run, runs_table([run]), as_json=options.json)
    return ExitCode.FAILED if run.state is ScheduleRunState.REFUSED else ExitCode.DONE


async def backfill(
    schedule_id: str,
    /,
    *,
    since: Annotated[str, option("The start of the period, included.")],
    until: Annotated[str, option("The end of the period, excluded; must be in the past.")],
    overlap: OverlapOption = None,
    options: NamespaceOptions = IN_DEFAULT_NAMESPACE,
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
    schedule_id: str, /, *, revision: Revision = 0, options: NamespaceOptions = IN_DEFAULT_NAMESPACE
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
        yield from ("", Text("last", style="bold"), runs_table(view.last_runs))


def _next(view: ScheduleView) -> RenderableType:
    if view.next_runs:
        return next_table(view.next_runs, view.schedule.spec.times)
    return "the schedule is paused" if view.schedule.paused else "no more runs"


def _policy(overlap: Overlap | None) -> OverlapPolicy:
    return OverlapPolicy.UNSPECIFIED if overlap is None else OverlapPolicy(overlap)
