"""The command ``failures``: what has broken processes, in groups."""

from collections.abc import Mapping
from typing import Annotated

from progressor.cli.input.options import PAGE_MAX, Scope, check_limit, client_of, first, option
from progressor.cli.output import Column, instant_text, more_note, one_line, show, table
from progressor.domain.views.failure import BROKEN_COUNT_MAX
from progressor.sdk.values.processes import FailureGroup, TaskType


def broken_text(group: FailureGroup) -> str:
    more = " or more" if group.broken_count >= BROKEN_COUNT_MAX else ""
    return f"{group.broken_count:,}{more}"


_COUNTS: Mapping[str, Column[FailureGroup]] = {
    "broken": broken_text,
    "in all": lambda it: f"{it.failure_count:,}",
}
_NAMESPACE: Mapping[str, Column[FailureGroup]] = {"namespace": lambda it: one_line(it.namespace)}
_COLUMNS: Mapping[str, Column[FailureGroup]] = {
    "failure": lambda it: one_line(it.failure_id),
    "first seen": lambda it: instant_text(it.first_seen_at),
    "last seen": lambda it: instant_text(it.last_seen_at),
    "task": lambda it: "" if it.task_type is TaskType.UNSPECIFIED else it.task_type,
    "release": lambda it: one_line(it.release),
    "what": lambda it: one_line(": ".join(filter(None, (it.reason, it.message)))),
}


async def failures(
    *,
    all: Annotated[  # noqa: A002  # the option
        bool, option("Also print groups whose processes have all been brought back.")
    ] = False,
    limit: Annotated[int, option("The maximum number of groups.")] = 100,
    scope: Scope = Scope(),
) -> None:
    """Print what has broken processes, in groups: those with most broken processes first.

    Failures are in one group if they have the same reason, message, type of task and release of
    the processor; * stands for ids, numbers and what else differs between their messages.
    `progressor list --failure` prints the broken processes of a group.
    """
    check_limit(limit)
    async with client_of(scope) as client:
        listing = client.failures(
            broken_only=not all,
            page_size=min(PAGE_MAX, limit + 1),
            namespace=scope.namespace or "",
            all_namespaces=scope.namespace is None,
        )
        found, more = await first(limit, listing)
    named = {} if scope.namespace is not None else _NAMESPACE
    columns = {**_COUNTS, **named, **_COLUMNS}
    document = {"failures": found, "more": more}
    show(document, table(columns, found), *more_note(limit, more=more), as_json=scope.json)
