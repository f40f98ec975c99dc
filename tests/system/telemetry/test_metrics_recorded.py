"""Every metric moves where it should, in two replicas under a little load."""

import asyncio
import dataclasses
import math
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from google.rpc import code_pb2

from progressor.domain.processes.process import process_key
from progressor.sdk import Constraints, GateHold
from progressor.telemetry.instruments import Counter, Distribution, Family, Labels
from progressor.telemetry.metrics.registry import METRICS, Metrics
from progressor.v1 import job_service_pb2 as pb
from progressor.v1 import nodes_pb2
from progressor.v1.job_service_pb2_grpc import JobServiceStub
from progressor.v1.processor_service_pb2 import Complete
from tests.support.engine.process import running_process
from tests.support.engine.replica import (
    NOW_AND_THEN,
    QUIET,
    Env,
    Replica,
    answering,
    broken,
    open_env,
    refusal,
    running_replica,
    unavailable,
)
from tests.support.processor.scripted import Answer, Hang, reject
from tests.support.telemetry.measured import counted

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALLS = 20
LONG_MS = 30_000.0
WRITES = {
    "admit_starts", "admit_requests", "admit_gated_starts", "admit_gated_requests", "settle_tasks",
    "settle_gated_tasks",
}  # fmt: skip
WRITES_OF_JOBS = {"admit_jobs", "settle_job_tasks", "settle_gated_job_tasks"}
WRITES_WITH_ENTRIES = {f"{it}_audited" for it in WRITES | WRITES_OF_JOBS if it.startswith("admit")}
WRITES_OF_RUNNING_STEPS = {"store_memos", "extend_leases", "settle_turns"}
POOLS = {"front", "worker", "scan"}

HEALTHY = (
    "fenced", "abandoned", "revoked", "zombies_collected", "scan_found", "gates_scan_found",
    "scans_failed", "notifications_lost", "jobs_recovered", "largest_step", "messages_scan_found",
)  # fmt: skip
"""What nothing is counted of, unless something is wrong."""

