"""Why: from the tables and the heartbeats to causes, and from causes to sentences.

The causes are found from the facts by which the engine itself goes: the due times that claims and
promotion compare, the heartbeats and expiries by which the scan for zombies judges. A task with
constraints waits for its instant, an order, its process and its gates one after the other, but is
reported with all of them: its first cause is that of its state, and what it would wait for without
that are the causes besides. Once it is available it waits as any other task does.

What the replicas know is in their heartbeats, which each replica reads at most once a second
(storage/replicas/status.py), so it may be two seconds old; what the tables tell is of the moment.
"""

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from typing import assert_never

from progressor.domain.gates.constraint import GatedState
from progressor.domain.jobs.roles import JobRole
from progressor.domain.processes.message import MessageKind
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.process import Process, ProcessStatus
from progressor.domain.processes.task import TaskType
from progressor.domain.quotas.quotas import Quota
from progressor.domain.views.failure import FailedRepair
from progressor.domain.views.process import AwaitedReply
from progressor.domain.views.replica import Facts, NamespaceLoad, ReplicaView
from progressor.domain.views.wait import (
    BehindTask,
    BehindVersion,
    Cause,
    Gated,
    GatesFull,
    GateWait,
    Lease,
    NoFreeWorker,
    NoReplica,
    OrderWait,
    Overrun,
    Paused,
    PresumedDead,
    ProcessFailed,
    ProcessorUnreachable,
    QuotaUsedUp,
    RetryNotDue,
    RunAtNotDue,
    Running,
    TimerNotDue,
    UnfinishedTask,
    Wait,
)

WORDS_MAX = 200
"""Characters of an error message or a detail that a sentence quotes."""


def waits(
    tasks: Sequence[UnfinishedTask], *, facts: Facts, namespace: Namespace
) -> tuple[Wait, ...]:
    """Return what each task of a process waits for; `tasks` that have not ended, as they run."""
    return tuple(
        _wait(task, _causes(task, before, facts, namespace)) for task, before in _with_before(tasks)
    )


def explain(wait: Wait) -> str:
    """Return why a task waits, in one or two sentences, and one more for each further cause."""
    besides = "".join(f" It also {_predicate(cause, wait)}" for cause in wait.besides)
    name = f" {wait.timer_name!r}" if wait.timer_name else ""
    return f"Task {wait.task_id} ({wait.task_type}{name}) {_predicate(wait.cause, wait)}{besides}"


def explain_awaited(awaited: AwaitedReply) -> str:
    """Return which reply a process waits for, as the sender of the message."""
    receiver = f"{awaited.namespace}/{awaited.process_id}"
    delivered = "" if awaited.receiver_task_id is not None else ", and not delivered yet"
    return (
        f"The process waits for the reply {awaited.reply!r} of {receiver} "
        f"({awaited.kind}, sent by task {awaited.task_id} at {_at(awaited.sent_at)}{delivered})."
    )


def explain_requested(requested: AwaitedReply) -> str:
    """Return who waits for a reply of a process, as the receiver of the message."""
    sender = f"{requested.namespace}/{requested.process_id}"
    what = f"answer of task {requested.receiver_task_id}"
    if requested.kind is MessageKind.START:
        what = "end of the process"
    return (
        f"Process {sender} waits for the {what} "
        f"({requested.kind}, sent by its task {requested.task_id} at {_at(requested.sent_at)})."
    )


def explain_process(
    process: Process,
    found: Sequence[Wait],
    role: JobRole | None = None,
    awaited: Sequence[AwaitedReply] = (),
    repair: FailedRepair | None = None,
) -> str:
    """Return what a process waits for that is not a wait of a task; "" where the tasks tell all."""
    match process.status:
        case ProcessStatus.INIT | ProcessStatus.RUNNING:
            led = None if role is None else role.led
            if led is not None and led.unfinished_count:
                count = f"{led.unfinished_count} of the {led.node_count} nodes"
                return f"The process leads a job, and waits for {count} of it."
            return "" if found else _idle(awaited)
        case ProcessStatus.ERROR:
            since, detail = _at(process.status_changed_at), _quoted(process.detail or "no detail")
            by = "" if process.corrupted_by is None else f" by task {process.corrupted_by}"
            held = sum(isinstance(wait.cause, ProcessFailed) for wait in found)
            ending = "retry or repair it to bring it back"
            if held < len(found):
                ending = "its recovery is under way"
            if held:
                ending += f"; {held} tasks wait for that" if held > 1 else "; 1 task waits for that"
            tried = "" if repair is None else f"; {_of_repair(repair)}"
            return (
                f"The process has been in error since {since}, broken{by}: {detail}{tried}; "
                f"{ending}."
            )
        case ProcessStatus.FINISHED:
            since = _at(process.status_changed_at)
            if process.detail:
                ended = f"The process was ended from outside at {since}: {_quoted(process.detail)}"
            else:
                ended = f"The process has been finished since {since}"
            return f"{ended}; it waits for nothing."
        case _:
            assert_never(process.status)


