"""Storage with messages and its model side by side."""

import asyncio
import base64
import collections
import dataclasses
import json
from collections.abc import Sequence
from typing import Any, LiteralString, cast

from progressor import errors
from progressor.domain.processes.message import MessageKind
from progressor.storage.steps.messages import Messages
from tests.support.models.messages.model import MessagesModel
from tests.support.models.modelled_processes import ModelledStorage
from tests.support.storage.store import Store, connect, dump, key_of, lent

_MESSAGES: LiteralString = """
    SELECT process_id, receiver_id, kind, task_id, number, args
    FROM progressor.messages ORDER BY process_id COLLATE "C", message_id"""
_REQUESTS: LiteralString = """
    SELECT task_id, kind, sender_id, sender_task_id, number
    FROM progressor.reply_requests ORDER BY 1"""
_REFUSED: LiteralString = """
    SELECT process_id, task_id, number, reason FROM progressor.refused_messages ORDER BY 1, 2, 3"""
_TASKS: LiteralString = """
    SELECT task_id, task_type::text, args FROM progressor.tasks
    WHERE task_type IN ('call', 'notify', 'reply') ORDER BY task_id"""


class ModelledMessages(ModelledStorage):
    model: MessagesModel

    def a_model(self) -> MessagesModel:
        return MessagesModel()

    def follow(self) -> None:
        self.model.answer()

    def a_sender(self, which: int) -> str:
        """Return a process whose outbox is not empty, if there is one."""
        senders = [sender for sender, sent in self.model.outboxes.items() if sent]
        return sorted(senders)[which % len(senders)] if senders else "a"

    def deliver(self, sender_id: str, store: int, *, limit: int) -> None:
        """Deliver the oldest message of an outbox, or with a higher limit all of them."""
        expected: collections.Counter[tuple[str, str]] = collections.Counter()
        while self.model.outboxes[sender_id]:
            expected[self.model.deliver(sender_id, self.clock.now())] += 1
            if limit == 1:
                break

        delivered = self.do(self._deliver(self.stores[store], sender_id, limit=limit))

        assert delivered == expected
        self.follow()

    def deliver_at_once(self, sender_id: str) -> None:
        """Have both replicas deliver the messages of an outbox."""
        expected: collections.Counter[tuple[str, str]] = collections.Counter()
        while self.model.outboxes[sender_id]:
            expected[self.model.deliver(sender_id, self.clock.now())] += 1

        async def both() -> collections.Counter[tuple[str, str]]:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._deliver(store, sender_id, limit=2))
                    for store in self.stores
                ]
            found = sum((task.result() for task in tasks), collections.Counter[tuple[str, str]]())
            return found + await self._deliver(self.stores[0], sender_id, limit=100)

        assert self.do(both()) == expected
        self.follow()

    def deliver_and_die(self, sender_id: str, store: int) -> None:
        """Deliver the messages of an outbox in a transaction that is never committed."""
        before = dump(self.machinery.observer)

        async def die() -> None:
            async with (
                await connect(self.machinery.observer.info.dsn) as connection,
                connection.transaction(force_rollback=True),
            ):
                context = dataclasses.replace(self.stores[store].context, pool=lent(connection))
                await Messages(context).deliver([key_of(sender_id)])

        self.do(die())

        assert dump(self.machinery.observer) == before

    def deliver_all(self, store: int) -> None:
        while senders := [sender for sender, sent in self.model.outboxes.items() if sent]:
            for sender_id in sorted(senders):
                self.deliver(sender_id, store, limit=100)

    def only_ends_are_awaited(self) -> None:
        """Assert that each reply that has not come waits for the end of a process, or for a repair.

        No reply is on its way, and no task of a process that is not in error is left.
        """
        for task, (asked, process) in self.model.waiting.items():
            starts = asked.kind is MessageKind.START and process.status in {"running", "error"}
            assert starts or process.status == "error", f"no reply to task {task.task_id}"

    def compare_rows(self, processes: Sequence[Any], tasks: Sequence[Any]) -> None:
        super().compare_rows(processes, tasks)
        for rows, modelled in (
            (self._messages(), self.model.message_rows()),
            (self._rows(_REQUESTS), self.model.request_rows()),
            (self._rows(_REFUSED), self.model.refused_rows()),
            (self._args(), self._modelled_args()),
        ):
            assert rows == modelled, f"{rows} in the tables, {modelled} in the model"

    @staticmethod
    async def _deliver(
        store: Store, sender_id: str, *, limit: int
    ) -> collections.Counter[tuple[str, str]]:
        counts: collections.Counter[tuple[str, str]] = collections.Counter()
        is_done = False
        while not is_done:
            try:
                delivery, effects = await Messages(store.context).deliver(
                    [key_of(sender_id)], limit=limit
                )
            except errors.StorageLockedError:
                continue  # The other replica delivers.
            store.effects.apply(effects)
            for it in delivery.delivered:
                counts[it.kind, it.verdict] += it.message_count
            is_done = limit == 1 or not delivery.delivered or not delivery.remaining
        return counts

    def _rows(self, query: LiteralString) -> list[tuple[Any, ...]]:
        return self.machinery.observer.execute(query).fetchall()

    def _messages(self) -> list[tuple[Any, ...]]:
        return [
            (sender, receiver, kind, _reply(args) if kind == "reply" else (task_id, number, args))
            for sender, receiver, kind, task_id, number, args in self._rows(_MESSAGES)
        ]

    def _args(self) -> list[tuple[Any, ...]]:
        return [
            (task_id, repr(_reply(args)).encode() if task_type == "reply" and args else args)
            for task_id, task_type, args in self._rows(_TASKS)
        ]

    def _modelled_args(self) -> list[tuple[Any, ...]]:
        return sorted(
            (cast("int", task.task_id), task.args)
            for process in self.model.processes.values()
            for task in process.tasks
            if task.task_type in {"call", "notify", "reply"}
        )


def _reply(args: bytes) -> tuple[int, int, tuple[str, bytes | str]]:
    reply = json.loads(args)
    outcome: tuple[str, bytes | str] = (
        ("response", base64.b64decode(reply["response"]))
        if "response" in reply
        else ("error", reply["error"]["reason"])
    )
    return reply["task_id"], reply["number"], outcome
