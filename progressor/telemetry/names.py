"""Every metric, span and attribute by its name, with its unit and one sentence.

The eight histograms that end in ``_duration_ms`` have the names of the Erlang progressor. Labels
have bounded cardinality: ids of processes and tasks belong in spans and logs. In Prometheus, the
name of a counter ends in ``_total``.
"""

from collections.abc import Mapping
from types import MappingProxyType

from progressor.domain.views.activity import QUEUES_MAX
from progressor.telemetry.instruments import Metric, MetricKind

_DURATIONS_MS = (
    0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000
)  # fmt: skip
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_BY_TASK = ("namespace", "task_type")
_CAUSES_MAX = 8


def _duration(name: str, meaning: str, labels: tuple[str, ...] = _BY_TASK) -> Metric:
    return Metric(
        kind=MetricKind.HISTOGRAM, name=name, unit="ms", meaning=meaning, labels=labels,
        bounds=_DURATIONS_MS,
    )  # fmt: skip


def _counter(name: str, unit: str, meaning: str, *labels: str) -> Metric:
    return Metric(kind=MetricKind.COUNTER, name=name, unit=unit, meaning=meaning, labels=labels)


def _gauge(name: str, unit: str, meaning: str, *labels: str) -> Metric:
    return Metric(kind=MetricKind.GAUGE, name=name, unit=unit, meaning=meaning, labels=labels)