def _of_repair(repair: FailedRepair) -> str:
    message = f": {words}" if (words := _quoted(repair.message)) else ""
    return (
        f"repair {repair.task_id} has failed since, at {_at(repair.failed_at)}, after "
        f"{repair.reason}{message}"
    )


def _idle(awaited: Sequence[AwaitedReply]) -> str:
    if awaited:
        return "The process has no task and no timer; it waits for replies to its messages."
    return "The process waits for nothing: it has no task and no timer."


def _with_before(
    tasks: Sequence[UnfinishedTask],
) -> Iterator[tuple[UnfinishedTask, UnfinishedTask | None]]:
    """Return each task with the one that it has to wait for, of those of its process."""
    line: list[UnfinishedTask] = []
    known = {task.task_id: task for task in tasks}
    for task in tasks:
        before = _before(task, line)
        if before is None and task.gated is not None and task.gated.behind_task_id is not None:
            before = known.get(task.gated.behind_task_id)
        yield task, before
        # What waits for its constraints is passed by all; only an init task by none.
        if task.held_since is not None or (
            task.is_timer and task.lease is None and not task.is_due
        ):
            # A timer stands before others once it is due.
            continue
        if not task.is_constrained or task.task_type is TaskType.INIT:
            line.append(task)


def _before(task: UnfinishedTask, line: Sequence[UnfinishedTask]) -> UnfinishedTask | None:
    if not task.is_constrained or task.is_timer:
        # Calls run in order, and before the timer: whatever stands before it, it is behind.
        return line[-1] if line else None
    # It will be queued by its id; later requests wait behind it, unless they have begun.
    first = (
        it
        for it in reversed(line)
        if it.lease is not None
        or it.task_id < task.task_id
        or (it.attempt_count > 0 and it.due_at is not None)
    )
    return next(first, None)


def _wait(task: UnfinishedTask, causes: Sequence[Cause]) -> Wait:
    return Wait(
        task_id=task.task_id,
        task_type=task.task_type,
        status=task.status,
        attempt=task.attempt,
        created_at=task.created_at,
        cause=causes[0],
        besides=tuple(causes[1:]),
        spent=None if task.gated is None else task.gated.spent,
        last_error=task.last_error,
        timer_name=task.timer_name,
    )


def _causes(
    task: UnfinishedTask, before: UnfinishedTask | None, facts: Facts, namespace: Namespace
) -> Sequence[Cause]:
    found = _own_causes(task, before, facts, namespace)
    if namespace.pause is None or task.lease is not None or isinstance(found[-1], Paused):
        return found
    # It would not run without them either.
    return (*found, Paused(pause=namespace.pause))


def _own_causes(
    task: UnfinishedTask, before: UnfinishedTask | None, facts: Facts, namespace: Namespace
) -> Sequence[Cause]:
    if task.lease is not None:
        return (_leased(task.lease, facts, namespace.name),)
    if task.held_since is not None:
        until = task.due_at if task.is_timer else None
        return (ProcessFailed(since=task.held_since, until=until),)
    if task.gated is not None and task.is_constrained:
        return _of_constraints(task, task.gated, before, facts, namespace)
    if before is not None:
        return (_behind(task, before),)
    if task.is_due or task.due_at is None:
        since = task.due_at or task.created_at
        if task.gated is not None:
            # A timer may have been due for long when it passed its gates.
            since = max(since, task.gated.since)
        return (_due(since, facts, namespace, is_timer=task.is_timer),)
    return (_not_due(task, task.due_at, facts, namespace),)


