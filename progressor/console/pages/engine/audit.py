"""The audit: who has changed what, and one entry with what was before and after it."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from progressor import errors
from progressor.console.pages.page import Page
from progressor.console.visits.visit import Ask
from progressor.console.words.words import mark
from progressor.domain.access.audit import DONE, AuditEntry, AuditFilter
from progressor.domain.access.rights import EVERYTHING, Right

PAGE_SIZE = 50
_NUMBER_MAX = 2**63 - 1
_TEXTS = ("principal", "method", "namespace", "object_id", "result")


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """A value before and after; None: there was, or is, none."""

    key: str
    before: str | None
    after: str | None

    @property
    def kind(self) -> str:
        """Return ``added``, ``removed``, ``changed``, or ``same``."""
        if self.before == self.after:
            return "same"
        if self.before is None:
            return "added"
        return "removed" if self.after is None else "changed"


def differences(before: str, after: str) -> tuple[Difference, ...]:
    """Return what two JSON texts have, value by value, first what differs."""
    old, new = dict(_values("", before)), dict(_values("", after))
    found = (Difference(key, old.get(key), new.get(key)) for key in old.keys() | new.keys())
    return tuple(sorted(found, key=lambda it: (it.kind == "same", it.key)))


def _values(key: str, text: str) -> Iterator[tuple[str, str]]:
    if text:
        try:
            yield from _flat(key, json.loads(text))
        except (ValueError, RecursionError):
            yield key, text


def _flat(key: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _flat(f"{key}.{name}" if key else name, inner)
    else:
        yield key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


async def _load_list(ask: Ask) -> Mapping[str, Any]:
    wanted = AuditFilter(
        since=ask.instant("since"),
        until=ask.instant("until"),
        **{name: ask.one(name) for name in _TEXTS},
    )
    listing = ask.client.access.audit(wanted, page_size=PAGE_SIZE)
    found, following = await listing.page(ask.one("page"))
    # The chain is of all namespaces, and so is the right to see its ends.
    sees_head = ask.sees(Right.ADMINISTER, EVERYTHING)
    return {
        "entries": found,
        "following": following,
        "head": await ask.client.access.audit_head() if sees_head else None,
        "is_filtered": wanted != AuditFilter(),
        "query": ask.query,
        "DONE": DONE,
    }


async def _load_entry(ask: Ask) -> Mapping[str, Any]:
    entry = await _entry(ask, _number(ask.name))
    return {"entry": entry, "differences": differences(entry.before, entry.after), "DONE": DONE}


def _number(text: str) -> int:
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(_NUMBER_MAX))
    if not is_number or not 1 <= int(text) <= _NUMBER_MAX:
        description = f"must be the number of an entry, got {text!r}"
        raise errors.InvalidRequestError(errors.FieldViolation("number", description))
    return int(text)


async def _entry(ask: Ask, number: int) -> AuditEntry:
    found, _ = await ask.client.access.audit_behind(number - 1, page_size=1)
    entry = next((it for it in found if it.number == number), None)
    if entry is None:
        message = f"no audit entry {number} is visible to you"
        raise errors.NotFoundError(message)
    return entry


LIST = Page(
    path="/audit",
    template="engine/audit.html",
    section="audit",
    title=mark("Audit"),
    load=_load_list,
)
ENTRY = Page(
    path="/audit/{name}",
    template="engine/audit_entry.html",
    section="audit",
    title=mark("Audit entry"),
    load=_load_entry,
    is_live=False,
)
