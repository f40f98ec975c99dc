"""Messages of steps: their delivery, and the search for those that were not delivered."""

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any, NamedTuple

from progressor.domain.processes.message import QUEUE_MAX
from progressor.domain.processes.process import ProcessKey
from progressor.storage.postgres import statements
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.rows.effects import Effects, gate_effects

_SQL = statements.load("steps/messages")

BATCH_MAX = 200
"""Messages that one transaction delivers."""

BATCH_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of their args and metadata, unless one message alone has more."""


class Delivered(NamedTuple):
    """A number of messages of one kind and sender's namespace with the same verdict.

    ``kind``: that of a message, or reply. ``held``: by a receiver in error; other verdicts than
    accepted and held are refusals.
    """

    namespace: str
    kind: str
    verdict: str
    message_count: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What one transaction delivered, and the senders that have more to be delivered now."""

    delivered: tuple[Delivered, ...]
    remaining: tuple[ProcessKey, ...]


class Deferred(NamedTuple):
    """A message that has to wait: the task that sent it, its place there, and its receiver."""

    task_id: int
    number: int
    receiver_namespace: str
    receiver_id: str


class _Row(NamedTuple):
    kind: str | None
    namespace: str
    verdict: str
    message_count: int
    remaining: tuple[ProcessKey, ...]
    effects: list[Any] | None


class Messages:
    def __init__(self, context: StorageContext) -> None:
        self._context = context
        self._deliver_messages = context.functions.call("deliver_messages", _Row)

    async def deliver(
        self,
        senders: Sequence[ProcessKey],
        *,
        limit: int = BATCH_MAX,
        bytes_max: int = BATCH_BYTES_MAX,
        queue_max: int = QUEUE_MAX,
    ) -> tuple[Delivery, Effects]:
        """Deliver at most `limit` messages of `bytes_max`, or one; safe to repeat and to cancel.

        A receiver with `queue_max` waiting tasks refuses them.
        """
        rows = await self._context.call(
            self._deliver_messages,
            slot=[key.slot for key in senders],
            namespace=[key.namespace for key in senders],
            process_id=[key.process_id for key in senders],
            limit=limit,
            bytes_max=bytes_max,
            queue_max=queue_max,
        )
        *counts, last = rows
        delivered = tuple(
            Delivered(row.namespace, row.kind, row.verdict, row.message_count)
            for row in counts
            if row.kind is not None
        )
        return Delivery(delivered=delivered, remaining=last.remaining), gate_effects(last.effects)

    async def find_overdue(self, *, age: dt.timedelta, limit: int) -> tuple[ProcessKey, ...]:
        """Return senders whose messages have been due for longer than `age`."""
        return await self._context.read(
            ProcessKey, _SQL["find_overdue_messages"], age=age, limit=limit
        )

    async def defer(
        self, sender: ProcessKey, *, at_least: dt.timedelta, at_most: dt.timedelta
    ) -> Deferred | None:
        """Have the oldest message that is due wait, and the others to its receiver behind it.

        They wait for as long as it has existed, within these bounds. None: no message is due.
        """
        rows = await self._context.read(
            Deferred, _SQL["defer_messages"], sender, at_least=at_least, at_most=at_most
        )
        return rows[0] if rows else None
