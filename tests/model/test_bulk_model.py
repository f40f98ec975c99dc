"""Bulk operations among other requests, locks and kills: each process is changed at most once.

Two replicas take the steps of operations, in any order, at once, with a connection that is lost
before its commit, and beside a transaction that keeps a process locked. After each deed the items
are of the snapshot, results stay as they are, and what was requested of a process is there if and
only if its item says so. In the end each operation ends.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from progressor import errors
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.task import TaskType
from progressor.domain.views import bulk as domain
from progressor.domain.views.bulk import TAKEN_BY, BulkKind, BulkOperation, BulkRequest, BulkState
from progressor.domain.views.filter import ProcessFilter
from progressor.storage.jobs import bulks as module
from progressor.storage.jobs.bulks import Bulks
from tests.support.models.machine import StoredMachine
from tests.support.models.strategies import PAUSES, RARELY, STORES, WHICH
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.store import (
    BROKEN,
    a_request,
    connect,
    create_namespace,
    empty,
    key_of,
    lent,
    success,
)

IDS = st.sampled_from("abcde")
KINDS = st.sampled_from([*BulkKind, BulkKind.RETRY, BulkKind.NOTIFY, BulkKind.REPAIR])
STATUSES = st.sampled_from([(), (), (ProcessStatus.ERROR,), (ProcessStatus.RUNNING,)])
DEEDS = st.lists(
    st.tuples(st.sampled_from(["start", "break_one", "ask", "retry", "repair"]), IDS), max_size=3
)
OPEN_MAX = 2
LIMITS = st.sampled_from([1, 2, 9])
BULK_REASON = "by the operation"
CALLS_MAX = 60
"""Within which an operation ends once nothing is in its way."""

Identity = tuple[str, int]
"""A process and its init task."""


@dataclasses.dataclass(slots=True)
class Started:
    """An operation, what matched when it began, and what was changed until all was matched."""

    request: BulkRequest
    snapshot: frozenset[Identity]
    touched: set[str] = dataclasses.field(default_factory=set)
    results: dict[int, str] = dataclasses.field(default_factory=dict)


class BulkMachine(StoredMachine):
    conninfo: str

    def __init__(self) -> None:
        super().__init__()
        self.observer, self.clock = self.machinery.observer, self.machinery.clock
        self.stores = self.machinery.stores
        self.bulks = [Bulks(store.context) for store in self.stores]
        self.started: dict[str, Started] = {}
        empty(self.observer)

    # What else happens to processes.

    @initialize(statuses=st.lists(st.booleans(), min_size=2, max_size=5))
    def begin(self, statuses: list[bool]) -> None:
        for process_id, is_broken in zip("abcde", statuses, strict=False):
            self.change(process_id, self.stores[0].started(key_of(process_id)))
            if is_broken:
                self.ask(process_id, 0)
                self.work(0, [True])

    @rule(process_id=IDS, store=STORES)
    def start(self, process_id: str, store: int) -> None:
        """Start a process, in the place of the one that is there."""
        self.change(process_id, self.stores[store].remove(key_of(process_id)))
        self.change(process_id, self.stores[store].started(key_of(process_id)))

    @rule(process_id=IDS, store=STORES)
    def break_one(self, process_id: str, store: int) -> None:
        self.ask(process_id, store)
        self.work(store, [True])

    @rule(process_id=IDS, store=STORES)
    def ask(self, process_id: str, store: int) -> None:
        request = a_request(key_of(process_id), TaskType.CALL)
        self.change(process_id, self.stores[store].admit(request, run=False))

    @rule(store=STORES, breaks=st.lists(st.booleans(), min_size=1, max_size=4))
    def work(self, store: int, breaks: list[bool]) -> None:
        """Run what is due, of which some breaks its process."""
        for number, claimed in enumerate(self.do(self.stores[store].claim_due())):
            answer = BROKEN if breaks[number % len(breaks)] else success()
            settled = self.stores[store].settled(claimed.task, answer, continues=False)
            self.change(claimed.task.key.process_id, settled)

    @rule(process_id=IDS, store=STORES)
    def retry(self, process_id: str, store: int) -> None:
        self.change(process_id, self.stores[store].recover(key_of(process_id), retries=True))

    @rule(process_id=IDS, store=STORES)
    def repair(self, process_id: str, store: int) -> None:
        self.change(process_id, self.stores[store].recover(key_of(process_id), retries=False))

    @rule(process_id=IDS, store=STORES, really=RARELY, keeps=st.booleans())
    def end(self, process_id: str, store: int, really: bool, keeps: bool) -> None:
        if really and keeps:
            self.change(process_id, self.stores[store].terminate(key_of(process_id), "enough"))
        elif really:
            self.change(process_id, self.stores[store].remove(key_of(process_id)))

    @rule(pause=PAUSES)
    def let_time_pass(self, pause: Any) -> None:
        self.clock.advance(pause)

    # What operations do.

    @rule(kind=KINDS, store=STORES, follow=st.booleans(), statuses=STATUSES, meanwhile=DEEDS)
    def begin_bulk(
        self,
        kind: BulkKind,
        store: int,
        follow: bool,
        statuses: tuple[ProcessStatus, ...],
        meanwhile: list[tuple[str, str]],
    ) -> None:
        """Start an operation, and change processes before it looks for what matches."""
        if len(self.open_bulks()) >= OPEN_MAX:
            return
        takes = TAKEN_BY[kind] or tuple(ProcessStatus)
        chosen = statuses if set(statuses) <= set(takes) else ()
        request = BulkRequest(
            operation_id=f"op{len(self.started)}", kind=kind, follow=follow, rate_max=None,
            filter=ProcessFilter(namespace="orders", statuses=chosen), reason=BULK_REASON,
            failed_share_max=1.0,
        )  # fmt: skip
        wanted = chosen or takes
        matching = {it for it, status in self.processes().items() if status in wanted}
        self.started[request.operation_id] = Started(request, frozenset(matching))
        self.do(self.bulks[store].start(request, {}))
        for deed, process_id in meanwhile:
            getattr(self, deed)(process_id, store)

    @rule(which=WHICH, store=STORES, limit=LIMITS, times=st.integers(1, 5))
    def step(self, which: int, store: int, limit: int, times: int) -> None:
        for _ in range(times):
            self.each_of(which, lambda name: self.do(take_step(self.bulks[store], name, limit)))

    @rule(which=WHICH, store=STORES, limit=LIMITS)
    def step_and_die(self, which: int, store: int, limit: int) -> None:
        async def die(name: str) -> None:
            async with await connect(self.conninfo) as connection:
                context = dataclasses.replace(self.stores[store].context, pool=lent(connection))
                async with connection.transaction(force_rollback=True):
                    await take_step(Bulks(context), name, limit)

        self.each_of(which, lambda name: self.do(die(name)))

    @rule(which=WHICH, limit=LIMITS)
    def step_with_both(self, which: int, limit: int) -> None:
        async def both(name: str) -> None:
            async with asyncio.TaskGroup() as group:
                for bulks in self.bulks:
                    group.create_task(take_step(bulks, name, limit))

        self.each_of(which, lambda name: self.do(both(name)))

    @rule(which=WHICH, store=STORES, limit=LIMITS.filter(lambda it: it > 1), process_id=IDS)
    def step_beside_a_lock(self, which: int, store: int, limit: int, process_id: str) -> None:
        """It must leave the locked process, and wait for nothing."""

        def locked(name: str) -> None:
            with psycopg.connect(self.conninfo) as locker:
                locker.execute(
                    "SELECT FROM progressor.processes WHERE process_id = %s FOR UPDATE",
                    [process_id],
                )
                self.do(take_step(self.bulks[store], name, limit))

        self.each_of(which, locked)

    @rule(which=WHICH, really=RARELY)
    def stop(self, which: int, really: bool) -> None:
        if really:
            self.each_of(which, lambda name: self.do(self.bulks[0].stop(name, "enough")))

    # What must hold after each of them.

    @invariant()
    def items_are_of_the_snapshot(self) -> None:
        for name, started in self.started.items():
            items = self.items(name)
            taken = [(it[1], it[2]) for it in items]
            if started.request.follow:
                for identity in set(taken):
                    *before, _ = [it[3] for it in items if (it[1], it[2]) == identity]
                    assert set(before) <= {"skipped"}, (name, items)
                continue
            assert len(set(taken)) == len(taken)
            assert set(taken) <= started.snapshot, (name, taken, started)
            if self.bulk(name).state is not BulkState.MATCHING and not self.was_stopped(name):
                kept = {it for it in started.snapshot if it[0] not in started.touched}
                if started.request.kind is not BulkKind.CANCEL:
                    assert kept <= set(taken), (name, taken, started)

    @invariant()
    def results_stay_and_add_up(self) -> None:
        for name, started in self.started.items():
            bulk, items = self.bulk(name), self.items(name)
            results = {it[0]: it[3] for it in items if it[3] is not None}
            assert started.results.items() <= results.items()
            started.results = results
            assert bulk.matched_count == len(items)
            counts = [[*results.values()].count(it) for it in ("done", "skipped", "failed")]
            assert counts == [bulk.done_count, bulk.skipped_count, bulk.failed_count]

    @invariant()
    def what_was_done_is_there_once(self) -> None:
        for kind in (BulkKind.NOTIFY, BulkKind.REPAIR):
            found = self.observer.execute(
                "SELECT p.process_id, p.init_task_id, count(t.task_id)"
                " FROM progressor.processes p"
                " LEFT JOIN progressor.tasks t ON (t.slot, t.namespace, t.process_id)"
                "  = (p.slot, p.namespace, p.process_id) AND t.task_type = %s::progressor.task_type"
                " WHERE p.namespace = 'orders' GROUP BY 1, 2",
                [kind.value],
            ).fetchall()
            done = [it for it, _ in self.done(kind)]
            for process_id, init_task_id, count in found:
                assert count == done.count((process_id, init_task_id)), kind
        there = self.processes()
        assert not {it for it, _ in self.done(BulkKind.REMOVE)} & there.keys()
        for identity, _ in self.done(BulkKind.TERMINATE):
            assert there.get(identity, ProcessStatus.FINISHED) is ProcessStatus.FINISHED
        cancelled = [it for _, it in self.done(BulkKind.CANCEL)]
        assert len(cancelled) == len(set(cancelled)), "a task is cancelled once"

    @invariant()
    def laws_hold(self) -> None:
        broken = broken_invariants(self.observer, now=self.clock.now())
        assert broken == {}, broken

    def teardown(self) -> None:
        """Let nothing be in the way: each operation ends, and each item has a result."""
        for name, started in self.started.items():
            for _ in range(CALLS_MAX):
                if self.bulk(name).has_ended or self.bulk(name).state is BulkState.FOLLOWING:
                    break
                self.step(self.open_bulks().index(name), 0, 9, times=1)
            if started.request.follow:
                self.do(self.bulks[0].stop(name, "enough"))
            bulk = self.bulk(name)
            assert bulk.has_ended, (name, bulk)
            if bulk.state is BulkState.DONE:
                assert {it[3] for it in self.items(name)} <= {"done", "skipped", "failed"}
        self.items_are_of_the_snapshot()
        self.results_stay_and_add_up()
        self.what_was_done_is_there_once()
        self.laws_hold()

    # What is read.

    def processes(self) -> dict[Identity, ProcessStatus]:
        rows = self.observer.execute(
            "SELECT process_id, init_task_id, status::text FROM progressor.processes"
            " WHERE namespace = 'orders'"
        ).fetchall()
        return {(row[0], row[1]): ProcessStatus(row[2]) for row in rows}

    def items(self, name: str) -> Sequence[tuple[Any, ...]]:
        return self.observer.execute(
            "SELECT item, process_id, init_task_id, result, task_id FROM progressor.bulk_items"
            " WHERE operation_id = %s ORDER BY item",
            [name],
        ).fetchall()

    def done(self, kind: BulkKind) -> Iterable[tuple[Identity, int]]:
        for name, started in self.started.items():
            for _, process_id, init_task_id, result, task_id in self.items(name):
                if started.request.kind is kind and result == "done":
                    yield (process_id, init_task_id), task_id

    def bulk(self, name: str) -> BulkOperation:
        return self.do(self.bulks[0].get(name))

    def open_bulks(self) -> list[str]:
        return [name for name in self.started if not self.bulk(name).has_ended]

    def was_stopped(self, name: str) -> bool:
        return self.bulk(name).state is BulkState.STOPPED

    def each_of(self, which: int, deed: Callable[[str], object]) -> None:
        """Do something to one of the operations; what is applied changes processes for others."""
        names = self.open_bulks()
        if not names:
            return
        name = names[which % len(names)]
        before = {it[0] for it in self.items(name) if it[3] is not None}
        deed(name)
        for item, process_id, _, result, _ in self.items(name):
            if result is not None and item not in before:
                self.touch(process_id)

    def change(self, process_id: str, work: Any) -> None:
        with contextlib.suppress(errors.ProgressorError):  # as a client would be refused
            self.do(work)
        self.touch(process_id)

    def touch(self, process_id: str) -> None:
        for name, started in self.started.items():
            if self.bulk(name).state is BulkState.MATCHING:
                started.touched.add(process_id)


async def take_step(bulks: Bulks, name: str, limit: int) -> None:
    """Match or apply once, as a step of the operation does in a loop."""
    bulk = await bulks.get(name)
    if bulk.has_ended:
        return
    if bulk.phase in {BulkState.MATCHING, BulkState.FOLLOWING}:
        await bulks.match(name)
    else:
        await bulks.apply(bulk, limit=limit)


def test_operations_change_each_process_of_their_snapshot_once(
    own_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MATCHED_MAX", 2)
    monkeypatch.setattr(module, "EXAMINED_MAX", 3)
    monkeypatch.setattr(BulkMachine, "conninfo", own_database, raising=False)
    create_namespace(own_database, domain.NAMESPACE)
    BulkMachine.check(own_database, steps=30)
