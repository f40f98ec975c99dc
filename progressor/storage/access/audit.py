"""The audit: its entries, the chain of their hashes, and what has yet to be noted.

Whatever changes something inserts its entry in the same statement: see `attempt` and
``write_audit.sql``. A denied or failed request has changed nothing: its entry is noted in memory,
and written with the next beat, at a bounded rate.

Entries are sealed in the order of their ids by whichever replica comes first (``seal_audit.sql``):
each gets the next number, and a hash of itself and the hash before it.
"""

import datetime as dt
import json
import uuid
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from progressor import errors
from progressor.clock import Clock
from progressor.domain.access.audit import LEFT_OUT, AuditEntry, AuditFilter, AuditHead
from progressor.storage.postgres import statements
from progressor.storage.postgres.context import StorageContext

_SQL = statements.load("access/audit")

R = TypeVar("R")

SEALED_MAX = 500
"""Entries that one transaction seals."""

EXAMINED_MAX = 10_000
"""Entries that one request for a list looks at."""

NOTES_PER_SECOND = 10
NOTES_BURST = 100
"""Denied and failed requests that a replica notes; those beyond are counted."""

NOTES_MAX = 1000
"""Notes that wait for PostgreSQL."""

_TEXT_MAX = 1024
_FACTS = dict.fromkeys(
    ("principal", "credential", "binding", "peer", "namespace", "object_id", "reason", "trace_id"),
    "",
)


def entry_of(method: str, **facts: str) -> str:
    """Return the entry of a new request, as JSON that PostgreSQL can store, whatever was sent.

    The facts are those of `AuditEntry` that are known before the request is served.
    """
    assert facts.keys() <= _FACTS.keys(), f"unknown facts: {facts.keys() - _FACTS.keys()}"
    entry = {name: _clean(text) for name, text in (_FACTS | facts).items()}
    return json.dumps(
        {"request_id": str(uuid.uuid4()), "method": method, **entry}, ensure_ascii=False
    )


def _clean(text: str) -> str:
    short = text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 1]}…"
    return "".join(it if it.isprintable() else " " for it in short)


class _Note(NamedTuple):
    entry: str
    result: str
    noted_at: float
    left_out: int = 0


class AuditNotes:
    """Entries of requests that have changed nothing in PostgreSQL, until they are written."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._notes: deque[_Note] = deque()
        self._left_out = 0
        self._room, self._at = float(NOTES_BURST), clock.monotonic()

    def add(self, entry: str, result: str) -> None:
        """Note an entry, or count it, if there were too many."""
        now = self._clock.monotonic()
        self._room = min(NOTES_BURST, self._room + (now - self._at) * NOTES_PER_SECOND)
        self._at = now
        if self._room < 1 or len(self._notes) >= NOTES_MAX:
            self._left_out += 1
            return
        self._room -= 1
        self._notes.append(_Note(entry, result, now))

    def take(self) -> tuple[_Note, ...]:
        """Return what was noted since the last call, and how many were not."""
        if self._left_out:
            entry = entry_of("", principal="")
            self._notes.append(_Note(entry, LEFT_OUT, self._clock.monotonic(), self._left_out))
            self._left_out = 0
        taken = tuple(self._notes)
        self._notes.clear()
        return taken

    def put_back(self, notes: Sequence[_Note]) -> None:
        """Have notes written later that could not be."""
        self._notes.extendleft(reversed(notes))


class _ListedRow(NamedTuple):
    """An entry that was found; and where the list has ended, if it had to look at too many."""

    reached_at: dt.datetime | None
    reached_id: int | None
    found: AuditEntry | None


class _FollowedRow(NamedTuple):
    """An entry that was found, and the last number that was looked at."""

    reached_number: int | None
    found: AuditEntry | None


Place = tuple[dt.datetime, int]
"""Where a list has ended: the instant and the id of an entry."""


class Audit:
    """Reads and seals entries; ``notes`` are written by `write_notes`."""

    def __init__(self, context: StorageContext, notes: AuditNotes) -> None:
        self._context = context
        self.notes = notes
        self._seal = context.functions.call("seal_audit", int)
        self._forget = context.functions.call("forget_audit", int)

    async def write_notes(self) -> int:
        """Write what was noted; return how many requests have no entry.

        Raises:
            StorageUnavailableError: It was not, and is kept for the next time.
        """
        notes = self.notes.take()
        if not notes:
            return 0
        now = self._context.clock.monotonic()
        try:
            await self._context.execute(
                _SQL["write_notes"],
                entries=[it.entry for it in notes],
                results=[it.result for it in notes],
                ages=[now - it.noted_at for it in notes],
                left_out=[it.left_out for it in notes],
            )
        except errors.StorageUnavailableError:
            self.notes.put_back(notes)
            raise
        return sum(it.left_out for it in notes)

    async def unsealed_seconds(self) -> float:
        """Return for how long the oldest entry has not been sealed; 0: all are."""
        [seconds] = await self._context.read(float, _SQL["read_unsealed_seconds"])
        return seconds

    async def seal(self) -> int:
        """Seal what is not sealed, at most SEALED_MAX entries; return how many were."""
        [count] = await self._context.call(self._seal, limit=SEALED_MAX)
        return count

    async def forget(self, *, age: dt.timedelta, limit: int) -> int:
        """Delete at most `limit` sealed entries older than `age`; return how many."""
        [count] = await self._context.call(self._forget, age=age, limit=limit)
        return count

    async def head(self) -> AuditHead:
        [head] = await self._context.read(AuditHead, _SQL["read_head"], reads_only=True)
        return head

    async def page(
        self,
        wanted: AuditFilter,
        namespaces: Sequence[str],
        *,
        after: Place | None,
        limit: int,
    ) -> tuple[list[AuditEntry], Place | None]:
        """Return at most `limit` entries of some namespaces (patterns), the newest first.

        With them comes the place behind which to go on; None: there are no more. It looks at
        EXAMINED_MAX entries, so there may be more although none was found.
        """
        before_at, before_id = after or (wanted.until, 0)
        rows = await self._read(
            _ListedRow, "list_entries", wanted, namespaces, limit, before_at=before_at,
            before_id=before_id,
        )  # fmt: skip
        found = [row.found for row in rows if row.found is not None]
        if len(found) > limit:
            last = found[limit - 1]
            return found[:limit], (last.written_at, last.entry_id)
        reached_at, reached_id, _ = rows[0]
        if reached_at is None or reached_id is None:
            return found, None
        return found, (reached_at, reached_id)

    async def follow(
        self, wanted: AuditFilter, namespaces: Sequence[str], *, after: int, limit: int
    ) -> tuple[list[AuditEntry], int]:
        """Return at most `limit` sealed entries behind a number, in the order of their numbers.

        With them comes the number behind which to go on.
        """
        rows = await self._read(
            _FollowedRow, "follow_entries", wanted, namespaces, limit, after=after
        )
        found = [row.found for row in rows if row.found is not None]
        if len(found) > limit:
            return found[:limit], found[limit - 1].number
        return found, rows[0].reached_number or after

    async def _read(
        self,
        row: type[R],
        statement: str,
        wanted: AuditFilter,
        namespaces: Sequence[str],
        limit: int,
        **place: object,
    ) -> tuple[R, ...]:
        # One more than wanted shows whether there are more.
        return await self._context.read(
            row, _SQL[statement], wanted, reads_only=True, patterns=list(namespaces),
            limit=limit + 1, examined_max=EXAMINED_MAX, **place,
        )  # fmt: skip
