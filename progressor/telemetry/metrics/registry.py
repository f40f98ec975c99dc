"""All instruments of a replica, each an attribute; `names.METRICS` describes them."""

from typing import cast

from progressor.telemetry import names
from progressor.telemetry.instruments import Counter, Family, Gauge, Histogram, instrument


def _counter(name: str) -> Counter:
    return cast("Counter", instrument(names.METRICS[name]))


def _gauge(name: str) -> Gauge:
    return cast("Gauge", instrument(names.METRICS[name]))


def _histogram(name: str) -> Histogram:
    return cast("Histogram", instrument(names.METRICS[name]))


class Metrics:
    """The instruments of one replica, passed to the constructors of components that count."""

    def __init__(self) -> None:
        self.calls_scanning = _histogram("calls_scanning")
        self.timers_scanning = _histogram("timers_scanning")
        self.zombie_collection = _histogram("zombie_collection")
        self.request_preparing = _histogram("request_preparing")
        self.task_processing = _histogram("task_processing")
        self.task_completion = _histogram("task_completion")
        self.process_removing = _histogram("process_removing")
        self.notification = _histogram("notification")
        self.requests = _counter("requests")
        self.admitted = _counter("admitted")
        self.callers_waiting = _gauge("callers_waiting")
        self.replies = _counter("replies")
        self.notifications_lost = _counter("notifications_lost")
        self.stream_sessions = _gauge("stream_sessions")
        self.queue_tasks = _gauge("queue_tasks")
        self.queue_oldest_age = _gauge("queue_oldest_age")
        self.gates_held = _gauge("gates_held")
        self.gates_full = _gauge("gates_full")
        self.timer_lateness = _histogram("timer_lateness")
        self.scan_found = _counter("scan_found")
        self.gates_scan_found = _counter("gates_scan_found")
        self.jobs_running = _gauge("jobs_running")
        self.job_nodes = _gauge("job_nodes")
        self.jobs_ended = _counter("jobs_ended")
        self.job_nodes_ended = _counter("job_nodes_ended")
        self.jobs_overdue = _counter("jobs_overdue")
        self.upkeep_nodes = _counter("upkeep_nodes")
        self.jobs_recovered = _counter("jobs_recovered")
        self.schedule_runs = _counter("schedule_runs")
        self.schedule_lateness = _histogram("schedule_lateness")
        self.scans_failed = _counter("scans_failed")
        self.steps_in_flight = _gauge("steps_in_flight")
        self.workers_free = _gauge("workers_free")
        self.settled = _counter("settled")
        self.fenced = _counter("fenced")
        self.abandoned = _counter("abandoned")
        self.processor_errors = _counter("processor_errors")
        self.largest_step = _gauge("largest_step")
        self.events_written = _counter("events_written")
        self.bytes_written = _counter("bytes_written")
        self.zombies_collected = _counter("zombies_collected")
        self.batch_items = _histogram("batch_items")
        self.batch_wait = _histogram("batch_wait")
        self.writes_waiting = _gauge("writes_waiting")
        self.writes_waiting_bytes = _gauge("writes_waiting_bytes")
        self.pool_connections = _gauge("pool_connections")
        self.pool_waiting = _gauge("pool_waiting")
        self.pool_wait = _counter("pool_wait")
        self.spans = _counter("spans")
        self.heartbeat_age = _gauge("heartbeat_age")

    def families(self) -> tuple[Family, ...]:
        """Return all metrics with their values, in the order of `names.METRICS`; any thread."""
        instruments = vars(self)
        return tuple(instruments[name].snapshot() for name in names.METRICS)
