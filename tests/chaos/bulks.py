"""Bulk operations in a chaos run: who starts them, and what must be true of them then.

The processes of a namespace of their own break in their first step. Run again, half of them succeed
and the others break once more. Nothing but bulk operations runs them again, sometimes two at a
time. So, at the end,

- each operation has ended; the doctor compares its counters with its items;
- no operation has changed a process twice, and what it could not change it says;
- a process that was known to be broken before an operation of its round began has an item of one,
  unless that was stopped;
- a process that can succeed was retried once if it has, and never if it has not;
- processes have broken as often as the counts of failures say: once, and once more for each retry
  of one that cannot succeed.
"""

import asyncio
import collections
import contextlib
import dataclasses
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg

from progressor import errors
from progressor.sdk import BulkKind, BulkState, Client, Fail, ProcessStatus, Step
from tests.chaos.load.connections import Connections, Insistence, Notes

NAMESPACE = "chaos-bulk"

_BATCH = 25
_LOOK_SECONDS = 0.3
_LOOKS_MAX = 200
_STEP_SECONDS = 0.1
_REASON = "BROKEN"
_ALLOWED = frozenset(
    {("done", None), ("skipped", "PROCESS_CHANGED"), ("skipped", "PROCESS_IS_RUNNING")}
)

_OPERATIONS = "SELECT operation_id, state, ended_at IS NOT NULL FROM progressor.bulk_operations"
_ITEMS = "SELECT operation_id, process_id, result, reason FROM progressor.bulk_items"
_PROCESSES = "SELECT process_id, status::text FROM progressor.processes WHERE namespace = %s"
_FAILURES = """
    SELECT coalesce(sum(failure_count), 0)::bigint
    FROM (
        SELECT namespace, failure_count FROM progressor.failures
        UNION ALL
        SELECT namespace, failure_count FROM progressor.new_failures
    ) f
    WHERE namespace = %s"""


async def break_once(step: Step[Any]) -> None:
    """Break a process by its first step; run again, half of these succeed."""
    await asyncio.sleep(_STEP_SECONDS)
    if step.status is not ProcessStatus.ERROR or not can_succeed(step.process_id):
        raise Fail("not now", reason=_REASON)


def can_succeed(process_id: str) -> bool:
    return zlib.crc32(process_id.encode()) % 2 == 0


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """Processes that were broken before the operations were started that retry them."""

    broken: frozenset[str]
    operations: tuple[str, ...]


@dataclasses.dataclass(slots=True)
class BulkNotes:
    rounds: list[Round] = dataclasses.field(default_factory=list)


class BulkClient:
    """Starts processes, which break, and retries them by operations, some of which it stops."""

    def __init__(
        self, *, connections: Connections, notes: Notes, bulk_notes: BulkNotes, seed: int
    ) -> None:
        self._random = random.Random(f"{seed}:bulk client")
        self._connections, self._notes, self._bulk_notes = connections, notes, bulk_notes
        self._insist = Insistence(connections, notes, "a bulk client").insist
        self._count = 0

    async def run(self, ending: asyncio.Event) -> None:
        while not ending.is_set():
            self._count += 1
            prefix = f"b{self._count}-"
            broken = await self._break(f"{prefix}0-")
            operations = tuple(f"{prefix}{it}" for it in range(self._random.randint(1, 2)))
            follow = self._random.random() < 0.3
            started = [await self._start(it, prefix, follow=follow) for it in operations]
            if all(started):
                self._bulk_notes.rounds.append(Round(frozenset(broken), operations))
            if follow:
                await self._break(f"{prefix}1-")
            for operation in operations:
                await self._see_to(operation, ending, stops=follow or self._random.random() < 0.1)

    async def _start(self, operation: str, prefix: str, *, follow: bool) -> bool:
        how: dict[str, Any] = {
            "operation_id": operation, "id_prefix": prefix, "follow": follow,
            "failed_share_max": 1.0, "rate_max": self._random.choice((None, 20)),
        }  # fmt: skip
        return await self._insist(
            "start bulk", lambda client: client.bulk.start(BulkKind.RETRY, **how)
        )

    async def _break(self, prefix: str) -> list[str]:
        """Start processes at once, and return those that are known to have broken."""
        names = [f"{prefix}{number}" for number in range(_BATCH)]
        async with asyncio.TaskGroup() as group:
            told = [group.create_task(self._is_broken(name), name=name) for name in names]
        return [name for name, each in zip(names, told, strict=True) if each.result()]

    async def _is_broken(self, name: str) -> bool:
        try:
            await self._connections.another().client.start(name, timeout=5.0)
        except errors.ProcessFailedError:
            return True
        except errors.ProgressorError as error:
            self._notes.totals["start broken", error.reason] += 1
        return False

    async def _see_to(self, operation: str, ending: asyncio.Event, *, stops: bool) -> None:
        when = self._random.randrange(10)
        for look in range(_LOOKS_MAX):
            await asyncio.sleep(_LOOK_SECONDS)
            if ending.is_set():
                return
            if stops and look == when:
                await self._insist(
                    "stop bulk", lambda client: client.bulk.stop(operation, "enough")
                )
            with contextlib.suppress(errors.ProgressorError):
                bulk = await self._connections.another().client.bulk.get(operation, timeout=5.0)
                if bulk.has_ended:
                    self._notes.totals["bulk", bulk.state.value] += 1
                    return


