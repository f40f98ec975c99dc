"""A step that is settled alone, by its short path, does what it would do in a batch."""

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, LiteralString

from hypothesis import given, settings
from hypothesis import strategies as st

from progressor.domain.processes.intent import Complete, Outcome, SetTimer, UnsetTimer
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.storage.postgres.pools import Connection
from progressor.storage.postgres.rows.effects import NO_EFFECTS
from progressor.storage.steps import settlements
from progressor.storage.steps.settlements import Entry
from tests.support.models.machine import Machinery, machinery
from tests.support.storage.store import (
    BROKEN,
    TABLES,
    UNREACHABLE,
    Store,
    a_request,
    connect,
    empty,
    fresh_key,
    success,
)

HOUR = dt.timedelta(hours=1)
STATES = ("init", "free", "timed", "in line", "awaited", "named", "remembering", "tried", "repair")
OUTCOMES: Mapping[str, Outcome] = {
    "nothing": success(),
    "events": success(events=2),
    "state": success(events=1, aux_state=b"state", state_version=2, metadata={"k": "v"}),
    "timer": success(SetTimer(after=HOUR)),
    "no timer": success(UnsetTimer()),
    "named timer": success(timers={"t": SetTimer(after=HOUR)}),
    "end": success(Complete(b"result")),
    "broken": BROKEN,
    "retry": UNREACHABLE,
}
ENTRIES = st.tuples(st.sampled_from(STATES), st.sampled_from(sorted(OUTCOMES)), st.booleans())
COMPANION = ("free", "nothing", False)
"""It makes a batch, and draws no ids of timers or leases."""

_COUNTS: LiteralString = """
    SELECT status_before::text, status_after::text, sum(process_count)
    FROM progressor.process_counts
    GROUP BY 1, 2 ORDER BY 1, 2"""
_ROWS = [
    f"SELECT t::text FROM progressor.{table} t ORDER BY 1"  # noqa: S608  our names
    for table in TABLES
    if table != "new_failures"  # a row per batch
]
_SEQUENCES = ("task_ids", "lease_tokens")


BEFORE: Mapping[str, Outcome] = {
    "timed": success(SetTimer(after=HOUR)),
    "named": success(timers={"u": SetTimer(after=HOUR)}),
    "repair": BROKEN,
}
"""How the init of a process ends; where nothing is said here, with a state."""


async def begun(store: Store, key: ProcessKey, state: str) -> RunningTask:
    """Return a running task of a process in a state."""
    init = await store.start(key)
    if state == "init":
        return init
    decided = BEFORE.get(state, success(aux_state=b"before", state_version=1))
    await store.settled(init, decided, continues=False)
    task_type = TaskType.REPAIR if state == "repair" else TaskType.CALL
    task = await store.run_task(a_request(key, task_type))
    match state:
        case "in line":
            await store.admit(a_request(key), run=False)
        case "awaited":
            await store.results.await_process(key, until_finished=True)
        case "remembering":
            await store.remember(task, "memo")
        case "tried":
            return await _tried_again(store, task)
        case _:
            pass
    return task


async def _tried_again(store: Store, task: RunningTask) -> RunningTask:
    await store.settled(task, UNREACHABLE, continues=False)
    store.clock.advance(HOUR)
    [claimed] = await store.claim(task.key, task.task_id)
    return claimed.task


async def write(
    store: Store, connection: Connection, batches: Sequence[Sequence[Entry]], first_id: int
) -> tuple[list[Any], list[Any]]:
    """Settle batches, and return what is answered and stored; then undo it."""
    async with connection.transaction(force_rollback=True):
        for name in _SEQUENCES:
            await connection.execute("SELECT setval(%s, %s)", [f"progressor.{name}", first_id])
        write = store.settlements._plain._kind.write
        written = [each for batch in batches for each in await write(connection, batch, False)]
        stored = [
            await (await connection.execute(statement.encode())).fetchall()
            for statement in (_COUNTS, *_ROWS)
        ]
    return [_plain(each) for each in written], stored


def _plain(outcome: settlements.Outcome) -> settlements.Outcome:
    """Return an outcome without the effects of its batch."""
    if isinstance(outcome, settlements.Written):
        return dataclasses.replace(outcome, effects=NO_EFFECTS)
    return outcome


async def compare(opened: Machinery, items: Sequence[tuple[str, str, bool]]) -> list[Any]:
    store = opened.stores[0]
    entries = []
    for state, outcome, continues in items:
        task = await begun(store, fresh_key(), state)
        entries.append(store.entry(task, OUTCOMES[outcome], continues=continues))
    async with await connect(opened.observer.info.dsn) as connection:
        return [
            await write(store, connection, batches, entries[-1].token + 1_000_000)
            for batches in ([entries], [[entry] for entry in entries])
        ]


def test_a_step_alone_is_settled_as_in_a_batch(own_database: str) -> None:
    with machinery(own_database) as opened:

        @settings(max_examples=3 * settings().max_examples)
        @given(item=ENTRIES)
        def check(item: tuple[str, str, bool]) -> None:
            empty(opened.observer, keep=("namespaces", "replicas"))

            together, alone = opened.run(compare(opened, [item, COMPANION]))

            assert alone == together

        check()
