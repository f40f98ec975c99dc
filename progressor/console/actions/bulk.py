"""Actions on many processes at once."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from progressor.console.actions.action import Action, Done, Entered, Field, invalid
from progressor.console.actions.processes import ARGS, args_of
from progressor.console.rendering.terms import term_of
from progressor.console.visits.filters import filter_of, query_of
from progressor.console.visits.visit import Ask, Links
from progressor.console.words.words import mark
from progressor.domain.access.rights import Right
from progressor.sdk.client.bulk import BulkKind

KINDS = tuple(BulkKind)[1:]
RATE_DEFAULT = 100
_RATE_MAX = 9_999_999
_WITH_ARGS = {BulkKind.REPAIR, BulkKind.NOTIFY}
_ENDS = {BulkKind.CANCEL, BulkKind.TERMINATE, BulkKind.REMOVE}

_OPTIONS: Mapping[str, str] = {
    "namespace": "-n",
    "status": "--status",
    "id_prefix": "--id-prefix",
    "failure_id": "--failure",
    "failure_reason": "--failure-reason",
    "created_from": "--created-from",
    "created_to": "--created-to",
    "broken_from": "--broken-from",
    "broken_to": "--broken-to",
}


def kind_of(ask: Ask) -> BulkKind:
    """Return the kind in the address of a page; the first without one.

    Raises:
        InvalidRequestError: There is no such kind.
    """
    text = ask.one("kind") or KINDS[0]
    if text not in KINDS:
        raise invalid("kind", f"must be one of {', '.join(KINDS)}, got {text!r}")
    return BulkKind(text)


def _fields(kind: BulkKind) -> Iterator[Field]:
    if kind in _WITH_ARGS:
        yield ARGS
    yield Field(
        name="reason", label=mark("Reason"), is_required=kind in _ENDS, help=mark("For the record.")
    )
    yield Field(
        name="rate_max",
        label=mark("Processes per second"),
        kind="number",
        initial=str(RATE_DEFAULT),
        is_required=True,
    )
    yield Field(
        name="failed_percent",
        label=mark("Stop when more than this percentage of the last 100 processes failed"),
        kind="number",
        initial="10",
        is_required=True,
    )
    yield Field(
        name="follow",
        label=mark("Also take up processes that match later, until it is stopped"),
        kind="flag",
    )
    yield Field(name="operation_id", label="", kind="key")


async def _start(kind: BulkKind, entered: Entered) -> Done:
    ask = entered.ask
    if kind_of(ask) is not kind:
        raise invalid("kind", f"must be {kind.value}, as the form, got {kind_of(ask).value}")
    operation = await ask.client.bulk.start(
        kind,
        args_of(entered),
        operation_id=entered.text("operation_id"),
        reason=entered.text("reason"),
        author=ask.identity.principal or "console",
        rate_max=entered.whole("rate_max", 1, _RATE_MAX),
        failed_share_max=entered.whole("failed_percent", 0, 100) / 100,
        follow=entered.text("follow") == "yes",
        **filter_of(ask),
    )
    address = Links(ask.options.base_path).bulk(operation.operation_id)
    return Done(mark("The operation was started."), address=address)


def _command(entered: Entered) -> tuple[str, ...]:
    """Return the words of the command; it asks again, since it shows a preview of its own."""
    ask = entered.ask
    found = ["bulk", kind_of(ask).replace("_", "-")]
    for name, values in query_of(ask).items():
        if name != "metadata":
            found += [word for it in values for word in (_OPTIONS[name], it)]
    if metadata := filter_of(ask).get("metadata"):
        found += ["--metadata", msgspec.json.encode(metadata).decode()]
    given = (("--args", "args"), ("--why", "reason"), ("--rate", "rate_max"))
    found += [word for it, name in given if (text := entered.text(name)) for word in (it, text)]
    if share := entered.text("failed_percent"):
        found += ["--failed-share", f"0.{share:0>2}" if len(share) <= 2 else "1"]  # noqa: PLR2004  # percent
    return (*found, *(("--follow-matching",) if entered.text("follow") else ()))


def _is(kind: BulkKind) -> Callable[[Mapping[str, Any]], bool]:
    return lambda facts: facts["kind"] is kind and facts["preview"].matched_count > 0


def confirmation_of(ask: Ask) -> str:
    """Return what has to be typed: the kind, and that it is about all without a filter."""
    return kind_of(ask).value if query_of(ask).keys() - {"namespace"} else f"{kind_of(ask)} all"


STARTS = tuple(
    Action(
        name=kind,
        word=term_of(kind),
        explanation=mark("Begins with the processes that match now, at the rate below."),
        warning=mark("This acts on every process that matches. What it has done is not undone."),
        right=Right.OPERATE,
        fields=tuple(_fields(kind)),
        run=functools.partial(_start, kind),
        command=_command,
        fits=_is(kind),
        confirmed=confirmation_of,
    )
    for kind in KINDS
)


async def _stop(entered: Entered) -> Done:
    await entered.ask.client.bulk.stop(entered.name, entered.text("reason"))
    return Done(mark("The operation was stopped; what it has changed stays changed."))


STOP = Action(
    name="stop",
    word=mark("Stop"),
    explanation=mark("Processes that have no result yet are left as they are."),
    right=Right.OPERATE,
    fields=(Field(name="reason", label=mark("Reason"), is_required=True),),
    run=_stop,
    command=lambda it: ("bulk", "stop", it.name, "--why", it.text("reason")),
    fits=lambda facts: not facts["operation"].has_ended,
)
