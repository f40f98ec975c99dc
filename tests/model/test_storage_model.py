"""Storage on PostgreSQL against a model of 200 lines, through faults, in any order of events."""

import asyncio
import dataclasses
import datetime as dt
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from progressor import errors
from progressor.domain.admission import Import, Verdict
from progressor.domain.event import NewEvent
from progressor.domain.intent import (
    Lost,
    Outcome,
    Released,
    RemoveProcess,
    SetTimer,
)
from progressor.domain.process import Process, ProcessKey, ProcessStatus, process_key
from progressor.domain.settlement import settle
from progressor.domain.task import TIMER_TYPES, RunningTask, TaskStatus, TaskType
from progressor.storage.settlements import LeaseLost, Written
from tests.support.laws import Past, broken_laws
from tests.support.model import Model, ModelProcess, ModelTask
from tests.support.storage import (
    BROKEN,
    EXPIRES_AFTER,
    LEASE_TIMEOUT,
    NAMESPACE,
    a_request,
    dump,
    empty,
    success,
)
from tests.support.storage_machine import Machinery, machinery
from tests.support.storage_strategies import (
    AFTER,
    ARGS,
    DESKS,
    FAILURES,
    IDS,
    KEYS,
    MOSTLY,
    OUTCOMES,
    PAUSES,
    RARELY,
    REFUSED,
    SUCCESSES,
    WHICH,
)

T = TypeVar("T")


def key_of(process_id: str) -> ProcessKey:
    return process_key(NAMESPACE.name, process_id)


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """A task in the hands of a replica."""

    task: RunningTask
    desk: int