def _queue(name: str, unit: str, meaning: str) -> Metric:
    return Metric(
        kind=MetricKind.GAUGE, name=name, unit=unit, meaning=meaning, labels=("namespace", "cause"),
        sets_max=_CAUSES_MAX * QUEUES_MAX,
    )  # fmt: skip


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "calls_scanning": _duration(
            "progressor_calls_scanning_duration_ms",
            "A claim of due requests (init, call, notify, repair) and joins, recorded once per "
            "namespace and type in it; a scan that finds nothing counts as call.",
        ),
        "timers_scanning": _duration(
            "progressor_timers_scanning_duration_ms",
            "A claim of due timers (timeout, remove), recorded once per namespace and type in it; "
            "a scan that finds nothing counts as timeout.",
        ),
        "zombie_collection": _duration(
            "progressor_zombie_collection_duration_ms",
            "From finding a lost lease to its settlement.",
        ),
        "request_preparing": _duration(
            "progressor_request_preparing_duration_ms",
            "Admission: from the arrival of a request to its durable task, including the wait for "
            "a batch.",
        ),
        "task_processing": _duration(
            "progressor_task_processing_duration_ms",
            "One attempt at the processor, from the request to its answer.",
        ),
        "task_completion": _duration(
            "progressor_task_completion_duration_ms",
            "Settlement: from the outcome to its commit, including the wait for a batch.",
        ),
        "process_removing": _duration(
            "progressor_process_removing_duration_ms",
            "Deleting a process with all its rows, by a request or a step.",
        ),
        "notification": _duration(
            "progressor_notification_duration_ms",
            "Notifying other replicas of ended tasks for which callers wait there, recorded once "
            "per namespace and type in it.",
        ),
        # Requests.
        "requests": _counter(
            "progressor_requests", "{request}",
            "Requests that have ended. outcome: ok, refused (the caller must change it), failed "
            "(by the processor), unavailable (try again), cancelled (by the caller), internal (a "
            "bug). reason: that of the error, REJECTED for one by the processor. namespace: empty "
            "if it is unknown, and for requests without one.",
            "namespace", "operation", "outcome", "reason",
        ),
        "admitted": _counter(
            "progressor_requests_admitted", "{task}",
            "Requests that became durable tasks, or repeat one by their idempotency key.",
            "namespace", "task_type",
        ),
        "callers_waiting": _gauge(
            "progressor_callers_waiting", "{task}",
            "Tasks whose answers callers wait for in this replica.",
        ),
        "replies": _counter(
            "progressor_replies", "{task}",
            "Answers given to waiting callers. way: local, or remote if another replica ran the "
            "task.",
            "way",
        ),
        "notifications_lost": _counter(
            "progressor_notifications_lost", "{notification}",
            "Notifications to other replicas that could not be sent; a periodic check makes up for "
            "them.",
        ),
        "stream_sessions": _gauge(
            "progressor_stream_sessions", "{session}",
            "Open streams. side: client (sessions of clients), processor (streams to processors).",
            "side",
        ),
        # Queues.
        "queue_tasks": _queue(
            "progressor_queue_tasks", "{task}",
            "Waiting tasks of all replicas at the last count; counted up to 10,000. cause: timer, "
            "retry, no_free_worker (due but not claimed), behind_task; if there have been tasks "
            "with constraints: run_at, order, gate, available (all constraints met, but not "
            "claimed).",
        ),
        "queue_oldest_age": _queue(
            "progressor_queue_oldest_age_seconds", "s",
            "How long the oldest waiting task has waited; zero without one. cause: no_free_worker, "
            "since it was due; behind_task, since it was admitted (a timer: since it was due); "
            "retry, since its first attempt; order, gate and available, and behind_task of a task "
            "with constraints, since it began to wait for that.",
        ),
        "gates_held": _gauge(
            "progressor_gates_held", "{place}",
            "Held places of gates, of all replicas at the last count; counted up to 10,000. "
            "Reported once there have been tasks with constraints.",
            "namespace",
        ),
        "gates_full": _gauge(
            "progressor_gates_full", "{gate}",
            "Gates without a free place that tasks wait for, of all replicas at the last count; "
            "counted up to 10,000. Reported once there have been tasks with constraints.",
            "namespace",
        ),
        "timer_lateness": _duration(
            "progressor_timer_lateness_ms",
            "From the instant at which a timer, or its retry, was due to the start of its step; "
            "one with constraints is due once they are met. Excludes timers that are due at once.",
            ("namespace",),
        ),
        "scan_found": _counter(
            "progressor_scan_found", "{task}",
            "Due tasks that only a scan found; zero in a healthy engine.",
            "namespace", "task_type",
        ),
        "gates_scan_found": _counter(
            "progressor_gates_scan_found", "{item}",
            "Tasks, gates, queues and orders that only a scan of the gates found; zero in a "
            "healthy engine.",
            "namespace",
        ),
        "jobs_running": _gauge(
            "progressor_jobs_running", "{job}",
            "Jobs that have not ended, of all replicas at the last count; counted up to 10,000. "
            "Reported if there are any.",
            "namespace",
        ),
        "job_nodes": _gauge(
            "progressor_job_nodes", "{node}",
            "Nodes of these jobs. state: waiting (for other nodes), ready (waits for capacity), "
            "running, failed, skipped (because of a failed one).",
            "namespace", "state",
        ),
        "jobs_ended": _counter(
            "progressor_jobs_ended", "{job}",
            "Jobs that this replica has ended: by a step of the leader, at the deadline, or on "
            "request. state: done, failed, cancelled. A failed job that is retried counts again "
            "when it ends again; a nested job that is stopped with its parent does not count.",
            "namespace", "state",
        ),
        "job_nodes_ended": _counter(
            "progressor_job_nodes_ended", "{node}",
            "Nodes ended by a step that this replica has settled, once per such step. state: "
            "done, failed. namespace: that of the job. Excludes nodes that ended without a step: "
            "skipped, cancelled, or not startable.",
            "namespace", "state",
        ),
        "jobs_overdue": _counter(
            "progressor_jobs_overdue", "{job}",
            "Jobs that this replica failed at their deadline.",
            "namespace",
        ),
        "upkeep_nodes": _counter(
            "progressor_upkeep_nodes", "{node}",
            "Nodes that this replica has started or stopped outside of settlements. action: "
            "started (a node with constraints), stopped (its job had ended).",
            "namespace", "action",
        ),
        "jobs_recovered": _counter(
            "progressor_jobs_recovered", "{item}",
            "Stalled work that recovery found and resumed; zero in a healthy engine. kind: join (a "
            "leader that was not notified), node (its process had ended), start and gated (ready "
            "nodes that had not been started).",
            "namespace", "kind",
        ),
        "schedule_runs": _counter(
            "progressor_schedule_runs", "{run}",
            "Runs of schedules. verdict: started, queued, skipped, refused, missed. A queued run "
            "counts again when it starts.",
            "namespace", "verdict",
        ),
        "schedule_lateness": _duration(
            "progressor_schedule_lateness_ms",
            "From the instant at which a run was due, including its jitter, to the transaction "
            "that started it. Excludes queued, triggered and backfilled runs.",
            ("namespace",),
        ),
        "scans_failed": _counter(
            "progressor_scans_failed", "{scan}",
            "Scans that failed; they are repeated.",
            "scan",
        ),
        # Steps.
        "steps_in_flight": _gauge(
            "progressor_steps_in_flight", "{task}",
            "Steps running in this replica.",
            "namespace",
        ),
        "workers_free": _gauge(
            "progressor_workers_free", "{worker}",
            "Slots for more steps in this replica.",
            "namespace",
        ),
        "settled": _counter(
            "progressor_tasks_settled", "{task}",
            "Attempts whose outcome was written, including those of zombies. settlement: finish, "
            "fail, retry, break, remove.",
            "namespace", "task_type", "settlement",
        ),
        "fenced": _counter(
            "progressor_settlements_fenced", "{task}",
            "Settlements refused because their lease was lost.",
            "namespace", "task_type",
        ),
        "abandoned": _counter(
            "progressor_steps_abandoned", "{task}",
            "Steps abandoned because no heartbeat could be written, or the namespace was deleted.",
            "namespace", "task_type",
        ),
        "processor_errors": _counter(
            "progressor_processor_errors", "{attempt}",
            "Attempts that failed or were rejected. code: the gRPC status; rejected: whether the "
            "processor rejected the request.",
            "namespace", "task_type", "code", "rejected",
        ),
        "largest_step": _gauge(
            "progressor_largest_step_ratio", "1",
            "The largest step of the last ten minutes as a share of its processor's limit; "
            "reported from 0.5 on; above 1 the step was not sent.",
            "namespace",
        ),
        "events_written": _counter(
            "progressor_events_written", "{event}",
            "Events appended to histories.",
            "namespace",
        ),
        "bytes_written": _counter(
            "progressor_bytes_written", "By",
            "Payloads written. kind: args, events, response, aux_state, result.",
            "namespace", "kind",
        ),
        "zombies_collected": _counter(
            "progressor_zombies_collected", "{task}",
            "Lost leases settled by this replica. cause: silent, overrun, unknown. policy: that of "
            "the namespace, retry or fail. settlement: as of all attempts.",
            "namespace", "cause", "policy", "settlement",
        ),
        # Storage.
        "batch_items": Metric(
            kind=MetricKind.HISTOGRAM, name="progressor_batch_items", unit="{item}",
            meaning="Items per batch of the group commit. write: the kind of batch.",
            labels=("write",), bounds=_SIZES,
        ),
        "batch_wait": _duration(
            "progressor_batch_wait_ms",
            "How long the first item of a batch waited before the batch was sent.",
            ("write",),
        ),
        "writes_waiting": _gauge(
            "progressor_writes_waiting", "{item}",
            "Items waiting for the group commit.",
            "write",
        ),
        "writes_waiting_bytes": _gauge(
            "progressor_writes_waiting_bytes", "By",
            "Bytes of the items waiting for the group commit.",
            "write",
        ),
        "pool_connections": _gauge(
            "progressor_pool_connections", "{connection}",
            "Connections to PostgreSQL. state: used, idle.",
            "pool", "state",
        ),
        "pool_waiting": _gauge(
            "progressor_pool_waiting", "{waiter}",
            "Callers waiting for a connection.",
            "pool",
        ),
        "pool_wait": _counter(
            "progressor_pool_wait_ms", "ms",
            "Total time spent waiting for connections.",
            "pool",
        ),
        # Telemetry itself.
        "spans": _counter(
            "progressor_spans", "{span}",
            "Spans that have ended. fate: pushed, no_room (the queue to the collector was full), "
            "not_taken (the collector was unavailable, or refused them). Not reported without a "
            "collector.",
            "fate",
        ),
        "heartbeat_age": _gauge(
            "progressor_heartbeat_age_seconds", "s",
            "Age of this replica's last heartbeat; at 0.9 of the lease timeout the replica drops "
            "its steps.",
        ),
    }
)  # fmt: skip
"""By the attribute of `metrics.Metrics`."""