OF_JOBS = (
    "jobs_running", "job_nodes", "jobs_ended", "job_nodes_ended", "jobs_overdue", "upkeep_nodes",
    "schedule_runs", "schedule_lateness",
)  # fmt: skip
OF_IDENTITY = ("tls_reloads", "tls_certificate_expires_at", "key_fetches")
LAZY = (
    *HEALTHY, *OF_JOBS, *OF_IDENTITY, "bulk_processes", "bulks_ended", "zombie_collection", "spans",
    "quota_refused", "quota_used", "cell_serving",
)  # fmt: skip
"""What may have no values at all."""


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """The metrics of a replica at one moment."""

    families: Mapping[str, Family]

    @classmethod
    def of(cls, metrics: Metrics) -> "Seen":
        """Look."""
        return cls(dict(zip(METRICS, metrics.families(), strict=True)))

    def value(self, name: str, *labels: str) -> float:
        """Return a counter or a gauge; 0 where none is reported."""
        found = self.families[name].values.get(labels, 0.0)
        assert not isinstance(found, Distribution)
        return found

    def distribution(self, name: str, *labels: str) -> Distribution:
        """Return a histogram that has values."""
        found = self.families[name].values[labels]
        assert isinstance(found, Distribution)
        return found

    def labels(self, name: str) -> set[Labels]:
        """Return the sets of labels of a metric."""
        return set(self.families[name].values)

    def counts(self, name: str) -> dict[Labels, int]:
        """Return how many values a histogram has."""
        values = self.families[name].values
        return {it: found.count for it, found in values.items() if isinstance(found, Distribution)}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Two replicas while a call waits at the second for a step of the first, and the end of it."""

    namespace: str
    busy: Seen
    waiting: Seen
    first: Seen
    second: Seen


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(database: str) -> AsyncIterator[Scene]:
    async with (
        running_replica(database, QUIET) as first,
        open_env(first, retry_policy=NOW_AND_THEN) as env,
    ):
        await load(env)
        async with running_replica(database, QUIET) as second:
            yield await play(env, first, second)


async def load(env: Env) -> None:
    """Have a little of everything done."""
    await env.running("called", answering(b"event", response=b"answer", aux_state=b"state"))
    async with asyncio.TaskGroup() as group:
        for _ in range(CALLS):
            group.create_task(env.client.call("called", b"args"))
    await env.running("retried", unavailable(), Answer())
    await env.client.call("retried")
    await env.running("rejecting", reject(code_pb2.NOT_FOUND, reason="NO_SUCH_THING"))
    await refusal(env.client.call("rejecting"))
    await env.broken("broken")
    await env.client.repair("broken")
    await env.running("removed")
    await env.client.remove("removed")
    await env.timed("fired", answering(b"fired"), after=0.05)
    await env.settled("fired", 2)
    await env.timed("later", after=3600)
    env.processor.on_process("holding", Answer())
    kept = Constraints(gates={"mutex": 1}, hold=GateHold.PROCESS)
    await env.client.start("holding", constraints=kept)
    sent = [{"kind": 2, "process_id": it} for it in ("removed", "retried")]
    await env.running("sending", answering(messages=sent))
    await env.client.call("sending")
    for verdict in ("accepted", "process_not_found"):
        await env.points.wait("messages", namespace=env.namespace, verdict=verdict)
    await env.running("in-line")
    await env.client.notify("in-line", constraints=Constraints(gates=["mutex"]))


async def play(env: Env, first: Replica, second: Replica) -> Scene:
    """Have a call wait at the second replica until the first is through with a step."""
    await second.points.wait("scanned", scan="due")
    await second.points.wait("scanned", scan="queues")
    hang, _ = await env.busy("shared")
    async with env.client_at(second.address) as there, asyncio.TaskGroup() as group:
        waiting = group.create_task(there.call("shared", b"there"))
        await second.points.wait("admitted", key=env.key("shared"))
        busy, at_second = Seen.of(first.engine.metrics), Seen.of(second.engine.metrics)
        hang.released.set()
        await waiting
        await first.points.wait("notified")
        await second.points.wait("reply_fetched")
    return Scene(
        namespace=env.namespace,
        busy=busy,
        waiting=at_second,
        first=Seen.of(first.engine.metrics),
        second=Seen.of(second.engine.metrics),
    )


@pytest.mark.parametrize("name", METRICS)
async def test_each_metric_is_told_with_its_labels_and_sane_values(scene: Scene, name: str) -> None:
    metric = METRICS[name]
    values = [
        value.total if isinstance(value, Distribution) else value
        for seen in (scene.first, scene.second)
        for value in seen.families[name].values.values()
    ]

    assert values or name in LAZY
    assert all(math.isfinite(value) and value >= 0 for value in values)
    for labels in scene.first.labels(name):
        assert len(labels) == len(metric.labels)
        assert all(type(label) is str for label in labels)


@pytest.mark.parametrize("name", HEALTHY)
async def test_nothing_is_wrong(scene: Scene, name: str) -> None:
    for seen in (scene.first, scene.second):
        assert sum(seen.value(name, *labels) for labels in seen.labels(name)) == 0


FIRST: Mapping[str, Mapping[Labels, float]] = {
    # Those of the load, the one that was retried, and the one that was only to be accepted.
    "requests": {
        ("Call", "ok", ""): CALLS + 3, ("Call", "failed", "REJECTED"): 1,
        ("Call", "failed", "PROCESS_FAILED"): 1, ("Remove", "ok", ""): 1, ("Repair", "ok", ""): 1,
    },
    "admitted": {("call",): CALLS + 5, ("repair",): 1},
    "messages_delivered": {("notify", "no"): 1},
    "messages_refused": {("notify", "PROCESS_NOT_FOUND"): 1},
    # The call of the second replica is run by the first, behind the one that it waits for.
    "settled": {
        ("call", "finish"): CALLS + 4, ("call", "retry"): 1, ("call", "fail"): 1,
        ("call", "break"): 1, ("timeout", "finish"): 1,
    },
    "processor_errors": {
        ("call", "ABORTED", "false"): 1, ("call", "INTERNAL", "false"): 1,
        ("call", "NOT_FOUND", "true"): 1,
    },
}  # fmt: skip
NO_CAUSES: list[Labels] = [
    (cause,)
    for cause in (
        "retry",
        "no_free_worker",
        "processor_unreachable",
        "behind_task",
        "run_at",
        "order",
        "available",
    )
]
SECOND: Mapping[str, Mapping[Labels, float]] = {
    "requests": {("Call", "ok", ""): 1},
    "queue_tasks": {**dict.fromkeys(NO_CAUSES, 0), ("timer",): 1, ("gate",): 1},
    "queue_oldest_age": dict.fromkeys(NO_CAUSES[:4], 0),
    "gates_held": {(): 1},
    "gates_full": {(): 1},
}


@pytest.mark.parametrize(
    ("replica", "name"), [*(("first", it) for it in FIRST), *(("second", it) for it in SECOND)]
)
async def test_what_the_load_has_done_is_counted(scene: Scene, replica: str, name: str) -> None:
    seen: Seen = getattr(scene, replica)
    expected = (FIRST if replica == "first" else SECOND)[name]

    assert {(scene.namespace, *it) for it in expected} <= seen.labels(name)
    assert {it: seen.value(name, scene.namespace, *it) for it in expected} == expected


async def test_durations_and_bytes_go_with_what_is_counted(scene: Scene) -> None:
    name, first = scene.namespace, scene.first

    assert first.counts("request_preparing") == {
        it: first.value("admitted", *it) for it in first.labels("admitted")
    }
    assert first.counts("task_processing") == first.counts("task_completion")
    assert first.counts("task_completion")[name, "call"] == CALLS + 7
    assert first.counts("process_removing") == {(name, "remove"): 1}
    assert first.value("events_written", name) > CALLS
    for kind, payload in ("args", b"args"), ("events", b"event"), ("response", b"answer"):
        assert first.value("bytes_written", name, kind) >= CALLS * len(payload)
    assert first.value("bytes_written", name, "aux_state") >= CALLS * len(b"state")


async def test_claims_and_their_lateness_are_measured(scene: Scene) -> None:
    name, first = scene.namespace, scene.first

    assert first.counts("timers_scanning")[name, "timeout"] >= 1
    # The retry.
    assert first.counts("calls_scanning")[name, "call"] >= 1
    lateness = first.distribution("timer_lateness", name)
    assert lateness.count == 1
    assert lateness.total < LONG_MS
    # The second replica has looked once, and nothing was due.
    assert scene.second.counts("calls_scanning") == {(name, "call"): 1}


async def test_an_answer_from_another_replica_is_remote(scene: Scene) -> None:
    assert scene.first.value("replies", "local") >= CALLS
    assert scene.second.value("replies", "remote") == 1
    assert scene.first.distribution("notification", scene.namespace, "call").count >= 1
    assert scene.waiting.value("callers_waiting") == 1
    assert scene.second.value("callers_waiting") == 0


async def test_slots_are_taken_while_a_step_runs(scene: Scene) -> None:
    busy, name = scene.busy, scene.namespace
    in_flight, free = busy.value("steps_in_flight", name), busy.value("workers_free", name)

    assert in_flight == 1
    assert scene.first.value("workers_free", name) <= free + in_flight
    assert [busy.value("stream_sessions", side) for side in ("client", "processor")] == [1, 1]


async def test_storage_tells_of_its_batches_and_its_pools(scene: Scene) -> None:
    first = scene.first

    written = {write for (write,) in first.labels("batch_items")}
    assert written - WRITES_WITH_ENTRIES == WRITES
    assert first.counts("batch_items") == first.counts("batch_wait")
    items = first.distribution("batch_items", "admit_requests")
    assert items.total >= CALLS
    others = WRITES_OF_JOBS | WRITES_OF_RUNNING_STEPS | WRITES_WITH_ENTRIES
    writes = {(write,) for write in WRITES | others}
    assert first.labels("writes_waiting") == first.labels("writes_waiting_bytes") == writes
    assert first.labels("pool_connections") == {
        (pool, state) for pool in POOLS for state in ("used", "idle")
    }
    assert first.labels("pool_waiting") == first.labels("pool_wait") == {(it,) for it in POOLS}
    assert 0 <= first.value("heartbeat_age") < LONG_MS / 1000


async def test_a_lost_lease_is_counted_by_its_cause_and_its_end(
    own_database: str, tmp_path: Path
) -> None:
    async with running_replica(own_database) as second_replica, open_env(second_replica) as env:
        await env.running("p", Hang(), Answer())
        async with (
            running_process(own_database, tmp_path) as victim,
            env.client_at(victim.address) as there,
        ):
            await there.call("p", accept_only=True)
            await env.asked("p", 2)
            victim.kill()
        await env.settled("p", 2)
        seen = Seen.of(second_replica.engine.metrics)

    name = env.namespace
    assert seen.value("zombies_collected", name, "silent", "retry", "retry") == 1
    assert seen.counts("zombie_collection") == {(name, "call"): 1}
    assert seen.value("revoked", name, "call", "lease_lost") == 1
    assert seen.value("settled", name, "call", "retry") == 1
    assert seen.value("settled", name, "call", "finish") == 1


async def test_a_step_that_a_request_ends_is_counted_by_the_cause(
    replica: Replica, env: Env
) -> None:
    for cause in ("cancelled", "terminated", "removed"):
        _, task_id = await env.busy(cause)
        match cause:
            case "cancelled":
                await env.client.cancel(cause, task_id=task_id)
            case "terminated":
                await env.client.terminate(cause, "enough")
            case "removed":
                await env.client.remove(cause)
    await env.running("idle")
    await env.client.terminate("idle", "enough")

    assert {
        labels: count
        for labels, count in counted(replica.engine.metrics.revoked).items()
        if labels[0] == env.namespace
    } == {(env.namespace, "call", it): 1 for it in ("cancelled", "terminated", "removed")}


DONE = answering(complete=Complete(result=b""))


def by_state(counter: Counter, env: Env) -> Mapping[str, float]:
    return {
        state: count
        for (namespace, state), count in counted(counter).items()
        if namespace == env.namespace
    }


async def ended(replica: Replica, env: Env, job_id: str) -> None:
    """Wait for the two steps of a leader: its init, and the join."""
    await replica.points.wait("settled", 2, key=process_key(env.namespace, job_id))


async def submitted(replica: Replica, env: Env, job_id: str, *nodes: str) -> None:
    """Submit a job in which each node depends on the one before."""
    specs = [
        nodes_pb2.NodeSpec(
            name=name, process_id=f"{job_id}-{name}", predecessors=nodes[:place][-1:]
        )
        for place, name in enumerate(nodes)
    ]
    request = pb.SubmitJobRequest(namespace=env.namespace, job_id=job_id, nodes=specs)
    async with grpc.aio.insecure_channel(replica.address) as channel:
        await JobServiceStub(channel).SubmitJob(request)


async def test_nodes_and_jobs_are_counted_by_how_they_end(replica: Replica, env: Env) -> None:
    for process_id in ("good-a", "good-b", "bad-a"):
        env.processor.on_process(process_id, DONE)
    env.processor.on_process("bad-b", broken())
    env.processor.on_process("idle-a", Hang())
    metrics = replica.engine.metrics

    await submitted(replica, env, "good", "a", "b")
    await submitted(replica, env, "bad", "a", "b", "c")
    await submitted(replica, env, "idle", "a", "b")
    await ended(replica, env, "good")
    await ended(replica, env, "bad")
    async with grpc.aio.insecure_channel(replica.address) as channel:
        request = pb.CancelJobRequest(namespace=env.namespace, job_id="idle", reason="why")
        await JobServiceStub(channel).CancelJob(request)

    assert by_state(metrics.job_nodes_ended, env) == {"done": 3, "failed": 1}
    assert by_state(metrics.jobs_ended, env) == {"done": 1, "failed": 1, "cancelled": 1}
