"""The command ``count``: how many processes match a filter."""

from collections.abc import Mapping
from typing import Annotated, get_args

from cyclopts.types import Int32
from rich.console import RenderableType

from progressor.cli.input.filters import FilterInput, Status
from progressor.cli.input.options import Scope, client_of, option
from progressor.cli.output import Column, one_line, show, table
from progressor.domain.processes.process import EXACT_MAX_DEFAULT, ProcessCounts


def _status(name: str) -> Column[ProcessCounts]:
    return lambda it: f"{getattr(it, f'{name}_count'):,}"


_NAMESPACE: Mapping[str, Column[ProcessCounts]] = {"namespace": lambda it: one_line(it.namespace)}
_STATUSES = {it: _status(it) for it in get_args(Status)}


async def count(
    *,
    processes: FilterInput = FilterInput(),
    exact_max: Annotated[
        Int32, option("Up to how many are examined; if there are more, an estimate is printed.")
    ] = EXACT_MAX_DEFAULT,
    scope: Scope = Scope(),
) -> None:
    """Count the processes of one namespace or all.

    Without options other than -n and --status, the count is exact however many there are, and is
    printed by namespace and status.
    """
    async with client_of(scope) as client:
        counted = await client.count(exact_max=exact_max, **processes.options(scope.namespace))
    wanted = {it: _STATUSES[it] for it in _STATUSES if it in processes.status} or _STATUSES
    shown: list[RenderableType] = []
    if counted.namespaces:
        shown = [table({**_NAMESPACE, **wanted}, counted.namespaces), ""]
    about = "about " if counted.is_estimate else ""
    show(counted, *shown, f"{about}{counted.count:,}", as_json=scope.json)
