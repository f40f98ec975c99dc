"""Actions on one process."""

from collections.abc import Callable

from progressor.console.actions.action import Action, Done, Entered, Field
from progressor.console.words.words import mark
from progressor.domain.access.rights import Right


def _words(command: str, *options: tuple[str, str]) -> Callable[[Entered], tuple[str, ...]]:
    """Return what builds ``command ID -n NAMESPACE``, with options whose fields are filled in."""

    def build(entered: Entered) -> tuple[str, ...]:
        given = [
            word
            for option, field in options
            if (text := entered.text(field))
            for word in (option, text)
        ]
        return (*command.split(), entered.name, "-n", entered.namespace, *given)

    return build


async def _retry(entered: Entered) -> Done:
    await entered.ask.client.retry(entered.name, namespace=entered.namespace)
    return Done(mark("The task that broke the process runs again."))


async def _terminate(entered: Entered) -> Done:
    await entered.ask.client.terminate(
        entered.name, reason=entered.text("reason"), namespace=entered.namespace
    )
    return Done(mark("The process was ended."))


RETRY = Action(
    name="retry",
    word=mark("Retry"),
    explanation=mark("Runs the task that broke the process again, with its retry policy."),
    right=Right.OPERATE,
    run=_retry,
    command=_words("retry"),
)
TERMINATE = Action(
    name="terminate",
    word=mark("Terminate"),
    explanation=mark("Ends the process and cancels its tasks; its record stays."),
    warning=mark("A process that was ended cannot be brought back."),
    right=Right.OPERATE,
    fields=(Field(name="reason", label=mark("Reason"), is_required=True),),
    run=_terminate,
    command=_words("terminate", ("--reason", "reason")),
)

ACTIONS = (RETRY, TERMINATE)