PROCESSOR_SERVICE = "progressor.v1.ProcessorService"
ADMIT = "progressor.admit"
STEP = "progressor.step"
CLAIM = "progressor.claim"
SETTLE = "progressor.settle"
COLLECT = "progressor.collect"
FIRE = "progressor.fire"

SPANS: Mapping[str, str] = MappingProxyType(
    {
        "progressor.v1.ProcessService/…": "A request, alone or in a session, from its arrival to "
        "its answer; likewise for the other services.",
        ADMIT: "A request becomes a durable task, including the wait for a batch.",
        STEP: "One attempt of a task, from its claim to its settlement; a timer's step is "
        "linked to the step that set it, the first step of a new trace to the last one of the "
        "previous trace.",
        CLAIM: "The statement that leased a task that had waited, usually many at once.",
        f"{PROCESSOR_SERVICE}/Process": "The request to the processor, by a call or in a frame; "
        "the parent of the processor's own spans.",
        SETTLE: "The outcome is written, including the wait for a batch.",
        COLLECT: "A lost lease is found and settled.",
        FIRE: "A run of a schedule: the transaction that decides whether it starts, and starts its "
        "work; many at once. The steps of that work continue its trace. Not recorded if nothing "
        "changes, as for a queued run.",
    }
)
"""By name, a sentence for each."""

