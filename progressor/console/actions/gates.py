"""Actions on one gate."""

from progressor.console.actions.action import Action, Done, Entered, Field
from progressor.console.visits.visit import Links
from progressor.console.words.words import mark
from progressor.domain.access.rights import Right

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


async def _set(entered: Entered) -> Done:
    gate = await entered.ask.client.gates.set(
        entered.name,
        entered.whole("capacity", 0, _INT32_MAX),
        expected_revision=entered.whole("revision", 1, _INT64_MAX),
        namespace=entered.namespace,
    )
    return Done(mark("The capacity is now %(capacity)s."), {"capacity": str(gate.capacity)})


async def _delete(entered: Entered) -> Done:
    await entered.ask.client.gates.delete(entered.name, namespace=entered.namespace)
    links = Links(entered.ask.options.base_path)
    return Done(
        mark("The gate %(gate)s was deleted."),
        {"gate": entered.name},
        links.to("/gates", {"namespace": entered.namespace}),
    )


def _set_command(entered: Entered) -> tuple[str, ...]:
    options = ("--capacity", entered.text("capacity"), "--revision", entered.text("revision"))
    return ("gate", "set", entered.name, *options, "-n", entered.namespace)


SET = Action(
    name="set",
    word=mark("Set the capacity"),
    explanation=mark(
        "A larger capacity lets waiting tasks in. With a smaller one, ready tasks give their places"
        " back, the newest first; running tasks keep theirs."
    ),
    right=Right.OPERATE,
    fields=(
        Field(name="capacity", label=mark("Capacity"), kind="number", is_required=True),
        Field(name="revision", label=mark("Revision"), kind="hidden"),
    ),
    initial=lambda facts: {
        "capacity": str(facts["gate"].capacity),
        "revision": str(facts["gate"].revision),
    },
    run=_set,
    command=_set_command,
)
DELETE = Action(
    name="delete",
    word=mark("Delete"),
    explanation=mark("Deletes a gate that no task holds or waits for; a new one can be set."),
    right=Right.OPERATE,
    run=_delete,
    fits=lambda facts: not facts["gate"].held and not facts["gate"].waiting_count,
    command=lambda it: ("gate", "delete", it.name, "-n", it.namespace),
)

ACTIONS = (SET, DELETE)
