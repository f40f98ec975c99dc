"""Storage, a processor and a database connection that answer from memory, as told by a test.

Each stands for one collaborator of the runtime or of group commit, keeps what it was asked, and can
be away. They answer no more than their scripts say.
"""

import asyncio
import collections
import contextlib
import datetime as dt
import itertools
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any, cast

import psycopg

from progressor import errors
from progressor.domain.processes.admission import Admission
from progressor.domain.processes.event import Direction, Event, HistoryRange
from progressor.domain.processes.intent import Outcome
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.reply import ProcessEnd
from progressor.domain.processes.task import TIMER_TYPES, RunningTask, TaskResult
from progressor.domain.views.process import HistoryPage
from progressor.storage.namespaces.pauses import Pauses
from progressor.storage.postgres.pools import Connection, Pool
from progressor.storage.postgres.rows.effects import NO_EFFECTS, Effects
from progressor.storage.processes import admissions
from progressor.storage.processes.results import Word
from progressor.storage.replicas.replicas import Zombie
from progressor.storage.steps import settlements as storage_settlements
from progressor.storage.steps.claims import Claimed, Room, Wanted
from progressor.storage.steps.settlements import Due, Entry
from tests.support.builders import make_namespace, make_success, make_written
from tests.support.clock import START
from tests.support.runtime.virtual_time import LoopClock

AWAY = "it is away, says the test"


def away() -> errors.StorageUnavailableError:
    return errors.StorageUnavailableError(AWAY)


class Outage:
    """How often the next questions find PostgreSQL away."""

    def __init__(self) -> None:
        self.remaining = 0

    def strike(self) -> None:
        if self.remaining:
            self.remaining -= 1
            raise away()


class MemoryNamespaces:
    """Namespaces; those not given do not exist."""

    def __init__(self, *namespaces: Namespace) -> None:
        self.by_name = {each.name: each for each in namespaces or (make_namespace(),)}
        self.pauses = Pauses()
        self.outage = Outage()
        self.refresh_count = 0

    async def lookup(self, name: str) -> Namespace:
        self.outage.strike()
        if name not in self.by_name:
            raise errors.NamespaceNotFoundError(name)
        return self.by_name[name]

    def known(self) -> tuple[Namespace, ...]:
        return tuple(self.by_name.values())

    def find(self, name: str) -> Namespace | None:
        return self.by_name.get(name)

    async def refresh(self) -> None:
        self.outage.strike()
        self.refresh_count += 1