def _of_constraints(
    task: UnfinishedTask,
    gated: Gated,
    before: UnfinishedTask | None,
    facts: Facts,
    namespace: Namespace,
) -> Sequence[Cause]:
    found: dict[GatedState, Cause] = {}
    if task.due_at is not None and not task.is_due:
        found[GatedState.TIME] = _not_due(task, task.due_at, facts, namespace)
    if gated.order is not None:
        found[GatedState.ORDER] = BehindVersion(order=gated.order)
    if before is not None:
        found[GatedState.PROCESS] = _behind(task, before)
    if gated.gates:
        found[GatedState.GATES] = GatesFull(gates=gated.gates)
    own = found.pop(gated.state, None)
    causes = [*([] if own is None else [own]), *found.values()]
    # Nothing is left: it is about to be promoted, and then waits as all do.
    return causes or [_due(gated.since, facts, namespace, is_timer=task.is_timer)]


def _behind(task: UnfinishedTask, before: UnfinishedTask) -> BehindTask:
    return BehindTask(
        task_id=before.task_id,
        task_type=before.task_type,
        is_running=before.lease is not None,
        since=before.created_at if before.lease is None else before.lease.leased_at,
        until=task.due_at if task.is_timer else None,
    )


def _not_due(
    task: UnfinishedTask, until: dt.datetime, facts: Facts, namespace: Namespace
) -> TimerNotDue | RunAtNotDue | RetryNotDue | ProcessorUnreachable:
    if not task.attempt_count and task.last_error is not None:
        # An attempt that left an error and did not count.
        since = _unreachable_since(facts.serving(), namespace.name)
        return ProcessorUnreachable(until=until, processor_unreachable_since=since)
    if task.attempt_count:
        return RetryNotDue(
            until=until,
            attempts_max=namespace.policy_for(task.task_type).attempts_max,
            processor_unreachable_since=_unreachable_since(facts.serving(), namespace.name),
        )
    if task.is_timer or task.gated is None:
        return TimerNotDue(until=until)
    return RunAtNotDue(until=until)


def _leased(lease: Lease, facts: Facts, namespace: str) -> Cause:
    replica = facts.replicas.get(lease.replica_id)
    # Who leases has just written a heartbeat: what was read before does not know of it.
    is_news = lease.leased_at >= facts.read_at
    if not is_news and (replica is None or replica.is_silent):
        return PresumedDead(
            replica_id=lease.replica_id,
            since=lease.leased_at,
            silent_since=None if replica is None else replica.heartbeat_at,
            collected_at=_collected_at(_death(replica) or facts.read_at, facts),
        )
    if lease.expires_at < facts.read_at:
        return Overrun(
            replica_id=lease.replica_id,
            since=lease.leased_at,
            expired_at=lease.expires_at,
            collected_at=_collected_at(lease.expires_at, facts),
        )
    return _running(lease, None if is_news else replica, facts, namespace)


def _running(lease: Lease, replica: ReplicaView | None, facts: Facts, namespace: str) -> Running:
    death = _death(replica)
    if replica is None or death is None:
        return Running(replica_id=lease.replica_id, since=lease.leased_at)
    # Two heartbeats and a half fit into a lease timeout, so that one is missing after half of it.
    is_late = replica.heartbeat_age > replica.lease_timeout / 2
    return Running(
        replica_id=lease.replica_id,
        since=lease.leased_at,
        silent_since=replica.heartbeat_at if is_late else None,
        collected_at=_collected_at(death, facts) if is_late else None,
        processor_unreachable_since=_unreachable_since((replica,), namespace),
    )


def _due(
    since: dt.datetime, facts: Facts, namespace: Namespace, *, is_timer: bool
) -> Paused | NoFreeWorker | NoReplica | ProcessorUnreachable | QuotaUsedUp:
    if namespace.pause is not None:
        return Paused(pause=namespace.pause, since=since)
    serving = facts.serving()
    if not serving:
        silent = sum(it.is_silent for it in facts.replicas.values())
        return NoReplica(
            since=since, draining_count=len(facts.replicas) - silent, silent_count=silent
        )
    if is_out_of_reach(serving, namespace.name):
        return ProcessorUnreachable(
            since=since, processor_unreachable_since=_unreachable_since(serving, namespace.name)
        )
    if is_timer and are_timers_held(serving, namespace):
        quota = Quota.TIMERS_PER_SECOND
        return QuotaUsedUp(
            since=since, namespace=namespace.name, quota=quota, limit=namespace.quotas.limit(quota)
        )
    idle = NamespaceLoad(busy_count=0, size=namespace.worker_count_max)
    loads = [it.loads.get(namespace.name, idle) for it in serving if it.loads is not None]
    return NoFreeWorker(
        since=since,
        busy_count=sum(it.busy_count for it in loads),
        worker_count=sum(it.size for it in loads),
        processor_unreachable_since=_unreachable_since(serving, namespace.name),
    )


