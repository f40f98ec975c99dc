"""Every request of the clients: what is sent, what is returned, and whether it is sent again."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import operator
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeAlias

import grpc
import msgspec
import pytest

from progressor import sdk
from progressor.sdk import Client, SyncClient
from progressor.v1 import (
    gate_service_pb2,
    job_service_pb2,
    namespace_service_pb2,
    nodes_pb2,
    process_service_pb2,
    replica_service_pb2,
    schedule_service_pb2,
    types_pb2,
)
from tests.unit.sdk.scripted_engine import ScriptedEngine, refusal, scripted_engine

# Their constructors take datetimes, timedeltas and dicts, which their stubs do not say.
pb: Any = process_service_pb2
types: Any = types_pb2
gates: Any = gate_service_pb2
jobs: Any = job_service_pb2
nodes: Any = nodes_pb2
schedules: Any = schedule_service_pb2
namespaces: Any = namespace_service_pb2
replicas: Any = replica_service_pb2

Fields: TypeAlias = dict[str, Any]

NOON = dt.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
AWAY = refusal(grpc.StatusCode.UNAVAILABLE, "STORAGE_UNAVAILABLE", retry_after=dt.timedelta(0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """A request through a client; the answer to a list has several pages."""

    method: str
    args: tuple[Any, ...]
    options: dict[str, Any]
    request: Any
    answer: Any
    value: Any
    repeated: bool

    async def through(self, client: Client | SyncClient, **more: Any) -> Any:
        """Return what the client returns; of a list, all of it."""
        method = operator.attrgetter(self.method)(client)

        def ask() -> Any:
            found = method(*self.args, **self.options, **more)
            return list(found) if isinstance(found, Iterator) else found

        if isinstance(client, SyncClient):
            return await asyncio.to_thread(ask)
        found = ask()
        if isinstance(found, AsyncIterator):
            return [it async for it in found]
        return await found


ASKED: list[Any] = []


def asked(
    method: str,
    *args: Any,
    request: Any,
    answer: Any,
    value: Any = None,
    repeated: bool = False,
    variant: str = "",
    **options: Any,
) -> None:
    """Add a request. Without a namespace, it must be sent with that of the client."""
    case = Asked(
        method=method, args=args, options=options, request=request, answer=answer, value=value,
        repeated=repeated,
    )  # fmt: skip
    ASKED.append(pytest.param(case, id=f"{method} {variant}".strip()))


TASK: Fields = {
    "process_id": "p",
    "args": b'{"item":"tea"}',
    "caller_context": {"user": "ann"},
    "idempotency_key": "k",
    "history_range": types.HistoryRange(limit=10, direction=types.DIRECTION_BACKWARD),
}
OPTIONS: Fields = {
    "idempotency_key": "k",
    "context": {"user": "ann"},
    "history": sdk.HistoryRange.last(10),
}
GATED: Fields = {"constraints": sdk.Constraints(gates={"db-1": 1})}
GATED_WIRE: Fields = {
    "constraints": types.Constraints(
        gates=[types.GateUse(gate="db-1", capacity=1)], priority=3, hold=types.GATE_HOLD_TASK
    )
}
TEA: Fields = {"item": "tea"}
REPLY: Fields = {"task_id": 7, "response": b'{"n":1}', "deduplicated": True}
REPLIED = sdk.Reply(task_id=7, response={"n": 1}, deduplicated=True)
RECEIPT = sdk.Receipt(task_id=7, deduplicated=True)

asked(
    "start", "p", TEA, **OPTIONS, **GATED, metadata={"region": "eu", "size": 3}, accept_only=True,
    request=pb.StartRequest(
        **TASK, **GATED_WIRE, metadata={"region": "eu", "size": 3}, accept_only=True
    ),
    answer=pb.StartResponse(**REPLY), value=REPLIED, repeated=True,
)  # fmt: skip
asked(
    "call", "p", TEA, **OPTIONS, **GATED, accept_only=True,
    request=pb.CallRequest(**TASK, **GATED_WIRE, accept_only=True),
    answer=pb.CallResponse(**REPLY), value=REPLIED, repeated=True,
)  # fmt: skip
asked(
    "notify", "p", TEA, **OPTIONS, **GATED,
    request=pb.NotifyRequest(**TASK, **GATED_WIRE),
    answer=pb.NotifyResponse(task_id=7, deduplicated=True), value=RECEIPT, repeated=True,
)  # fmt: skip
asked(
    "repair", "p", TEA, **OPTIONS, accept_only=True,
    request=pb.RepairRequest(**TASK, accept_only=True),
    answer=pb.RepairResponse(**REPLY), value=REPLIED, repeated=True,
)  # fmt: skip
for method, request, answer in (
    ("start", pb.StartRequest, pb.StartResponse),
    ("call", pb.CallRequest, pb.CallResponse),
    ("repair", pb.RepairRequest, pb.RepairResponse),
):
    asked(
        method, "p", request=request(process_id="p"),
        answer=answer(task_id=1, response=b'"2026-03-01T12:00:00.123456Z"'),
        response_type=dt.datetime,
        value=sdk.Reply(task_id=1, response=NOON, deduplicated=False), variant="without a key",
    )  # fmt: skip
asked(
    "notify", "p", request=pb.NotifyRequest(process_id="p"), answer=pb.NotifyResponse(task_id=1),
    value=sdk.Receipt(task_id=1, deduplicated=False), variant="without a key",
)  # fmt: skip
for task_id in (None, 5):
    asked(
        "simple_repair", "p", request=pb.SimpleRepairRequest(process_id="p"),
        answer=pb.SimpleRepairResponse(task_id=task_id), value=sdk.SimpleRepaired(task_id=task_id),
        variant=f"of timer {task_id}",
    )  # fmt: skip

DEEP: Fields = {"n": 1, "deep": {"x": [1.5, None, True, "s"]}}
PROCESS: Fields = {"namespace": "n", "process_id": "p", "detail": "out of tea", "last_event_id": 2}
A_PROCESS: sdk.Process[Any] = sdk.Process(
    **PROCESS, status=sdk.ProcessStatus.ERROR, state=[1], metadata=DEEP, corrupted_by=4,
    previous_status=sdk.ProcessStatus.RUNNING, created_at=NOON, status_changed_at=NOON, result=None,
)  # fmt: skip
PROCESS_WIRE = types.Process(
    **PROCESS, status=types.PROCESS_STATUS_ERROR, aux_state=b"[1]", metadata=DEEP, corrupted_by=4,
    previous_status=types.PROCESS_STATUS_RUNNING, created_at=NOON, status_changed_at=NOON,
)  # fmt: skip
NO_WAIT: Fields = {
    it.name: None for it in dataclasses.fields(sdk.Wait) if it.default is dataclasses.MISSING
} | {"task_id": 0, "attempt": 0, "explanation": "", "type": sdk.TaskType.UNSPECIFIED,
     "status": sdk.TaskStatus.UNSPECIFIED, "cause": sdk.WaitCause.UNSPECIFIED}  # fmt: skip
ERROR: Fields = {"code": 14, "reason": "R", "message": "m"}


def a_wait(**fields: Any) -> sdk.Wait:
    return sdk.Wait(**(NO_WAIT | fields))


asked(
    "get", "p", history=sdk.HistoryRange(limit=1), await_init=True, without_state=True,
    state_type=tuple[int],
    request=pb.GetRequest(
        process_id="p", await_init=True, without_state=True,
        history_range=types.HistoryRange(limit=1, direction=types.DIRECTION_FORWARD),
    ),
    answer=pb.GetResponse(
        process=PROCESS_WIRE,
        next_after=1,
        history=[types.Event(
            event_id=1, payload=b'"made"', format_version=2, task_id=3, occurred_at=NOON,
            metadata={"e": 1},
        )],
        timer=types.Timer(task_id=5, type=types.TASK_TYPE_TIMEOUT, due_at=NOON,
                          status=types.TASK_STATUS_BLOCKED),
        waits=[
            types.Wait(
                task_id=5, type=types.TASK_TYPE_TIMEOUT, status=types.TASK_STATUS_WAITING,
                cause=types.WAIT_CAUSE_RETRY, attempt=3, until=NOON,
                last_error=types.TaskError(**ERROR),
            ),
            types.Wait(cause=types.WAIT_CAUSE_NO_FREE_WORKER, worker_count=2, since=NOON,
                       explanation="It waits."),
            types.Wait(cause=types.WAIT_CAUSE_BEHIND_TASK, behind_task_id=5, behind_since=NOON),
        ],
    ),
    value=sdk.Snapshot(
        process=dataclasses.replace(A_PROCESS, state=(1,)),
        next_after=1,
        history=(sdk.Event(event_id=1, payload="made", format_version=2, task_id=3,
                           occurred_at=NOON, metadata={"e": 1}),),
        timer=sdk.Timer(task_id=5, type=sdk.TaskType.TIMEOUT, status=sdk.TaskStatus.BLOCKED,
                        due_at=NOON),
        waits=(
            a_wait(task_id=5, type=sdk.TaskType.TIMEOUT, status=sdk.TaskStatus.WAITING,
                   cause=sdk.WaitCause.RETRY, attempt=3, until=NOON,
                   last_error=sdk.TaskError(**ERROR)),
            # What applies to its cause is there, even as 0; the rest is None.
            a_wait(cause=sdk.WaitCause.NO_FREE_WORKER, busy_count=0, worker_count=2, since=NOON,
                   explanation="It waits."),
            a_wait(cause=sdk.WaitCause.BEHIND_TASK, behind_task_id=5, behind_since=NOON,
                   behind_type=sdk.TaskType.UNSPECIFIED, behind_runs=False),
        ),
        explanation="",
    ),
    repeated=True,
)  # fmt: skip
for key in ("k", ""):
    asked(
        "put", "p", status=sdk.ProcessStatus.RUNNING, state={"a": 1}, metadata={"m": 1},
        history=[sdk.NewEvent(payload="x", format_version=2, metadata={"e": 1}, occurred_at=NOON)],
        timer=sdk.NewTimer(at=NOON, remove=True), previous_status=sdk.ProcessStatus.ERROR,
        corrupted_by_type=sdk.TaskType.TIMEOUT, created_at=NOON, idempotency_key=key,
        request=pb.PutRequest(
            process_id="p", status=types.PROCESS_STATUS_RUNNING, aux_state=b'{"a":1}',
            metadata={"m": 1}, created_at=NOON, idempotency_key=key,
            history=[types.NewEvent(payload=b'"x"', format_version=2, metadata={"e": 1},
                                    occurred_at=NOON)],
            timer=types.SetTimer(at=NOON, remove=True),
            previous_status=types.PROCESS_STATUS_ERROR, corrupted_by_type=types.TASK_TYPE_TIMEOUT,
        ),
        answer=pb.PutResponse(task_id=7, deduplicated=True), value=RECEIPT, repeated=bool(key),
        variant=key,
    )  # fmt: skip
asked(
    "remove", "p", request=pb.RemoveRequest(process_id="p"), answer=pb.RemoveResponse()
)  # fmt: skip
asked(
    "trace", "p", page_size=1, page_token="1",
    request=pb.TraceRequest(process_id="p", page_size=1, page_token="1"),
    answer=pb.TraceResponse(next_page_token="2"), value=sdk.Trace(tasks=(), next_page_token="2"),
    repeated=True,
)  # fmt: skip
asked(
    "list", statuses=[sdk.ProcessStatus.ERROR], causes=[sdk.WaitCause.GATE], created_from=NOON,
    created_to=NOON + DAY, metadata={"a": 1}, page_size=2,
    request=pb.ListRequest(
        statuses=[types.PROCESS_STATUS_ERROR], causes=[types.WAIT_CAUSE_GATE], created_from=NOON,
        created_to=NOON + DAY, metadata={"a": 1}, page_size=2,
    ),
    answer=[pb.ListResponse(processes=[PROCESS_WIRE]), pb.ListResponse(),
            pb.ListResponse(processes=[PROCESS_WIRE])],
    value=[A_PROCESS, A_PROCESS], repeated=True,
)  # fmt: skip
for task in ({"task_id": 0}, {"idempotency_key": "k"}):
    asked(
        "await_task", "p", **task, request=pb.AwaitTaskRequest(process_id="p", **task),
        answer=pb.AwaitTaskResponse(task_id=9, type=types.TASK_TYPE_INIT, response=b"true"),
        value=sdk.TaskReply(task_id=9, type=sdk.TaskType.INIT, response=True), repeated=True,
        variant=f"by {next(iter(task))}",
    )  # fmt: skip
    asked(
        "cancel", "p", **task, request=pb.CancelRequest(process_id="p", **task),
        answer=pb.CancelResponse(task_id=7), value=7, variant=f"by {next(iter(task))}",
    )  # fmt: skip

GATE: Fields = {
    "namespace": "n", "gate": "db-1", "capacity": 2, "held": 1, "waiting_count": 5, "revision": 4,
    "created_at": NOON, "updated_at": NOON,
}  # fmt: skip
A_GATE, GATE_WIRE = sdk.Gate(**GATE), gates.Gate(**GATE)

asked(
    "gates.list", page_size=1, request=gates.ListGatesRequest(page_size=1),
    answer=[gates.ListGatesResponse(gates=[GATE_WIRE]), gates.ListGatesResponse()],
    value=[A_GATE], repeated=True,
)  # fmt: skip
asked(
    "gates.get", "db-1", request=gates.GetGateRequest(gate="db-1"),
    answer=gates.GetGateResponse(
        gate=GATE_WIRE,
        holders=[types.GateHolder(process_id="p", task_id=1, held_at=NOON, reserved=True,
                                  hold=types.GATE_HOLD_PROCESS)],
        line=[gates.GateWaiter(process_id="q", task_id=2, priority=1, since=NOON, aged=True,
                               gates=["db-1", "db-2"])],
    ),
    value=sdk.GateView(
        gate=A_GATE,
        holders=(sdk.GateHolder(process_id="p", task_id=1, held_at=NOON, reserved=True,
                            hold=sdk.GateHold.PROCESS),),
        line=(sdk.GateWaiter(process_id="q", task_id=2, priority=1, since=NOON, is_aged=True,
                         gates=("db-1", "db-2")),),
    ),
    repeated=True,
)  # fmt: skip
asked(
    # A capacity of 0 is one, too.
    "gates.set", "db-1", 0, expected_revision=3,
    request=gates.SetGateRequest(gate="db-1", capacity=0, expected_revision=3),
    answer=gates.SetGateResponse(gate=GATE_WIRE), value=A_GATE,
)  # fmt: skip
asked(
    "gates.delete", "db-1", request=gates.DeleteGateRequest(gate="db-1"),
    answer=gates.DeleteGateResponse(),
)  # fmt: skip

COUNTS: Fields = {it.name: n for n, it in enumerate(dataclasses.fields(sdk.NodeCounts), start=1)}
JOB: Fields = {
    "namespace": "n", "job_id": "j", "detail": "", "led_by_engine": True, "schedule_id": "nightly",
    "revision": 1, "retry_count": 2, "created_at": NOON, "updated_at": NOON, "ended_at": NOON,
    "deadline": NOON,
}  # fmt: skip
A_JOB = sdk.Job(**JOB, state=sdk.JobState.RUNNING, counts=sdk.NodeCounts(**COUNTS))
JOB_WIRE = jobs.Job(**JOB, state=jobs.JOB_STATE_RUNNING, counts=jobs.NodeCounts(**COUNTS))
ONE_NODE = sdk.Graph()
ONE_NODE.node("a", {"n": 1})
NODE: Fields = {
    "name": "b", "namespace": "n", "process_id": "j/b", "skipped_because_of": "a", "target": "t",
    "created_at": NOON, "ready_at": NOON, "attempt": 2, "revision": 5,
}  # fmt: skip
NO_NODE: Fields = {
    "namespace": "", "process_id": "", "skipped_because_of": "", "target": "", "after": (),
    "args": None, "result": None, "error": None, "constraints": None, "created_at": None,
    "ready_at": None, "started_at": None, "ended_at": None, "attempt": 0, "revision": 0,
    "state": sdk.NodeState.UNSPECIFIED,
}  # fmt: skip

for deadline, due in (
    (None, {}),
    (NOON, {"deadline": NOON}),
    (90, {"timeout": dt.timedelta(seconds=90)}),
    (DAY, {"timeout": DAY}),
):
    asked(
        "jobs.submit", "j", ONE_NODE, deadline=deadline, idempotency_key="k",
        context={"user": "ann"}, metadata={"team": "search"},
        request=jobs.SubmitJobRequest(
            job_id="j", nodes=[nodes.NodeSpec(name="a", args=b'{"n":1}')], idempotency_key="k",
            caller_context={"user": "ann"}, metadata={"team": "search"}, **due,
        ),
        answer=jobs.SubmitJobResponse(task_id=7, deduplicated=True), value=RECEIPT, repeated=True,
        variant=f"until {deadline}",
    )  # fmt: skip
asked(
    "jobs.submit", "j", ONE_NODE, variant="without a key",
    request=jobs.SubmitJobRequest(
        job_id="j", nodes=[nodes.NodeSpec(name="a", args=b'{"n":1}')]
    ),
    answer=jobs.SubmitJobResponse(task_id=7, deduplicated=True), value=RECEIPT,
)  # fmt: skip
asked(
    "jobs.get", "j", payloads=False, repeated=True,
    request=jobs.GetJobRequest(job_id="j", without_payloads=True),
    answer=jobs.GetJobResponse(
        job=JOB_WIRE,
        payloads_left_out=True,
        nodes=[
            jobs.Node(
                **NODE, state=nodes.NODE_STATE_SKIPPED, predecessors=["a"], args=b"[1]",
                result=b"2", error=types.TaskError(**ERROR), **GATED_WIRE,
            ),
            jobs.Node(name="c"),
        ],
    ),
    value=sdk.JobView(
        job=A_JOB,
        payloads_left_out=True,
        nodes=(
            sdk.Node(
                **NODE, state=sdk.NodeState.SKIPPED, after=("a",), args=[1], result=2,
                error=sdk.TaskError(**ERROR), started_at=None, ended_at=None, **GATED,
            ),
            sdk.Node(name="c", **NO_NODE),
        ),
    ),
)  # fmt: skip
asked(
    "jobs.list", states=[sdk.JobState.RUNNING, sdk.JobState.DONE], schedule_id="nightly",
    page_size=1, request=jobs.ListJobsRequest(
        states=[jobs.JOB_STATE_RUNNING, jobs.JOB_STATE_DONE], schedule_id="nightly", page_size=1
    ),
    answer=[jobs.ListJobsResponse(jobs=[JOB_WIRE]), jobs.ListJobsResponse(jobs=[JOB_WIRE])],
    value=[A_JOB, A_JOB], repeated=True,
)  # fmt: skip
asked(
    "jobs.cancel", "j", cause="not needed",
    request=jobs.CancelJobRequest(job_id="j", reason="not needed"),
    answer=jobs.CancelJobResponse(job=JOB_WIRE), value=A_JOB,
)  # fmt: skip
asked(
    "jobs.retry", "j", deadline=60,
    request=jobs.RetryJobRequest(job_id="j", timeout=dt.timedelta(seconds=60)),
    answer=jobs.RetryJobResponse(job=JOB_WIRE, nodes=["a", "b"]),
    value=sdk.JobRetried(job=A_JOB, nodes=("a", "b")),
)  # fmt: skip

NIGHTLY = sdk.ScheduleSpec(
    times=sdk.Cron("30 2 * * *", "Europe/Berlin"), target=sdk.ScheduledStart({"report": "sales"})
)
NIGHTLY_WIRE = schedules.ScheduleSpec(
    cron=schedules.CronTimes(expression="30 2 * * *", time_zone="Europe/Berlin"),
    start=schedules.ScheduledStart(args=b'{"report":"sales"}'), jitter=dt.timedelta(),
    overlap_policy=schedules.OVERLAP_POLICY_SKIP, catch_up_window=DAY,
)  # fmt: skip
SCHEDULE: Fields = {
    "namespace": "n", "schedule_id": "s", "paused": True, "note": "why", "revision": 3,
    "started_count": 1, "skipped_count": 2, "missed_count": 3, "refused_count": 4,
    "created_at": NOON, "updated_at": NOON, "next_instant": NOON,
}  # fmt: skip
A_SCHEDULE = sdk.Schedule(
    **SCHEDULE, spec=dataclasses.replace(NIGHTLY, jitter=dt.timedelta()), next_at=None
)  # fmt: skip
SCHEDULE_WIRE = schedules.Schedule(**SCHEDULE, spec=NIGHTLY_WIRE)
RUN: Fields = {"instant": NOON, "due_at": NOON, "process_id": "p", "task_id": 7, "missed_count": 5,
       "missed_until": NOON + DAY}  # fmt: skip
A_RUN = sdk.ScheduleRun(
    **RUN, cause=sdk.ScheduleRunCause.TRIGGER, state=sdk.ScheduleRunState.MISSED, recorded_at=None,
    started_at=None, ended_at=None, error=sdk.TaskError(**ERROR),
)  # fmt: skip
RUN_WIRE = schedules.ScheduleRun(
    **RUN, cause=schedules.SCHEDULE_RUN_CAUSE_TRIGGER, state=schedules.SCHEDULE_RUN_STATE_MISSED,
    error=types.TaskError(**ERROR),
)  # fmt: skip

asked(
    "schedules.create", "s", NIGHTLY, paused=True, note="why",
    request=schedules.CreateScheduleRequest(
        schedule_id="s", spec=NIGHTLY_WIRE, paused=True, note="why"
    ),
    answer=schedules.CreateScheduleResponse(schedule=SCHEDULE_WIRE), value=A_SCHEDULE,
)  # fmt: skip
asked(
    "schedules.update", "s", NIGHTLY, expected_revision=2,
    request=schedules.UpdateScheduleRequest(
        schedule_id="s", spec=NIGHTLY_WIRE, expected_revision=2
    ),
    answer=schedules.UpdateScheduleResponse(schedule=SCHEDULE_WIRE), value=A_SCHEDULE,
)  # fmt: skip
for counts in ({}, {"next_count": 0, "last_count": 100}):
    asked(
        "schedules.get", "s", **counts, variant="some" if counts else "",
        request=schedules.GetScheduleRequest(schedule_id="s", **counts),
        answer=schedules.GetScheduleResponse(
            schedule=SCHEDULE_WIRE, last_runs=[RUN_WIRE],
            next_runs=[schedules.NextRun(instant=NOON, due_at=NOON + DAY)],
        ),
        value=sdk.ScheduleView(
            schedule=A_SCHEDULE, last_runs=(A_RUN,),
            next_runs=(sdk.NextRun(instant=NOON, due_at=NOON + DAY),),
        ),
        repeated=True,
    )  # fmt: skip
asked(
    "schedules.list", page_size=1, request=schedules.ListSchedulesRequest(page_size=1),
    answer=[schedules.ListSchedulesResponse(schedules=[SCHEDULE_WIRE]),
            schedules.ListSchedulesResponse(schedules=[SCHEDULE_WIRE])],
    value=[A_SCHEDULE, A_SCHEDULE], repeated=True,
)  # fmt: skip
asked(
    "schedules.pause", "s", note="why", expected_revision=1,
    request=schedules.PauseScheduleRequest(schedule_id="s", note="why", expected_revision=1),
    answer=schedules.PauseScheduleResponse(schedule=SCHEDULE_WIRE), value=A_SCHEDULE,
)  # fmt: skip
asked(
    "schedules.resume", "s", note="done",
    request=schedules.ResumeScheduleRequest(schedule_id="s", note="done"),
    answer=schedules.ResumeScheduleResponse(schedule=SCHEDULE_WIRE), value=A_SCHEDULE,
)  # fmt: skip
asked(
    "schedules.delete", "s", expected_revision=2,
    request=schedules.DeleteScheduleRequest(schedule_id="s", expected_revision=2),
    answer=schedules.DeleteScheduleResponse(),
)  # fmt: skip
for key in ("k", ""):
    asked(
        "schedules.trigger", "s", idempotency_key=key, overlap_policy=sdk.OverlapPolicy.ALLOW,
        request=schedules.TriggerScheduleRequest(
            schedule_id="s", idempotency_key=key, overlap_policy=schedules.OVERLAP_POLICY_ALLOW
        ),
        answer=schedules.TriggerScheduleResponse(run=RUN_WIRE), value=A_RUN, repeated=bool(key),
        variant=key,
    )  # fmt: skip
asked(
    "schedules.backfill", "s", NOON, NOON + DAY, overlap_policy=sdk.OverlapPolicy.QUEUE_ONE,
    request=schedules.BackfillScheduleRequest(
        schedule_id="s", since=NOON, until=NOON + DAY,
        overlap_policy=schedules.OVERLAP_POLICY_QUEUE_ONE,
    ),
    answer=schedules.BackfillScheduleResponse(instant_count=9, queued_count=4),
    value=sdk.Backfilled(instant_count=9, queued_count=4), repeated=True,
)  # fmt: skip

ORDERS = sdk.NamespaceConfig(name="orders", processor_targets=("127.0.0.1:7421",))
STORED = dataclasses.replace(ORDERS, created_at=NOON, revision=1)
ORDERS_WIRE = namespaces.Namespace(
    name="orders", processor_targets=["127.0.0.1:7421"], step_timeout=dt.timedelta(seconds=30),
    retry_policy=namespaces.RetryPolicy(
        initial_interval=dt.timedelta(milliseconds=100), coefficient=2,
        interval_max=dt.timedelta(seconds=30), jitter=0.2, attempts_max=8,
    ),
    exhausted_call_fails_alone=False, zombie_policy=namespaces.ZOMBIE_POLICY_RETRY,
    worker_count_max=1000, history=namespaces.HistoryPolicy(all=True),
    payload_bytes_max=2 * 1024 * 1024, waiting_callers_max=20_000,
    target_patience=dt.timedelta(minutes=5),
)  # fmt: skip
STORED_WIRE = namespaces.Namespace()
STORED_WIRE.MergeFrom(ORDERS_WIRE)
STORED_WIRE.MergeFrom(namespaces.Namespace(created_at=NOON, revision=1))
MASKED = [
    it.name
    for it in dataclasses.fields(sdk.NamespaceConfig)
    if it.name not in {"name", "created_at", "updated_at", "revision"}
]

asked(
    "namespaces.create", ORDERS,
    request=namespaces.CreateNamespaceRequest(namespace=ORDERS_WIRE),
    answer=namespaces.CreateNamespaceResponse(namespace=STORED_WIRE), value=STORED,
)  # fmt: skip
for fields, paths in (
    (("step_timeout", "history_last"), ["step_timeout", "history"]),
    (None, [it.replace("history_last", "history") for it in MASKED]),
):
    asked(
        "namespaces.update", ORDERS, fields=fields, expected_revision=4,
        request=namespaces.UpdateNamespaceRequest(
            namespace=ORDERS_WIRE, update_mask={"paths": paths}, expected_revision=4
        ),
        answer=namespaces.UpdateNamespaceResponse(namespace=STORED_WIRE), value=STORED,
        variant="of all" if fields is None else "of some",
    )  # fmt: skip
asked(
    "namespaces.get", "orders", request=namespaces.GetNamespaceRequest(name="orders"),
    answer=namespaces.GetNamespaceResponse(namespace=STORED_WIRE), value=STORED, repeated=True,
)  # fmt: skip
asked(
    "namespaces.list", page_size=1, request=namespaces.ListNamespacesRequest(page_size=1),
    answer=[namespaces.ListNamespacesResponse(namespaces=[STORED_WIRE])], value=[STORED],
    repeated=True,
)  # fmt: skip
asked(
    "namespaces.delete", "orders", request=namespaces.DeleteNamespaceRequest(name="orders"),
    answer=namespaces.DeleteNamespaceResponse(),
)  # fmt: skip
REPLICA: Fields = {
    "replica_id": 1, "name": "host-1", "version": "1.0", "functions": "f", "started_at": NOON,
    "heartbeat_at": NOON, "heartbeat_age": DAY, "lease_timeout": DAY, "draining": True,
    "lease_count": 3,
}  # fmt: skip
asked(
    "replicas.list", page_size=1, request=replicas.ListReplicasRequest(page_size=1),
    answer=[
        replicas.ListReplicasResponse(
            replicas=[replicas.Replica(**REPLICA, state=replicas.REPLICA_STATE_SILENT)]
        ),
        replicas.ListReplicasResponse(replicas=[replicas.Replica(**REPLICA, step_count=0)]),
    ],
    value=[
        sdk.Replica(**REPLICA, state=state, step_count=count, caller_count=None, clock_offset=None)
        for state, count in ((sdk.ReplicaState.SILENT, None), (sdk.ReplicaState.UNSPECIFIED, 0))
    ],
    repeated=True,
)  # fmt: skip
asked(
    "replicas.activity", request=replicas.GetActivityRequest(), repeated=True,
    answer=replicas.GetActivityResponse(
        read_at=NOON, uncounted_namespace_count=2, exact_below=9,
        replicas=[replicas.ReplicaActivity(
            replica_id=7, state=replicas.REPLICA_STATE_SERVING, heartbeat_at=NOON
        )],
    ),
    value=sdk.Activity(
        read_at=NOON, queues=(), queues_age=None, uncounted_namespace_count=2, exact_below=9,
        replicas=(sdk.ReplicaActivity(
            replica_id=7, name="", version="", state=sdk.ReplicaState.SERVING, heartbeat_at=NOON,
            heartbeat_age=dt.timedelta(), step_count=None, caller_count=None, namespaces=(),
            is_partial=False,
        ),),
    ),
)  # fmt: skip
asked(
    "replicas.set_log_level", sdk.LogLevel.DEBUG, lasting=90,
    request=replicas.SetLogLevelRequest(
        level=replicas.LOG_LEVEL_DEBUG, lasting=dt.timedelta(seconds=90)
    ),
    answer=replicas.SetLogLevelResponse(
        previous_level=replicas.LOG_LEVEL_INFO, replica_name="host-1"
    ),
    value=sdk.LogLevelChange(replica_name="host-1", previous_level=sdk.LogLevel.INFO),
)  # fmt: skip


def script_of(case: Asked) -> list[Any]:
    """Return the answers to a request; the pages of a list but the last have a token."""
    if not isinstance(case.answer, list):
        return [case.answer]
    script = []
    for number, page in enumerate(case.answer, start=1):
        last = number == len(case.answer)
        script.append(type(page)(next_page_token="" if last else str(number)))
        script[-1].MergeFrom(page)
    return script


def requests_of(case: Asked, namespace: str) -> list[Any]:
    """Return the requests for a case, one for each page."""
    found = []
    for number in range(len(script_of(case))):
        request = type(case.request)()
        request.CopyFrom(case.request)
        if has_namespace(case):
            request.namespace = namespace
        if number:
            request.page_token = str(number)
        found.append(request)
    return found


def has_namespace(case: Asked) -> bool:
    field = case.request.DESCRIPTOR.fields_by_name.get("namespace")
    return field is not None and field.message_type is None


@pytest.mark.parametrize("case", ASKED)
@pytest.mark.parametrize("way", ["session", "unary", "blocking"])
async def test_a_request_is_sent_and_its_answer_returned(
    case: Asked, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedEngine, "has_sessions", way == "session")
    async with scripted_engine(*script_of(case)) as engine:
        if way == "blocking":
            with SyncClient(engine.address, namespace="n") as blocking:
                value = await case.through(blocking)
        else:
            async with Client(engine.address, namespace="n") as client:
                value = await case.through(client)

    assert engine.requests == requests_of(case, "n")
    assert value == case.value
    assert msgspec.json.encode(value)


@pytest.mark.parametrize("case", ASKED)
async def test_only_what_is_safe_to_repeat_is_sent_again(case: Asked) -> None:
    expected = (
        contextlib.nullcontext() if case.repeated else pytest.raises(sdk.StorageUnavailableError)
    )
    async with (
        scripted_engine(AWAY, AWAY, *script_of(case)) as engine,
        Client(engine.address, namespace="n", jitter=lambda: 1.0) as client,
    ):
        with expected:
            assert await case.through(client) == case.value

    first, *more = requests_of(case, "n")
    assert engine.requests == ([first, first, first, *more] if case.repeated else [first])


@pytest.mark.parametrize("case", [it for it in ASKED if has_namespace(it.values[0])])
async def test_a_request_can_name_another_namespace(case: Asked) -> None:
    async with scripted_engine(*script_of(case)) as engine, Client(engine.address) as client:
        await case.through(client, namespace="other")

    assert engine.requests == requests_of(case, "other")


def test_every_request_is_in_the_table() -> None:
    resources = (sdk.Jobs, sdk.Gates, sdk.Schedules, sdk.Namespaces, sdk.Replicas)
    methods = {it for it in vars(sdk.Processes) if not it.startswith("_")}
    methods |= {
        f"{of.__name__.lower()}.{it}" for of in resources for it in vars(of) if it[0] != "_"
    }

    assert {it.values[0].method for it in ASKED} == methods - {"jobs.watch", "jobs.wait"}
