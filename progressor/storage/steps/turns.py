"""Turns: steps of one process that were asked together, settled in one transaction.

The steps before the last are settled here, and the lease moves to the task behind them, whose
outcome is settled by `Settlements` like any other. So a turn knows nothing of timers, messages,
jobs or failures: a step with more than events, state and a response is the last one of its turn.

Nothing of a turn is written if its lease is lost, or if the tasks that were asked ahead are no
longer the next ones of the process. The token of each, drawn when the line was read, fences them:
only the settlement that moves the lease to a task makes its token valid.
"""

import asyncio
import dataclasses
import datetime as dt
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from progressor.domain.processes.process import Process, ProcessKey
from progressor.domain.processes.settlement import Finish, Settlement
from progressor.domain.processes.task import RunningTask
from progressor.settings.sections import Commit
from progressor.storage.commit.group_commit import (
    CommitContext,
    GroupCommits,
    Insistence,
    WriteKind,
)
from progressor.storage.postgres import statements
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.direct import Direct
from progressor.storage.postgres.locks import Concern, find_blocked, find_locked
from progressor.storage.postgres.pools import Connection, before_sending
from progressor.storage.postgres.rows.records import reader
from progressor.storage.steps.settlement_columns import columns
from progressor.storage.steps.settlements import (
    Entry,
    LeaseLost,
    Payloads,
    Written,
    bytes_of,
)
from progressor.telemetry.metrics.registry import Metrics

_SQL = statements.load("steps/settlements")

_PER_TURN = ("aux_state", "state_version", "metadata")
_PER_STEP = (
    "response", "error_code", "error_reason", "error_message", "error_metadata", "events_until",
)  # fmt: skip

LINE_BYTES_MAX = 512 * 1024
"""Arguments of the tasks that are asked ahead, together."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Steps to settle, the first with the lease, and the task to which the lease moves.

    Each entry has the process as the one before left it; `following` has it as the last left it.
    """

    steps: Sequence[Entry]
    following: RunningTask

    @property
    def key(self) -> ProcessKey:
        return self.following.key


class _Row(NamedTuple):
    item: int
    settled_at: dt.datetime
    task_id: int
    reply_to: list[int] | None


TurnOutcome = Sequence[Written] | LeaseLost
"""The steps in their order; or nothing was changed, since the lease or the line is another."""


class Turns(GroupCommits[Turn, TurnOutcome]):
    def __init__(
        self,
        context: StorageContext,
        *,
        settings: Commit,
        commit: CommitContext,
        metrics: Metrics | None = None,
    ) -> None:
        super().__init__(context, settings=settings, commit=commit)
        functions, timeout = context.functions, context.statement_timeout
        self._payloads = Payloads(metrics or Metrics())
        self._settle_turns = Direct(functions.call("settle_turns", _Row))
        self._read_line = functions.call("read_line")
        self._task = reader(RunningTask, self._read_line.columns, "process", "started_at")
        self._turns = self._group(
            WriteKind(
                name="settle_turns",
                write=self._write,
                key=lambda turn: turn.key,
                size=lambda turn: sum(map(bytes_of, turn.steps)),
                insistence=Insistence.INSIST,
                find_locked=find_locked(functions, timeout),
                find_blocked=find_blocked(functions, timeout, lambda turn: Concern(turn.key)),
            )
        )

    async def line(self, task: RunningTask, count: int) -> list[RunningTask]:
        """Read up to `count` tasks that can be asked behind a leased one, in their order.

        They have the process of that task, and the tokens of the leases that they may get.
        """
        rows = await self._context.call(
            self._read_line, task.key, count=count, bytes_max=LINE_BYTES_MAX
        )
        return [self._task(row, task.process, task.started_at) for row in rows]

    def submit(self, turn: Turn) -> asyncio.Future[TurnOutcome]:
        return self._turns.submit(turn)

    async def _write(
        self,
        connection: Connection,
        batch: Sequence[Turn],
        again: bool,  # noqa: FBT001  as the group commit calls it
    ) -> list[TurnOutcome]:
        with before_sending():
            arguments = self._settle_turns.bind(
                now=self._context.clock.pinned(),
                replica_id=self._context.replica_id,
                **_columns(batch),
            )
        rows: list[dict[int, _Row]] = [{} for _ in batch]
        for row in await self._settle_turns.execute(connection, arguments):
            rows[row.item - 1][row.task_id] = row
        results: list[TurnOutcome] = [
            _written(turn, found) if found else LeaseLost()
            for turn, found in zip(batch, rows, strict=True)
        ]
        if again:
            await self._recall(connection, batch, results)
        self._payloads.add(
            (entry.key.namespace, entry.settlement)
            for turn, result in zip(batch, results, strict=True)
            if not isinstance(result, LeaseLost)
            for entry in turn.steps
        )
        return results

    async def _recall(
        self, connection: Connection, batch: Sequence[Turn], results: list[TurnOutcome]
    ) -> None:
        """Find the turns that the first, unanswered attempt has settled: the lease has moved."""
        for place, turn in enumerate(batch):
            if isinstance(results[place], LeaseLost):
                found = await self._context.read_on(
                    connection,
                    dt.datetime,
                    _SQL["recall_turn"],
                    turn.key,
                    token=turn.following.token,
                )
                if found:
                    results[place] = _written(turn, {}, found[0])


