"""Storage as one or two replicas use it, on a real PostgreSQL, under a clock that tests move."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import itertools
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, cast

import psycopg
from psycopg import sql

from progressor.domain.processes.admission import Admission, Import, Request, Verdict
from progressor.domain.processes.event import NewEvent
from progressor.domain.processes.intent import Failed, Intent, Outcome, SetTimer, Succeeded
from progressor.domain.processes.memo import Remember
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.policy import RetryPolicy
from progressor.domain.processes.process import ProcessKey, ProcessStatus, process_key
from progressor.domain.processes.settlement import settle
from progressor.domain.processes.task import RunningTask, TaskError, TaskStatus, TaskType
from progressor.settings.sections import Commit, Database
from progressor.storage.commit.group_commit import BatchObserver, CommitContext, ignore_batch
from progressor.storage.gates.gates import Evicted, Gates
from progressor.storage.namespaces.namespaces import Namespaces, _config
from progressor.storage.postgres.context import STARVATION_TIMEOUT, StorageContext
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.pools import Connection, Pool, open_pools
from progressor.storage.postgres.rows import arrays
from progressor.storage.postgres.rows.effects import Cancelled, Effects, LoweredGate
from progressor.storage.processes import admissions
from progressor.storage.processes.admissions import Admissions
from progressor.storage.processes.processes import Processes, Put
from progressor.storage.processes.results import Results
from progressor.storage.replicas.lineage import Lineage
from progressor.storage.replicas.queues import Queues
from progressor.storage.replicas.replicas import Replicas, Zombie
from progressor.storage.replicas.retention import Retention
from progressor.storage.replicas.status import Watch
from progressor.storage.steps import claims
from progressor.storage.steps.claims import Claimed, Claims, Room
from progressor.storage.steps.settlements import Due, Settlements, Written
from progressor.storage.steps.settlements import Entry as Settled
from progressor.storage.steps.settlements import Outcome as SettlementOutcome
from progressor.storage.steps.step_writes import StepWrites, Stored
from progressor.storage.steps.turns import Turn, TurnOutcome, Turns, process_after
from tests.support.builders import Decision, decisions
from tests.support.clock import ManualClock

NAMESPACE = Namespace(
    name="orders",
    processor_targets=("127.0.0.1:1",),
    retry_policy=RetryPolicy(
        initial_interval=dt.timedelta(seconds=1), coefficient=1.0, jitter=0.0, attempts_max=3
    ),
)
EXPIRES_AFTER = dt.timedelta(seconds=30)
GRACE = dt.timedelta(seconds=5)
LEASE_TIMEOUT = dt.timedelta(seconds=5)
COLLECTING = dt.timedelta(seconds=1)
STATEMENT_TIMEOUT = dt.timedelta(seconds=10)
NO_TIME = dt.timedelta()

BROKEN = Failed(code=13, reason="BUG", message="it broke", retryable=False)
UNREACHABLE = Failed(code=14, reason="UNAVAILABLE", message="connection refused", retryable=True)

TABLES = (
    "namespaces", "replicas", "processes", "tasks", "schedule", "running", "events", "replies",
    "gated", "gates", "gate_holders", "gate_queues", "orders", "jobs", "job_nodes", "schedules",
    "schedule_runs", "held", "memos",
    "messages", "refused_messages", "reply_requests",
    "orphans", "failures", "new_failures",
    "bulk_operations", "bulk_items",
)  # fmt: skip

Dump = Mapping[str, Sequence[tuple[Any, ...]]]

_numbers = itertools.count(1)


def fresh_key(namespace: str = NAMESPACE.name) -> ProcessKey:
    return process_key(namespace, f"p{next(_numbers)}")


def key_of(process_id: str) -> ProcessKey:
    return process_key(NAMESPACE.name, process_id)


def a_request(key: ProcessKey, task_type: TaskType = TaskType.CALL, **fields: Any) -> Request:
    return Request(key=key, task_type=task_type, **fields)


def success(
    *decided: Decision, events: int = 0, response: bytes = b"done", **fields: Any
) -> Succeeded:
    """Return an answer with an action, a timer or both, and a number of events."""
    return Succeeded(
        Intent(
            events=tuple(NewEvent(payload=b"event") for _ in range(events)),
            response=response,
            **decisions(*decided),
            **fields,
        )
    )


class LentConnection:
    """A pool of one connection that the caller opened, possibly within a transaction."""

    def __init__(self, connection: Connection) -> None:
        self.lent = connection

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        yield self.lent


def lent(connection: Connection) -> Pool:
    return cast("Pool", LentConnection(connection))


async def connect(conninfo: str) -> Connection:
    connection = await psycopg.AsyncConnection.connect(
        conninfo, autocommit=True, prepare_threshold=None
    )
    arrays.register(connection)
    return connection


class RecordedEffects:
    """Takes effects where the engine has its dispatcher, and keeps them."""

    def __init__(self) -> None:
        self.reported: list[Effects] = []

    def apply(self, effects: Effects) -> None:
        if effects != Effects():
            self.reported.append(effects)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """What became of a recovery; ``due``: the task that runs again, if it is due now."""

    verdict: Verdict
    task_id: int | None
    due: Due | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """One replica's storage: what it admits, claims and settles bears its id."""

    replica_id: int
    namespace: Namespace
    clock: ManualClock
    pool: Pool
    context: StorageContext
    admissions: Admissions
    settlements: Settlements
    turns: Turns
    claims: Claims
    processes: Processes
    namespaces: Namespaces
    results: Results
    replicas: Replicas
    retention: Retention
    gates: Gates
    step_writes: StepWrites
    effects: RecordedEffects

    @property
    def queues(self) -> Queues:
        return Queues(self.context)

    @property
    def reported(self) -> list[Effects]:
        return self.effects.reported

    async def admit(self, request: Request, *, run: bool = True) -> Admission:
        """Admit a request, with a worker reserved or not."""
        entry = admissions.Entry(request, run, EXPIRES_AFTER)
        admission, effects = await self.admissions.submit(entry)
        self.effects.apply(effects)
        return admission

    async def run_task(self, request: Request) -> RunningTask:
        """Admit a request that is accepted and runs at once."""
        admission = await self.admit(request)
        assert admission.running is not None, f"it does not run: {admission}"
        return admission.running

    async def start(self, key: ProcessKey, **fields: Any) -> RunningTask:
        return await self.run_task(a_request(key, TaskType.INIT, **fields))

    async def started(self, key: ProcessKey, answer: Outcome | None = None) -> Written:
        return await self.settled(await self.start(key), answer)

    async def ready(self, answer: Outcome | None = None) -> ProcessKey:
        key = fresh_key()
        await self.started(key, answer)
        return key

    async def next_of(
        self, task: RunningTask, outcome: Outcome | None = None, *, continues: bool = True
    ) -> RunningTask:
        """Settle a task, and return the one with which its worker goes on."""
        following = (await self.settled(task, outcome, continues=continues)).next
        assert following is not None, "the worker has nothing to go on with"
        return following

    async def error_of(self, key: ProcessKey, task_id: int | None) -> TaskError:
        assert task_id is not None, "there is no task"
        result = await self.results.await_task(key, task_id)
        assert not isinstance(result, int), "it has not ended"
        assert result.error is not None, f"it ended well: {result}"
        return result.error

    async def broken(self, key: ProcessKey) -> int:
        await self.started(key)
        call = await self.run_task(a_request(key))
        await self.settled(call, BROKEN)
        return call.task_id

    async def timed(
        self, after: dt.timedelta = dt.timedelta(hours=1), **fields: Any
    ) -> tuple[ProcessKey, int]:
        init = await self.start(fresh_key())
        timer = success(SetTimer(after=after, **fields))
        written = await self.settled(init, timer, continues=False)
        assert written.due is not None, "a timer is due at some time"
        return init.key, written.due.task_id

    async def task_status(self, key: ProcessKey, task_id: int) -> TaskStatus:
        [traced] = await self.processes.trace(key, after=task_id - 1, limit=1)
        return traced.status

    def entry(
        self, task: RunningTask, outcome: Outcome | None = None, *, continues: bool = True
    ) -> Settled:
        """Return the settlement of a task for an outcome; None: success."""
        return Settled(
            key=task.key,
            task_id=task.task_id,
            task_type=task.task_type,
            attempt=task.attempt,
            token=task.token,
            settlement=settle(
                task,
                success() if outcome is None else outcome,
                namespace=self.namespace,
                now=self.clock.now(),
                spread=0.0,
            ),
            process=task.process,
            continues=continues,
            expires_after=EXPIRES_AFTER,
            trace_context=task.trace_context,
            is_gated=task.spent is not None,
        )

    async def settle(
        self, task: RunningTask, outcome: Outcome | None = None, *, continues: bool = True
    ) -> SettlementOutcome:
        return await self.write(self.entry(task, outcome, continues=continues))

    async def settle_turn(
        self, task: RunningTask, line: Sequence[RunningTask], outcomes: Sequence[Outcome]
    ) -> tuple[TurnOutcome, RunningTask]:
        """Settle tasks, the first with its lease, and return that with the task behind them."""
        process, entries = task.process, []
        for each, outcome in zip((task, *line), outcomes, strict=False):
            entry = self.entry(dataclasses.replace(each, process=process), outcome)
            entries.append(entry)
            process = process_after(process, entry.settlement)
        now = self.clock.now()
        following = dataclasses.replace(
            line[len(outcomes) - 1], process=process, started_at=now, first_started_at=now
        )
        written = await self.turns.submit(Turn(steps=entries, following=following))
        return written, following

    async def write(self, entry: Settled) -> SettlementOutcome:
        written = await self.settlements.submit(entry)
        if isinstance(written, Written):
            self.effects.apply(written.effects)
        return written

    async def settled(
        self, task: RunningTask, outcome: Outcome | None = None, *, continues: bool = True
    ) -> Written:
        written = await self.settle(task, outcome, continues=continues)
        assert isinstance(written, Written), "the lease was lost"
        return written

    async def collect(self, zombie: Zombie, outcome: Outcome) -> SettlementOutcome:
        """Settle a lost lease as the zombie scanner does."""
        return await self.write(
            Settled(
                key=zombie.key,
                task_id=zombie.task_id,
                task_type=zombie.task_type,
                attempt=zombie.attempt,
                token=zombie.token,
                settlement=settle(
                    zombie, outcome, namespace=self.namespace, now=zombie.found_at, spread=0.0
                ),
                process=None,
                continues=False,
                expires_after=EXPIRES_AFTER,
            )
        )

    async def remember(
        self, task: RunningTask, memo_key: str, value: bytes = b"memo", *, token: int | None = None
    ) -> Stored | None:
        memo = Remember(
            key=task.key,
            task_id=task.task_id,
            token=token or task.token,
            memo_key=memo_key,
            value=value,
        )
        return await self.step_writes.remember(memo)

    async def memos(self, key: ProcessKey) -> dict[int, list[str]]:
        """Return the keys of the memos of a process, by task."""
        found: dict[int, list[str]] = {}
        async with self.pool.connection() as connection:
            cursor = await connection.execute(
                "SELECT task_id, key FROM progressor.memos WHERE process_id = %s ORDER BY 1, 2",
                [key.process_id],
            )
            for task_id, memo_key in await cursor.fetchall():
                found.setdefault(task_id, []).append(memo_key)
        return found

    async def claim_due(
        self,
        *,
        limit: int = 100,
        overdue: dt.timedelta = NO_TIME,
        wait: bool = True,
        requests_first: bool = False,
    ) -> list[Claimed]:
        room = Room(
            namespace=self.namespace.name,
            limit=limit,
            expires_after=EXPIRES_AFTER,
            requests_first=requests_first,
        )
        return await self.claims.claim_due(self.pool, [room], overdue=overdue, wait=wait)

    async def claim(
        self, key: ProcessKey, task_id: int | None, *, ahead: dt.timedelta = NO_TIME
    ) -> list[Claimed]:
        assert task_id is not None, "there is nothing to claim"
        wanted = claims.Wanted(key=key, task_id=task_id, expires_after=EXPIRES_AFTER)
        return await self.claims.claim_tasks(self.pool, [wanted], ahead=ahead.total_seconds())

    async def find_zombies(
        self, *, known: Sequence[int] | None = None, limit: int = 100
    ) -> tuple[Zombie, ...]:
        """Find lost leases; `known` is what this replica carries, None: all that it holds."""
        if known is None:
            async with self.pool.connection() as connection:
                cursor = await connection.execute("SELECT token FROM progressor.running")
                known = [row[0] for row in await cursor.fetchall()]
        return await self.replicas.find_zombies(limit=limit, known=known)

    async def set_gate(self, gate: str, capacity: int) -> None:
        """Set a capacity, and have those give way who hold the gate beyond it."""
        await self.set_capacity(gate, capacity)
        while not (await self.evict_holders(LoweredGate(self.namespace.name, gate))).is_done:
            pass

    async def put(self, process: Import) -> Put:
        put, effects = await self.processes.put(process)
        self.effects.apply(effects)
        return put

    async def remove(self, key: ProcessKey) -> tuple[Cancelled, ...]:
        """Delete a process; return its unfinished tasks."""
        return self._ended(await self.processes.remove(key))

    async def halt(self, key: ProcessKey, detail: str) -> tuple[Cancelled, ...]:
        """Put a process into error; return its unfinished tasks."""
        return self._ended(await self.processes.halt(key, detail))

    async def terminate(self, key: ProcessKey, reason: str) -> tuple[Cancelled, ...]:
        """Finish a process; return its unfinished tasks."""
        return self._ended(await self.processes.halt(key, reason, ProcessStatus.FINISHED))

    async def cancel(self, key: ProcessKey, task: int | str) -> int:
        """Cancel a task; return its id."""
        task_id, effects = await self.processes.cancel(key, task)
        self.effects.apply(effects)
        return task_id

    async def recover(self, key: ProcessKey, *, retries: bool = False) -> Repaired:
        repaired, effects = await self.processes.recover(key, retries=retries)
        self.effects.apply(effects)
        due = None
        if repaired.task_id is not None and (key, repaired.task_id) in effects.due:
            due = Due(key=key, task_id=repaired.task_id, due_at=self.clock.now())
        return Repaired(verdict=repaired.verdict, task_id=repaired.task_id, due=due)

    async def set_capacity(self, gate: str, capacity: int) -> None:
        """Set a capacity; who holds the gate beyond it keeps it so far."""
        name = self.namespace.name
        self.effects.apply(await self.gates.set(name, gate, capacity=capacity, expected_revision=0))

    async def evict_holders(self, lowered: LoweredGate) -> Evicted:
        evicted, effects = await self.gates.evict_holders(lowered)
        self.effects.apply(effects)
        return evicted

    def _ended(self, effects: Effects) -> tuple[Cancelled, ...]:
        self.effects.apply(effects)
        return tuple(each.task for each in effects.cancelled)

    async def beat(self) -> None:
        """Write a heartbeat at the clock's instant."""
        async with self.pool.connection() as connection:
            await connection.execute(
                """
                INSERT INTO progressor.replicas
                    (replica_id, name, version, functions, started_at, heartbeat_at)
                SELECT %(id)s, 'test', '0', '', now.at, now.at
                FROM (SELECT coalesce(%(now)s, clock_timestamp()) AS at) now
                ON CONFLICT (replica_id) DO UPDATE SET heartbeat_at = excluded.heartbeat_at
                """,
                {"id": self.replica_id, "now": self.clock.pinned()},
            )