def are_timers_held(serving: Iterable[ReplicaView], namespace: Namespace) -> bool:
    """Return whether due timers of a namespace wait for their quota in some replica."""
    limit = namespace.quotas.timers_per_second
    return any(it.holds_timers(namespace.name, limit) for it in serving)


def _death(replica: ReplicaView | None) -> dt.datetime | None:
    """Return when a replica is presumed dead, if no heartbeat follows."""
    return None if replica is None else replica.heartbeat_at + replica.lease_timeout


def _collected_at(lost_at: dt.datetime, facts: Facts) -> dt.datetime | None:
    """Return by when a lease lost at that time is collected; None: no replica would collect it."""
    return lost_at + facts.collecting if facts.serving() else None


def _unreachable_since(replicas: Sequence[ReplicaView], namespace: str) -> dt.datetime | None:
    """Return since when a processor has not been reached by the one that has tried for longest."""
    since = [
        it.heartbeat_at - load.unreachable_for
        for it in replicas
        if (load := (it.loads or {}).get(namespace)) is not None
        and load.unreachable_for is not None
    ]
    return min(since, default=None)


def is_out_of_reach(replicas: Sequence[ReplicaView], namespace: str) -> bool:
    """Return whether replicas have tried to reach a processor, and none of them can."""
    loads = [(it.loads or {}).get(namespace) for it in replicas]
    tried = [it.unreachable_for is not None for it in loads if it is not None]
    return bool(tried) and all(tried)


def _predicate(cause: Cause, wait: Wait) -> str:  # noqa: C901, PLR0911, PLR0912  one case per cause
    match cause:
        case Running():
            again = f", attempt {wait.attempt}{_after(wait)}" if wait.attempt > 1 else ""
            reach = _unreachable(cause.processor_unreachable_since)
            return f"{_runs(cause)}{again}.{reach}{_risk(cause)}"
        case PresumedDead():
            return (
                f"was taken at {_at(cause.since)} by replica {cause.replica_id}, "
                f"{_silence(cause.silent_since)} and is presumed dead; "
                f"{_collection(cause.collected_at)}."
            )
        case Overrun():
            ought = f"should have ended by {_at(cause.expired_at)}"
            return f"{_runs(cause)} and {ought}; {_collection(cause.collected_at)}."
        case TimerNotDue(until=until):
            return f"is a timer, until {_at(until)}."
        case RunAtNotDue(until=until):
            return f"may not run before {_at(until)}."
        case RetryNotDue():
            return (
                f"waits for its retry, attempt {wait.attempt} of {cause.attempts_max}, "
                f"at {_at(cause.until)}{_after(wait)}."
                f"{_unreachable(cause.processor_unreachable_since)}"
            )
        case BehindTask():
            state = "running" if cause.is_running else "waiting"
            timer = "" if cause.until is None else f" It is a timer, until {_at(cause.until)}."
            before = f"task {cause.task_id} ({cause.task_type})"
            return f"waits behind {before}, which has been {state} since {_at(cause.since)}.{timer}"
        case ProcessFailed():
            timer = "" if cause.until is None else f" It is a timer, until {_at(cause.until)}."
            since = f"its process has been in error since {_at(cause.since)}"
            return f"is held: {since}.{timer}"
        case BehindVersion(order=order):
            return _of_order(order)
        case GatesFull(gates=gates):
            return f"waits for {', and for '.join(map(_of_gate, gates))}."
        case NoFreeWorker():
            return _of_crowd(cause, wait)
        case ProcessorUnreachable():
            return _of_outage(cause, wait)
        case NoReplica():
            counts = f"{cause.draining_count} draining, {cause.silent_count} silent"
            return f"has been due since {_at(cause.since)}, and no replica serves: {counts}."
        case Paused():
            return _of_pause(cause)
        case QuotaUsedUp():
            return (
                f"has been due since {_at(cause.since)}, but its namespace has used up its quota: "
                f"{cause.quota} is {cause.limit}. To raise it: progressor namespace update "
                f"{cause.namespace} --set quotas.{cause.quota}=N."
            )
        case _:
            assert_never(cause)


