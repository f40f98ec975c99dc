"""Commands about the audit: who has changed what, and the head of its chain."""

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Annotated

from cyclopts import Parameter

from progressor.cli.input.options import (
    PAGE_MAX,
    EngineOptions,
    bad_input,
    check_limit,
    client_of,
    instant,
    option,
)
from progressor.cli.input.signals import until_signal
from progressor.cli.output import (
    Column,
    facts,
    instant_text,
    one_line,
    print_line,
    render,
    show,
    table,
)
from progressor.domain.access.audit import AuditEntry, AuditFilter
from progressor.sdk.client.access import FOLLOW_SECONDS

_NUMBER_MAX = 2**63 - 1

_ENTRIES: Mapping[str, Column[AuditEntry]] = {
    "when": lambda it: instant_text(it.written_at),
    "who": lambda it: one_line(it.principal),
    "method": lambda it: it.method,
    "namespace": lambda it: it.namespace,
    "object": lambda it: one_line(it.object_id),
    "result": lambda it: it.result if not it.left_out else f"{it.result} {it.left_out}",
    "what": lambda it: one_line(_change(it)),
    "reason": lambda it: one_line(it.reason),
    "from": lambda it: one_line(it.peer),
    "number": lambda it: str(it.number or ""),
}


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which entries."""

    namespace: Annotated[str, Parameter(alias="-n", help="Of this namespace.")] = ""
    principal: Annotated[str, option("By this principal, for example token:shop.")] = ""
    method: Annotated[str, option("Of this RPC, for example Terminate.")] = ""
    object_id: Annotated[
        str, Parameter(name="--object", help="About the process, job, gate, … of this id.")
    ] = ""
    result: Annotated[str, option("OK, or the reason of an error.")] = ""
    since: Annotated[str | None, option("From this instant on.")] = None
    until: Annotated[str | None, option("Before this instant.")] = None

    @property
    def filter(self) -> AuditFilter:
        since, until = instant("--since", self.since), instant("--until", self.until)
        given = {it.name: getattr(self, it.name) for it in dataclasses.fields(AuditFilter)}
        return AuditFilter(**{**given, "since": since, "until": until})


async def list_entries(
    *,
    wanted: Wanted = Wanted(),
    limit: Annotated[int, option("The maximum number of entries.")] = 100,
    options: EngineOptions = EngineOptions(),
) -> None:
    """Print who has changed what, or has tried to, the newest first.

    Shows the entries of the namespaces in which you are an admin.
    """
    check_limit(limit)
    found: list[AuditEntry] = []
    async with client_of(options) as client:
        async for entry in client.access.audit(wanted.filter, page_size=min(limit, PAGE_MAX)):
            found.append(entry)
            if len(found) == limit:
                break
    show({"entries": found}, table(_ENTRIES, found), as_json=options.json)


async def follow(
    *,
    wanted: Wanted = Wanted(),
    after: Annotated[
        int | None, option("Begin behind the entry of this number; with what is new if not given.")
    ] = None,
    once: Annotated[
        bool,
        Parameter(negative="", help="Stop after the last entry instead of waiting for new ones."),
    ] = False,
    options: EngineOptions = EngineOptions(),
) -> None:
    """Print entries in their order as they are added to the chain.

    With --json each entry is a line. To keep a copy elsewhere, go on with --after the last number.
    """
    if after is not None and not 0 <= after <= _NUMBER_MAX:
        raise bad_input("--after", f"must be 0 to {_NUMBER_MAX}")
    async with client_of(options) as client:

        async def print_all(number: int | None) -> None:
            while True:
                found, reached = await client.access.audit_behind(number, wanted.filter)
                for entry in found:
                    print_line(render(entry, indent=-1) if options.json else _line(entry))
                if reached == number:
                    if once:
                        return
                    await asyncio.sleep(FOLLOW_SECONDS)
                number = reached

        await until_signal(print_all(after))


async def head(*, options: EngineOptions = EngineOptions()) -> None:
    """Print both ends of the chain.

    Keep the number and the hash of the head where they cannot be changed: they prove later that no
    entry up to it was changed.
    """
    async with client_of(options) as client:
        found = await client.access.audit_head()
    people = {
        "head": f"{found.number} {found.hash}",
        "deleted up to": f"{found.anchor_number} {found.anchor_hash}",
        "to be added": str(found.unsealed_count),
    }
    show(found, facts(people), as_json=options.json)


def _change(entry: AuditEntry) -> str:
    return f"{entry.before or '-'} → {entry.after or '-'}" if entry.before or entry.after else ""


def _line(entry: AuditEntry) -> str:
    return "  ".join(filter(None, (str(column(entry)) for column in _ENTRIES.values())))
