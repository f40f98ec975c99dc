"""Storage and its model side by side: each operation is done to both, and compared."""

import asyncio
import collections
import dataclasses
import datetime as dt
import itertools
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis.stateful import rule

from progressor import errors
from progressor.domain.gates.constraint import Constraints
from progressor.domain.processes.admission import Import, Verdict
from progressor.domain.processes.event import NewEvent
from progressor.domain.processes.intent import Lost, Outcome, RemoveProcess, SetTimer
from progressor.domain.processes.process import Process, ProcessKey, ProcessStatus
from progressor.domain.processes.settlement import settle
from progressor.domain.processes.task import TIMER_TYPES, RunningTask, TaskStatus, TaskType
from progressor.domain.views.wait import (
    BehindTask,
    NoFreeWorker,
    NoReplica,
    Overrun,
    PresumedDead,
    ProcessFailed,
    RetryNotDue,
    TimerNotDue,
    Wait,
)
from progressor.storage.steps.claims import Claimed, Room, Wanted
from progressor.storage.steps.settlements import Due, LeaseLost, Written
from tests.support.models.machine import Machinery, StoredMachine
from tests.support.models.processes import Model, ModelProcess, ModelTask
from tests.support.models.strategies import OUTCOMES, REFUSED, STORES, WHICH
from tests.support.storage.doctor.invariants import Past, broken_invariants
from tests.support.storage.store import (
    BROKEN,
    EXPIRES_AFTER,
    LEASE_TIMEOUT,
    NAMESPACE,
    a_request,
    dump,
    empty,
    key_of,
    success,
)

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    task: RunningTask
    store: int


