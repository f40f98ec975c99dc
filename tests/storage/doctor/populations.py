"""Processes, gates, jobs and bulk operations in every state, for those who judge the tables.

Leaders and followers are real processes, made by a store; what makes a job of them is written by
hand, as the engine would have left it.
"""

import contextlib
import dataclasses
import datetime as dt

from progressor.domain.gates.constraint import Constraints, GateHold, Order, Version
from progressor.domain.processes.admission import Import
from progressor.domain.processes.event import NewEvent
from progressor.domain.processes.intent import Complete, SetTimer
from progressor.domain.processes.process import ProcessKey, ProcessStatus, process_key
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.domain.views import bulk
from progressor.domain.views.filter import ProcessFilter
from progressor.errors import NamespaceAlreadyExistsError
from progressor.storage.access.audit import Audit, AuditNotes, entry_of
from progressor.storage.jobs.bulks import Bulks
from progressor.storage.postgres import attempt
from tests.support.storage.store import BROKEN, NO_TIME, Store, a_request, fresh_key, success

HOUR = dt.timedelta(hours=1)


async def populate(store: Store) -> None:
    """Make a process of every kind, with a line and a timer."""
    busy, timed, waiting = fresh_key(), fresh_key(), fresh_key()
    await store.started(busy, success(events=2))
    await store.run_task(a_request(busy, idempotency_key="k"))
    await store.admit(a_request(busy))
    await store.started(timed, success(SetTimer(after=HOUR)))
    named = {"a": SetTimer(after=HOUR), "b": SetTimer(after=HOUR)}
    await store.started(fresh_key(), success(timers=named))
    await store.started(waiting, success(events=1))
    await store.admit(a_request(waiting), run=False)
    await store.broken(fresh_key())
    await _holding(store)
    broken_by_timer = fresh_key()
    init = await store.start(broken_by_timer)
    timer = (await store.settled(init, success(SetTimer(after=NO_TIME)))).next
    assert timer is not None
    await store.settled(timer, BROKEN)
    await store.recover(broken_by_timer)
    await store.admit(a_request(broken_by_timer, TaskType.REPAIR), run=False)
    await store.put(
        Import(
            key=fresh_key(),
            status=ProcessStatus.RUNNING,
            history=(NewEvent(payload=b"imported"),),
            timer=SetTimer(after=HOUR),
        )
    )


async def _holding(store: Store) -> None:
    key, _ = await store.timed(HOUR)
    call = await store.run_task(a_request(key))
    await store.admit(a_request(key, TaskType.NOTIFY, waits=False))
    await store.settled(call, BROKEN)


async def populate_gates(store: Store) -> None:
    mutex = {"mutex": 1}
    await _call(store, Constraints(gates=mutex))
    await _call(store, Constraints(gates=mutex, order=Order("rollout", Version((1, 9)))))
    await _call(store, Constraints(order=Order("rollout", Version((1, 10)))))
    await _call(store, Constraints(run_at=store.clock.now() + HOUR))
    await store.timed(HOUR, constraints=Constraints(gates={"by timers": 2}))
    await _claimed(store, await _call(store, Constraints(gates={"at work": 1})))
    await _ended(store, Constraints(gates={"for a step": 1}))
    await _ended(store, Constraints(gates={"for good": 1}, hold=GateHold.PROCESS))
    await _broken_by_timer(store)

    busy = fresh_key()
    await store.started(busy)
    await store.run_task(a_request(busy))
    await store.admit(a_request(busy, constraints=Constraints(gates={"free": 1})))

    unborn = fresh_key()
    late = Constraints(run_at=store.clock.now() + HOUR)
    await store.admit(a_request(unborn, TaskType.INIT, constraints=late))
    await store.admit(a_request(unborn))


async def _call(store: Store, constraints: Constraints) -> tuple[ProcessKey, int]:
    key = fresh_key()
    await store.started(key)
    admission = await store.admit(a_request(key, constraints=constraints), run=False)
    assert admission.task_id is not None, f"it is refused: {admission}"
    return key, admission.task_id


async def _claimed(store: Store, called: tuple[ProcessKey, int]) -> RunningTask:
    [claimed] = await store.claim(*called)
    return claimed.task


async def _ended(store: Store, constraints: Constraints) -> None:
    await store.settled(await _claimed(store, await _call(store, constraints)))