def store(
    pool: Pool,
    *,
    clock: ManualClock,
    replica_id: int = 1,
    namespace: Namespace = NAMESPACE,
    commit: Commit | None = None,
    on_batch: BatchObserver = ignore_batch,
    starvation_timeout: dt.timedelta = STARVATION_TIMEOUT,
) -> Store:
    """Return a replica's storage on a pool; its group commits do not run yet."""
    context = StorageContext(
        pool=pool,
        functions=Functions(),
        clock=clock,
        replica_id=replica_id,
        statement_timeout=STATEMENT_TIMEOUT,
        starvation_timeout=starvation_timeout,
    )
    settings = commit or Commit(gather=NO_TIME)
    gathering = CommitContext(on_batch=on_batch)
    namespaces = Namespaces(context)
    effects = RecordedEffects()
    processes = Processes(
        context,
        namespaces=namespaces,
        watch=Watch(
            context,
            lease_timeout=LEASE_TIMEOUT,
            collecting=COLLECTING,
            age_max=dt.timedelta(),
        ),
    )
    gates = Gates(context)
    return Store(
        replica_id=replica_id,
        namespace=namespace,
        clock=clock,
        pool=pool,
        context=context,
        admissions=Admissions(context, settings=settings, commit=gathering),
        settlements=Settlements(context, settings=settings, commit=gathering, step_grace=GRACE),
        turns=Turns(context, settings=settings, commit=gathering),
        claims=Claims(context, step_grace=GRACE),
        processes=processes,
        namespaces=namespaces,
        results=Results(context),
        replicas=Replicas(context, lease_timeout=LEASE_TIMEOUT),
        retention=Retention(context),
        gates=gates,
        step_writes=StepWrites(context, settings=settings, commit=gathering, step_grace=GRACE),
        effects=effects,
    )


