"""A batch of requests does what the same requests would do one by one, in their order."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, LiteralString

import psycopg
from hypothesis import given, settings
from hypothesis import strategies as st

from progressor.domain.processes.admission import Admission, Request
from progressor.domain.processes.intent import Complete, Outcome, SetTimer
from progressor.domain.processes.process import ProcessKey, process_key
from progressor.domain.processes.task import TaskType
from progressor.storage.postgres.pools import Connection
from progressor.storage.processes.admissions import Entry
from tests.support.models.machine import Machinery, machinery
from tests.support.storage.store import (
    BROKEN,
    EXPIRES_AFTER,
    NAMESPACE,
    NO_TIME,
    Store,
    a_request,
    empty,
    success,
)

ANSWERS: Mapping[str, Outcome] = {
    "free": success(),
    "timed": success(SetTimer(after=EXPIRES_AFTER)),
    "overdue": success(SetTimer(after=NO_TIME)),
    "blocked": success(SetTimer(after=EXPIRES_AFTER)),
    "broken": BROKEN,
    "finished": success(Complete()),
}
STATES = ("absent", "init", "busy", "in line", *ANSWERS)
ALIKE = ("batch", "single")

_TASKS: LiteralString = """
    SELECT task_id, task_type::text, status::text, attempt_count, created_at, scheduled_at,
        first_started_at, started_at, token IS NULL, history_after, args, caller_context,
        idempotency_key, fingerprint, reply_to
    FROM progressor.tasks
    WHERE process_id = %s
    ORDER BY task_id"""
_SCHEDULE: LiteralString = """
    SELECT task_id, task_type::text, status::text, due_at, attempt, replica_id
    FROM progressor.schedule
    WHERE process_id = %s
    ORDER BY task_id"""
_RUNNING: LiteralString = """
    SELECT task_id, task_type::text, attempt, replica_id, leased_at, expires_at
    FROM progressor.running
    WHERE process_id = %s"""


@dataclasses.dataclass(frozen=True, slots=True)
class Ask:
    """A request on one of two processes, by the second replica of those that wait for answers."""

    process: int
    task_type: TaskType
    idempotency_key: str | None
    args: bytes
    run: bool
    waits: bool

    def entry(self, key: ProcessKey) -> Entry:
        request = Request(
            key=key,
            task_type=self.task_type,
            args=self.args,
            caller_context={"who": "me"},
            idempotency_key=self.idempotency_key,
            waits=self.waits,
        )
        return Entry(request, self.run, EXPIRES_AFTER)


def _rival(ask: Ask) -> object:
    return object() if ask.idempotency_key is None else (ask.process, ask.idempotency_key)


ASKS = st.lists(
    st.builds(
        Ask,
        process=st.integers(0, 1),
        task_type=st.sampled_from([TaskType.CALL, TaskType.CALL, TaskType.NOTIFY, TaskType.REPAIR]),
        idempotency_key=st.sampled_from([None, None, "known", "new", "newer"]),
        args=st.sampled_from([b"", b"x"]),
        run=st.sampled_from([True, True, False]),
        waits=st.sampled_from([True, True, False]),
    ),
    min_size=2,
    max_size=8,
    unique_by=_rival,
)


async def bring(store: Store, key: ProcessKey, state: str) -> None:
    """Bring a process to a state; beyond init a call with the key "known" has been made."""
    if state == "absent":
        return
    init = await store.start(key)
    if state == "init":
        return
    known = a_request(key, idempotency_key="known", args=b"x")
    if state == "busy":
        await store.admit(known)
        return
    await store.settled(init)
    if state == "in line":
        await store.admit(known, run=False)
        return
    await store.settled(await store.run_task(known), ANSWERS[state], continues=False)
    if state == "blocked":
        await store.run_task(a_request(key))


def keys_of(how: str) -> list[ProcessKey]:
    return [process_key(NAMESPACE.name, f"{how} {number}") for number in range(2)]


async def admit(store: Store, batches: Sequence[Sequence[Entry]]) -> list[Admission]:
    """Write batches on one connection, past the shards."""
    async with store.pool.connection() as connection:
        return [each for batch in batches for each in await _write(store, connection, batch)]


async def _write(store: Store, connection: Connection, batch: Sequence[Entry]) -> list[Admission]:
    admitted = await store.admissions._requests._kind.write(connection, batch, False)
    return [admission for admission, _ in admitted]


def told(admissions: Sequence[Admission], ranks: dict[int, int]) -> list[tuple[Any, ...]]:
    """Return what requesters receive, with tasks by their ranks instead of their ids."""
    return [
        (
            each.verdict,
            None if each.task_id is None else ranks[each.task_id],
            each.due_now,
            None if each.ended is None else (ranks[each.ended.task_id], each.ended.status),
            None if each.running is None else (ranks[each.running.task_id], each.running.args),
            None if each.process is None else each.process.status,
        )
        for each in admissions
    ]


def stored(observer: psycopg.Connection[Any], ranks: dict[int, int], how: str) -> list[Any]:
    """Return the rows of both processes, with tasks by their ranks; fill in the ranks."""
    found: list[Any] = []
    for key in keys_of(how):
        tables = [
            observer.execute(statement, [key.process_id]).fetchall()
            for statement in (_TASKS, _SCHEDULE, _RUNNING)
        ]
        ranks.update({row[0]: rank for rank, row in enumerate(tables[0])})
        found.append([[(ranks[row[0]], *row[1:]) for row in table] for table in tables])
    return found


def compare(
    opened: Machinery, states: tuple[str, str], asks: list[Ask]
) -> dict[str, tuple[Any, ...]]:
    """Return what is answered and stored when asked in one batch, and one by one."""
    empty(opened.observer, keep=("namespaces", "replicas"))
    store, asking = opened.stores
    outcomes: dict[str, tuple[Any, ...]] = {}
    for how in ALIKE:
        keys = keys_of(how)
        for key, state in zip(keys, states, strict=True):
            opened.run(bring(store, key, state))
        entries = [ask.entry(keys[ask.process]) for ask in asks]
        batches = [entries] if how == "batch" else [[entry] for entry in entries]
        admissions = opened.run(admit(asking, batches))
        ranks: dict[int, int] = {}
        rows = stored(opened.observer, ranks, how)
        outcomes[how] = (told(admissions, ranks), rows)
    return outcomes


def test_a_batch_is_decided_as_if_one_request_came_after_the_other(own_database: str) -> None:
    with machinery(own_database) as opened:

        @settings(max_examples=2 * settings().max_examples)
        @given(states=st.tuples(*2 * [st.sampled_from(STATES)]), asks=ASKS)
        def check(states: tuple[str, str], asks: list[Ask]) -> None:
            outcomes = compare(opened, states, asks)

            assert outcomes["batch"] == outcomes["single"]

        check()