async def _broken_by_timer(store: Store) -> None:
    key = fresh_key()
    timer = SetTimer(after=NO_TIME, constraints=Constraints(gates={"by timers": 2}))
    store.reported.clear()
    await store.settled(await store.start(key), success(timer))
    [due] = [due for promoted in store.reported for due in promoted.due]
    await store.settled(await _claimed(store, due), BROKEN)


async def populate_audit(store: Store) -> None:
    """Make four sealed entries, the third of a request that has failed, and one that is not."""
    async with store.context.connection() as connection:
        await connection.execute(
            "SET session_replication_role = replica; DELETE FROM progressor.audit_entries;"
            " RESET session_replication_role;"
            " UPDATE progressor.audit_chain"
            " SET (anchor_number, anchor_hash, head_number, head_hash) = (0, '', 0, '')"
        )
    notes = AuditNotes(store.clock)
    audit = Audit(store.context, notes)
    for gate in ("a", "b", "c", "d"):
        if gate == "c":
            notes.add(entry_of("SetGate", principal="token:a", object_id=gate), "INTERNAL")
            await audit.write_notes()
        else:
            with attempt.of(entry_of("SetGate", principal="token:a", object_id=gate)):
                await store.set_gate(gate, 1)
    assert await audit.seal() == 4
    with attempt.of(entry_of("SetGate", principal="token:a", object_id="e")):
        await store.set_gate("e", 1)


async def populate_bulks(store: Store) -> None:
    """Make a bulk operation at work, one that has stopped, and one that is being deleted."""
    for _ in range(3):
        await store.broken(fresh_key())
    store.clock.advance(HOUR)
    bulks = Bulks(store.context)
    with contextlib.suppress(NamespaceAlreadyExistsError):
        await store.namespaces.create(bulk.NAMESPACE)
    for name in ("at work", "stopped", "deleted"):
        request = bulk.BulkRequest(
            operation_id=name, kind=bulk.BulkKind.RETRY, filter=ProcessFilter(), rate_max=None
        )
        await bulks.start(request, {})
        await bulks.match(name)
        await bulks.apply(await bulks.get(name), limit=2)
    await bulks.stop("stopped", "enough")
    await store.remove(process_key(bulk.OPERATIONS, "deleted"))


_JOB = """
    INSERT INTO progressor.jobs (slot, namespace, process_id, state, node_count, waiting, ready,
        running, failed, skipped, cancelled, beginning, join_task_id, created_at, updated_at,
        ended_at)
    SELECT %(slot)s, %(namespace)s, %(process_id)s, %(state)s::text::progressor.job_state, count(*),
        count(*) FILTER (WHERE n.state = 'waiting'), count(*) FILTER (WHERE n.state = 'ready'),
        count(*) FILTER (WHERE n.state = 'running'), count(*) FILTER (WHERE n.state = 'failed'),
        count(*) FILTER (WHERE n.state = 'skipped'), count(*) FILTER (WHERE n.state = 'cancelled'),
        count(*) FILTER (WHERE n.state = 'running' AND NOT n.begun), %(join)s::bigint, '2000-01-01',
        now(),
        CASE WHEN %(state)s::text <> 'running' THEN now() END
    FROM progressor.job_nodes n
    WHERE (n.slot, n.namespace, n.process_id) = (%(slot)s, %(namespace)s, %(process_id)s)
"""
_NODE = """
    INSERT INTO progressor.job_nodes (slot, namespace, process_id, ordinal, state, begun, waits_for,
        skipped_because_of, revision, follower_slot, created_at, started_at, ended_at, name,
        follower_namespace, follower_id, predecessors, successors, error_reason)
    VALUES (%(slot)s, %(namespace)s, %(process_id)s, %(ordinal)s,
        %(state)s::text::progressor.node_state, %(begun)s,
        %(waits_for)s, %(because_of)s, 1, %(follower_slot)s, now(),
        CASE WHEN %(started)s THEN now() END,
        CASE WHEN %(state)s::text NOT IN ('waiting', 'ready', 'running') THEN now() END,
        %(name)s, %(follower_namespace)s, %(follower_id)s, %(before)s, %(behind)s, %(error)s)
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A node to be written: its ``follower`` is what was made for it, or none."""

    state: str
    follower: ProcessKey | None = None
    before: tuple[int, ...] = ()
    begun: bool = True
    waits_for: int = 0
    because_of: int | None = None
    error: str | None = None


