"""Every request of the clients: what is sent, what is returned, and whether it is sent again.

What a response is read as, field by field, is held by tests/golden.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import operator
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import msgspec
import pytest

from progressor import sdk
from progressor.sdk import JSON, Client, SyncClient
from progressor.sdk.client.schedules import spec_to_wire
from progressor.sdk.transport.exchange import rpc_of
from progressor.sdk.values.namespaces import namespace_to_wire
from progressor.v1 import (
    bulk_service_pb2,
    gate_service_pb2,
    job_service_pb2,
    namespace_service_pb2,
    nodes_pb2,
    process_service_pb2,
    replica_service_pb2,
    schedule_service_pb2,
    types_pb2,
)
from tests.support.api.golden import Source, message_of
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
bulks: Any = bulk_service_pb2

NOON = dt.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
AWAY = refusal(grpc.StatusCode.UNAVAILABLE, "STORAGE_UNAVAILABLE", retry_after=dt.timedelta(0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """A request through a client, its answer, and the value of that or its type.

    That of a list are two pages, and the type is that of the items.
    """

    method: str
    args: tuple[Any, ...]
    options: dict[str, Any]
    request: Any
    answer: Any
    value: Any
    repeated: bool

    @property
    def script(self) -> list[Any]:
        """The answers; the pages of a list but the last have a token."""
        if "page_token" not in self.request.DESCRIPTOR.fields_by_name or self.method == "trace":
            return [self.answer]
        first, second = type(self.answer)(), type(self.answer)()
        first.CopyFrom(self.answer)
        second.CopyFrom(self.answer)
        first.next_page_token, second.next_page_token = "1", ""
        return [first, second]

    @property
    def has_namespace(self) -> bool:
        if "filter" in self.request.DESCRIPTOR.fields_by_name:
            return True
        field = self.request.DESCRIPTOR.fields_by_name.get("namespace")
        return field is not None and field.message_type is None

    def requests(self, namespace: str) -> list[Any]:
        """Return the requests, one for each page."""
        found = []
        for page in range(len(self.script)):
            request = type(self.request)()
            request.CopyFrom(self.request)
            if self.has_namespace:
                getattr(request, "filter", request).namespace = namespace
            if page:
                request.page_token = str(page)
            found.append(request)
        return found

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

    def check(self, value: Any) -> None:
        """Raise AssertionError unless this is the value, or one of its type."""
        if not isinstance(self.value, type):
            assert value == self.value
            return
        values = value if isinstance(value, list) else [value]
        assert values
        assert all(type(it) is self.value for it in values)
        assert len(values) % len(self.script) == 0
        assert msgspec.json.encode(value)


def asked(
    method: str,
    *args: Any,
    request: Any,
    value: Any,
    answer: Any = None,
    repeated: bool = False,
    **options: Any,
) -> Any:
    """Return a case. Without a namespace, it must be sent with that of the client."""
    answer = answer or message_of(rpc_of(request).response, Source(0), "")
    case = Asked(
        method=method,
        args=args,
        options=options,
        request=request,
        answer=answer,
        value=value,
        repeated=repeated,
    )
    return pytest.param(case, id=method)


TEA = {"item": "tea"}
TASK: dict[str, Any] = {
    "process_id": "p", "args": b'{"item":"tea"}', "caller_context": {"user": "ann"},
    "idempotency_key": "k",
    "history_range": types.HistoryRange(limit=10, direction=types.DIRECTION_BACKWARD),
}  # fmt: skip
OPTIONS: dict[str, Any] = {
    "idempotency_key": "k", "context": {"user": "ann"}, "history": sdk.HistoryRange.last(10),
}  # fmt: skip
GATED: dict[str, Any] = {"constraints": sdk.Constraints(gates={"db-1": 1})}
GATED_WIRE: dict[str, Any] = {
    "constraints": types.Constraints(
        gates=[types.GateUse(gate="db-1", capacity=1)], priority=3, hold=types.GATE_HOLD_TASK
    )
}
REPLY: dict[str, Any] = {"task_id": 7, "response": b'{"n":1}', "deduplicated": True}
REPLIED = sdk.Reply(task_id=7, response={"n": 1}, deduplicated=True)
DATE: dict[str, Any] = {"task_id": 1, "response": b'"2026-03-01T12:00:00.123456Z"'}
DATED = sdk.Reply(task_id=1, response=NOON, deduplicated=False)
RECEIVED: dict[str, Any] = {"task_id": 7, "deduplicated": True}
RECEIPT = sdk.Receipt(task_id=7, deduplicated=True)
ONE_NODE = sdk.Graph()
ONE_NODE.node("a", {"n": 1})
ONE_NODE_WIRE = nodes.NodeSpec(name="a", args=b'{"n":1}')
NIGHTLY = sdk.ScheduleSpec(times=sdk.Cron("@daily"), target=sdk.ScheduledStart({"report": "x"}))
NIGHTLY_WIRE = spec_to_wire(NIGHTLY, JSON)
ORDERS = sdk.NamespaceConfig(name="orders", processor_targets=("127.0.0.1:7421",))
ORDERS_WIRE = namespace_to_wire(ORDERS)
MASKED = [
    it.name.replace("history_last", "history")
    for it in dataclasses.fields(sdk.NamespaceConfig)
    if it.name not in {"name", "created_at", "updated_at", "revision", "pause", "cell"}
]
IMPORT: dict[str, Any] = {
    "status": sdk.ProcessStatus.RUNNING, "state": {"a": 1}, "metadata": {"m": 1},
    "history": [sdk.NewEvent(payload="x", format_version=2, metadata={"e": 1}, occurred_at=NOON)],
    "timer": sdk.NewTimer(at=NOON, remove=True), "previous_status": sdk.ProcessStatus.ERROR,
    "corrupted_by_type": sdk.TaskType.TIMEOUT, "created_at": NOON, "state_version": 2,
}  # fmt: skip
IMPORT_WIRE: dict[str, Any] = {
    "process_id": "p", "status": types.PROCESS_STATUS_RUNNING, "aux_state": b'{"a":1}',
    "metadata": {"m": 1}, "created_at": NOON,
    "history": [types.NewEvent(payload=b'"x"', format_version=2, metadata={"e": 1},
                               occurred_at=NOON)],
    "timer": types.SetTimer(at=NOON, remove=True), "previous_status": types.PROCESS_STATUS_ERROR,
    "corrupted_by_type": types.TASK_TYPE_TIMEOUT, "state_version": 2,
}  # fmt: skip

# fmt: off
ASKED = [
    asked("start", "p", TEA, **OPTIONS, **GATED, metadata={"size": 3}, accept_only=True,
          request=pb.StartRequest(**TASK, **GATED_WIRE, metadata={"size": 3}, accept_only=True),
          answer=pb.StartResponse(**REPLY), value=REPLIED, repeated=True),
    asked("start", "p", response_type=dt.datetime, request=pb.StartRequest(process_id="p"),
          answer=pb.StartResponse(**DATE), value=DATED),
    asked("call", "p", TEA, **OPTIONS, **GATED, accept_only=True,
          request=pb.CallRequest(**TASK, **GATED_WIRE, accept_only=True),
          answer=pb.CallResponse(**REPLY), value=REPLIED, repeated=True),
    asked("call", "p", response_type=dt.datetime, request=pb.CallRequest(process_id="p"),
          answer=pb.CallResponse(**DATE), value=DATED),
    asked("repair", "p", TEA, **OPTIONS, accept_only=True,
          request=pb.RepairRequest(**TASK, accept_only=True),
          answer=pb.RepairResponse(**REPLY), value=REPLIED, repeated=True),
    asked("repair", "p", response_type=dt.datetime, request=pb.RepairRequest(process_id="p"),
          answer=pb.RepairResponse(**DATE), value=DATED),
    asked("notify", "p", TEA, **OPTIONS, **GATED, request=pb.NotifyRequest(**TASK, **GATED_WIRE),
          answer=pb.NotifyResponse(**RECEIVED), value=RECEIPT, repeated=True),
    asked("notify", "p", request=pb.NotifyRequest(process_id="p"),
          answer=pb.NotifyResponse(**RECEIVED), value=RECEIPT),
    asked("retry", "p", request=pb.RetryRequest(process_id="p"),
          answer=pb.RetryResponse(task_id=9), value=sdk.Retried(task_id=9)),
    asked("simple_repair", "p", request=pb.SimpleRepairRequest(process_id="p"),
          value=sdk.SimpleRepaired),
    asked("get", "p", history=sdk.HistoryRange(limit=1), await_init=True, without_state=True,
          state_type=int, request=pb.GetRequest(
              process_id="p", await_init=True, without_state=True,
              history_range=types.HistoryRange(limit=1, direction=types.DIRECTION_FORWARD)),
          answer=pb.GetResponse(process=types.Process(aux_state=b"1", created_at=NOON)),
          value=sdk.Snapshot, repeated=True),
    asked("put", "p", **IMPORT, idempotency_key="k",
          request=pb.PutRequest(**IMPORT_WIRE, idempotency_key="k"),
          answer=pb.PutResponse(**RECEIVED), value=RECEIPT, repeated=True),
    asked("put", "p", **IMPORT, request=pb.PutRequest(**IMPORT_WIRE),
          answer=pb.PutResponse(**RECEIVED), value=RECEIPT),
    asked("put", "p", timers={
              name: sdk.Timer(task_id=1, type=kind, status=sdk.TaskStatus.WAITING, due_at=NOON)
              for name, kind in (("", sdk.TaskType.REMOVE), ("a", sdk.TaskType.TIMEOUT))},
          request=pb.PutRequest(
              process_id="p", status=types.PROCESS_STATUS_RUNNING,
              timer=types.SetTimer(at=NOON, remove=True),
              named_timers={"a": types.SetTimer(at=NOON)}),
          answer=pb.PutResponse(**RECEIVED), value=RECEIPT),
    asked("remove", "p", request=pb.RemoveRequest(process_id="p"), value=None),
    asked("terminate", "p", "why", value=None,
          request=pb.TerminateRequest(process_id="p", reason="why")),
    asked("result", "p", type=list[int], until_finished=True,
          request=pb.AwaitProcessRequest(process_id="p", until_finished=True),
          answer=pb.AwaitProcessResponse(result=b"[1]"), value=[1], repeated=True),
    asked("trace", "p", page_size=1, page_token="1", repeated=True, value=sdk.Trace,
          request=pb.TraceRequest(process_id="p", page_size=1, page_token="1")),
    asked("trace", "p", newest_first=True, repeated=True, value=sdk.Trace,
          request=pb.TraceRequest(
              process_id="p", page_size=100, direction=types.DIRECTION_BACKWARD)),
    asked("list", statuses=[sdk.ProcessStatus.ERROR], causes=[sdk.WaitCause.GATE],
          created_from=NOON, created_to=NOON + DAY, metadata={"a": 1}, page_size=2,
          failure_id="0123456789ab", failure_reason="BUG", broken_from=NOON, broken_to=NOON + DAY,
          id_prefix="order-",
          request=pb.ListRequest(
              filter=types.ProcessFilter(
                  statuses=[types.PROCESS_STATUS_ERROR], created_from=NOON, created_to=NOON + DAY,
                  metadata={"a": 1}, failure_id="0123456789ab", failure_reason="BUG",
                  broken_from=NOON, broken_to=NOON + DAY, id_prefix="order-"),
              causes=[types.WAIT_CAUSE_GATE], page_size=2),
          value=sdk.Process, repeated=True),
    asked("count", statuses=[sdk.ProcessStatus.ERROR], id_prefix="order-", exact_max=7,
          request=pb.CountRequest(
              filter=types.ProcessFilter(
                  statuses=[types.PROCESS_STATUS_ERROR], id_prefix="order-"),
              exact_max=7),
          answer=pb.CountResponse(count=8, is_estimate=True),
          value=sdk.ProcessCount(count=8, is_estimate=True), repeated=True),
    asked("failures", failure_id="0123456789ab", broken_only=True, page_size=2,
          request=pb.ListFailuresRequest(failure_id="0123456789ab", broken_only=True, page_size=2),
          value=sdk.FailureGroup, repeated=True),
    *(ask for task in ({"task_id": 0}, {"idempotency_key": "k"}) for ask in (
        asked("await_task", "p", **task, request=pb.AwaitTaskRequest(process_id="p", **task),
              answer=pb.AwaitTaskResponse(task_id=9, type=types.TASK_TYPE_INIT, response=b"true"),
              value=sdk.TaskReply(task_id=9, type=sdk.TaskType.INIT, response=True),
              repeated=True),
        asked("cancel", "p", **task, request=pb.CancelRequest(process_id="p", **task),
              answer=pb.CancelResponse(task_id=7), value=7))),
    asked("gates.list", page_size=1, request=gates.ListGatesRequest(page_size=1), value=sdk.Gate,
          repeated=True),
    asked("gates.get", "g", request=gates.GetGateRequest(gate="g"), value=sdk.GateView,
          repeated=True),
    asked("gates.set", "g", 0, expected_revision=3,  # a capacity of 0 is one, too
          request=gates.SetGateRequest(gate="g", capacity=0, expected_revision=3),
          value=sdk.Gate),
    asked("gates.delete", "g", request=gates.DeleteGateRequest(gate="g"), value=None),
    *(asked("jobs.submit", "j", ONE_NODE, deadline=deadline, idempotency_key="k",
            context={"user": "ann"}, metadata={"team": "search"},
            request=jobs.SubmitJobRequest(
                job_id="j", nodes=[ONE_NODE_WIRE], idempotency_key="k",
                caller_context={"user": "ann"}, metadata={"team": "search"}, **due),
            answer=jobs.SubmitJobResponse(**RECEIVED), value=RECEIPT, repeated=True)
      for deadline, due in ((None, {}), (NOON, {"deadline": NOON}), (DAY, {"timeout": DAY}),
                            (90, {"timeout": dt.timedelta(seconds=90)}))),
    asked("jobs.submit", "j", ONE_NODE,
          request=jobs.SubmitJobRequest(job_id="j", nodes=[ONE_NODE_WIRE]),
          answer=jobs.SubmitJobResponse(**RECEIVED), value=RECEIPT),
    asked("jobs.get", "j", payloads=False, repeated=True, value=sdk.JobView,
          request=jobs.GetJobRequest(job_id="j", without_payloads=True)),
    asked("jobs.list", states=[sdk.JobState.RUNNING, sdk.JobState.DONE], schedule_id="nightly",
          page_size=1, request=jobs.ListJobsRequest(
              states=[jobs.JOB_STATE_RUNNING, jobs.JOB_STATE_DONE], schedule_id="nightly",
              page_size=1),
          value=sdk.Job, repeated=True),
    asked("jobs.cancel", "j", cause="not needed", value=sdk.Job,
          request=jobs.CancelJobRequest(job_id="j", reason="not needed")),
    asked("jobs.retry", "j", deadline=60, value=sdk.JobRetried,
          request=jobs.RetryJobRequest(job_id="j", timeout=dt.timedelta(seconds=60)),
          answer=jobs.RetryJobResponse(nodes=["a", "b"])),
    asked("schedules.create", "s", NIGHTLY, paused=True, note="why", value=sdk.Schedule,
          request=schedules.CreateScheduleRequest(
              schedule_id="s", spec=NIGHTLY_WIRE, paused=True, note="why")),
    asked("schedules.update", "s", NIGHTLY, expected_revision=2, value=sdk.Schedule,
          request=schedules.UpdateScheduleRequest(
              schedule_id="s", spec=NIGHTLY_WIRE, expected_revision=2)),
    *(asked("schedules.get", "s", **counts, value=sdk.ScheduleView, repeated=True,
            request=schedules.GetScheduleRequest(schedule_id="s", **counts))
      for counts in ({}, {"next_count": 0, "last_count": 100})),
    asked("schedules.list", page_size=1, request=schedules.ListSchedulesRequest(page_size=1),
          value=sdk.Schedule, repeated=True),
    asked("schedules.pause", "s", note="why", expected_revision=1, value=sdk.Schedule,
          request=schedules.PauseScheduleRequest(
              schedule_id="s", note="why", expected_revision=1)),
    asked("schedules.resume", "s", note="done", value=sdk.Schedule,
          request=schedules.ResumeScheduleRequest(schedule_id="s", note="done")),
    asked("schedules.delete", "s", expected_revision=2, value=None,
          request=schedules.DeleteScheduleRequest(schedule_id="s", expected_revision=2)),
    *(asked("schedules.trigger", "s", idempotency_key=key, overlap_policy=sdk.OverlapPolicy.ALLOW,
            request=schedules.TriggerScheduleRequest(
                schedule_id="s", idempotency_key=key,
                overlap_policy=schedules.OVERLAP_POLICY_ALLOW),
            value=sdk.ScheduleRun, repeated=bool(key)) for key in ("k", "")),
    asked("schedules.backfill", "s", NOON, NOON + DAY, overlap_policy=sdk.OverlapPolicy.QUEUE_ONE,
          request=schedules.BackfillScheduleRequest(
              schedule_id="s", since=NOON, until=NOON + DAY,
              overlap_policy=schedules.OVERLAP_POLICY_QUEUE_ONE),
          value=sdk.Backfilled, repeated=True),
    asked("namespaces.create", ORDERS, value=sdk.NamespaceConfig,
          request=namespaces.CreateNamespaceRequest(namespace=ORDERS_WIRE)),
    *(asked("namespaces.update", ORDERS, fields=fields, expected_revision=4,
            request=namespaces.UpdateNamespaceRequest(
                namespace=ORDERS_WIRE, update_mask={"paths": paths}, expected_revision=4),
            value=sdk.NamespaceConfig)
      for fields, paths in ((None, MASKED), (("history_last", "step_timeout"),
                                             ["history", "step_timeout"]))),
    asked("namespaces.get", "orders", request=namespaces.GetNamespaceRequest(name="orders"),
          value=sdk.NamespaceConfig, repeated=True),
    asked("namespaces.list", page_size=1, request=namespaces.ListNamespacesRequest(page_size=1),
          value=sdk.NamespaceConfig, repeated=True),
    asked("namespaces.pause", "orders", reason="why", author="ada", refuse=True,
          request=namespaces.PauseNamespaceRequest(
              name="orders", reason="why", author="ada", refuse_requests=True),
          value=sdk.NamespaceConfig, repeated=True),
    asked("namespaces.resume", "orders", value=sdk.NamespaceConfig, repeated=True,
          request=namespaces.ResumeNamespaceRequest(name="orders")),
    asked("namespaces.delete", "orders", value=None,
          request=namespaces.DeleteNamespaceRequest(name="orders")),
    asked("replicas.list", page_size=1, request=replicas.ListReplicasRequest(page_size=1),
          value=sdk.Replica, repeated=True),
    asked("replicas.activity", request=replicas.GetActivityRequest(), value=sdk.Activity,
          repeated=True),
    asked("replicas.set_log_level", sdk.LogLevel.DEBUG, lasting=90, value=sdk.LogLevelChange,
          request=replicas.SetLogLevelRequest(
              level=replicas.LOG_LEVEL_DEBUG, lasting=dt.timedelta(seconds=90))),
    asked("replicas.run_doctor", request=replicas.RunDoctorRequest(), value=sdk.DoctorReport,
          repeated=True),
    asked("bulk.preview", sdk.BulkKind.RETRY, id_prefix="p", value=sdk.BulkPreview, repeated=True,
          request=bulks.PreviewBulkRequest(
              kind=bulks.BULK_KIND_RETRY, filter=types.ProcessFilter(id_prefix="p"))),
    *(asked("bulk.start", sdk.BulkKind.NOTIFY, TEA, operation_id="b", reason="why", author="me",
            rate_max=rate, failed_share_max=0.5, failed_window=9, follow=True, id_prefix="p",
            value=sdk.BulkOperation, repeated=True,
            request=bulks.StartBulkRequest(
                operation_id="b", kind=bulks.BULK_KIND_NOTIFY, args=b'{"item":"tea"}',
                filter=types.ProcessFilter(id_prefix="p"), reason="why", author="me",
                rate_max=rate, rate_unlimited=rate is None, failed_share_max=0.5,
                failed_window=9, follow=True)) for rate in (7, None)),
    asked("bulk.get", "b", value=sdk.BulkOperation, repeated=True,
          request=bulks.GetBulkRequest(operation_id="b")),
    asked("bulk.stop", "b", "why", value=sdk.BulkOperation, repeated=True,
          request=bulks.StopBulkRequest(operation_id="b", reason="why")),
    asked("bulk.list", page_size=1, request=bulks.ListBulksRequest(page_size=1),
          value=sdk.BulkOperation, repeated=True),
    asked("bulk.results", "b", failed=True, page_size=1, value=sdk.BulkItem, repeated=True,
          request=bulks.ListBulkResultsRequest(operation_id="b", failed=True, page_size=1)),
]
# fmt: on


@pytest.mark.parametrize("case", ASKED)
@pytest.mark.parametrize("way", ["session", "unary", "blocking"])
async def test_a_request_is_sent_and_its_answer_returned(
    case: Asked, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedEngine, "has_sessions", way == "session")
    async with scripted_engine(*case.script) as engine:
        if way == "blocking":
            with SyncClient(engine.address, namespace="n") as blocking:
                value = await case.through(blocking)
        else:
            async with Client(engine.address, namespace="n") as client:
                value = await case.through(client)

    assert engine.requests == case.requests("n")
    case.check(value)


@pytest.mark.parametrize("case", ASKED)
async def test_only_what_is_safe_to_repeat_is_sent_again(case: Asked) -> None:
    expected = (
        contextlib.nullcontext() if case.repeated else pytest.raises(sdk.StorageUnavailableError)
    )
    async with (
        scripted_engine(AWAY, AWAY, *case.script) as engine,
        Client(engine.address, namespace="n", jitter=lambda: 1.0) as client,
    ):
        with expected:
            case.check(await case.through(client))

    first, *more = case.requests("n")
    assert engine.requests == ([first, first, first, *more] if case.repeated else [first])


@pytest.mark.parametrize("case", [it for it in ASKED if it.values[0].has_namespace])
async def test_a_request_can_name_another_namespace(case: Asked) -> None:
    async with scripted_engine(*case.script) as engine, Client(engine.address) as client:
        await case.through(client, namespace="other")

    assert engine.requests == case.requests("other")


async def test_processes_of_all_namespaces_are_listed_together() -> None:
    script = pb.ListResponse(), pb.ListFailuresResponse()
    async with scripted_engine(*script) as engine, Client(engine.address) as client:
        assert [it async for it in client.list(all_namespaces=True)] == []
        assert [it async for it in client.failures(all_namespaces=True)] == []

    assert engine.requests == [
        pb.ListRequest(filter=types.ProcessFilter(), page_size=100),
        pb.ListFailuresRequest(page_size=100),
    ]


def test_every_request_is_in_the_table() -> None:
    resources = (sdk.Jobs, sdk.Gates, sdk.Schedules, sdk.Namespaces, sdk.Replicas, sdk.Bulk)
    methods = {it for it in vars(sdk.Processes) if not it.startswith("_")}
    methods |= {
        f"{of.__name__.lower()}.{it}" for of in resources for it in vars(of) if it[0] != "_"
    }

    assert {it.values[0].method for it in ASKED} == methods - {"jobs.watch", "jobs.wait"}