class StorageMachine(RuleBasedStateMachine):
    """Two replicas at work; any of them may fall silent, and speak up again."""

    machinery: Machinery

    def __init__(self) -> None:
        super().__init__()
        self.clock = self.machinery.clock
        self.desks = self.machinery.desks
        self.model = Model()
        self.past = Past()
        self.alive = {0, 1}
        self.beaten = dict.fromkeys((0, 1), self.clock.now())
        self.held: dict[int, Held] = {}
        self.stale: list[Held] = []
        self.asked: dict[int, int] = {}

    @initialize(beginnings=st.lists(st.none() | OUTCOMES | st.sampled_from(TaskType), max_size=3))
    def begin(self, beginnings: list[Outcome | TaskType | None]) -> None:
        """Begin with processes that have taken a step, or were broken by a task of some type."""
        empty(self.machinery.eye)
        self._beat()
        for process_id, beginning in zip("abc", beginnings, strict=False):
            if isinstance(beginning, TaskType):
                self._put(process_id, ProcessStatus.ERROR, broken_by=beginning)
            elif beginning is not None:
                self._request(TaskType.INIT, process_id, 0, run=True, key=None, args=b"")
                self._settle(next(iter(self.held.values())), beginning, continues=False)

    # What clients do.

    @rule(process_id=IDS, desk=DESKS, run=MOSTLY, key=KEYS, args=ARGS)
    def start(self, process_id: str, desk: int, run: bool, key: str | None, args: bytes) -> None:
        self._request(TaskType.INIT, process_id, desk, run=run, key=key, args=args)

    @rule(
        task_type=st.sampled_from([TaskType.CALL, TaskType.CALL, TaskType.NOTIFY, TaskType.REPAIR]),
        process_id=IDS, desk=DESKS, run=MOSTLY, key=KEYS, args=ARGS,
    )  # fmt: skip
    def request(
        self,
        task_type: TaskType,
        process_id: str,
        desk: int,
        run: bool,
        key: str | None,
        args: bytes,
    ) -> None:
        self._request(task_type, process_id, desk, run=run, key=key, args=args)

    @rule(process_id=IDS, desk=DESKS, args=ARGS)
    def call(self, process_id: str, desk: int, args: bytes) -> None:
        self._request(TaskType.CALL, process_id, desk, run=True, key=None, args=args)

    @rule(process_id=IDS, desk=DESKS)
    def simple_repair(self, process_id: str, desk: int) -> None:
        expected = self.model.simple_repair(process_id, self.clock.now())

        repaired = self._do(self.desks[desk].processes.simple_repair(key_of(process_id)))

        assert repaired.verdict is expected
        if repaired.due is not None:
            assert repaired.due.due_at == self.clock.now()

    @rule(
        process_id=IDS,
        status=st.sampled_from(sorted({*ProcessStatus} - {ProcessStatus.INIT})),
        event_count=st.integers(0, 2),
        after=st.none() | AFTER,
        broken_by=st.sampled_from([None, TaskType.CALL, TaskType.TIMEOUT]),
    )  # fmt: skip
    def put(
        self,
        process_id: str,
        status: ProcessStatus,
        event_count: int,
        after: dt.timedelta | None,
        broken_by: TaskType | None,
    ) -> None:
        self._put(process_id, status, event_count=event_count, after=after, broken_by=broken_by)

    def _put(
        self,
        process_id: str,
        status: ProcessStatus,
        *,
        event_count: int = 0,
        after: dt.timedelta | None = None,
        broken_by: TaskType | None = None,
    ) -> None:
        is_broken, is_running = status is ProcessStatus.ERROR, status is ProcessStatus.RUNNING
        put = self._do(
            self.desks[0].processes.put(
                Import(
                    key=key_of(process_id),
                    status=status,
                    detail="imported" if is_broken else None,
                    corrupted_by_type=broken_by if is_broken else None,
                    history=(NewEvent(payload=b"old"),) * event_count,
                    timer=SetTimer(after=after) if is_running and after is not None else None,
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
            process.timer = process.add(
                ModelTask(task_id=None, task_type=TaskType.TIMEOUT, due_at=self.clock.now() + after)
            )

    @rule(process_id=IDS, really=RARELY)
    def remove(self, process_id: str, really: bool) -> None:
        if not really:
            return
        process = self.model.processes.pop(process_id, None)
        unended = [] if process is None else [*process.waiting()]
        if process is not None and process.running is not None:
            unended.append(process.running)
            self._lose(process.running)

        try:
            cancelled = self._do(self.desks[0].processes.remove(key_of(process_id)))
        except errors.ProcessNotFoundError:
            assert process is None
        else:
            assert {each.task_id for each in cancelled} == {task.task_id for task in unended}

    # What processors and workers do.

    @rule(which=WHICH, outcome=SUCCESSES)
    def succeed(self, which: int, outcome: Outcome) -> None:
        self._answer(self._a_held_task(which), outcome, continues=True)

    @rule(which=WHICH, outcome=OUTCOMES, continues=st.booleans())
    def answer(self, which: int, outcome: Outcome, continues: bool) -> None:
        self._answer(self._a_held_task(which), outcome, continues=continues)

    @rule(which=WHICH, outcome=FAILURES, continues=st.booleans())
    def fail(self, which: int, outcome: Outcome, continues: bool) -> None:
        self._answer(self._a_held_task(which), outcome, continues=continues)

    def _answer(self, held: Held | None, outcome: Outcome, *, continues: bool) -> None:
        if held is None:
            return
        if held.task.task_type is TaskType.REMOVE:
            outcome = success(RemoveProcess())
        if outcome is REFUSED and held.task.task_type in TIMER_TYPES:
            outcome = BROKEN
        self._settle(held, outcome, continues=continues)

    @rule(which=WHICH)
    def release(self, which: int) -> None:
        held = self._a_held_task(which)
        if held is not None:
            self._settle(held, Released(), continues=False)

    @rule(which=WHICH, outcome=OUTCOMES)
    def settle_too_late(self, which: int, outcome: Outcome) -> None:
        if not self.stale:
            return
        late = self.stale[which % len(self.stale)]
        before = dump(self.machinery.eye)

        settled = self._do(self.desks[late.desk].settle(late.task, outcome))

        assert settled == LeaseLost()
        assert dump(self.machinery.eye) == before

    @rule(wait=st.booleans(), limit=st.sampled_from([1, 100, 100]))
    def claim(self, wait: bool, limit: int) -> None:
        self._claim(wait=wait, limit=limit)

    # What time and faults do.

    @rule(pause=PAUSES)
    def let_time_pass(self, pause: dt.timedelta) -> None:
        self.clock.advance(pause)
        self._beat()

    @rule(desk=DESKS)
    def fall_silent(self, desk: int) -> None:
        self.alive.discard(desk)

    @rule(desk=DESKS)
    def speak_up(self, desk: int) -> None:
        self.alive.add(desk)
        self._beat()

    @rule(desk=DESKS)
    def collect(self, desk: int) -> None:
        self._collect(desk)

    # What must hold after each of them.

    @invariant()
    def tables_are_as_the_model_says(self) -> None:
        self._adopt()
        assert self.machinery.processes() == self.model.process_rows()
        assert self.machinery.tasks() == self.model.task_rows()

    @invariant()
    def laws_hold(self) -> None:
        assert broken_laws(self.machinery.eye) == {}
        assert self.past.look(self.machinery.eye) == []

    def teardown(self) -> None:
        """Once faults stop, whatever is due is done, and nothing but timers is left."""
        self.alive = {0, 1}
        for _ in range(12):
            self.clock.advance(EXPIRES_AFTER + LEASE_TIMEOUT)
            self._beat()
            self._collect(0)
            self._claim(wait=True, limit=100)
            while self.held:
                held = next(iter(self.held.values()))
                removes = held.task.task_type is TaskType.REMOVE
                self._settle(held, success(RemoveProcess() if removes else None), continues=True)
        self.tables_are_as_the_model_says()
        self.laws_hold()
        left = self.machinery.eye.execute(
            "SELECT process_id, task_id FROM progressor.schedule WHERE due_at IS NULL"
            " OR due_at <= %s UNION ALL SELECT process_id, task_id FROM progressor.running",
            [self.clock.now()],
        ).fetchall()
        assert left == []

    # How it is done.

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.machinery.run(work)

    def _beat(self) -> None:
        for number in self.alive:
            self._do(self.desks[number].beat())
            self.beaten[number] = self.clock.now()

    def _request(
        self,
        task_type: TaskType,
        process_id: str,
        desk: int,
        *,
        run: bool,
        key: str | None,
        args: bytes,
    ) -> None:
        verdict, joined = self.model.admit(process_id, task_type, args, key)

        admission = self._do(
            self.desks[desk].admit(
                a_request(key_of(process_id), task_type, args=args, idempotency_key=key), run=run
            )
        )

        assert admission.verdict is verdict
        if joined is not None:
            assert admission.task_id == joined.task_id
            ended = admission.ended
            assert (ended is not None) == (joined.status not in {"waiting", "running", "blocked"})
            assert ended is None or ended.response == (joined.response or b"")
        if verdict is not Verdict.ACCEPTED:
            return
        task = ModelTask(
            task_id=admission.task_id, task_type=task_type, idempotency_key=key, args=args
        )
        is_free = self.model.accept(process_id, task, run=run, now=self.clock.now())
        assert (admission.running is not None) == (is_free and run)
        assert admission.due_now == (is_free and not run)
        if admission.running is not None:
            self._hold(admission.running, desk)

    def _settle(self, held: Held, outcome: Outcome, *, continues: bool) -> None:
        task, now = held.task, self.clock.now()
        self.held.pop(task.token)
        self.stale.append(held)
        settlement = settle(task, outcome, namespace=NAMESPACE, now=now, spread=0.0)
        following = self.model.settle(task.key.process_id, settlement, continues=continues, now=now)

        written = self._do(self.desks[held.desk].settle(task, outcome, continues=continues))

        assert isinstance(written, Written)
        assert (written.next is None) == (following is None)
        if written.next is not None and following is not None:
            following.task_id = following.task_id or written.next.task_id
            assert written.next.task_id == following.task_id
            assert written.next.attempt == following.attempt
            self._hold(written.next, held.desk)
        if written.process is not None:
            assert written.process == self._process(task.key)

    def _claim(self, *, wait: bool, limit: int) -> None:
        self._adopt()
        due = self.model.due(self.clock.now())

        async def both() -> list[tuple[int, RunningTask]]:
            async with asyncio.TaskGroup() as group:
                claims = [
                    group.create_task(desk.claim_due(wait=wait, limit=limit)) for desk in self.desks
                ]
            return [
                (number, claimed.task)
                for number, claim in enumerate(claims)
                for claimed in claim.result()
            ]

        claimed = self._do(both())

        ids = [task.task_id for _, task in claimed]
        assert len(ids) == len(set(ids))
        assert set(ids) <= due.keys()
        if wait and limit >= len(due):
            assert set(ids) == due.keys()
        for number, task in claimed:
            expected = self.model.claim(due[task.task_id], task.task_id)
            assert (task.task_type, task.attempt) == (expected.task_type, expected.attempt)
            self._hold(task, number)

    def _collect(self, desk: int) -> None:
        now = self.clock.now()
        silent = {number for number in (0, 1) if self.beaten[number] < now - LEASE_TIMEOUT}
        expected = {
            token
            for token, held in self.held.items()
            if held.desk in silent or held.task.started_at < now - EXPIRES_AFTER
        }

        zombies = self._do(self.desks[desk].find_zombies())

        assert {zombie.token for zombie in zombies} == expected
        for zombie in zombies:
            self.stale.append(self.held.pop(zombie.token))
            settlement = settle(zombie, Lost(), namespace=NAMESPACE, now=now, spread=0.0)
            self.model.settle(zombie.key.process_id, settlement, continues=False, now=now)
            assert isinstance(self._do(self.desks[desk].collect(zombie, Lost())), Written)

    def _a_held_task(self, which: int) -> Held | None:
        """Return a task in some replica's hands; None if there is nothing to do at all."""
        if not self.held:
            self._claim(wait=True, limit=100)
        tokens = sorted(self.held)
        return self.held[tokens[which % len(tokens)]] if tokens else None

    def _hold(self, task: RunningTask, desk: int) -> None:
        keys = {held.task.key for held in self.held.values()}
        assert task.key not in keys, "the processor is asked twice at the same time"
        assert task.process == self._process(task.key)
        self.held[task.token] = Held(task, desk)

    def _process(self, key: ProcessKey) -> Process:
        stored = self._do(self.desks[0].processes.get(key)).process
        return dataclasses.replace(stored, result=None)

    def _lose(self, running: ModelTask) -> None:
        for token, held in tuple(self.held.items()):
            if held.task.task_id == running.task_id:
                self.stale.append(self.held.pop(token))

    def _adopt(self) -> None:
        """Learn the ids that storage did not tell: of timers, and of what an import brought."""
        for process_id, process in self.model.processes.items():
            unknown = [task for task in process.tasks if task.task_id is None]
            if not unknown:
                continue
            known = [task.task_id for task in process.tasks if task.task_id is not None]
            found = self.machinery.eye.execute(
                "SELECT task_id FROM progressor.tasks WHERE process_id = %s"
                " AND task_id <> ALL (%s) ORDER BY task_id",
                [process_id, known],
            ).fetchall()
            assert len(found) == len(unknown)
            for task, row in zip(unknown, found, strict=True):
                task.task_id = row[0]


def test_storage_does_what_its_model_does(own_database: str) -> None:
    chosen = settings()
    with machinery(own_database) as opened:

        class Machine(StorageMachine):
            machinery = opened

        run_state_machine_as_test(
            Machine,
            settings=settings(chosen, max_examples=2 * chosen.max_examples, stateful_step_count=50),
        )