def _runs(cause: Running | Overrun) -> str:
    return f"has been running since {_at(cause.since)} in replica {cause.replica_id}"


def _of_order(wait: OrderWait) -> str:
    return (
        f"has version {wait.order.version} in the order {wait.order.key}, and waits for version "
        f"{wait.version}: task {wait.task_id} of process {wait.process_id}, which is {wait.status}."
    )


def _of_gate(wait: GateWait) -> str:
    place = ""
    if wait.position:
        place = f", as number {wait.position} of {wait.waiting_count} in the queue"
    if not wait.holders:
        return f"gate {wait.gate}, whose capacity is {wait.capacity}{place}"
    first = wait.holders[0]
    by = "by" if len(wait.holders) == 1 else "longest by"
    kept = ", for which it is reserved" if first.is_reserved else ""
    return (
        f"gate {wait.gate}{place}, which is full: {wait.held} of {wait.capacity} held, {by} task "
        f"{first.task_id} of process {first.process_id} since {_at(first.held_at)}{kept}"
    )


def _of_crowd(cause: NoFreeWorker, wait: Wait) -> str:
    counts = f"{cause.busy_count} of {cause.worker_count} are busy"
    if not cause.worker_count:
        state = ", and no worker has taken it yet"
    elif cause.busy_count < cause.worker_count:
        state = f"; a worker is about to take it: {counts}"
    else:
        state = f", and no worker is free: {counts}"
    reach = _unreachable(cause.processor_unreachable_since)
    return f"has been due since {_at(cause.since)}{_after(wait)}{state}.{reach}"


def _of_outage(cause: ProcessorUnreachable, wait: Wait) -> str:
    due = "" if cause.since is None else f", due since {_at(cause.since)}"
    again = "" if cause.until is None else f", and is tried again at {_at(cause.until)}"
    reach = _unreachable(cause.processor_unreachable_since)
    return f"waits for its processor{due}{again}{_after(wait)}.{reach}"


def _of_pause(cause: Paused) -> str:
    pause = cause.pause
    by = f" by {_quoted(pause.author)}" if pause.author else ""
    paused = f"has been paused since {_at(pause.paused_at)}{by}: {_quoted(pause.reason)}."
    if cause.since is None:
        return f"waits until its namespace is resumed, which {paused}"
    return f"has been due since {_at(cause.since)}, but its namespace {paused}"


def _risk(cause: Running) -> str:
    if cause.silent_since is None:
        return ""
    silence = f" That replica has been silent since {_at(cause.silent_since)}"
    return f"{silence}; if it stays so, {_collection(cause.collected_at)}."


def _silence(since: dt.datetime | None) -> str:
    if since is None:
        return "which is no longer on the list of replicas"
    return f"which has been silent since {_at(since)}"


def _collection(at: dt.datetime | None) -> str:
    if at is None:
        return "the task is collected once a replica serves"
    return f"the task is collected at {_at(at)} at the latest"


def _unreachable(since: dt.datetime | None) -> str:
    return "" if since is None else f" The processor has been unreachable since {_at(since)}."


def _after(wait: Wait) -> str:
    error = wait.last_error
    if error is None:
        return ""
    words = _quoted(error.message)
    return f", after {error.reason}: {words}" if words else f", after {error.reason}"


def _quoted(words: str) -> str:
    """Quote foreign text in a sentence, whatever characters it has."""
    cut = words if len(words) <= WORDS_MAX else f"{words[:WORDS_MAX]} …"
    harmless = "".join(it if it.isprintable() else " " for it in cut)
    return " ".join(harmless.split()).rstrip(".")


def _at(instant: dt.datetime) -> str:
    utc = instant.astimezone(dt.UTC)
    return f"{utc:%Y-%m-%d %H:%M:%S}.{utc.microsecond // 1000:03d}Z"
