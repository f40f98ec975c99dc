"""Actions on one namespace."""

import dataclasses
from collections.abc import Mapping
from typing import Any

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


def _is_paused(facts: Mapping[str, Any]) -> bool:
    return facts["config"].pause is not None


def _pause_now(facts: Mapping[str, Any]) -> Mapping[str, str]:
    pause = facts["config"].pause
    if pause is None:
        return {}
    return {"reason": pause.reason, "refuse_requests": "yes" if pause.refuses_requests else ""}


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
    fits=lambda facts: facts["config"].pause is None,
)
CHANGE_PAUSE = dataclasses.replace(
    PAUSE,
    name="change-pause",
    word=mark("Change the pause"),
    explanation=mark(
        "Changes the reason, and whether requests are refused. The namespace stays paused."
    ),
    fits=_is_paused,
    initial=_pause_now,
)
RESUME = Action(
    name="resume",
    word=mark("Resume"),
    explanation=mark("What came due in the pause runs, slowly at first."),
    right=Right.OPERATE,
    run=_resume,
    command=lambda entered: ("namespace", "resume", entered.namespace),
    fits=_is_paused,
)

ACTIONS = (RESUME, PAUSE, CHANGE_PAUSE)
