"""All metrics of a replica: each is an instrument, described where `Metrics` declares it.

The eight histograms that end in ``_duration_ms`` have the names of the Erlang progressor.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from progressor.domain.processes.process import ProcessStatus
from progressor.domain.quotas.quotas import Quota
from progressor.domain.views.activity import QUEUES_MAX
from progressor.telemetry.instruments import (
    Counter,
    Family,
    Gauge,
    Histogram,
    Instrument,
    Metric,
    MetricKind,
)

_DURATIONS_MS = (
    0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000
)  # fmt: skip
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_BY_TASK = ("namespace", "task_type")
_CAUSES_MAX = 12


def _declared(  # a field of any type of instrument
    instrument: Callable[[Metric], Instrument],
    kind: MetricKind,
    name: str,
    unit: str,
    meaning: str,
    *labels: str,
    **bounds: Any,  # noqa: ANN401  # as `Metric` has them
) -> Any:  # noqa: ANN401  # a default of a dataclass
    metric = Metric(kind=kind, name=name, unit=unit, meaning=meaning, labels=labels, **bounds)
    return dataclasses.field(
        default_factory=functools.partial(instrument, metric), metadata={"metric": metric}
    )


_counter = functools.partial(_declared, Counter, MetricKind.COUNTER)
_gauge = functools.partial(_declared, Gauge, MetricKind.GAUGE)
_histogram = functools.partial(_declared, Histogram, MetricKind.HISTOGRAM)


def _duration(name: str, meaning: str, *labels: str) -> Any:  # noqa: ANN401  # as above
    return _histogram(name, "ms", meaning, *(labels or _BY_TASK), bounds=_DURATIONS_MS)


@dataclasses.dataclass(eq=False, kw_only=True)
class Metrics:
    # fmt: off
    calls_scanning: Histogram = _duration(
        "progressor_calls_scanning_duration_ms",
        "A claim of due requests (init, call, notify, repair) and joins, recorded once per "
        "namespace and type in it; a scan that finds nothing counts as call.",
    )
    timers_scanning: Histogram = _duration(
        "progressor_timers_scanning_duration_ms",
        "A claim of due timers (timeout, remove), recorded once per namespace and type in it; "
        "a scan that finds nothing counts as timeout.",
    )
    zombie_collection: Histogram = _duration(
        "progressor_zombie_collection_duration_ms",
        "From finding a lost lease to its settlement.",
    )
    request_preparing: Histogram = _duration(
        "progressor_request_preparing_duration_ms",
        "Admission: from the arrival of a request to its durable task, including the wait for "
        "a batch.",
    )
    task_processing: Histogram = _duration(
        "progressor_task_processing_duration_ms",
        "One attempt at the processor, from the request to its answer.",
    )
    task_completion: Histogram = _duration(
        "progressor_task_completion_duration_ms",
        "Settlement: from the outcome to its commit, including the wait for a batch.",
    )
    process_removing: Histogram = _duration(
        "progressor_process_removing_duration_ms",
        "Deleting a process with all its rows, by a request or a step.",
    )
    notification: Histogram = _duration(
        "progressor_notification_duration_ms",
        "Notifying other replicas of ended tasks for which callers wait there, recorded once "
        "per namespace and type in it.",
    )
    # Requests.
    requests: Counter = _counter(
        "progressor_requests", "{request}",
        "Requests that have ended. outcome: ok, refused (the caller must change it), failed "
        "(by the processor), unavailable (try again), cancelled (by the caller), internal (a "
        "bug). reason: that of the error, REJECTED for one by the processor. namespace: empty "
        "if it is unknown, and for requests without one.",
        "namespace", "operation", "outcome", "reason",
    )
    admitted: Counter = _counter(
        "progressor_requests_admitted", "{task}",
        "Requests that became durable tasks, or repeat one by their idempotency key.",
        "namespace", "task_type",
    )
    callers_waiting: Gauge = _gauge(
        "progressor_callers_waiting", "{task}",
        "Tasks whose answers callers wait for in this replica.",
    )
    replies: Counter = _counter(
        "progressor_replies", "{task}",
        "Answers given to waiting callers. way: local, or remote if another replica ran the "
        "task.",
        "way",
    )
    notifications_lost: Counter = _counter(
        "progressor_notifications_lost", "{notification}",
        "Notifications to other replicas that could not be sent; a periodic check makes up for "
        "them.",
    )
    stream_sessions: Gauge = _gauge(
        "progressor_stream_sessions", "{session}",
        "Open streams. side: client (sessions of clients), processor (streams to processors).",
        "side",
    )
    # Queues.
    queue_tasks: Gauge = _gauge(
        "progressor_queue_tasks", "{task}",
        "Waiting tasks of all replicas at the last count; counted up to 10,000. cause: timer, "
        "retry, no_free_worker (due but not claimed), processor_unreachable (due, but no replica "
        "reaches the processor), behind_task, process_failed (held until "
        "their process comes back; with constraints under behind_task), paused (due, but the "
        "namespace is paused), quota (due, but the quota of timers is used up); if there have been "
        "tasks with constraints: run_at, order, gate, available (all constraints met, but not "
        "claimed).",
        "namespace", "cause", sets_max=_CAUSES_MAX * QUEUES_MAX,
    )
    queue_oldest_age: Gauge = _gauge(
        "progressor_queue_oldest_age_seconds", "s",
        "How long the oldest waiting task has waited; zero without one. cause: no_free_worker, "
        "processor_unreachable, paused and quota, since it was due; behind_task, since it was "
        "admitted (a timer: since it was due); process_failed, since its process broke; "
        "retry, since its first attempt; order, gate and available, and behind_task of a task "
        "with constraints, since it began to wait for that.",
        "namespace", "cause", sets_max=_CAUSES_MAX * QUEUES_MAX,
    )
    namespaces_paused: Gauge = _gauge(
        "progressor_namespace_paused", "1",
        "1 while the namespace is paused, as this replica knows it; else 0.",
        "namespace", sets_max=QUEUES_MAX,
    )
    quota_refused: Counter = _counter(
        "progressor_quota_refused", "{request}",
        "Requests refused because their namespace has used up a quota. quota: starts_per_second, "
        "calls_per_second, open_processes, bytes_per_second.",
        "namespace", "quota", sets_max=len(Quota) * QUEUES_MAX,
    )
    quota_used: Gauge = _gauge(
        "progressor_quota_used_ratio", "1",
        "What this replica has let through in the last second or so, as a share of the quota of "
        "the namespace; the sum over the replicas is the use of the quota.",
        "namespace", "quota", sets_max=len(Quota) * QUEUES_MAX,
    )
    processes: Gauge = _gauge(
        "progressor_processes", "{process}",
        "Processes of the database at the last count. status: init, running, error (broken), "
        "finished.",
        "namespace", "status", sets_max=len(ProcessStatus) * QUEUES_MAX,
    )
    gates_held: Gauge = _gauge(
        "progressor_gates_held", "{place}",
        "Held places of gates, of all replicas at the last count; counted up to 10,000. "
        "Reported once there have been tasks with constraints.",
        "namespace",
    )
    gates_full: Gauge = _gauge(
        "progressor_gates_full", "{gate}",
        "Gates without a free place that tasks wait for, of all replicas at the last count; "
        "counted up to 10,000. Reported once there have been tasks with constraints.",
        "namespace",
    )
    timer_lateness: Histogram = _duration(
        "progressor_timer_lateness_ms",
        "From the instant at which a timer, or its retry, was due to the start of its step; "
        "one with constraints is due once they are met. Excludes timers that are due at once.",
        "namespace",
    )
    scan_found: Counter = _counter(
        "progressor_scan_found", "{task}",
        "Due tasks that only a scan found; zero in a healthy engine.",
        "namespace", "task_type",
    )
    gates_scan_found: Counter = _counter(
        "progressor_gates_scan_found", "{item}",
        "Tasks, gates, queues and orders that only a scan of the gates found; zero in a "
        "healthy engine.",
        "namespace",
    )
    jobs_running: Gauge = _gauge(
        "progressor_jobs_running", "{job}",
        "Jobs that have not ended, of all replicas at the last count; counted up to 10,000. "
        "Reported if there are any.",
        "namespace",
    )
    job_nodes: Gauge = _gauge(
        "progressor_job_nodes", "{node}",
        "Nodes of these jobs. state: waiting (for other nodes), ready (waits for capacity), "
        "running, failed, skipped (because of a failed one).",
        "namespace", "state",
    )
    jobs_ended: Counter = _counter(
        "progressor_jobs_ended", "{job}",
        "Jobs that this replica has ended: by a step of the leader, at the deadline, or on "
        "request. state: done, failed, cancelled. A failed job that is retried counts again "
        "when it ends again; a nested job that is stopped with its parent does not count.",
        "namespace", "state",
    )
    job_nodes_ended: Counter = _counter(
        "progressor_job_nodes_ended", "{node}",
        "Nodes ended by a step that this replica has settled, once per such step. state: "
        "done, failed. namespace: that of the job. Excludes nodes that ended without a step: "
        "skipped, cancelled, or not startable.",
        "namespace", "state",
    )
    jobs_overdue: Counter = _counter(
        "progressor_jobs_overdue", "{job}",
        "Jobs that this replica failed at their deadline.",
        "namespace",
    )
    upkeep_nodes: Counter = _counter(
        "progressor_upkeep_nodes", "{node}",
        "Nodes that this replica has started or stopped outside of settlements. action: "
        "started (a node with constraints), stopped (its job had ended).",
        "namespace", "action",
    )
    bulk_processes: Counter = _counter(
        "progressor_bulk_processes", "{process}",
        "Processes that a bulk operation has handled in this replica: changed, skipped or failed.",
        "kind",
    )
    bulks_ended: Counter = _counter(
        "progressor_bulks_ended", "{operation}",
        "Bulk operations that a step of this replica has ended. state: done, stopped (on request "
        "or because too many processes failed).",
        "kind", "state",
    )
    messages_delivered: Counter = _counter(
        "progressor_messages_delivered", "{message}",
        "Messages of steps that were admitted by their receivers, by the namespace of the sender. "
        "kind: start, notify, call, reply. held: yes if the receiver is in error.",
        "namespace", "kind", "held",
    )
    messages_refused: Counter = _counter(
        "progressor_messages_refused", "{message}",
        "Messages of steps that could not be delivered, by the namespace of the sender. Trace of "
        "the sender lists them.",
        "namespace", "kind", "reason",
    )
    messages_scan_found: Counter = _counter(
        "progressor_messages_scan_found", "{sender}",
        "Senders whose messages only the scan found: their replica died, or their receiver was "
        "locked.",
        "namespace",
    )
    jobs_recovered: Counter = _counter(
        "progressor_jobs_recovered", "{item}",
        "Stalled work that recovery found and resumed; zero in a healthy engine. kind: join (a "
        "leader that was not notified), node (its process had ended), start and gated (ready "
        "nodes that had not been started).",
        "namespace", "kind",
    )
    schedule_runs: Counter = _counter(
        "progressor_schedule_runs", "{run}",
        "Runs of schedules. verdict: started, queued, skipped, refused, missed. A queued run "
        "counts again when it starts.",
        "namespace", "verdict",
    )
    schedule_lateness: Histogram = _duration(
        "progressor_schedule_lateness_ms",
        "From the instant at which a run was due, including its jitter, to the transaction "
        "that started it. Excludes queued, triggered and backfilled runs.",
        "namespace",
    )
    scans_failed: Counter = _counter(
        "progressor_scans_failed", "{scan}",
        "Scans that failed; they are repeated.",
        "scan",
    )
    # Steps.
    steps_in_flight: Gauge = _gauge(
        "progressor_steps_in_flight", "{task}",
        "Steps running in this replica.",
        "namespace",
    )
    workers_free: Gauge = _gauge(
        "progressor_workers_free", "{worker}",
        "Slots for more steps in this replica.",
        "namespace",
    )
    settled: Counter = _counter(
        "progressor_tasks_settled", "{task}",
        "Attempts whose outcome was written, including those of zombies. settlement: finish, "
        "fail, retry, break, remove.",
        "namespace", "task_type", "settlement",
    )
    fenced: Counter = _counter(
        "progressor_settlements_fenced", "{task}",
        "Settlements refused because their lease was lost.",
        "namespace", "task_type",
    )
    revoked: Counter = _counter(
        "progressor_steps_revoked", "{task}",
        "Steps whose lease was taken back while they ran, by the replica that did so. cause: "
        "cancelled, terminated, removed, stopped (their job has ended, or is retried), lease_lost "
        "(their replica was silent, or they overran).",
        "namespace", "task_type", "cause",
    )
    abandoned: Counter = _counter(
        "progressor_steps_abandoned", "{task}",
        "Steps abandoned because no heartbeat could be written, or the namespace was deleted.",
        "namespace", "task_type",
    )
    processor_errors: Counter = _counter(
        "progressor_processor_errors", "{attempt}",
        "Attempts that failed or were rejected. code: the gRPC status; rejected: whether the "
        "processor rejected the request.",
        "namespace", "task_type", "code", "rejected",
    )
    largest_step: Gauge = _gauge(
        "progressor_largest_step_ratio", "1",
        "The largest step of the last ten minutes as a share of its processor's limit; "
        "reported from 0.5 on; above 1 the step was not sent.",
        "namespace",
    )
    events_written: Counter = _counter(
        "progressor_events_written", "{event}",
        "Events appended to histories.",
        "namespace",
    )
    bytes_written: Counter = _counter(
        "progressor_bytes_written", "By",
        "Payloads written. kind: args, events, response, aux_state, result.",
        "namespace", "kind",
    )
    zombies_collected: Counter = _counter(
        "progressor_zombies_collected", "{task}",
        "Lost leases settled by this replica. cause: silent, overrun, unknown. policy: that of "
        "the namespace, retry or fail. settlement: as of all attempts.",
        "namespace", "cause", "policy", "settlement",
    )
    # Storage.
    batch_items: Histogram = _histogram(
        "progressor_batch_items", "{item}",
        "Items per batch of the group commit. write: the kind of batch.",
        "write", bounds=_SIZES,
    )
    batch_wait: Histogram = _duration(
        "progressor_batch_wait_ms",
        "How long the first item of a batch waited before the batch was sent.",
        "write",
    )
    writes_waiting: Gauge = _gauge(
        "progressor_writes_waiting", "{item}",
        "Items waiting for the group commit.",
        "write",
    )
    writes_waiting_bytes: Gauge = _gauge(
        "progressor_writes_waiting_bytes", "By",
        "Bytes of the items waiting for the group commit.",
        "write",
    )
    pool_connections: Gauge = _gauge(
        "progressor_pool_connections", "{connection}",
        "Connections to PostgreSQL. state: used, idle.",
        "pool", "state",
    )
    pool_waiting: Gauge = _gauge(
        "progressor_pool_waiting", "{waiter}",
        "Callers waiting for a connection.",
        "pool",
    )
    pool_wait: Counter = _counter(
        "progressor_pool_wait_ms", "ms",
        "Total time spent waiting for connections.",
        "pool",
    )
    # Telemetry itself.
    spans: Counter = _counter(
        "progressor_spans", "{span}",
        "Spans that have ended. fate: pushed, no_room (the queue to the collector was full), "
        "not_taken (the collector was unavailable, or refused them). Not reported without a "
        "collector.",
        "fate",
    )
    # Files.
    audit_sealed: Counter = _counter(
        "progressor_audit_sealed", "{entry}",
        "Audit entries that this replica has added to the chain.",
    )
    audit_left_out: Counter = _counter(
        "progressor_audit_left_out", "{request}",
        "Denied or failed requests that have no audit entry, because there were too many.",
    )
    audit_unsealed_age: Gauge = _gauge(
        "progressor_audit_unsealed_age_seconds", "s",
        "How long the oldest audit entry has waited to be added to the chain.",
    )
    retention_deleted: Counter = _counter(
        "progressor_retention_deleted", "{row}",
        "What this replica has deleted since it was old. kind: process (with all its rows), task, "
        "reply.",
        "kind",
    )
    retention_overdue_age: Gauge = _gauge(
        "progressor_retention_overdue_age_seconds", "s",
        "For how long what this replica is deleting should have been gone. 0 once nothing is left; "
        "if it grows, retention does not keep up. kind: process, task.",
        "kind",
    )
    tls_reloads: Counter = _counter(
        "progressor_tls_reloads", "{reload}",
        "Changes of certificates, keys and tokens. files: server, or the name of the processor "
        "credentials. result: ok, failed (they cannot be used: the last ones stay in use).",
        "files", "result",
    )
    tls_certificate_expires_at: Gauge = _gauge(
        "progressor_tls_certificate_expires_at_seconds", "s",
        "When the certificate in use expires, or one of its chain, in seconds since 1970. files: "
        "as above.",
        "files",
    )
    key_fetches: Counter = _counter(
        "progressor_access_key_fetches", "{fetch}",
        "Fetches of the keys of an issuer of identity tokens. result: ok, failed (the last keys "
        "stay in use).",
        "issuer", "result",
    )
    cell_serving: Gauge = _gauge(
        "progressor_cell_serving", "1",
        "1 while this replica serves the cell; else 0. Only with cells.",
        "cell",
    )
    heartbeat_age: Gauge = _gauge(
        "progressor_heartbeat_age_seconds", "s",
        "Age of this replica's last heartbeat; at 0.9 of the lease timeout the replica drops "
        "its steps.",
    )
    # fmt: on

    def __post_init__(self) -> None:
        self._cells: dict[str, Metrics] = {}

    def of_cell(self, name: str) -> "Metrics":
        """Return the metrics of a cell, which are exported with these and name it by a label."""
        return self._cells.setdefault(name, Metrics())

    @contextlib.contextmanager
    def detaching(self) -> Iterator[None]:
        """Stop reading at the end from the sources that were added in between."""
        lists = [
            it.sources for it in map(self.instrument, METRICS) if not isinstance(it, Histogram)
        ]
        lengths = [len(sources) for sources in lists]
        try:
            yield
        finally:
            for sources, length in zip(lists, lengths, strict=True):
                del sources[length:]

    def families(self) -> tuple[Family, ...]:
        """Return all metrics with their values, in the order of `METRICS`; any thread."""
        return tuple(self._family(name) for name in METRICS)

    def instrument(self, name: str) -> Instrument:
        found: Instrument = vars(self)[name]
        return found

    def _family(self, name: str) -> Family:
        family = self.instrument(name).snapshot()
        if not self._cells or "cell" in family.metric.labels:
            return family
        metric = dataclasses.replace(family.metric, labels=("cell", *family.metric.labels))
        values = {("", *labels): value for labels, value in family.values.items()}
        for cell, metrics in dict(self._cells).items():
            own = metrics.instrument(name).snapshot().values
            values |= {(cell, *labels): value for labels, value in own.items()}
        return Family(metric, values)


METRICS: Mapping[str, Metric] = MappingProxyType(
    {field.name: field.metadata["metric"] for field in dataclasses.fields(Metrics)}
)
"""The description of each metric, by the attribute of `Metrics`."""