class ModelledStorage:
    """Two replicas at work, of which any may fall silent; every answer must be the model's."""

    def __init__(self, machinery: Machinery) -> None:
        self.machinery = machinery
        self.clock = machinery.clock
        self.stores = machinery.stores
        self.model = self.a_model()
        self.past = Past()
        self.alive = {0, 1}
        self.beaten = dict.fromkeys((0, 1), self.clock.now())
        self.held: dict[int, Held] = {}
        self.stale: list[Held] = []
        empty(machinery.observer)
        self.beat()

    def a_model(self) -> Model:
        return Model()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.machinery.run(work)

    def beat(self) -> None:
        for number in self.alive:
            self.do(self.stores[number].beat())
            self.beaten[number] = self.clock.now()

    def request(
        self,
        task_type: TaskType,
        process_id: str,
        store: int,
        *,
        run: bool = True,
        key: str | None = None,
        args: bytes = b"",
        constraints: Constraints | None = None,
        waits: bool = True,
    ) -> None:
        """Admit a request, with a worker to run it or without."""
        verdict, joined = self.model.admit(process_id, task_type, args, key, constraints)

        if process_id not in self.model.processes:
            # The model lets a key go with its process; test_results is about answers that are kept.
            self.machinery.observer.execute("DELETE FROM progressor.replies")
        admission = self.do(
            self.stores[store].admit(
                a_request(
                    key_of(process_id),
                    task_type,
                    args=args,
                    idempotency_key=key,
                    constraints=constraints,
                    waits=waits,
                ),
                run=run,
            )
        )

        assert admission.verdict is verdict
        if joined is not None:
            assert admission.task_id == joined.task_id
            joined.is_acknowledged |= not waits
            ended = admission.ended
            assert (ended is not None) == (joined.status not in {"waiting", "running", "blocked"})
            assert ended is None or ended.response == (joined.response or b"")
        if verdict is not Verdict.ACCEPTED:
            return
        task = ModelTask(
            task_id=admission.task_id,
            task_type=task_type,
            idempotency_key=key,
            args=args,
            constraints=constraints,
            is_acknowledged=not waits,
        )
        is_free = self.model.accept(process_id, task, run=run, now=self.clock.now())
        assert (admission.running is not None) == (is_free and run)
        assert admission.due_now == (is_free and not run)
        if admission.running is not None:
            self.hold(admission.running, store)
        self.follow()

    def recover(self, process_id: str, store: int, *, retries: bool = False) -> None:
        expected = self.model.recover(process_id, self.clock.now(), retries=retries)

        repaired = self.do(self.stores[store].recover(key_of(process_id), retries=retries))

        assert repaired.verdict is expected
        if repaired.due is not None:
            assert repaired.due.due_at == self.clock.now()
        self.follow()

    def put(
        self,
        process_id: str,
        status: ProcessStatus,
        *,
        event_count: int = 0,
        after: dt.timedelta | None = None,
        timers: Sequence[str] = (),
        broken_by: TaskType | None = None,
    ) -> None:
        is_broken, is_running = status is ProcessStatus.ERROR, status is ProcessStatus.RUNNING
        put = self.do(
            self.stores[0].put(
                Import(
                    key=key_of(process_id),
                    status=status,
                    detail="imported" if is_broken else None,
                    corrupted_by_type=broken_by if is_broken else None,
                    history=(NewEvent(payload=b"old"),) * event_count,
                    timer=SetTimer(after=after) if is_running and after is not None else None,
                    timers=(
                        dict.fromkeys(timers, SetTimer(after=after))
                        if is_running and after is not None
                        else {}
                    ),
                )
            )
        )

        if process_id in self.model.processes:
            assert put.verdict is Verdict.PROCESS_ALREADY_EXISTS
            return
        assert put.verdict is Verdict.ACCEPTED
        process = ModelProcess(status=status, event_count=event_count)
        self.model.processes[process_id] = process
        finished = TaskStatus.FINISHED
        process.add(ModelTask(task_id=put.task_id, task_type=TaskType.INIT, status=finished))
        if is_broken:
            process.detail = "imported"
        if is_broken and broken_by is not None:
            process.broken_by = process.add(
                ModelTask(
                    task_id=None,
                    task_type=broken_by,
                    status=TaskStatus.ERROR,
                    attempt=1,
                    error_reason="IMPORTED",
                )
            )
        if is_running and after is not None:
            due_at = self.clock.now() + after
            for name in ("", *timers):
                task = ModelTask(
                    task_id=None, task_type=TaskType.TIMEOUT, due_at=due_at, timer_name=name
                )
                process.add_timer(process.add(task))
            process.timers[0].status = TaskStatus.WAITING
            for later in process.timers[1:]:
                later.status = TaskStatus.BLOCKED

    def unended(self) -> list[tuple[str, ModelTask]]:
        return [
            (process_id, task)
            for process_id, process in self.model.processes.items()
            for task in process.tasks
            if not task.has_ended
        ]

    def cancel(self, which: int) -> None:
        self.adopt()
        unended = self.unended()
        if unended:
            self.cancel_task(*unended[which % len(unended)])

    def cancel_task(self, process_id: str, task: ModelTask) -> None:
        assert task.task_id is not None
        if task is self.model.processes[process_id].running:
            self.lose(task)
        self.model.cancel(process_id, task, self.clock.now())

        assert self.do(self.stores[0].cancel(key_of(process_id), task.task_id)) == task.task_id

        self.follow()

    def terminate(self, process_id: str) -> None:
        process = self.model.processes.get(process_id)
        if process is None or process.status is ProcessStatus.FINISHED:
            refused = (
                errors.ProcessNotFoundError if process is None else errors.ProcessFinishedError
            )
            with pytest.raises(refused):
                self.do(self.stores[0].terminate(key_of(process_id), "enough"))
            return
        unended = [*process.waiting()]
        if process.running is not None:
            unended.append(process.running)
            self.lose(process.running)
        self.adopt()
        self.model.terminate(process_id, "enough")

        cancelled = self.do(self.stores[0].terminate(key_of(process_id), "enough"))

        assert {each.task_id for each in cancelled} == {task.task_id for task in unended}
        self.follow()

    def remove(self, process_id: str) -> None:
        process = self.model.remove(process_id)
        unended = [] if process is None else [*process.waiting()]
        if process is not None and process.running is not None:
            unended.append(process.running)
            self.lose(process.running)

        try:
            cancelled = self.do(self.stores[0].remove(key_of(process_id)))
        except errors.ProcessNotFoundError:
            assert process is None
        else:
            assert {each.task_id for each in cancelled} == {task.task_id for task in unended}
        self.follow()

    def settle(self, held: Held, outcome: Outcome, *, continues: bool) -> None:
        """Settle a task under its lease, and go on with the next if the worker may."""
        task, now = held.task, self.clock.now()
        self.held.pop(task.token)
        self.stale.append(held)
        settlement = settle(task, outcome, namespace=NAMESPACE, now=now, spread=0.0)
        following = self.model.settle(task.key.process_id, settlement, continues=continues, now=now)

        written = self.do(self.stores[held.store].settle(task, outcome, continues=continues))

        assert isinstance(written, Written)
        assert (written.next is None) == (following is None)
        if written.next is not None and following is not None:
            following.task_id = following.task_id or written.next.task_id
            assert written.next.task_id == following.task_id
            assert written.next.attempt == following.attempt
            assert written.next.tried_for == following.tried_for
            assert written.next.has_memos or not following.memos
            self.hold(written.next, held.store)
        if written.process is not None:
            assert written.process == self.process(task.key)
        self.follow()

    def settle_turn(self, held: Held, outcomes: Sequence[Outcome], *, cancels: bool) -> None:
        """Settle as many calls behind a held one as can be, at once: as one after the other.

        `cancels`: the last of them is cancelled after its turn was read.
        """
        task, store, now = held.task, self.stores[held.store], self.clock.now()
        if task.task_type not in {TaskType.CALL, TaskType.NOTIFY} or task.process.corrupted_by:
            return
        line = self.do(store.turns.line(task, len(outcomes)))
        process = self.model.processes[task.key.process_id]
        assert [each.task_id for each in line] == _plain_line(process, len(outcomes))
        if not line:
            return
        outcomes = outcomes[: len(line)]
        if cancels:
            self.cancel_task(task.key.process_id, process.find(line[-1].task_id))
        before = dump(self.machinery.observer)

        written, following = self.do(store.settle_turn(task, line, outcomes))

        if cancels:
            assert written == LeaseLost()
            assert dump(self.machinery.observer) == before
            return
        self.held.pop(task.token)
        self.stale.append(held)
        assert not isinstance(written, LeaseLost)
        for each, outcome in zip((task, *line), outcomes, strict=False):
            settlement = settle(each, outcome, namespace=NAMESPACE, now=now, spread=0.0)
            self.model.settle(task.key.process_id, settlement, continues=True, now=now)
        self.hold(following, held.store)
        self.follow()

    def remember(self, held: Held, memo_key: str) -> None:
        task = self.model.processes[held.task.key.process_id].running
        assert task is not None, "the task is held"
        verdict = "known" if memo_key in task.memos else "stored"

        stored = self.do(self.stores[held.store].remember(held.task, memo_key))

        assert stored is not None
        assert (stored.verdict, stored.value is None) == (verdict, verdict == "stored")
        task.memos.add(memo_key)

    def settle_too_late(self, which: int, outcome: Outcome) -> None:
        if not self.stale:
            return
        late = self.stale[which % len(self.stale)]
        before = dump(self.machinery.observer)

        settled = self.do(self.stores[late.store].settle(late.task, outcome))

        assert settled == LeaseLost()
        assert self.do(self.stores[late.store].remember(late.task, "late")) is None
        assert dump(self.machinery.observer) == before

    def claim(self, *, wait: bool, limit: int) -> None:
        due = self.due()

        claimed = self._take(
            {
                number: store.claim_due(wait=wait, limit=limit)
                for number, store in enumerate(self.stores)
            }
        )

        if wait and limit >= len(due):
            assert claimed == due

    def claim_overdue(self, store: int, *, since: dt.timedelta, wait: bool) -> set[int]:
        """Let a replica claim all that has been due for so long; return the tasks."""
        return self._take({store: self.stores[store].claim_due(overdue=since, wait=wait)})

    def claim_by_id(self, store: int, upcoming: Iterable[Due]) -> set[int]:
        """Let a replica claim those of its agenda that are due; return the tasks."""
        wanted = [
            Wanted(key=each.key, task_id=each.task_id, expires_after=EXPIRES_AFTER)
            for each in upcoming
            if each.due_at <= self.clock.now()
        ]
        own = self.stores[store]
        return self._take({store: own.claims.claim_tasks(own.pool, wanted)}) if wanted else set()

    def upcoming(self, store: int, horizon: dt.timedelta) -> list[Due]:
        """Return what a replica puts on its agenda: its own tasks due soon, and unowned ones."""
        own = self.stores[store]
        room = Room(namespace=NAMESPACE.name, limit=100, expires_after=EXPIRES_AFTER)
        found, _ = self.do(
            own.claims.find_upcoming(own.pool, [room], horizon=horizon, lease_timeout=LEASE_TIMEOUT)
        )
        return found

    def due(self) -> set[int]:
        self.adopt()
        return set(self.model.due(self.clock.now()))

    def _take(self, claims: Mapping[int, Coroutine[Any, Any, list[Claimed]]]) -> set[int]:
        self.adopt()
        due = self.model.due(self.clock.now())

        async def at_once() -> list[tuple[int, RunningTask]]:
            async with asyncio.TaskGroup() as group:
                tasks = {number: group.create_task(claim) for number, claim in claims.items()}
            return [
                (number, claimed.task)
                for number, task in tasks.items()
                for claimed in task.result()
            ]

        claimed = self.do(at_once())

        ids = [task.task_id for _, task in claimed]
        assert len(ids) == len(set(ids))
        assert set(ids) <= due.keys()
        for number, task in claimed:
            expected = self.model.claim(due[task.task_id], task.task_id)
            assert (task.task_type, task.attempt) == (expected.task_type, expected.attempt)
            assert task.tried_for == expected.tried_for
            assert task.has_memos or not expected.memos
            self.hold(task, number)
        return set(ids)

    def collect(self, store: int) -> None:
        now = self.clock.now()
        silent = {number for number in (0, 1) if self.beaten[number] < now - LEASE_TIMEOUT}
        expected = {
            token
            for token, held in self.held.items()
            if held.store in silent or held.task.started_at < now - EXPIRES_AFTER
        }

        zombies = self.do(self.stores[store].find_zombies())

        assert {zombie.token for zombie in zombies} == expected
        for zombie in zombies:
            self.stale.append(self.held.pop(zombie.token))
            settlement = settle(zombie, Lost(), namespace=NAMESPACE, now=now, spread=0.0)
            self.model.settle(zombie.key.process_id, settlement, continues=False, now=now)
            assert isinstance(self.do(self.stores[store].collect(zombie, Lost())), Written)
            self.follow()

    def follow(self) -> None:
        """See to what a deed brings about elsewhere: here, to nothing."""

    def a_held_task(self, which: int) -> Held | None:
        if not self.held:
            self.claim(wait=True, limit=100)
        tokens = sorted(self.held)
        return self.held[tokens[which % len(tokens)]] if tokens else None

    def tables_are_as_the_model_says(self) -> None:
        self.compare_rows(self.machinery.processes(), self.machinery.tasks())

    def compare_rows(self, processes: Sequence[Any], tasks: Sequence[Any]) -> None:
        self.adopt()
        memos = self.machinery.observer.execute(
            "SELECT task_id, key FROM progressor.memos ORDER BY 1, 2"
        ).fetchall()
        for rows, modelled in (
            (processes, self.model.process_rows()),
            (tasks, self.model.task_rows()),
            (memos, self.model.memo_rows()),
        ):
            assert rows == modelled, (
                f"in the tables {set(rows) - set(modelled)},"
                f" in the model {set(modelled) - set(rows)}"
            )

    def laws_hold(self) -> None:
        """Ask for what breaks an invariant, and for what of the past has changed."""
        broken = broken_invariants(self.machinery.observer, at_rest=True, now=self.clock.now())
        changed = self.past.look(self.machinery.observer)
        assert broken == {}, broken
        assert changed == [], changed

    def waits_are_reported(self) -> None:
        """Each task has one cause: the one that Get names, List, the metrics and the scan go by."""
        processes = self.stores[0].processes
        keys = [key_of(row[0]) for row in self.machinery.processes()]
        waits = {key: self.do(processes.get(key)).waits for key in keys}
        told = [wait for found in waits.values() for wait in found]

        firsts = self.do(processes.first_waits(keys))
        ends = self.do(self.stores[0].results.read_ends(keys))

        assert sorted(wait.task_id for wait in told) == [
            row[0] for row in self.machinery.tasks() if row[3] in {"waiting", "running", "blocked"}
        ]
        assert firsts == {key: found[0] for key, found in waits.items() if found}
        assert [end and end.verdict for end in ends] == [
            self.model.end_of(key.process_id) for key in keys
        ]
        # Of the timers of a process at rest, the metrics count the earliest.
        self._is_counted(
            wait
            for found in waits.values()
            for place, wait in enumerate(found)
            if not (place and wait.status is TaskStatus.BLOCKED and _is_resting(found[0]))
        )
        self._is_collected(told)

    def _is_counted(self, told: Iterable[Wait]) -> None:
        store = self.stores[0]
        [queue] = self.do(store.queues.count([NAMESPACE.name]))
        causes = collections.Counter(type(wait.cause) for wait in told)
        assert queue.due_count == causes[NoFreeWorker] + causes[NoReplica]
        assert queue.timer_count == causes[TimerNotDue]
        assert queue.retry_count == causes[RetryNotDue]
        gated = sum(
            isinstance(wait.cause, ProcessFailed) and wait.spent is not None for wait in told
        )
        assert queue.behind_count == causes[BehindTask] + gated
        assert queue.process_failed_count == causes[ProcessFailed] - gated

    def _is_collected(self, told: Iterable[Wait]) -> None:
        zombies = self.do(self.stores[0].find_zombies())
        # Here a silent replica may lease, which then is news: it must have spoken up just now.
        news = self.machinery.observer.execute(
            "SELECT task_id FROM progressor.running WHERE leased_at >= %s", [self.clock.now()]
        ).fetchall()
        lost = {wait.task_id for wait in told if isinstance(wait.cause, PresumedDead | Overrun)}
        assert lost == {zombie.task_id for zombie in zombies} - {row[0] for row in news}

    def hold(self, task: RunningTask, store: int) -> None:
        keys = {held.task.key for held in self.held.values()}
        assert task.key not in keys, "the processor is asked twice at the same time"
        assert task.process == self.process(task.key)
        self.held[task.token] = Held(task, store)

    def process(self, key: ProcessKey) -> Process:
        stored = self.do(self.stores[0].processes.get(key)).process
        return dataclasses.replace(stored, result=None)

    def lose(self, running: ModelTask) -> None:
        for token, held in tuple(self.held.items()):
            if held.task.task_id == running.task_id:
                self.stale.append(self.held.pop(token))

    def adopt(self) -> None:
        """Learn the ids that storage did not tell: of timers, and of what an import brought."""
        for process_id, process in self.model.processes.items():
            unknown = [task for task in process.tasks if task.task_id is None]
            if not unknown:
                continue
            known = [task.task_id for task in process.tasks if task.task_id is not None]
            found = self.machinery.observer.execute(
                "SELECT task_id FROM progressor.tasks WHERE process_id = %s"
                " AND task_id <> ALL (%s) ORDER BY task_id",
                [process_id, known],
            ).fetchall()
            assert len(found) == len(unknown)
            for task, row in zip(unknown, found, strict=True):
                task.task_id = row[0]