NAMESPACE = "progressor.namespace"
PROCESS_ID = "progressor.process_id"
TASK_ID = "progressor.task_id"
TASK_TYPE = "progressor.task_type"
ATTEMPT = "progressor.attempt"
LATENESS = "progressor.lateness_ms"
BATCH_WAIT = "progressor.batch_wait_ms"
VERDICT = "progressor.verdict"
SETTLEMENT = "progressor.settlement"
NEXT_TASK_ID = "progressor.next_task_id"
RETRY_DELAY = "progressor.retry_delay_ms"
REJECTED = "progressor.rejected"
CAUSE = "progressor.cause"
LOST_REPLICA_ID = "progressor.lost_replica_id"
SCHEDULE_ID = "progressor.schedule_id"
INSTANT = "progressor.instant"
GATE = "progressor.gate"
GATES = "progressor.gates"
WAITED_FOR = "progressor.waited_for"
BEHIND_TASK_ID = "progressor.behind_task_id"
SPENT = (
    "progressor.spent.time_us",
    "progressor.spent.order_us",
    "progressor.spent.process_us",
    "progressor.spent.gates_us",
    "progressor.spent.available_us",
    "progressor.spent.running_us",
)
"""As of `RunningTask.spent`, in its order."""
ERROR_TYPE = "error.type"
RPC_SYSTEM = "rpc.system.name"
RPC_METHOD = "rpc.method"
RPC_STATUS_CODE = "rpc.response.status_code"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
MESSAGING_SYSTEM = "messaging.system"
MESSAGING_OPERATION = "messaging.operation.name"
MESSAGING_OPERATION_TYPE = "messaging.operation.type"
MESSAGING_DESTINATION = "messaging.destination.name"
MESSAGE_ID = "messaging.message.id"
DB_SYSTEM = "db.system.name"
DB_PROCEDURE = "db.stored_procedure.name"

ATTRIBUTES: Mapping[str, str] = MappingProxyType(
    {
        NAMESPACE: "The namespace of the process, or of the schedule.",
        PROCESS_ID: "The id of the process; on a schedule run, of the one that it starts or calls.",
        TASK_ID: "The id of the task; on a request, of the task that it names or created; on a "
        "schedule run, of the task that it created.",
        TASK_TYPE: "init, call, notify, repair, timeout, remove or join.",
        ATTEMPT: "The number of the attempt, from 1.",
        LATENESS: "From the instant at which a waiting task, a timer or a retry was due to the "
        "start of its step; on a schedule run, from its due time to its transaction.",
        BATCH_WAIT: "How long an admission or a settlement was queued before it was sent.",
        VERDICT: "The outcome of an admission: accepted, duplicate, process_not_found …; of a "
        "schedule run: started, queued, skipped, refused, missed.",
        SETTLEMENT: "What was written: finish, fail, retry, break, remove.",
        NEXT_TASK_ID: "The task of the same process that the worker continues with.",
        RETRY_DELAY: "How long the task waits for its next attempt.",
        REJECTED: "The processor rejected the request, which is not a failure.",
        CAUSE: "How the lease was lost: silent, overrun, unknown; why a schedule fired: time, "
        "trigger, backfill.",
        LOST_REPLICA_ID: "The replica whose lease was lost.",
        SCHEDULE_ID: "The id of the schedule, on a schedule run or a request.",
        INSTANT: "The scheduled instant of a run, in UTC; it identifies the run within its "
        "schedule.",
        GATE: "The key of the gate that a request is about.",
        GATES: "The keys of the gates that an admitted task must pass.",
        WAITED_FOR: "What the step's task waited for, each once: time (its due time, or that of a "
        "retry), order, process (another task of its process), gates, available (a worker). Absent "
        "if it was leased at once.",
        BEHIND_TASK_ID: "The task of the same process after whose end this one began.",
        SPENT[0]: "Of a task with constraints, until this attempt began: how long it waited for an "
        "instant, its own or that of its retry. This and the next five add up to the age of the "
        "task, to the microsecond.",
        SPENT[1]: "Likewise, for a smaller version of its order.",
        SPENT[2]: "Likewise, for another task of its process.",
        SPENT[3]: "Likewise, for a place in its gates.",
        SPENT[4]: "Likewise, for a worker.",
        SPENT[5]: "Likewise, how long it ran in earlier attempts.",
        ERROR_TYPE: "The reason of an error; CANCELLED if the caller no longer waited.",
        RPC_SYSTEM: "grpc.",
        RPC_METHOD: "The full name of the method.",
        RPC_STATUS_CODE: "The gRPC status: OK, UNAVAILABLE …",
        SERVER_ADDRESS: "The host, or the path of the socket, of the processor.",
        SERVER_PORT: "Its port.",
        MESSAGING_SYSTEM: "progressor: in messaging terms, a task is a message.",
        MESSAGING_OPERATION: "step.",
        MESSAGING_OPERATION_TYPE: "process.",
        MESSAGING_DESTINATION: "The namespace.",
        MESSAGE_ID: "The id of the task.",
        DB_SYSTEM: "postgresql.",
        DB_PROCEDURE: "The function in the database.",
    }
)
"""Of spans, by name, a sentence for each."""