@contextlib.asynccontextmanager
async def running_stores(
    conninfo: str,
    *,
    count: int = 1,
    clock: ManualClock | None = None,
    namespace: Namespace = NAMESPACE,
    commit: Commit | None = None,
    on_batch: BatchObserver = ignore_batch,
    starvation_timeout: dt.timedelta = STARVATION_TIMEOUT,
) -> AsyncIterator[tuple[Store, ...]]:
    """Run the group commits of `count` replicas, ids 1 .. count, until the context is left."""
    config = Database(dsn=conninfo, worker_connections_max=8)
    pools = await open_pools(config, conninfo, check_new=Lineage(Functions()).check)
    try:
        stores = tuple(
            store(
                pools.worker,
                clock=clock or ManualClock(),
                replica_id=number,
                namespace=namespace,
                commit=commit,
                on_batch=on_batch,
                starvation_timeout=starvation_timeout,
            )
            for number in range(1, count + 1)
        )
        async with asyncio.TaskGroup() as group:
            for each in stores:
                group.create_task(each.admissions.run(), name="admissions")
                group.create_task(each.settlements.run(), name="settlements")
                group.create_task(each.turns.run(), name="turns")
                group.create_task(each.step_writes.run(), name="step writes")
                group.create_task(each.processes.run(), name="reads")
            try:
                yield stores
            finally:
                for each in stores:
                    each.admissions.close()
                    each.settlements.close()
                    each.turns.close()
                    each.step_writes.close()
                    each.processes.close()
    finally:
        await pools.close()


def create_namespace(conninfo: str, namespace: Namespace = NAMESPACE) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO progressor.namespaces VALUES (%s, 1, %s, now(), now())"
            " ON CONFLICT DO NOTHING",
            [namespace.name, _config(namespace)],
        )


def dump(connection: psycopg.Connection[Any]) -> Dump:
    """Return every row of every table, in an order of their own."""
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return {
            table: connection.execute(
                f"SELECT t::text FROM progressor.{table} t ORDER BY 1".encode()  # noqa: S608  ours
            ).fetchall()
            for table in TABLES
        }


def empty(connection: psycopg.Connection[Any], *, keep: Collection[str] = ("namespaces",)) -> None:
    """Delete every row of the other tables: cheaper than TRUNCATE where there are few."""
    # Not in TABLES: what is deleted stays there, as a change.
    emptied = (table for table in (*TABLES, "process_counts") if table not in keep)
    deletes = [f"DELETE FROM progressor.{table}" for table in emptied]  # noqa: S608  our names
    connection.execute(";".join(deletes).encode())


def count(connection: psycopg.Connection[Any], table: str) -> int:
    query = sql.SQL("SELECT count(*) FROM progressor.{}").format(sql.Identifier(table))
    row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])