async def populate_jobs(store: Store) -> None:
    """Make a job for each state of a job, with a node in every state but ready.

    A node that is ready waits for room, which takes a window full of others.
    """
    await _at_work(store)
    await _joined(store)
    await _asked_once_more(store)
    await write_job(
        store,
        await finished(store),
        "done",
        Row(state="done", follower=await finished(store)),
        Row(state="failed", follower=await broken(store), before=(1,)),
    )
    await write_job(
        store,
        await broken(store),
        "failed",
        Row(state="failed", follower=await broken(store)),
        Row(state="skipped", before=(1,), waits_for=1, because_of=1),
    )
    await write_job(
        store,
        await finished(store),
        "cancelled",
        Row(state="running", follower=await busy(store)),
        Row(state="cancelled", before=(1,), waits_for=1),
    )


async def _at_work(store: Store) -> None:
    await write_job(
        store,
        await idle(store),
        "running",
        Row(state="done", follower=await finished(store)),
        Row(state="done", before=(1,)),
        Row(state="running", follower=await idle(store), before=(2,)),
        Row(state="running", follower=await beginning(store), begun=False),
        Row(state="waiting", before=(1, 3, 4), waits_for=2),
        Row(state="failed", follower=await broken(store)),
        Row(state="skipped", before=(3, 6), waits_for=2, because_of=6),
        Row(state="skipped", before=(7,), waits_for=1, because_of=6),
        Row(state="failed", error="NAMESPACE_NOT_FOUND"),
    )


async def _joined(store: Store) -> None:
    leader = await idle(store)
    admission = await store.admit(a_request(leader), run=False)
    await _make_join(store, admission.task_id)
    row = Row(state="done", follower=await finished(store))
    await write_job(store, leader, "running", row, join=admission.task_id)


async def _asked_once_more(store: Store) -> None:
    leader = await idle(store)
    call = await store.run_task(a_request(leader))
    await store.settled(call)
    await _make_join(store, call.task_id)
    row = Row(state="done", follower=await finished(store))
    await write_job(store, leader, "running", row, join=call.task_id, led_by="processor")


async def write_job(
    store: Store,
    leader: ProcessKey,
    state: str,
    *rows: Row,
    join: int | None = None,
    led_by: str = "engine",
) -> None:
    """Make a process the leader of a job in this state, and those of the rows its followers."""
    of_leader = _named(leader)
    async with store.pool.connection() as connection, connection.transaction():
        await connection.execute(
            "UPDATE progressor.processes SET led_by = %s WHERE process_id = %s",
            [led_by, leader.process_id],
        )
        for ordinal, row in enumerate(rows, start=1):
            follower = row.follower or fresh_key()
            behind = [n for n, other in enumerate(rows, start=1) if ordinal in other.before]
            await connection.execute(
                _NODE,
                {
                    **of_leader,
                    **{f"follower_{name}": value for name, value in _named(follower).items()},
                    "follower_id": follower.process_id,
                    "started": row.state == "running" or row.follower is not None,
                    "ordinal": ordinal,
                    "name": f"n{ordinal}",
                    "state": row.state,
                    "begun": row.begun,
                    "waits_for": row.waits_for,
                    "because_of": row.because_of,
                    "before": list(row.before),
                    "behind": behind,
                    "error": row.error,
                },
            )
            await connection.execute(
                "UPDATE progressor.processes SET (leader_slot, leader_namespace, leader_id, node)"
                " = (%s, %s, %s, %s) WHERE process_id = %s",
                [*of_leader.values(), ordinal, follower.process_id],
            )
        await connection.execute(_JOB, {**of_leader, "state": state, "join": join})


async def idle(store: Store) -> ProcessKey:
    key = fresh_key()
    await store.started(key)
    return key


async def beginning(store: Store) -> ProcessKey:
    return (await store.start(fresh_key())).key


async def busy(store: Store) -> ProcessKey:
    key = await idle(store)
    await store.run_task(a_request(key, TaskType.CALL))
    return key


async def finished(store: Store) -> ProcessKey:
    key = fresh_key()
    await store.started(key, success(Complete(b"end")))
    return key


async def broken(store: Store) -> ProcessKey:
    key = fresh_key()
    await store.started(key, BROKEN)
    return key


async def _make_join(store: Store, task_id: int | None) -> None:
    async with store.pool.connection() as connection:
        for table in ("tasks", "schedule"):
            await connection.execute(
                f"UPDATE progressor.{table} SET task_type = 'join' WHERE task_id = %s".encode(),  # noqa: S608  ours
                [task_id],
            )


def _named(key: ProcessKey) -> dict[str, object]:
    return {"slot": key.slot, "namespace": key.namespace, "process_id": key.process_id}