async def stop_following(client: Client) -> None:
    """Stop the operations that would go on for ever."""
    async for bulk in client.bulk.list():
        if bulk.follow and not bulk.has_ended:
            await client.bulk.stop(bulk.operation_id, "the run has ended")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoredBulks:
    """What the database has: operations with their state, items, and processes by status.

    An item is its operation, its process, the result and the reason.
    """

    operations: Mapping[str, str]
    items: Sequence[tuple[str, str, str | None, str | None]]
    processes: Mapping[str, str]
    failure_count: int


def read_bulks(conninfo: str) -> StoredBulks:
    with psycopg.connect(conninfo) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        [(failure_count,)] = connection.execute(_FAILURES, [NAMESPACE]).fetchall()
        return StoredBulks(
            operations={
                name: state if has_ended else f"{state}, not ended"
                for name, state, has_ended in connection.execute(_OPERATIONS)
            },
            items=connection.execute(_ITEMS).fetchall(),
            processes=dict(connection.execute(_PROCESSES, [NAMESPACE]).fetchall()),
            failure_count=failure_count,
        )


def count_bulks(stored: StoredBulks) -> dict[str, int]:
    """Return the number of operations by state, and of items by result."""
    results = collections.Counter(result or "pending" for _, _, result, _ in stored.items)
    return {
        **{f"operations {state}": it for state, it in _counted(stored.operations.values())},
        **{f"processes {result}": it for result, it in results.items()},
    }


def broken_bulks(stored: StoredBulks, notes: BulkNotes) -> Iterator[str]:
    """Yield what is wrong with bulk operations."""
    for operation, state in stored.operations.items():
        if state not in {BulkState.DONE.value, BulkState.STOPPED.value}:
            yield f"{operation} is {state}"
    yield from _wrong_items(stored)
    yield from _left_out(stored, notes)
    yield from _wrongly_retried(stored)


def _wrong_items(stored: StoredBulks) -> Iterator[str]:
    taken_up = collections.Counter(
        (operation, name) for operation, name, result, _ in stored.items if result != "skipped"
    )
    for (operation, name), times in taken_up.items():
        if times > 1:
            yield f"{operation} has {times} items for {name}"
    for operation, name, result, reason in stored.items:
        if result is not None and (result, reason) not in _ALLOWED:
            yield f"{operation} has {result} {name}: {reason}"


def _wrongly_retried(stored: StoredBulks) -> Iterator[str]:
    retried = collections.Counter(name for _, name, result, _ in stored.items if result == "done")
    for name, status in stored.processes.items():
        if can_succeed(name) and retried[name] != (status == "running"):
            yield f"{name} is {status}, and was retried {retried[name]} times"
    again = sum(times for name, times in retried.items() if not can_succeed(name))
    if stored.failure_count != len(stored.processes) + again:
        yield (
            f"{len(stored.processes)} processes, retried {again} times without success, have broken"
            f" {stored.failure_count} times"
        )


def _left_out(stored: StoredBulks, notes: BulkNotes) -> Iterator[str]:
    taken_up: dict[str, set[str]] = collections.defaultdict(set)
    for operation, name, _, _ in stored.items:
        taken_up[operation].add(name)
    for each in notes.rounds:
        if all(stored.operations.get(it) == BulkState.DONE.value for it in each.operations):
            found = set().union(*(taken_up[it] for it in each.operations))
            for name in sorted(each.broken - found):
                yield f"{name} was broken before {each.operations} began, which left it out"
        for operation in each.operations:
            if operation not in stored.operations:
                yield f"{operation} was acknowledged, and is lost"


def _counted(words: Any) -> list[tuple[str, int]]:
    return sorted(collections.Counter(words).items())
