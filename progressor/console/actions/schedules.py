"""Actions on one schedule."""

from collections.abc import Callable, Mapping

from progressor.console.actions.action import Action, Done, Entered, Field, invalid
from progressor.console.visits.visit import Links
from progressor.console.words.words import mark
from progressor.domain.access.rights import Right
from progressor.sdk.client.schedules import OverlapPolicy

OVERLAPS: Mapping[str, str] = {
    "": mark("as the schedule says"),
    "skip": mark("skip the run"),
    "queue_one": mark("wait for the earlier run; at most one waits"),
    "allow": mark("run beside the earlier run"),
    "cancel_previous": mark("cancel the earlier run"),
}
"""What a run does while the work of an earlier run has not ended."""

_BACKFILL_OVERLAPS = {**OVERLAPS, "": OVERLAPS["allow"]}
_TRIGGERED: Mapping[str, str] = {
    "queued": mark("The run waits for the end of an earlier one."),
    "skipped": mark("The run was skipped: the work of an earlier one has not ended."),
    "refused": mark("The run was refused; the list of runs says why."),
}
_INSTANT = mark("An instant such as 2026-01-31T12:00:00Z.")


def _overlap(entered: Entered) -> OverlapPolicy:
    text = entered.text("overlap_policy")
    if text and text not in OVERLAPS:
        raise invalid("overlap_policy", f"must be one of {', '.join(OverlapPolicy)}, got {text!r}")
    return OverlapPolicy(text) if text else OverlapPolicy.UNSPECIFIED


async def _pause(entered: Entered) -> Done:
    await entered.ask.client.schedules.pause(
        entered.name, note=entered.text("note"), namespace=entered.namespace
    )
    return Done(mark("The schedule is paused."))


async def _resume(entered: Entered) -> Done:
    await entered.ask.client.schedules.resume(
        entered.name, note=entered.text("note"), namespace=entered.namespace
    )
    return Done(mark("The schedule runs again from its next instant on."))


async def _trigger(entered: Entered) -> Done:
    run = await entered.ask.client.schedules.trigger(
        entered.name,
        overlap_policy=_overlap(entered),
        idempotency_key=entered.text("idempotency_key"),
        namespace=entered.namespace,
    )
    return Done(_TRIGGERED.get(run.state, mark("The schedule has run.")))


async def _backfill(entered: Entered) -> Done:
    since, until = entered.instant("since"), entered.instant("until")
    assert since is not None, "a required field"
    assert until is not None, "a required field"
    found = await entered.ask.client.schedules.backfill(
        entered.name, since, until, overlap_policy=_overlap(entered), namespace=entered.namespace
    )
    return Done(
        mark("Instants in the period: %(instants)s. Queued of these: %(queued)s."),
        {"instants": f"{found.instant_count:,}", "queued": f"{found.queued_count:,}"},
    )


async def _delete(entered: Entered) -> Done:
    await entered.ask.client.schedules.delete(entered.name, namespace=entered.namespace)
    links = Links(entered.ask.options.base_path)
    return Done(
        mark("The schedule %(schedule)s was deleted."),
        {"schedule": entered.name},
        links.to("/schedules", {"namespace": entered.namespace}),
    )


def _command(command: str, **options: str) -> Callable[[Entered], tuple[str, ...]]:
    """Return what builds a command, with the options whose fields, by name, are filled in."""

    def build(entered: Entered) -> tuple[str, ...]:
        given = [
            word
            for option, field in options.items()
            if (text := entered.text(field))
            for word in (f"--{option.replace('_', '-')}", text)
        ]
        return ("schedule", command, entered.name, *given, "-n", entered.namespace)

    return build


_NOTE = Field(name="note", label=mark("Note"), help=mark("Shown with the schedule."))

PAUSE = Action(
    name="pause",
    word=mark("Pause"),
    explanation=mark("The schedule does not run until it is resumed; started work continues."),
    right=Right.OPERATE,
    fields=(_NOTE,),
    fits=lambda facts: not facts["schedule"].paused,
    run=_pause,
    command=_command("pause", note="note"),
)
RESUME = Action(
    name="resume",
    word=mark("Resume"),
    explanation=mark(
        "The schedule runs again from its next instant on. Instants of the pause are not made up "
        "for; backfill them."
    ),
    right=Right.OPERATE,
    fields=(_NOTE,),
    fits=lambda facts: facts["schedule"].paused,
    run=_resume,
    command=_command("resume", note="note"),
)
TRIGGER = Action(
    name="trigger",
    word=mark("Trigger now"),
    explanation=mark("Runs the schedule once now, even if it is paused."),
    right=Right.OPERATE,
    fields=(
        Field(
            name="overlap_policy",
            label=mark("While the work of an earlier run has not ended"),
            kind="choice",
            choices=("", "skip", "queue_one", "allow", "cancel_previous"),
            choice_words=OVERLAPS,
        ),
        Field(name="idempotency_key", label="", kind="key"),
    ),
    run=_trigger,
    command=_command("trigger", overlap="overlap_policy"),
)
BACKFILL = Action(
    name="backfill",
    word=mark("Backfill"),
    explanation=mark(
        "Runs the instants of a past period that have not run yet, at most 1,000. An instant runs "
        "once, however often it is backfilled."
    ),
    right=Right.OPERATE,
    fields=(
        Field(
            name="since",
            label=mark("From, included"),
            kind="instant",
            help=_INSTANT,
            is_required=True,
        ),
        Field(
            name="until",
            label=mark("To, excluded; not in the future"),
            kind="instant",
            help=_INSTANT,
            is_required=True,
        ),
        Field(
            name="overlap_policy",
            label=mark("While the work of an earlier run has not ended"),
            kind="choice",
            choices=("", "skip", "queue_one"),
            choice_words=_BACKFILL_OVERLAPS,
        ),
    ),
    run=_backfill,
    command=_command("backfill", since="since", until="until", overlap="overlap_policy"),
)
DELETE = Action(
    name="delete",
    word=mark("Delete"),
    explanation=mark("Deletes the schedule and the record of its runs; started work continues."),
    warning=mark("A schedule that was deleted cannot be brought back."),
    right=Right.OPERATE,
    run=_delete,
    command=_command("delete"),
)

ACTIONS = (PAUSE, RESUME, TRIGGER, BACKFILL, DELETE)
