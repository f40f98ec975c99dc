"""Storage driven from a test without a loop of its own: one runner, kept from step to step."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
from collections.abc import Coroutine, Iterator
from typing import Any, LiteralString, Self, TypeVar

import psycopg
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from psycopg.conninfo import make_conninfo

from progressor.storage.postgres.context import STARVATION_TIMEOUT
from tests.support.clock import ManualClock
from tests.support.storage.store import Store, create_namespace, running_stores

T = TypeVar("T")

_PROCESSES: LiteralString = """
    SELECT process_id, status::text, coalesce(detail, end_reason), corrupted_by, last_event_id,
        aux_state, state_version
    FROM progressor.processes
    ORDER BY process_id COLLATE "C" """
_TASKS: LiteralString = """
    SELECT t.task_id, t.process_id, t.task_type::text,
        CASE WHEN h.task_id IS NOT NULL THEN 'blocked' ELSE coalesce(s.status, t.status)::text END,
        t.attempt_count, coalesce(s.due_at, h.due_at), t.error_reason, t.response,
        t.idempotency_key,
        coalesce(t.timer_name, '')
    FROM progressor.tasks t
    LEFT JOIN progressor.schedule s USING (slot, namespace, process_id, task_id)
    LEFT JOIN progressor.held h USING (slot, namespace, process_id, task_id)
    ORDER BY t.task_id"""


@dataclasses.dataclass(frozen=True, slots=True)
class Machinery:
    """Replicas, their clock, and a connection to look at the tables with."""

    runner: asyncio.Runner
    observer: psycopg.Connection[Any]
    stores: tuple[Store, ...]
    clock: ManualClock

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def processes(self) -> list[tuple[Any, ...]]:
        return self.observer.execute(_PROCESSES).fetchall()

    def tasks(self) -> list[tuple[Any, ...]]:
        return self.observer.execute(_TASKS).fetchall()


@contextlib.contextmanager
def machinery(
    conninfo: str, *, count: int = 2, starvation_timeout: dt.timedelta = STARVATION_TIMEOUT
) -> Iterator[Machinery]:
    # What a crash would lose, no test of this kind looks for.
    quick = make_conninfo(conninfo, options="-c synchronous_commit=off")
    create_namespace(quick)
    clock = ManualClock()
    with (
        asyncio.Runner() as runner,
        psycopg.connect(quick, autocommit=True) as observer,
    ):
        stack = contextlib.AsyncExitStack()
        running = running_stores(
            quick, count=count, clock=clock, starvation_timeout=starvation_timeout
        )
        stores = runner.run(stack.enter_async_context(running))
        try:
            yield Machinery(runner, observer, stores, clock)
        finally:
            runner.run(stack.aclose())


class StoredMachine(RuleBasedStateMachine):
    """A state machine over replicas, which stay open from example to example."""

    machinery: Machinery

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.machinery.run(work)

    @classmethod
    def over(cls, machinery: Machinery) -> type[Self]:
        return type(cls.__name__, (cls,), {"machinery": machinery})

    @classmethod
    def check(cls, conninfo: str, *, steps: int, factor: int = 1) -> None:
        """Run `factor` times as many examples as the profile says, of so many steps each."""
        examples = factor * settings().max_examples
        with machinery(conninfo) as opened:
            run_state_machine_as_test(
                cls.over(opened),
                settings=settings(max_examples=examples, stateful_step_count=steps),
            )
