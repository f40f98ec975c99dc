"""What a replica leaves behind that is killed in the middle of its work.

Each process has had a life of its own, drawn at random, up to the kill: it may be new, at work,
broken or at its end; a task may be under the lease of the dead replica, wait for a worker that
never came, stand in line, wait for its retry or be a timer, blocked or not.
"""

import asyncio
import dataclasses
import datetime as dt
from collections.abc import Sequence

from hypothesis import strategies as st

from progressor.clock import SystemClock
from progressor.domain.processes.admission import Import
from progressor.domain.processes.intent import (
    Complete,
    KeepTimer,
    Outcome,
    Released,
    RemoveProcess,
    SetTimer,
    UnsetTimer,
)
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.policy import RetryPolicy
from progressor.domain.processes.process import ProcessKey, ProcessStatus, process_key
from progressor.domain.processes.task import TIMER_TYPES, RunningTask, TaskType
from progressor.storage.processes.settlements import Due, Written
from tests.support.models.strategies import MOSTLY, RARELY, REFUSED
from tests.support.storage.store import (
    BROKEN,
    UNREACHABLE,
    Store,
    a_request,
    running_stores,
    success,
)

BACKOFF = dt.timedelta(seconds=0.3)
POLICY = RetryPolicy(initial_interval=BACKOFF, coefficient=1.0, jitter=0.0, attempts_max=3)

_NOW, _SOON, _LATER = dt.timedelta(), dt.timedelta(seconds=0.4), dt.timedelta(hours=1)


@dataclasses.dataclass(frozen=True, slots=True)
class Ask:
    """A request comes, with a worker free or not."""

    task_type: TaskType
    has_worker: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Bring:
    """An import comes."""

    status: ProcessStatus
    after: dt.timedelta | None
    broken_by: TaskType | None


@dataclasses.dataclass(frozen=True, slots=True)
class Settle:
    """What is leased is settled, and the worker goes on with what follows or does not."""

    outcome: Outcome
    continues: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """What is known to be due is claimed."""


@dataclasses.dataclass(frozen=True, slots=True)
class SimpleRepair:
    """The process is brought back without asking the processor."""


Event = Ask | Bring | Settle | Claim | SimpleRepair

_AFTER = st.sampled_from([_NOW, _SOON, _LATER])
_ACTIONS = st.one_of(
    st.just(KeepTimer()),
    st.builds(SetTimer, after=_AFTER, remove=RARELY),
    st.builds(SetTimer, after=_AFTER, remove=RARELY),
    st.sampled_from([UnsetTimer(), Complete(b"end"), RemoveProcess()]),
)
_OUTCOMES = st.one_of(
    st.builds(success, _ACTIONS),
    st.builds(success, _ACTIONS),
    st.sampled_from([UNREACHABLE, UNREACHABLE, BROKEN, REFUSED, Released()]),
)
_REQUESTS = st.sampled_from([TaskType.CALL, TaskType.CALL, TaskType.NOTIFY, TaskType.REPAIR])
_BIRTHS = st.one_of(
    st.builds(Ask, st.just(TaskType.INIT), MOSTLY),
    st.builds(Ask, st.just(TaskType.INIT), MOSTLY),
    st.builds(
        Bring,
        st.sampled_from(sorted({*ProcessStatus} - {ProcessStatus.INIT})),
        st.none() | _AFTER,
        st.sampled_from([None, TaskType.CALL, TaskType.TIMEOUT]),
    ),
)
_EVENTS = st.one_of(
    st.builds(Settle, _OUTCOMES, st.booleans()),
    st.builds(Settle, _OUTCOMES, st.booleans()),
    st.builds(Ask, _REQUESTS, MOSTLY),
    st.builds(Ask, _REQUESTS, MOSTLY),
    st.just(Claim()),
    st.just(SimpleRepair()),
)

Lives = Sequence[Sequence[Event]]

LIVES: st.SearchStrategy[Lives] = st.lists(
    st.builds(lambda birth, events: [birth, *events], _BIRTHS, st.lists(_EVENTS, max_size=9)),
    min_size=1,
    max_size=16,
)


async def leave_behind(conninfo: str, namespace: Namespace, lives: Lives) -> None:
    """Let a replica carry out these lives at once, beat a last time, and be no more.

    Its processes are p0, p1, … in the order of the lives.
    """
    async with running_stores(conninfo, clock=SystemClock(), namespace=namespace) as (store,):
        # No replica that comes later may take the dead one's id for its own.
        await store.replicas.draw_id()
        async with asyncio.TaskGroup() as group:
            for number, events in enumerate(lives):
                life = _Life(store, process_key(namespace.name, f"p{number}"))
                group.create_task(life.live(events), name=f"life {number}")
        await store.beat()


class _Life:
    """One process in the hands of the replica."""

    def __init__(self, store: Store, key: ProcessKey) -> None:
        self._store = store
        self._key = key
        self._leased: RunningTask | None = None
        self._due_id: int | None = None

    async def live(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case Ask():
                    await self._ask(event)
                case Bring():
                    await self._bring(event)
                case Settle():
                    await self._settle(event)
                case Claim():
                    await self._claim()
                case SimpleRepair():
                    repaired = await self._store.processes.simple_repair(self._key)
                    self._note(repaired.due)

    async def _ask(self, ask: Ask) -> None:
        admission = await self._store.admit(a_request(self._key, ask.task_type), run=ask.has_worker)
        self._leased = admission.running or self._leased
        if admission.due_now:
            self._due_id = admission.task_id

    async def _bring(self, bring: Bring) -> None:
        is_running = bring.status is ProcessStatus.RUNNING
        is_broken = bring.status is ProcessStatus.ERROR
        timed = is_running and bring.after is not None
        put = await self._store.processes.put(
            Import(
                key=self._key,
                status=bring.status,
                detail="imported" if is_broken else None,
                corrupted_by_type=bring.broken_by if is_broken else None,
                timer=SetTimer(after=bring.after) if timed else None,
            )
        )
        self._note(put.due)

    async def _settle(self, settle: Settle) -> None:
        task, outcome = self._leased, settle.outcome
        if task is None:
            return
        if task.task_type is TaskType.REMOVE:
            outcome = success(RemoveProcess())
        elif outcome is REFUSED and task.task_type in TIMER_TYPES:
            outcome = BROKEN
        continues = settle.continues and not isinstance(outcome, Released)
        written = await self._store.settle(task, outcome, continues=continues)
        assert isinstance(written, Written), "no other replica has had the lease"
        self._leased = written.next
        self._note(written.due)

    async def _claim(self) -> None:
        if self._leased is None and self._due_id is not None:
            for claimed in await self._store.claim(self._key, self._due_id):
                self._leased = claimed.task

    def _note(self, due: Due | None) -> None:
        if due is not None:
            self._due_id = due.task_id