class MemorySettlements:
    """Answers settlements from a script, then: written, and nothing follows."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.script: collections.deque[storage_settlements.Outcome | Exception] = (
            collections.deque()
        )
        self.held: list[asyncio.Future[storage_settlements.Outcome]] | None = None
        """A list holds answers back."""
        self.writing: set[ProcessKey] = set()

    def is_waiting(self, key: ProcessKey) -> bool:
        return key in self.writing

    def submit(self, entry: Entry) -> asyncio.Future[storage_settlements.Outcome]:
        self.entries.append(entry)
        future = asyncio.get_running_loop().create_future()
        if self.held is not None:
            self.held.append(future)
            return future
        answer = self.script.popleft() if self.script else make_written(process=entry.process)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future


class MemoryProcessor:
    """Answers from a script, then with success; a None in it hangs until cut off."""

    def __init__(self) -> None:
        self.script: collections.deque[Outcome | None] = collections.deque()
        self.asked: list[tuple[RunningTask, tuple[Event, ...], dt.timedelta]] = []
        self.hanging = asyncio.Event()

    async def ask(
        self,
        task: RunningTask,
        history: tuple[Event, ...],
        *,
        namespace: Namespace,
        timeout: dt.timedelta,
    ) -> Outcome:
        assert namespace.name == task.key.namespace
        self.asked.append((task, history, timeout))
        answer = self.script.popleft() if self.script else make_success()
        if answer is None:
            self.hanging.set()
            await asyncio.get_running_loop().create_future()
        assert answer is not None
        return answer


class MemoryHistories:
    """The history of one process, read as storage does."""

    def __init__(self, events: Sequence[Event] = ()) -> None:
        self.events = tuple(events)
        self.reads: list[HistoryRange] = []
        self.outage = Outage()
        self.cut = False
        """Whether a read tells that there is more than fits."""
        self.refuses = False
        """Whether PostgreSQL cannot read what it has."""
        self.kept_memos: dict[str, bytes] | None = None
        """None once the lease is lost."""

    async def memos(self, key: ProcessKey, task_id: int, token: int) -> dict[str, bytes] | None:
        assert key.process_id
        assert task_id
        assert token
        return self.kept_memos

    async def read(
        self, key: ProcessKey, wanted: HistoryRange, *, last_event_id: int, bytes_max: int
    ) -> HistoryPage:
        assert bytes_max > 0
        assert key.process_id
        self.outage.strike()
        if self.refuses:
            raise errors.StorageRefusedError("a page is broken")
        self.reads.append(wanted)
        events = expected_history(self.events[:last_event_id], wanted)
        if self.cut:
            return HistoryPage(events=events[:1], next_after=1)
        return HistoryPage(events=events, next_after=None)


def expected_history(events: Sequence[Event], wanted: HistoryRange) -> tuple[Event, ...]:
    """Return the piece of a whole history that a range means, the plain way."""
    if wanted.direction is Direction.FORWARD:
        found = [event for event in events if event.event_id > wanted.after]
    else:
        before = wanted.after or len(events) + 1
        found = [event for event in reversed(events) if event.event_id < before]
    return tuple(found[: wanted.limit])


class MemoryAdmissions:
    """Keeps what is submitted until a test answers it."""

    def __init__(self) -> None:
        self.pending: collections.deque[
            tuple[admissions.Entry, asyncio.Future[admissions.Admitted]]
        ] = collections.deque()
        self.entries: list[admissions.Entry] = []
        self.writing: set[ProcessKey] = set()
        self.refuses: errors.ProgressorError | None = None

    def submit(self, entry: admissions.Entry) -> asyncio.Future[admissions.Admitted]:
        if self.refuses is not None:
            raise self.refuses
        future: asyncio.Future[admissions.Admitted] = asyncio.get_running_loop().create_future()
        self.entries.append(entry)
        self.pending.append((entry, future))
        return future

    def is_waiting(self, key: ProcessKey) -> bool:
        return key in self.writing

    def answer(self, admission: Admission | Exception, effects: Effects = NO_EFFECTS) -> None:
        _, future = self.pending.popleft()
        if isinstance(admission, Exception):
            future.set_exception(admission)
        else:
            future.set_result((admission, effects))


class MemoryResults:
    """How tasks ended, and what was told to other replicas."""

    def __init__(self) -> None:
        self.ended: dict[int, TaskResult] = {}
        self.fetches: list[tuple[int, ...]] = []
        self.notified: list[Mapping[int, list[int]]] = []
        self.awaited: TaskResult | int = 7
        self.ends: dict[ProcessKey, ProcessEnd | None] = {}
        self.revoked: list[Mapping[int, list[int]]] = []
        self.outage = Outage()

    async def fetch(self, tasks: Mapping[int, ProcessKey]) -> list[TaskResult]:
        self.fetches.append(tuple(tasks))
        self.outage.strike()
        return [self.ended[task_id] for task_id in tasks if task_id in self.ended]

    async def notify(self, ended: Mapping[int, list[int]]) -> None:
        self.outage.strike()
        self.notified.append(ended)

    async def revoke(self, tokens: Mapping[int, list[int]]) -> None:
        self.outage.strike()
        self.revoked.append(tokens)

    async def read_ends(self, keys: Sequence[ProcessKey]) -> list[ProcessEnd | None]:
        self.outage.strike()
        return [self.ends[key] for key in keys]

    async def await_task(self, _key: ProcessKey, _task: int | str) -> TaskResult | int:
        self.outage.strike()
        return self.awaited


class MemoryListener:
    """Notifications, as a connection would hear them."""

    def __init__(self) -> None:
        self.connections = 0
        self._heard: asyncio.Queue[Word | BaseException] = asyncio.Queue()

    def hear(self, word: Word) -> None:
        self._heard.put_nowait(word)

    def notify(self, *task_ids: int) -> None:
        self.hear(Word(task_ids=task_ids))

    def call(self) -> None:
        self._heard.put_nowait(Word(work_is_due=True))

    def cut(self) -> None:
        self._heard.put_nowait(away())

    def hang_up(self) -> None:
        self._heard.put_nowait(StopAsyncIteration())

    async def listen(self) -> AsyncIterator[Word]:
        """Yield an empty word, and then what is heard."""
        self.connections += 1
        yield Word()
        while isinstance(word := await self._heard.get(), Word):
            yield word
        if not isinstance(word, StopAsyncIteration):
            raise word


class MemoryClaims:
    """Due tasks by their ids; a claim takes the lowest, and the lowest of a request, by turns."""

    def __init__(self) -> None:
        self.due: dict[int, Claimed] = {}
        self.begun_count = 0
        self.answered_count = 0
        self.upcoming: list[Due] = []
        """In the order of their times."""
        self.asked: list[str] = []
        self.rooms: list[tuple[Room, ...]] = []
        self.outage = Outage()
        self.hangs = False
        self.hangs_at = ""
        self.fails_at = "-"
        self.hanging = asyncio.Event()
        self.meanwhile: Callable[[], None] = lambda: None
        """Called while a claim is on its way."""
        self.seconds = 0.0
        """How long a claim of tasks by their ids takes."""
        self.aheads: list[float] = []
        """How early each of them was to lease tasks."""
        self.misses = 0
        """So many next claims choose tasks that another replica takes first."""

    def add(self, *claimed: Claimed) -> None:
        self.due.update({each.task.task_id: each for each in claimed})

    async def claim_tasks(
        self, _pool: Pool, wanted: Sequence[Wanted], *, ahead: float
    ) -> list[Claimed]:
        self.aheads.append(ahead)
        await self._travel("claim_tasks")
        await asyncio.sleep(self.seconds)
        return [self.due.pop(each.task_id) for each in wanted if each.task_id in self.due]

    async def claim_due(
        self, _pool: Pool, rooms: Sequence[Room], *, overdue: dt.timedelta, wait: bool
    ) -> list[Claimed]:
        self.rooms.append(tuple(rooms))
        await self._travel(f"claim_due overdue={overdue.total_seconds():g} wait={wait}")
        taken: list[Claimed] = []
        if self.misses:
            self.misses -= 1
            return taken
        for room in rooms:
            here = [
                each.task
                for _, each in sorted(self.due.items())
                if each.task.key.namespace == room.namespace
            ]
            requests = [task for task in here if task.task_type not in TIMER_TYPES]
            lines = (requests, here) if room.requests_first else (here, requests)
            by_turns = [
                task.task_id
                for turn in itertools.zip_longest(*lines)
                for task in turn
                if task is not None
            ]
            first = list(dict.fromkeys(by_turns))[: room.limit]
            taken.extend(self.due.pop(task_id) for task_id in first)
        return taken

    async def find_overdue(
        self, _pool: Pool, namespaces: Sequence[str], *, overdue: dt.timedelta
    ) -> Collection[str]:
        assert overdue >= dt.timedelta()
        await self._travel("find_overdue")
        found = {each.task.key.namespace for each in self.due.values()}
        return found.intersection(namespaces)

    async def find_upcoming(
        self,
        _pool: Pool,
        rooms: Sequence[Room],
        *,
        horizon: dt.timedelta,
        lease_timeout: dt.timedelta,
    ) -> tuple[list[Due], dt.datetime | None]:
        assert horizon > lease_timeout * 0
        self.rooms.append(tuple(rooms))
        await self._travel("find_upcoming")
        found: list[Due] = []
        for room in rooms:
            here = [
                due
                for due in self.upcoming
                if due.key.namespace == room.namespace
                and (room.after is None or (due.due_at, due.task_id) > room.after)
            ]
            found.extend(here[: room.limit])
        return found, START if found else None

    async def _travel(self, name: str) -> None:
        self.asked.append(name)
        self.outage.strike()
        if name.startswith(self.fails_at):
            raise away()
        self.meanwhile()
        if self.hangs and name.startswith(self.hangs_at):
            self.hanging.set()
            await asyncio.get_running_loop().create_future()


class MemoryReplicas:
    """Lost leases, as told, and a clock that may jump."""

    def __init__(self) -> None:
        self.zombies: tuple[Zombie, ...] = ()
        self.dead_deleted: list[dt.timedelta] = []
        self.ahead = dt.timedelta()
        self.jumps: list[tuple[dt.datetime | None, dt.timedelta]] = []

    async def find_zombies(
        self, *, jumped_at: dt.datetime | None, jump: dt.timedelta, **_: Any
    ) -> tuple[Zombie, ...]:
        self.jumps.append((jumped_at, jump))
        return self.zombies

    async def read_clock(self) -> dt.datetime:
        return LoopClock().now() + self.ahead

    async def delete_dead(self, *, retention: dt.timedelta) -> int:
        self.dead_deleted.append(retention)
        return 0


class MemoryPool:
    """A pool that lends the same connection to everybody, or is away."""

    def __init__(self) -> None:
        self.outages = 0
        self.outage: type[psycopg.Error] = psycopg.OperationalError
        self.lent = 0

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        if self.outages:
            self.outages -= 1
            raise self.outage(AWAY)
        self.lent += 1
        yield cast("Connection", object())