def process_after(process: Process, settlement: Settlement) -> Process:
    """Return a running process as a step of a turn leaves it."""
    if not isinstance(settlement, Finish):
        return process
    intent, aux_state, version = settlement.intent, process.aux_state, process.state_version
    if intent.aux_state is not None:
        aux_state, version = intent.aux_state, intent.state_version
    return dataclasses.replace(
        process,
        aux_state=aux_state,
        state_version=version,
        metadata=process.metadata if intent.metadata is None else intent.metadata,
        last_event_id=process.last_event_id + len(intent.events),
    )


def _written(
    turn: Turn, rows: Mapping[int, _Row], settled_at: dt.datetime | None = None
) -> Sequence[Written]:
    """Return the steps with their processes; without rows no callers elsewhere are known."""
    processes = [*(entry.process for entry in turn.steps[1:]), turn.following.process]
    return [
        Written(
            settled_at=settled_at or rows[entry.task_id].settled_at,
            process=process,
            next=None,
            reply_to=tuple(rows[entry.task_id].reply_to or ()) if rows else (),
        )
        for entry, process in zip(turn.steps, processes, strict=True)
    ]


def _columns(batch: Sequence[Turn]) -> dict[str, Any]:
    keys, following = [turn.key for turn in batch], [turn.following for turn in batch]
    steps = [entry for turn in batch for entry in turn.steps]
    until = list(itertools.accumulate(len(turn.steps) for turn in batch))
    found = dict.fromkeys((*_PER_TURN, *_PER_STEP)) | columns(steps)
    return {
        "slot": [key.slot for key in keys],
        "namespace": [key.namespace for key in keys],
        "process_id": [key.process_id for key in keys],
        "token": [turn.steps[0].token for turn in batch],
        "next_id": [task.task_id for task in following],
        "next_token": [task.token for task in following],
        "expires_after": [turn.steps[0].expires_after.total_seconds() for turn in batch],
        "steps_until": until,
        **{name: _last_of_turns(found[name], until) for name in _PER_TURN},
        "s_task_id": [entry.task_id for entry in steps],
        **{f"s_{name}": found[name] for name in ("token", *_PER_STEP)},
        **{name: found.get(name) for name in ("e_payload", "e_format_version", "e_metadata")},
    }


def _last_of_turns(column: Sequence[Any] | None, until: Sequence[int]) -> list[Any] | None:
    """Return the last value of each turn that is not null; None where no step has any."""
    if column is None:
        return None
    turns = itertools.pairwise((0, *until))
    return [
        next((it for it in reversed(column[first:last]) if it is not None), None)
        for first, last in turns
    ]
