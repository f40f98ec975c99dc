"""Every metric, span and attribute by its name, with its unit and one sentence.

The eight histograms that end in ``_duration_ms`` have the names that the Erlang progressor gave
them. Labels are of bounded cardinality: what names a process or a task belongs into spans and logs.
In Prometheus a counter's name ends in ``_total``.
"""

from collections.abc import Mapping
from types import MappingProxyType

from progressor.domain.views.activity import QUEUES_MAX
from progressor.telemetry.instruments import Kind, Metric

_DURATIONS_MS = (
    0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000
)  # fmt: skip
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_BY_TASK = ("namespace", "task_type")
_CAUSES_MAX = 8


def _duration(name: str, meaning: str, labels: tuple[str, ...] = _BY_TASK) -> Metric:
    return Metric(
        kind=Kind.HISTOGRAM, name=name, unit="ms", meaning=meaning, labels=labels,
        bounds=_DURATIONS_MS,
    )  # fmt: skip


def _counter(name: str, unit: str, meaning: str, *labels: str) -> Metric:
    return Metric(kind=Kind.COUNTER, name=name, unit=unit, meaning=meaning, labels=labels)


def _gauge(name: str, unit: str, meaning: str, *labels: str) -> Metric:
    return Metric(kind=Kind.GAUGE, name=name, unit=unit, meaning=meaning, labels=labels)