def _plain_line(process: ModelProcess, count: int) -> list[int | None]:
    """Return the calls at the front of the line that can be asked ahead."""
    if process.status is not ProcessStatus.RUNNING:
        return []
    plain = itertools.takewhile(
        lambda it: (
            it.task_type in {TaskType.CALL, TaskType.NOTIFY} and not (it.attempt or it.memos)
        ),
        process.line[:count],
    )
    return [task.task_id for task in plain]


def _is_resting(first: Wait) -> bool:
    return first.task_type in TIMER_TYPES and first.status is TaskStatus.WAITING


class ReplicasMachine(StoredMachine):
    """Two replicas at work; any of them may fall silent, and speak up again."""

    storage: ModelledStorage

    def answer_held(self, held: Held | None, outcome: Outcome, *, continues: bool = True) -> None:
        """Settle a task as its type allows; None: there is none."""
        if held is None:
            return
        if held.task.task_type is TaskType.REMOVE:
            outcome = success(RemoveProcess())
        if outcome is REFUSED and held.task.task_type in TIMER_TYPES:
            outcome = BROKEN
        self.storage.settle(held, outcome, continues=continues)

    @rule(which=WHICH, outcome=OUTCOMES)
    def settle_too_late(self, which: int, outcome: Outcome) -> None:
        self.storage.settle_too_late(which, outcome)

    @rule(store=STORES)
    def fall_silent(self, store: int) -> None:
        self.storage.alive.discard(store)

    @rule(store=STORES)
    def speak_up(self, store: int) -> None:
        self.storage.alive.add(store)
        self.storage.beat()

    @rule(store=STORES)
    def collect(self, store: int) -> None:
        self.storage.collect(store)
