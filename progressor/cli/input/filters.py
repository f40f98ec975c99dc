"""The filter of processes, as options that several commands share."""

import dataclasses
import datetime as dt
import shlex
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from progressor.cli.input.options import instant, json_object, option
from progressor.cli.output import instant_text, one_line, render
from progressor.sdk.client.filters import FilterOptions
from progressor.sdk.values.processes import ProcessStatus

OPTIONS: Mapping[str, str] = {"statuses": "--status", "failure_id": "--failure"}
"""The options of fields whose names differ."""

Status = Literal["init", "running", "error", "finished"]


@Parameter(name="*", group=Group("Filter", sort_key=4))
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FilterInput:
    """Which processes: those that match all of these options."""

    status: Annotated[tuple[Status, ...], option("With this status; may be repeated.")] = ()
    metadata: str | None = None
    """Whose metadata contains this JSON object."""
    created_from: str | None = None
    """Created at or after this instant, for example 2026-01-31T12:00:00Z."""
    created_to: str | None = None
    """Created before this instant."""
    failure: str = ""
    """Broken, and of this group of failures; see `progressor failures`."""
    failure_reason: str = ""
    """Broken by a failure with this reason."""
    broken_from: str | None = None
    """Broken at or after this instant."""
    broken_to: str | None = None
    """Broken before this instant."""
    id_prefix: str = ""
    """Whose id begins with this."""

    def options(self, namespace: str | None) -> FilterOptions:
        """Return the options of a request; `namespace` None: all."""
        return FilterOptions(
            namespace=namespace or "",
            all_namespaces=namespace is None,
            statuses=[ProcessStatus(it) for it in self.status],
            metadata=json_object("--metadata", self.metadata),
            created_from=instant("--created-from", self.created_from),
            created_to=instant("--created-to", self.created_to),
            failure_id=self.failure,
            failure_reason=self.failure_reason,
            broken_from=instant("--broken-from", self.broken_from),
            broken_to=instant("--broken-to", self.broken_to),
            id_prefix=self.id_prefix,
        )


def filter_text(fields: Mapping[str, object]) -> str:
    """Return a filter by its fields as the options that were typed, or could have been."""
    where = fields["namespace"] or "all namespaces"
    return f"in {where}, {' '.join(_given(fields)) or 'without a filter'}"


def _given(fields: Mapping[str, object]) -> Iterator[str]:
    for name, value in fields.items():
        if value and name not in {"namespace", "all_namespaces"}:
            option = OPTIONS.get(name, f"--{name.replace('_', '-')}")
            for each in value if isinstance(value, list | tuple) else [value]:
                yield f"{option} {shlex.quote(one_line(_text(each)))}"


def _text(value: object) -> str:
    match value:
        case dt.datetime():
            return instant_text(value).replace(" ", "T")
        case Mapping():
            return render(value, indent=-1)
        case _:
            return str(value)
