"""What a running step writes before its settlement, in batches, fenced by the token of its lease.

Safe to repeat: the first value of a memo stays, and a deadline is never moved back. So a write
whose answer was lost fails with StorageUnavailableError, and the processor repeats it.
"""

import datetime as dt
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, LiteralString, NamedTuple

from progressor.domain.processes.memo import Extend, Remember, StepLease
from progressor.settings.sections import Commit
from progressor.storage.commit.group_commit import (
    CommitContext,
    GroupCommit,
    GroupCommits,
    Insistence,
    WriteKind,
)
from progressor.storage.postgres import statements
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.direct import Direct
from progressor.storage.postgres.locks import Concern, find_blocked, find_locked
from progressor.storage.postgres.pools import Connection, before_sending

_SQL = statements.load("steps/step_writes")


class Stored(NamedTuple):
    """What became of a memo: ``stored``, ``known``, ``too_many`` or ``too_large``."""

    item: int
    verdict: str
    value: bytes | None
    """Of one that was known."""


class Extended(NamedTuple):
    item: int
    seconds: float
    """From now to the deadline."""


class StepWrites(GroupCommits[Any, Any]):
    def __init__(
        self,
        context: StorageContext,
        *,
        settings: Commit,
        commit: CommitContext,
        step_grace: dt.timedelta,
    ) -> None:
        super().__init__(context, settings=settings, commit=commit)
        self._grace = step_grace.total_seconds()
        self._memos = self._written_by(
            "store_memos", Stored, _memo_columns, conflict_key=_key_of_memo
        )
        self._extensions = self._written_by("extend_leases", Extended, self._extension_columns)

    async def remember(self, memo: Remember) -> Stored | None:
        """Store a memo; None: the lease is lost, and nothing was stored.

        Cancelled, it gives up the result, not the write.
        """
        stored: Stored | None = await self._memos.submit(memo)
        return stored

    async def extend(self, extend: Extend) -> dt.timedelta | None:
        """Move the deadline of a step; return how far away it is, None: the lease is lost."""
        extended: Extended | None = await self._extensions.submit(extend)
        return None if extended is None else dt.timedelta(seconds=extended.seconds)

    async def time_left(self, lease: StepLease) -> dt.timedelta | None:
        """Read how far away the deadline of a step is; None: the lease is lost."""
        found = await self._context.read(
            float, _SQL["read_time_left"], lease.key, token=lease.token, grace=self._grace
        )
        return dt.timedelta(seconds=found[0]) if found else None

    def _written_by(
        self,
        name: LiteralString,
        row: type[Any],
        columns: Callable[[Sequence[Any]], Mapping[str, Any]],
        *,
        conflict_key: Callable[[Any], Hashable] | None = None,
    ) -> GroupCommit[Any, Any]:
        functions, timeout = self._context.functions, self._context.statement_timeout
        function = Direct(functions.call(name, row))

        async def write(connection: Connection, batch: Sequence[Any], _again: bool) -> list[Any]:  # noqa: FBT001  as the group commit calls it
            with before_sending():
                arguments = function.bind(
                    now=self._context.clock.pinned(), **_lease_columns(batch), **columns(batch)
                )
            results: list[Any] = [None] * len(batch)
            for found in await function.execute(connection, arguments):
                results[found.item - 1] = found
            return results

        return self._group(
            WriteKind(
                name=name,
                write=write,
                key=lambda item: item.key,
                conflict_key=conflict_key,
                size=_bytes_of,
                insistence=Insistence.GIVE_UP,
                find_locked=find_locked(functions, timeout),
                find_blocked=find_blocked(functions, timeout, lambda item: Concern(item.key)),
            )
        )

    def _extension_columns(self, batch: Sequence[Extend]) -> dict[str, Any]:
        return {
            "grace": self._grace,
            "by": [it.by.total_seconds() for it in batch],
            "longest": [it.longest.total_seconds() for it in batch],
        }


def _memo_columns(batch: Sequence[Remember]) -> dict[str, Any]:
    return {"key": [it.memo_key for it in batch], "value": [it.value for it in batch]}


def _lease_columns(batch: Sequence[StepLease]) -> dict[str, Any]:
    return {
        "slot": [it.key.slot for it in batch],
        "namespace": [it.key.namespace for it in batch],
        "process_id": [it.key.process_id for it in batch],
        "task_id": [it.task_id for it in batch],
        "token": [it.token for it in batch],
    }


def _bytes_of(item: StepLease) -> int:
    return len(item.value) if isinstance(item, Remember) else 0


def _key_of_memo(memo: Remember) -> Hashable:
    return memo.key, memo.memo_key
