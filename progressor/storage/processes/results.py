"""Results: how tasks ended, for callers who wait in a replica that did not run them."""

import asyncio
import dataclasses
import datetime as dt
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple

from progressor import errors
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.reply import ProcessEnd
from progressor.domain.processes.task import FINAL_STATUSES, TaskResult
from progressor.storage.postgres import statements
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.pools import (
    BoundedConnection,
    heed_cancellation,
    translated,
)
from progressor.storage.postgres.writer import insists_on_writes, refuse_read_only

_SQL = statements.load("processes/results")

_log = logging.getLogger(__name__)

_DUE = "due"
_PAUSES = "pauses"
_REVOKED = "revoked "
_DIGITS_MAX = 19
PROBE_SECONDS = 5.0
"""How often a connection that listens asks whether the server is there, and takes writes."""

PROBE_TIMEOUT_SECONDS = 10.0
NOTIFY_IDS_MAX = 350
"""Task ids of one notification: a payload holds 8,000 bytes, an id at most 20 and a comma."""


class _AwaitedRow(NamedTuple):
    process_exists: bool
    result: TaskResult | None
    """Of a task, ended or not; None: there is none."""


class _EndRow(NamedTuple):
    number: int
    end: ProcessEnd


class Results:
    def __init__(self, context: StorageContext) -> None:
        self._context = context
        self._await_task = context.functions.call("await_task", _AwaitedRow)
        self._await_process = context.functions.call("await_process", ProcessEnd)
        self._read_ends = context.functions.call("read_ends", _EndRow)

    async def await_task(self, key: ProcessKey, task: int | str) -> TaskResult | int:
        """Return how a task ended; its id if it has not: this replica is then notified of it.

        Args:
            key: Its process.
            task: Its id or its idempotency key.

        Raises:
            ProcessNotFoundError: There is no such process, and no answer left of it.
            TaskNotFoundError: The process has no such task.
        """
        [row] = await self._context.call(
            self._await_task,
            key,
            task_id=task if isinstance(task, int) else None,
            idempotency_key=task if isinstance(task, str) else None,
        )
        if row.result is not None:
            return row.result if row.result.status in FINAL_STATUSES else row.result.task_id
        if row.process_exists:
            raise errors.TaskNotFoundError(key.process_id, task)
        raise errors.ProcessNotFoundError(key.namespace, key.process_id)

    async def fetch(self, tasks: Mapping[int, ProcessKey]) -> list[TaskResult]:
        found = await self._context.read(
            TaskResult,
            _SQL["fetch_results"],
            reads_only=True,
            slot=[key.slot for key in tasks.values()],
            namespace=[key.namespace for key in tasks.values()],
            process_id=[key.process_id for key in tasks.values()],
            task_id=list(tasks),
        )
        return list(found)

    async def await_process(self, key: ProcessKey, *, until_finished: bool) -> ProcessEnd:
        """Return how a process has ended; if the caller is to wait, this replica is notified.

        Raises:
            ProcessNotFoundError: There is no such process.
        """
        found = await self._context.call(self._await_process, key, until_finished=until_finished)
        if not found:
            raise errors.ProcessNotFoundError(key.namespace, key.process_id)
        return found[0]

    async def read_ends(self, keys: Sequence[ProcessKey]) -> list[ProcessEnd | None]:
        """Return how processes have ended, in the order of their keys; None: it is gone."""
        found: list[ProcessEnd | None] = [None] * len(keys)
        async with self._context.connection(reads_only=True) as connection:
            for row in await self._read_ends.rows(
                connection,
                slot=[key.slot for key in keys],
                namespace=[key.namespace for key in keys],
                process_id=[key.process_id for key in keys],
            ):
                found[row.number - 1] = row.end
        return found

    async def revoke(self, leases: Mapping[int, Sequence[int]]) -> None:
        """Notify replicas that leases of theirs, by their tokens, are no longer valid."""
        await self._notify(leases, _REVOKED)

    async def notify(self, ended: Mapping[int, Sequence[int]]) -> None:
        """Notify replicas of tasks that have ended, and of processes, by their init tasks."""
        await self._notify(ended)

    async def _notify(self, ids_by_replica: Mapping[int, Sequence[int]], kind: str = "") -> None:
        pieces = [
            (replica_id, kind + ",".join(map(str, ids[start : start + NOTIFY_IDS_MAX])))
            for replica_id, ids in ids_by_replica.items()
            for start in range(0, len(ids), NOTIFY_IDS_MAX)
        ]
        await self._context.execute(
            _SQL["notify_replicas"],
            replica_id=[replica_id for replica_id, _ in pieces],
            task_ids=[task_ids for _, task_ids in pieces],
        )

    async def call_others(self, *, lease_timeout: dt.timedelta) -> None:
        """Notify all other living replicas of due tasks that this one leaves to them."""
        await self._context.execute(_SQL["call_others"], lease_timeout=lease_timeout, payload=_DUE)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What a replica hears: of tasks that have ended, or that some are due which it may take.

    Of a process that has ended, the task is its init task. ``revoked``: tokens of this replica's
    leases that are no longer valid. ``pauses``: a namespace was paused or resumed. None of these:
    from now on nothing is missed.
    """

    task_ids: tuple[int, ...] = ()
    work_is_due: bool = False
    revoked: tuple[int, ...] = ()
    pauses: bool = False


async def listen(
    dsn: str, replica_id: int, *, probe_seconds: float = PROBE_SECONDS
) -> AsyncIterator[Word]:
    """Yield each notification, on a connection of its own, until it breaks; an empty word first.

    Where a transaction-mode pooler stands in between, none ever comes: the slow round of
    ``runtime/effects/replies`` finds all answers, up to a second later.

    Raises:
        StorageUnavailableError: The connection broke, or there was none.
        StorageReadOnlyError: The server takes no writes, so it sends no notifications.
    """
    insists = insists_on_writes(dsn)
    with translated():
        connection = await BoundedConnection.connect(dsn, autocommit=True, prepare_threshold=None)
        async with connection:
            await connection.execute(f"LISTEN progressor_{int(replica_id)}".encode())
            if insists:
                await refuse_read_only(connection)
            yield Word()
            while True:
                async for notice in connection.notifies(timeout=probe_seconds):
                    heed_cancellation()
                    word = _word(notice.payload)
                    if word is None:
                        extra = {"characters": len(notice.payload)}
                        _log.warning("malformed notification", extra=extra)
                    else:
                        yield word
                # A listener does not notice that the server is gone, or that a server that
                # is to be heard has gone elsewhere.
                async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                    if insists:
                        await refuse_read_only(connection)
                    else:
                        await connection.execute("")
                heed_cancellation()


def _word(payload: str) -> Word | None:
    """Return what a notification says; None: anybody who may connect can send anything."""
    if payload == _DUE:
        return Word(work_is_due=True)
    if payload == _PAUSES:
        return Word(pauses=True)
    ids = payload.removeprefix(_REVOKED)
    parts = ids.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) <= _DIGITS_MAX for part in parts):
        return None
    numbers = tuple(map(int, parts))
    return Word(task_ids=numbers) if ids is payload else Word(revoked=numbers)
