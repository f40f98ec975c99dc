"""Actions on one job."""

from progressor.console.actions.action import Action, Done, Entered, Field
from progressor.console.words.words import mark
from progressor.domain.access.rights import Right
from progressor.sdk.values.jobs import JobState


async def _retry(entered: Entered) -> Done:
    retried = await entered.ask.client.jobs.retry(
        entered.name, deadline=entered.instant("deadline"), namespace=entered.namespace
    )
    return Done(
        mark("The job runs again. Nodes that start again: %(count)s."),
        {"count": f"{len(retried.nodes):,}"},
    )


async def _cancel(entered: Entered) -> Done:
    await entered.ask.client.jobs.cancel(
        entered.name, cause=entered.text("reason"), namespace=entered.namespace
    )
    return Done(mark("The job was cancelled; steps that are running continue to their end."))


def _options(entered: Entered, name: str) -> tuple[str, ...]:
    text = entered.text(name)
    return (f"--{name}", text) if text else ()


RETRY = Action(
    name="retry",
    word=mark("Retry"),
    explanation=mark(
        "Runs the job again from its failed nodes. Nodes that are done stay done; nodes that were "
        "skipped because of a failed one wait again."
    ),
    right=Right.OPERATE,
    fields=(
        Field(
            name="deadline",
            label=mark("New deadline"),
            kind="instant",
            help=mark("An instant such as 2026-01-31T12:00:00Z; empty: none."),
        ),
    ),
    fits=lambda facts: facts["job"].state is JobState.FAILED,
    run=_retry,
    command=lambda it: ("job", "retry", it.name, *_options(it, "deadline"), "-n", it.namespace),
)
CANCEL = Action(
    name="cancel",
    word=mark("Cancel"),
    explanation=mark(
        "Cancels nodes that have not started; steps that are running continue to their end."
    ),
    warning=mark("A job that was cancelled cannot be retried."),
    right=Right.OPERATE,
    fields=(Field(name="reason", label=mark("Reason")),),
    fits=lambda facts: facts["job"].state is JobState.RUNNING,
    run=_cancel,
    command=lambda it: ("job", "cancel", it.name, *_options(it, "reason"), "-n", it.namespace),
)

ACTIONS = (RETRY, CANCEL)
