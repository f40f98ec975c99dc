"""Actions on one namespace."""

from progressor.console.actions.action import Action, Done, Entered, Field
from progressor.console.words.words import mark
from progressor.domain.access.rights import Right


async def _pause(entered: Entered) -> Done:
    await entered.ask.client.namespaces.pause(
        entered.namespace,
        reason=entered.text("reason"),
        refuse=entered.text("refuse_requests") == "yes",
    )
    return Done(mark("Namespace %(name)s is paused."), {"name": entered.namespace})


def _pause_command(entered: Entered) -> tuple[str, ...]:
    refuse = ("--refuse",) if entered.text("refuse_requests") == "yes" else ()
    reason = entered.text("reason")
    return ("namespace", "pause", entered.namespace, "--reason", reason, *refuse)


async def _resume(entered: Entered) -> Done:
    await entered.ask.client.namespaces.resume(entered.namespace)
    return Done(mark("Namespace %(name)s is resumed."), {"name": entered.namespace})


PAUSE = Action(
    name="pause",
    word=mark("Pause"),
    explanation=mark(
        "No step of the namespace begins until it is resumed, in any replica. Running steps end "
        "normally; timers wait, and schedules do not run."
    ),
    right=Right.OPERATE,
    fields=(
        Field(
            name="reason",
            label=mark("Reason"),
            help=mark("Shown with everything that waits for the namespace."),
            is_required=True,
        ),
        Field(
            name="refuse_requests",
            label=mark("Refuse requests"),
            kind="flag",
            help=mark("Start, Call and Notify are refused instead of being admitted to wait."),
        ),
    ),
    run=_pause,
    command=_pause_command,
)
RESUME = Action(
    name="resume",
    word=mark("Resume"),
    explanation=mark("What came due in the pause runs at once."),
    right=Right.OPERATE,
    run=_resume,
    command=lambda entered: ("namespace", "resume", entered.namespace),
    fits=lambda facts: facts["config"].pause is not None,
)

ACTIONS = (PAUSE, RESUME)