def _queue(name: str, unit: str, meaning: str) -> Metric:
    return Metric(
        kind=Kind.GAUGE, name=name, unit=unit, meaning=meaning, labels=("namespace", "cause"),
        sets_max=_CAUSES_MAX * QUEUES_MAX,
    )  # fmt: skip


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        # The ancestor's.
        "calls_scanning": _duration(
            "progressor_calls_scanning_duration_ms",
            "A claim of due requests (init, call, notify, repair) and joins, told once for each "
            "namespace and type in it; a look of the safety net that finds nothing counts as call.",
        ),
        "timers_scanning": _duration(
            "progressor_timers_scanning_duration_ms",
            "A claim of due timers (timeout, remove), told once for each namespace and type in "
            "it; a look of the safety net that finds nothing counts as timeout.",
        ),
        "zombie_collection": _duration(
            "progressor_zombie_collection_duration_ms",
            "From finding a lost lease to its settlement.",
        ),
        "request_preparing": _duration(
            "progressor_request_preparing_duration_ms",
            "Admission: from a request's arrival to its durable task, the wait for a batch in it.",
        ),
        "task_processing": _duration(
            "progressor_task_processing_duration_ms",
            "One attempt at the processor, from asking to its answer.",
        ),
        "task_completion": _duration(
            "progressor_task_completion_duration_ms",
            "Settlement: from the outcome to its commit, the wait for a batch in it.",
        ),
        "process_removing": _duration(
            "progressor_process_removing_duration_ms",
            "Deleting a process with all its rows, by a request or a step.",
        ),
        "notification": _duration(
            "progressor_notification_duration_ms",
            "Telling other replicas that tasks have ended for which callers wait there, told once "
            "for each namespace and type in it.",
        ),
        # Requests.
        "requests": _counter(
            "progressor_requests", "{request}",
            "Requests that have ended. outcome: ok, refused (the caller's to fix), failed (the "
            "processor's word), unavailable (try again), cancelled (the caller has gone), internal "
            "(a bug). reason: of the error, REJECTED for the processor's own. namespace: empty for "
            "one that is not known, and for requests about none.",
            "namespace", "operation", "outcome", "reason",
        ),
        "admitted": _counter(
            "progressor_requests_admitted", "{task}",
            "Requests that became durable tasks, or joined one by their idempotency key.",
            "namespace", "task_type",
        ),
        "callers_waiting": _gauge(
            "progressor_callers_waiting", "{task}",
            "Tasks for whose answers callers wait in this replica.",
        ),
        "replies": _counter(
            "progressor_replies", "{task}",
            "Answers given to waiting callers. way: local, or remote where another replica had "
            "carried the task.",
            "way",
        ),
        "notifications_lost": _counter(
            "progressor_notifications_lost", "{notification}",
            "Notifications to other replicas that could not be sent; a slow round makes up for it.",
        ),
        "stream_sessions": _gauge(
            "progressor_stream_sessions", "{session}",
            "Streams open. side: client (sessions of clients), processor (streams to processors).",
            "side",
        ),
        # Queues.
        "queue_tasks": _queue(
            "progressor_queue_tasks", "{task}",
            "Tasks that wait, over all replicas, as of the last look; counted up to 10,000. cause: "
            "timer, retry, no_free_worker (due and not taken), behind_task; where there have been "
            "tasks with constraints: run_at, order, gate, available (past all of them and not "
            "taken).",
        ),
        "queue_oldest_age": _queue(
            "progressor_queue_oldest_age_seconds", "s",
            "How long the oldest of them has waited; zero where none does. cause: no_free_worker, "
            "since it was due; behind_task, since it was admitted (a timer: since it was due); "
            "retry, since its first attempt; order, gate and available, and behind_task of one "
            "with constraints, since it came to wait for that.",
        ),
        "gates_held": _gauge(
            "progressor_gates_held", "{place}",
            "Places of gates that are held, over all replicas, as of the last look; counted up to "
            "10,000. Where there have been tasks with constraints.",
            "namespace",
        ),
        "gates_full": _gauge(
            "progressor_gates_full", "{gate}",
            "Gates without a place for those in their lines, likewise.",
            "namespace",
        ),
        "timer_lateness": _duration(
            "progressor_timer_lateness_ms",
            "From the instant at which a timer, or its retry, was due to the start of its step; "
            "one with constraints is due once it has passed them. Those left out that a step sets "
            "for at once.",
            ("namespace",),
        ),
        "scan_found": _counter(
            "progressor_scan_found", "{task}",
            "Due tasks that only the safety net found; zero in a healthy engine.",
            "namespace", "task_type",
        ),
        "gates_scan_found": _counter(
            "progressor_gates_scan_found", "{find}",
            "Tasks, gates, lines and orders that only the safety net of gates found; zero in a "
            "healthy engine.",
            "namespace",
        ),
        "jobs_running": _gauge(
            "progressor_jobs_running", "{job}",
            "Jobs that have not ended, over all replicas, as of the last look; counted up to "
            "10,000. Where there are any.",
            "namespace",
        ),
        "job_nodes": _gauge(
            "progressor_job_nodes", "{node}",
            "Nodes of these. state: waiting (for others), ready (for room), running; failed, and "
            "skipped because of one that has.",
            "namespace", "state",
        ),
        "jobs_ended": _counter(
            "progressor_jobs_ended", "{job}",
            "Jobs that this replica has ended: by a step of the leader, at the deadline, or since "
            "it was asked to. state: done, failed, cancelled. One that goes on after it had "
            "failed is counted again when it ends again; one that is stopped with the job it is "
            "a node of is left out.",
            "namespace", "state",
        ),
        "job_nodes_ended": _counter(
            "progressor_job_nodes_ended", "{node}",
            "Nodes that have ended by a step that this replica has settled, once for each such "
            "step. state: done, failed. namespace: of the job. Those left out that ended by no "
            "step: skipped, cancelled, or such as could not be started.",
            "namespace", "state",
        ),
        "jobs_overdue": _counter(
            "progressor_jobs_overdue", "{job}",
            "Jobs that this replica has failed at their deadline.",
            "namespace",
        ),
        "nodes_tended": _counter(
            "progressor_nodes_tended", "{node}",
            "Nodes that this replica has processed outside of settlements. deed: started (one with "
            "constraints), stopped (its job had ended).",
            "namespace", "deed",
        ),
        "jobs_recovered": _counter(
            "progressor_jobs_recovered", "{find}",
            "Stalled work that recovery found and resumed; zero in a healthy engine. kind: "
            "join (a leader not notified), node (one whose process had ended), start, gated "
            "(ready nodes that had not been started).",
            "namespace", "kind",
        ),
        "schedule_firings": _counter(
            "progressor_schedule_firings", "{firing}",
            "Firings of schedules by what became of them: started, queued, skipped, refused or "
            "missed. One that was queued counts again when it is started.",
            "namespace", "verdict",
        ),
        "schedule_lateness": _duration(
            "progressor_schedule_lateness_ms",
            "From the instant at which a firing was due, with its jitter, to the transaction that "
            "started what it starts. Those left out that were queued, triggered or backfilled.",
            ("namespace",),
        ),
        "scans_failed": _counter(
            "progressor_scans_failed", "{scan}",
            "Scans that ended in an error and are repeated.",
            "scan",
        ),
        # Steps.
        "steps_in_flight": _gauge(
            "progressor_steps_in_flight", "{task}",
            "Steps that this replica has in hand.",
            "namespace",
        ),
        "workers_free": _gauge(
            "progressor_workers_free", "{worker}",
            "Places for more steps in this replica.",
            "namespace",
        ),
        "settled": _counter(
            "progressor_tasks_settled", "{task}",
            "Attempts whose outcome was written, those of zombies among them. settlement: finish, "
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
            "Steps given up: no heartbeat could be written, or the namespace is gone.",
            "namespace", "task_type",
        ),
        "processor_errors": _counter(
            "progressor_processor_errors", "{attempt}",
            "Attempts that the processor did not succeed in. code: of gRPC; rejected: its own word "
            "to the caller.",
            "namespace", "task_type", "code", "rejected",
        ),
        "largest_step": _gauge(
            "progressor_largest_step_ratio", "1",
            "The largest step of the last ten minutes, as a share of its processor's limit; "
            "reported from 0.5 on, above 1 the step was not sent.",
            "namespace",
        ),
        "events_written": _counter(
            "progressor_events_written", "{event}",
            "Events that became part of a history.",
            "namespace",
        ),
        "bytes_written": _counter(
            "progressor_bytes_written", "By",
            "Payloads written. kind: args, events, response, aux_state, result.",
            "namespace", "kind",
        ),
        "zombies_collected": _counter(
            "progressor_zombies_collected", "{task}",
            "Lost leases settled by this replica. cause: silent, overrun, unknown. policy: of the "
            "namespace, retry or fail. settlement: what came of it, as of all attempts.",
            "namespace", "cause", "policy", "settlement",
        ),
        # Storage.
        "batch_items": Metric(
            kind=Kind.HISTOGRAM, name="progressor_batch_items", unit="{item}",
            meaning="Items of a batch of the group commit. write: which kind.",
            labels=("write",), bounds=_SIZES,
        ),
        "batch_wait": _duration(
            "progressor_batch_wait_ms",
            "How long the first item of a batch waited until it was sent.",
            ("write",),
        ),
        "writes_waiting": _gauge(
            "progressor_writes_waiting", "{item}",
            "Items in line for the group commit.",
            "write",
        ),
        "writes_waiting_bytes": _gauge(
            "progressor_writes_waiting_bytes", "By",
            "What they take.",
            "write",
        ),
        "pool_connections": _gauge(
            "progressor_pool_connections", "{connection}",
            "Connections to PostgreSQL. state: used, idle.",
            "pool", "state",
        ),
        "pool_waiting": _gauge(
            "progressor_pool_waiting", "{waiter}",
            "Who waits for a connection.",
            "pool",
        ),
        "pool_wait": _counter(
            "progressor_pool_wait_ms", "ms",
            "Time spent waiting for a connection, over all who did.",
            "pool",
        ),
        # Telemetry itself.
        "spans": _counter(
            "progressor_spans", "{span}",
            "Spans that have ended. fate: pushed, no_room (more than the line to the collector "
            "holds), not_taken (the collector was away, or refused). No series: there is no "
            "collector.",
            "fate",
        ),
        "heartbeat_age": _gauge(
            "progressor_heartbeat_age_seconds", "s",
            "How old this replica's last heartbeat is; at 0.9 of the lease timeout it lets go.",
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
        "its answer; likewise of the other services.",
        ADMIT: "A request becomes a durable task, its wait for a batch in it.",
        STEP: "One attempt of a task, from its claim to its settlement; a timer's step is "
        "linked to the step that set it; the first step of a new trace to the last one of the "
        "trace before.",
        CLAIM: "The statement that leased a task which had waited, many at once as a rule.",
        f"{PROCESSOR_SERVICE}/Process": "The processor is asked, by a call or in a frame; its own "
        "spans go below.",
        SETTLE: "The outcome is written, its wait for a batch in it.",
        COLLECT: "A lost lease is found and settled.",
        FIRE: "A schedule fires, or would have: the transaction that decides it and starts what it "
        "starts, many at once. The steps of that go on with its trace. Left out what is as it "
        "was, as of one that is queued.",
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
        PROCESS_ID: "The id of the process; of a firing, of what it starts or calls.",
        TASK_ID: "The id of the task; on a request, of the task that it names or created; on a "
        "firing, of the task that it created.",
        TASK_TYPE: "init, call, notify, repair, timeout, remove or join.",
        ATTEMPT: "The number of the attempt, from 1.",
        LATENESS: "From the instant at which a waiting task, a timer or a retry was due to the "
        "start of its step; on a firing, from its due time to its transaction.",
        BATCH_WAIT: "How long an admission or a settlement stood in line until it was sent.",
        VERDICT: "What admission said of the request: accepted, duplicate, process_not_found …; "
        "what became of a firing: started, queued, skipped, refused, missed.",
        SETTLEMENT: "What was written: finish, fail, retry, break, remove.",
        NEXT_TASK_ID: "The task of the same process that the worker goes on with.",
        RETRY_DELAY: "For how long the task waits for its next attempt.",
        REJECTED: "The processor refused the request: its own word to the caller, and no failure.",
        CAUSE: "How the lease was lost: silent, overrun, unknown; why a schedule fired: time, "
        "trigger, backfill.",
        LOST_REPLICA_ID: "The replica whose lease was lost.",
        SCHEDULE_ID: "The id of the schedule, of a firing or a request.",
        INSTANT: "The instant that a firing is for, in UTC: with the schedule, its name.",
        GATE: "The key of the gate that a request is about.",
        GATES: "The keys of the gates that an admitted task has to pass.",
        WAITED_FOR: "What the step's task waited for, each once: time (its due time, or that of a "
        "retry), order, process (another task of its process), gates, available (only a worker). "
        "None: it was leased at once.",
        BEHIND_TASK_ID: "The task of the same process whose end let this one begin.",
        SPENT[0]: "Of a task with constraints, of its life until this attempt began: how long it "
        "waited for an instant, its own or that of its retry. This and the next five add up to "
        "that life, to the microsecond.",
        SPENT[1]: "Likewise, for a smaller version of its order.",
        SPENT[2]: "For another task of its process.",
        SPENT[3]: "For a place in its gates.",
        SPENT[4]: "For a worker, and nothing else.",
        SPENT[5]: "How long it ran, in the attempts before.",
        ERROR_TYPE: "The reason of an error; CANCELLED if no caller was waiting any longer.",
        RPC_SYSTEM: "grpc.",
        RPC_METHOD: "The full name of the method.",
        RPC_STATUS_CODE: "The gRPC status: OK, UNAVAILABLE …",
        SERVER_ADDRESS: "The host, or the path of the socket, where the processor was asked.",
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
