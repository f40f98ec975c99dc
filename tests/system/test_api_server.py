"""The gRPC server over a real socket, with collaborators in memory."""

import asyncio
import dataclasses
import datetime as dt
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf import field_mask_pb2
from google.rpc import (
    error_details_pb2,
    status_pb2,
)
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from grpc_status import rpc_status

from progressor import errors
from progressor.api.binding import Tls
from progressor.api.server import ApiServer, Listening
from progressor.clock import SystemClock
from progressor.domain.admission import Import, Request
from progressor.domain.answer import Answer, Receipt
from progressor.domain.event import Event, HistoryRange
from progressor.domain.namespace import Namespace
from progressor.domain.process import Process, ProcessKey, ProcessStatus, process_key
from progressor.domain.replica import ReplicaView
from progressor.domain.task import TaskStatus, TaskType
from progressor.domain.view import HistoryPage, ProcessQuery, ProcessView, TaskTrace
from progressor.v1 import (
    namespace_service_pb2,
    process_service_pb2,
    replica_service_pb2,
    types_pb2,
)
from progressor.v1.namespace_service_pb2_grpc import NamespaceServiceStub
from progressor.v1.process_service_pb2_grpc import ProcessServiceStub
from progressor.v1.replica_service_pb2_grpc import ReplicaServiceStub
from tests.support.builders import make_replica_view
from tests.support.sessions import SessionStub

if TYPE_CHECKING:
    # The generated module has them in its stub alone.
    from progressor.v1.namespace_service_pb2_grpc import NamespaceServiceAsyncStub
    from progressor.v1.process_service_pb2_grpc import ProcessServiceAsyncStub
    from progressor.v1.replica_service_pb2_grpc import ReplicaServiceAsyncStub

pb = process_service_pb2
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)
PAYLOAD_MAX = 2 * 1024 * 1024
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICES = (
    "",
    "progressor.v1.ProcessService",
    "progressor.v1.NamespaceService",
    "progressor.v1.ReplicaService",
)


class MemoryIntake:
    """Answers with the args, with `raises` where set, and never to args of ``hang``."""

    def __init__(self) -> None:
        """Begin with nothing asked."""
        self.requests: list[Request | Import | ProcessKey] = []
        self.cancelled = asyncio.Event()
        self.asked = asyncio.Event()
        self.release = asyncio.Event()
        self.raises: Exception | None = None

    async def ask(self, request: Request, *, timeout: float | None) -> Answer:
        """Answer with the args."""
        self.requests.append(request)
        await self._wait(request.args, timeout)
        return Answer(task_id=1, task_type=request.task_type, response=request.args)

    async def accept(self, request: Request) -> Receipt:
        """Accept as task 2."""
        self.requests.append(request)
        await self._wait(b"", None)
        return Receipt(task_id=2, deduplicated=True)

    async def await_task(
        self,
        key: ProcessKey,
        task: int | str,
        *,
        timeout: float | None,
    ) -> Answer:
        """Answer with the name of the task."""
        self.requests.append(key)
        await self._wait(b"", timeout)
        return Answer(task_id=3, task_type=TaskType.CALL, response=str(task).encode())

    async def simple_repair(self, key: ProcessKey) -> int | None:
        """Run timer 4 again, unless the process is called plain."""
        self.requests.append(key)
        return None if key.process_id == "plain" else 4

    async def put(self, process: Import) -> Receipt:
        """Import as task 5."""
        self.requests.append(process)
        return Receipt(task_id=5)

    async def remove(self, key: ProcessKey) -> None:
        """Note the key."""
        self.requests.append(key)

    async def _wait(self, args: bytes, seconds: float | None) -> None:
        self.asked.set()
        if self.raises is not None:
            raise self.raises
        if args != b"hang":
            return
        try:
            async with asyncio.timeout(seconds):
                await self.release.wait()
        except TimeoutError:
            raise errors.DeadlineExceededError(77) from None
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


class MemoryProcesses:
    """One process of 10 events of 1 MiB, in namespace ``orders`` under ``1``."""

    def __init__(self) -> None:
        """Begin with a running process."""
        self.status = ProcessStatus.RUNNING
        self.ranges: list[HistoryRange] = []
        self.init_ends_as = ProcessStatus.RUNNING

    async def read(
        self, key: ProcessKey, wanted: HistoryRange, *, bytes_max: int
    ) -> tuple[ProcessView, HistoryPage]:
        """Return the process, which leaves init once it was looked at, and its events that fit."""
        if key != process_key("orders", "1"):
            raise errors.ProcessNotFoundError(key.namespace, key.process_id)
        status, self.status = self.status, self.init_ends_as
        view = ProcessView(process=process(key.process_id, status), timer=None, waits=())
        return view, self._history(wanted, view.process.last_event_id, bytes_max)

    def _history(self, wanted: HistoryRange, last_event_id: int, bytes_max: int) -> HistoryPage:
        if wanted.limit == 0 or wanted.after >= last_event_id:
            return HistoryPage(events=(), next_after=None)
        self.ranges.append(wanted)
        count = min(bytes_max // 1024**2, last_event_id - wanted.after)
        ids = range(wanted.after + 1, wanted.after + 1 + count)
        is_cut = wanted.after + count < last_event_id
        return HistoryPage(
            events=tuple(event(event_id) for event_id in ids),
            next_after=wanted.after + count if is_cut else None,
        )

    async def trace(self, key: ProcessKey, *, after: int, limit: int) -> tuple[TaskTrace, ...]:
        """Return some of five tasks of 1 MB."""
        assert key.process_id == "1"
        return tuple(trace(task_id) for task_id in range(after + 1, min(after + limit, 5) + 1))

    async def list(self, query: ProcessQuery) -> tuple[Process, ...]:
        """Return some of five processes."""
        found = [process(str(i), ProcessStatus.RUNNING) for i in range(5)]
        if query.before is not None:
            found = [p for p in found if p.key.process_id > query.before[1]]
        return tuple(found[: query.page_size])


class MemoryNamespaces:
    """Namespaces in a dict; ``orders`` is there from the start."""

    def __init__(self) -> None:
        """Begin with one."""
        self.stored = {"orders": namespace("orders")}

    async def lookup(self, name: str) -> Namespace:
        """Return what is stored."""
        return await self.get(name)

    async def create(self, namespace: Namespace) -> Namespace:
        """Store at revision 1."""
        if namespace.name in self.stored:
            raise errors.NamespaceAlreadyExistsError(namespace.name)
        self.stored[namespace.name] = dataclasses.replace(namespace, revision=1, created_at=NOW)
        return self.stored[namespace.name]

    async def update(
        self, name: str, change: Callable[[Namespace], Namespace], *, expected_revision: int
    ) -> Namespace:
        """Change and count the revision."""
        current = await self.get(name)
        if expected_revision not in (0, current.revision):
            raise errors.NamespaceChangedError(name, expected_revision, current.revision)
        self.stored[name] = dataclasses.replace(change(current), revision=current.revision + 1)
        return self.stored[name]

    async def get(self, name: str) -> Namespace:
        """Return what is stored."""
        if name not in self.stored:
            raise errors.NamespaceNotFoundError(name)
        return self.stored[name]

    async def list(self, *, after: str, limit: int) -> tuple[Namespace, ...]:
        """Return some in order."""
        return tuple(self.stored[name] for name in sorted(self.stored) if name > after)[:limit]

    async def delete(self, name: str) -> None:
        """Forget it, unless it is orders."""
        await self.get(name)
        if name == "orders":
            raise errors.NamespaceNotEmptyError(name)
        del self.stored[name]


class MemoryRoster:
    """Three replicas; the first one is silent."""

    def __init__(self) -> None:
        """Begin with nothing asked."""
        self.raises: Exception | None = None

    async def list(self, *, after: int, limit: int) -> tuple[ReplicaView, ...]:
        """Return some in order."""
        if self.raises is not None:
            raise self.raises
        views = (
            make_replica_view(replica_id=number, heartbeat_age=9 * SECOND / number)
            for number in (1, 2, 3)
        )
        return tuple(view for view in views if view.replica_id > after)[:limit]


@dataclasses.dataclass
class Engine:
    """A server, what stands behind it, and a channel to it."""

    server: ApiServer
    intake: MemoryIntake
    processes: MemoryProcesses
    namespaces: MemoryNamespaces
    roster: MemoryRoster
    address: str
    channel: grpc.aio.Channel
    in_sessions: bool

    @property
    def process_service(self) -> "ProcessServiceAsyncStub":
        """Return a stub, whose requests go through sessions where the engine is to have them so."""
        stub = SessionStub if self.in_sessions else ProcessServiceStub
        return stub(self.channel)  # type: ignore[return-value]

    @property
    def namespace_service(self) -> "NamespaceServiceAsyncStub":
        """Return a stub."""
        return NamespaceServiceStub(self.channel)

    @property
    def replica_service(self) -> "ReplicaServiceAsyncStub":
        """Return a stub."""
        return ReplicaServiceStub(self.channel)

    async def health(self, service: str = "") -> int:
        """Return what a health check says."""
        stub: Any = health_pb2_grpc.HealthStub(self.channel)
        response = await stub.Check(health_pb2.HealthCheckRequest(service=service))
        return int(response.status)


def namespace(name: str) -> Namespace:
    return Namespace(
        name=name, processor_targets=("a:1",), payload_bytes_max=PAYLOAD_MAX, revision=1
    )


def process(process_id: str, status: ProcessStatus) -> Process:
    return Process(
        key=process_key("orders", process_id),
        status=status,
        previous_status=None,
        detail=None,
        aux_state=b"aux",
        metadata=None,
        corrupted_by=None,
        created_at=NOW,
        status_changed_at=NOW,
        last_event_id=10,
        init_task_id=42,
        result=None,
    )


def event(event_id: int) -> Event:
    return Event(
        event_id=event_id,
        occurred_at=NOW,
        payload=b"x" * 1000**2,
        format_version=1,
        metadata=None,
        task_id=1,
    )


def trace(task_id: int) -> TaskTrace:
    return TaskTrace(
        task_id=task_id,
        task_type=TaskType.CALL,
        status=TaskStatus.FINISHED,
        created_at=NOW,
        scheduled_at=None,
        started_at=NOW,
        finished_at=NOW,
        attempt_count=1,
        args=b"x" * 1000**2,
        caller_context={"a": "b"},
        idempotency_key=None,
        response=b"r",
        error=None,
        events=(),
    )


def build(
    listening: Listening,
) -> tuple[ApiServer, MemoryIntake, MemoryProcesses, MemoryNamespaces, MemoryRoster]:
    intake, processes, namespaces = MemoryIntake(), MemoryProcesses(), MemoryNamespaces()
    roster = MemoryRoster()
    server = ApiServer(
        intake=intake,
        processes=processes,
        namespaces=namespaces,
        roster=roster,
        clock=SystemClock(),
        listening=listening,
    )
    return server, intake, processes, namespaces, roster


@pytest.fixture(params=["unary", "session"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    server, intake, processes, namespaces, roster = build(Listening(bind=("127.0.0.1:0",)))
    (address,) = await server.start()
    await server.set_serving(serving=True)
    async with grpc.aio.insecure_channel(address) as channel:
        in_sessions = request.param == "session"
        yield Engine(server, intake, processes, namespaces, roster, address, channel, in_sessions)
        await server.drain(dt.timedelta(0))


def health_stub(engine: Engine) -> Any:
    return health_pb2_grpc.HealthStub(engine.channel)


async def failure(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def end_of(call: Any) -> tuple[grpc.StatusCode, error_details_pb2.ErrorInfo]:
    error = await failure(call)
    info = error_details_pb2.ErrorInfo()
    assert rich(error).details[0].Unpack(info)
    return error.code(), info


def rich(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    found = rpc_status.from_call(error)  # type: ignore[arg-type]
    assert isinstance(found, status_pb2.Status)
    return found


def violations_of(error: grpc.aio.AioRpcError) -> dict[str, str]:
    bad = error_details_pb2.BadRequest()
    assert any(packed.Unpack(bad) for packed in rich(error).details)
    return {violation.field: violation.description for violation in bad.field_violations}


async def test_each_method_reaches_its_collaborator(engine: Engine) -> None:
    stub = engine.process_service
    key: dict[str, Any] = {"namespace": "orders", "process_id": "1"}

    assert await stub.Start(pb.StartRequest(**key, args=b"a")) == pb.StartResponse(
        task_id=1, response=b"a"
    )
    assert await stub.Start(pb.StartRequest(**key, accept_only=True)) == pb.StartResponse(
        task_id=2, deduplicated=True
    )
    assert (await stub.Call(pb.CallRequest(**key, args=b"b"))).response == b"b"
    assert (await stub.Call(pb.CallRequest(**key, accept_only=True))).task_id == 2
    assert (await stub.Repair(pb.RepairRequest(**key, args=b"c"))).response == b"c"
    assert (await stub.Repair(pb.RepairRequest(**key, accept_only=True))).task_id == 2
    assert await stub.Notify(pb.NotifyRequest(**key)) == pb.NotifyResponse(
        task_id=2, deduplicated=True
    )
    assert (await stub.SimpleRepair(pb.SimpleRepairRequest(**key))).task_id == 4
    plain = pb.SimpleRepairRequest(namespace="orders", process_id="plain")
    assert not (await stub.SimpleRepair(plain)).HasField("task_id")
    assert (
        await stub.Put(pb.PutRequest(**key, status=types_pb2.PROCESS_STATUS_RUNNING))
    ).task_id == 5
    assert await stub.Remove(pb.RemoveRequest(**key)) == pb.RemoveResponse()
    awaited = await stub.AwaitTask(pb.AwaitTaskRequest(**key, idempotency_key="k"))
    assert awaited == pb.AwaitTaskResponse(task_id=3, type=2, response=b"k")  # type: ignore[arg-type]
    kinds = [r.task_type for r in engine.intake.requests if isinstance(r, Request)]
    assert kinds == ["init", "init", "call", "call", "repair", "repair", "notify"]


async def test_the_trace_of_the_caller_goes_with_the_request(engine: Engine) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    request = pb.NotifyRequest(namespace="orders", process_id="1")
    await engine.process_service.Notify(request, metadata=(("traceparent", parent),))

    (seen,) = engine.intake.requests
    assert isinstance(seen, Request)
    assert seen.trace_context == {"traceparent": parent}


async def test_namespaces_live_a_whole_life(engine: Engine) -> None:
    stub = engine.namespace_service
    wire = namespace_service_pb2
    new = wire.Namespace(name="new", processor_targets=["b:2"])
    created = await stub.CreateNamespace(wire.CreateNamespaceRequest(namespace=new))
    taken = await end_of(stub.CreateNamespace(wire.CreateNamespaceRequest(namespace=new)))
    new.worker_count_max = 5
    updated = await stub.UpdateNamespace(
        wire.UpdateNamespaceRequest(
            namespace=new,
            update_mask=field_mask_pb2.FieldMask(paths=["worker_count_max"]),
            expected_revision=1,
        )
    )
    late = await end_of(
        stub.UpdateNamespace(wire.UpdateNamespaceRequest(namespace=new, expected_revision=1))
    )
    got = await stub.GetNamespace(wire.GetNamespaceRequest(name="new"))
    page = await stub.ListNamespaces(wire.ListNamespacesRequest(page_size=1))
    rest = await stub.ListNamespaces(
        wire.ListNamespacesRequest(page_size=1, page_token=page.next_page_token)
    )
    await stub.DeleteNamespace(wire.DeleteNamespaceRequest(name="new"))
    gone = await end_of(stub.GetNamespace(wire.GetNamespaceRequest(name="new")))
    full = await end_of(stub.DeleteNamespace(wire.DeleteNamespaceRequest(name="orders")))

    assert (created.namespace.revision, created.namespace.worker_count_max) == (1, 1000)
    assert (taken[0], taken[1].reason) == (
        grpc.StatusCode.ALREADY_EXISTS,
        "NAMESPACE_ALREADY_EXISTS",
    )
    assert (updated.namespace.revision, got.namespace.worker_count_max) == (2, 5)
    assert late[0] is grpc.StatusCode.ABORTED
    assert dict(late[1].metadata) == {"namespace": "new", "expected": "1", "actual": "2"}
    assert [n.name for n in (*page.namespaces, *rest.namespaces)] == ["new", "orders"]
    assert rest.next_page_token == ""
    assert (gone[0], gone[1].reason) == (grpc.StatusCode.NOT_FOUND, "NAMESPACE_NOT_FOUND")
    assert full[1].reason == "NAMESPACE_NOT_EMPTY"


async def test_all_violations_are_told_before_anything_is_written(engine: Engine) -> None:
    request = pb.CallRequest(
        namespace="orders", args=b"x" * (PAYLOAD_MAX + 1), idempotency_key="\0"
    )
    error = await failure(engine.process_service.Call(request))

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violations_of(error) == {
        "process_id": "is empty",
        "args": f"{PAYLOAD_MAX + 1} bytes are more than {PAYLOAD_MAX}",
        "idempotency_key": "has the control character U+0000",
    }
    assert engine.intake.requests == []


@pytest.mark.parametrize("name", ["!", "unknown"])
async def test_a_bad_request_to_no_namespace_is_told_as_bad(engine: Engine, name: str) -> None:
    request = pb.CallRequest(namespace=name, args=b"x" * (16 * 1024**2 + 1))
    error = await failure(engine.process_service.Call(request))

    assert {"process_id", "args"} <= set(violations_of(error))


async def test_an_unknown_namespace_is_named_by_every_method(engine: Engine) -> None:
    key: dict[str, Any] = {"namespace": "unknown", "process_id": "1"}
    stub = engine.process_service
    calls: list[Any] = [
        stub.Start(pb.StartRequest(**key)),
        stub.Call(pb.CallRequest(**key)),
        stub.Notify(pb.NotifyRequest(**key)),
        stub.Repair(pb.RepairRequest(**key)),
        stub.SimpleRepair(pb.SimpleRepairRequest(**key)),
        stub.Get(pb.GetRequest(**key)),
        stub.Put(pb.PutRequest(**key, status=types_pb2.PROCESS_STATUS_RUNNING)),
        stub.Remove(pb.RemoveRequest(**key)),
        stub.Trace(pb.TraceRequest(**key)),
        stub.List(pb.ListRequest(namespace="unknown")),
        stub.AwaitTask(pb.AwaitTaskRequest(**key, task_id=1)),
    ]
    for call in calls:
        code, info = await end_of(call)
        assert (code, info.reason) == (grpc.StatusCode.NOT_FOUND, "NAMESPACE_NOT_FOUND")
        assert info.metadata["namespace"] == "unknown"
    assert engine.intake.requests == []


async def test_the_largest_payload_of_all_gets_through(engine: Engine) -> None:
    engine.namespaces.stored["big"] = dataclasses.replace(
        namespace("big"), payload_bytes_max=16 * 1024**2
    )
    request = pb.NotifyRequest(namespace="big", process_id="1", args=b"x" * 16 * 1024**2)

    assert (await engine.process_service.Notify(request)).task_id == 2


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"\x0a\x06orders\x12\x02\xff\xfe", "process_id"),
        (b"\x0a\x02\xff\xfe", "namespace"),
        (b"\x0a\x7fshort", "request"),
    ],
)
async def test_bytes_that_are_no_message_are_an_invalid_argument(
    engine: Engine, data: bytes, field: str
) -> None:
    call: Any = engine.channel.unary_unary("/progressor.v1.ProcessService/Call")
    error = await failure(call(data))

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert list(violations_of(error)) == [field]


async def test_a_bug_tells_nothing_of_itself(engine: Engine) -> None:
    engine.intake.raises = ValueError("password=hunter2")
    request = pb.CallRequest(namespace="orders", process_id="1")
    error = await failure(engine.process_service.Call(request))

    assert error.code() is grpc.StatusCode.INTERNAL
    assert (error.details() or "").startswith("internal error [")
    assert "hunter2" not in str(error)


async def test_a_rejection_arrives_as_the_processor_put_it(engine: Engine) -> None:
    engine.intake.raises = errors.RejectedError(
        "残高不足\n50 %", code=13, processor_reason="NO_MONEY", metadata={"left": "3"}
    )
    request = pb.CallRequest(namespace="orders", process_id="1")
    error = await failure(engine.process_service.Call(request))
    info = error_details_pb2.ErrorInfo()
    rich(error).details[0].Unpack(info)

    assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, "残高不足\n50 %")
    assert (info.domain, info.reason, dict(info.metadata)) == (
        "processor",
        "NO_MONEY",
        {"left": "3"},
    )


@pytest.mark.parametrize("letter", ["x", "残"])
async def test_an_error_with_a_huge_text_still_arrives(engine: Engine, letter: str) -> None:
    engine.intake.raises = errors.ProcessFailedError("1", letter * 100_000, 9)
    request = pb.CallRequest(namespace="orders", process_id="1")
    code, info = await end_of(engine.process_service.Call(request))

    assert (code, info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "PROCESS_FAILED")
    assert info.metadata["task_id"] == "9"


async def test_the_deadline_answer_names_the_task_that_goes_on(engine: Engine) -> None:
    request = pb.CallRequest(namespace="orders", process_id="1", args=b"hang")
    code, info = await end_of(engine.process_service.Call(request, timeout=0.3))

    assert (code, info.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED")
    assert info.metadata["task_id"] == "77"


async def test_a_deadline_that_has_passed_asks_for_nothing(engine: Engine) -> None:
    request = pb.CallRequest(namespace="orders", process_id="1")
    error = await failure(engine.process_service.Call(request, timeout=0.0001))

    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    # A request that comes through says that the first, if it got that far, is done with.
    await engine.process_service.Notify(pb.NotifyRequest(namespace="orders", process_id="1"))
    assert len(engine.intake.requests) == 1


async def test_a_caller_that_hangs_up_is_let_go(engine: Engine) -> None:
    request = pb.CallRequest(namespace="orders", process_id="1", args=b"hang")
    call = engine.process_service.Call(request)
    waiting = asyncio.ensure_future(failure_or_cancel(call))
    await engine.intake.asked.wait()
    call.cancel()
    await waiting

    async with asyncio.timeout(5):
        await engine.intake.cancelled.wait()


async def failure_or_cancel(call: Any) -> None:
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_long_history_is_read_page_by_page(engine: Engine) -> None:
    seen: list[int] = []
    request = pb.GetRequest(namespace="orders", process_id="1")
    while True:
        response = await engine.process_service.Get(request)
        seen.extend(e.event_id for e in response.history)
        if not response.HasField("next_after"):
            break
        request.history_range.after = response.next_after

    assert seen == list(range(1, 11))
    assert len(engine.processes.ranges) == 4


async def test_no_history_is_not_read(engine: Engine) -> None:
    request = pb.GetRequest(
        namespace="orders", process_id="1", history_range=types_pb2.HistoryRange(limit=0)
    )
    response = await engine.process_service.Get(request)

    assert response.process.last_event_id == 10
    assert engine.processes.ranges == []


async def test_an_event_that_does_not_exist_is_named(engine: Engine) -> None:
    request = pb.GetRequest(
        namespace="orders", process_id="1", history_range=types_pb2.HistoryRange(after=11)
    )
    code, info = await end_of(engine.process_service.Get(request))

    assert (code, info.reason) == (grpc.StatusCode.NOT_FOUND, "EVENT_NOT_FOUND")
    assert dict(info.metadata) == {"namespace": "orders", "process_id": "1", "event_id": "11"}


@pytest.mark.parametrize("end", [None, errors.ProcessFailedError("1", "why", 1)])
async def test_get_waits_until_a_process_is_made(engine: Engine, end: Exception | None) -> None:
    engine.processes.status, engine.intake.raises = ProcessStatus.INIT, end
    request = pb.GetRequest(namespace="orders", process_id="1", await_init=True)
    response = await engine.process_service.Get(request)

    assert response.process.status == 2
    assert engine.intake.requests == [process_key("orders", "1")]


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (errors.DeadlineExceededError(1), grpc.StatusCode.DEADLINE_EXCEEDED),
        (errors.OverloadedError("callers", SECOND), grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
)
async def test_a_wait_that_ends_before_init_is_told(
    engine: Engine, end: Exception, code: grpc.StatusCode
) -> None:
    engine.processes.status, engine.intake.raises = ProcessStatus.INIT, end
    request = pb.GetRequest(namespace="orders", process_id="1", await_init=True)

    assert (await end_of(engine.process_service.Get(request)))[0] is code


async def test_a_process_in_init_is_returned_as_such(engine: Engine) -> None:
    engine.processes.status = ProcessStatus.INIT
    request = pb.GetRequest(namespace="orders", process_id="1")

    assert (await engine.process_service.Get(request)).process.status == 1


async def test_a_trace_too_large_for_a_message_comes_in_pages(engine: Engine) -> None:
    request = pb.TraceRequest(namespace="orders", process_id="1")
    first = await engine.process_service.Trace(request)
    request.page_token = first.next_page_token
    second = await engine.process_service.Trace(request)

    assert [t.task_id for t in first.tasks] == [1, 2, 3]
    assert [t.task_id for t in second.tasks] == [4, 5]
    assert second.next_page_token == ""


async def test_a_list_comes_in_pages_without_states(engine: Engine) -> None:
    seen: list[str] = []
    request = pb.ListRequest(namespace="orders", page_size=2)
    while True:
        response = await engine.process_service.List(request)
        seen.extend(p.process_id for p in response.processes)
        assert not any(p.aux_state for p in response.processes)
        if not (token := response.next_page_token):
            break
        request.page_token = token

    assert seen == ["0", "1", "2", "3", "4"]


async def test_replicas_are_listed_page_by_page(engine: Engine) -> None:
    wire = replica_service_pb2
    request = wire.ListReplicasRequest(page_size=2)

    first = await engine.replica_service.ListReplicas(request)
    request.page_token = first.next_page_token
    second = await engine.replica_service.ListReplicas(request)

    assert [(it.replica_id, it.state) for it in first.replicas] == [
        (1, wire.REPLICA_STATE_SILENT),
        (2, wire.REPLICA_STATE_SERVING),
    ]
    assert ([it.replica_id for it in second.replicas], second.next_page_token) == ([3], "")


async def test_replicas_that_cannot_be_read_are_unavailable_storage(engine: Engine) -> None:
    engine.roster.raises = errors.StorageUnavailableError("away")

    request = replica_service_pb2.ListReplicasRequest()
    code, info = await end_of(engine.replica_service.ListReplicas(request))

    assert (code, info.reason) == (grpc.StatusCode.UNAVAILABLE, "STORAGE_UNAVAILABLE")


async def test_health_tells_of_each_service(engine: Engine) -> None:
    assert [await engine.health(name) for name in SERVICES] == [SERVING] * 4
    await engine.server.set_serving(serving=False)
    assert [await engine.health(name) for name in SERVICES] == [NOT_SERVING] * 4
    stub: Any = health_pb2_grpc.HealthStub(engine.channel)
    unknown = await failure(stub.Check(health_pb2.HealthCheckRequest(service="other")))
    assert unknown.code() is grpc.StatusCode.NOT_FOUND


async def test_reflection_lists_and_describes_every_service(engine: Engine) -> None:
    def ask() -> tuple[list[str], list[str]]:
        with grpc.insecure_channel(engine.address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            file = database.FindFileContainingSymbol("progressor.v1.ProcessService")
            return list(database.get_services()), [m.name for m in file.service[0].method]

    services, methods = await asyncio.to_thread(ask)

    assert set(services) == {
        "progressor.v1.ProcessService",
        "progressor.v1.NamespaceService",
        "progressor.v1.ReplicaService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    assert "AwaitTask" in methods


async def test_a_drain_turns_work_away_and_waits_for_what_is_in_flight(engine: Engine) -> None:
    stub = engine.process_service
    hanging = pb.CallRequest(namespace="orders", process_id="1", args=b"hang")
    watch = health_stub(engine).Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == SERVING
    waiting = asyncio.ensure_future(as_coroutine(stub.Call(hanging)))
    await engine.intake.asked.wait()
    draining = asyncio.create_task(engine.server.drain(30 * SECOND))
    assert (await watch.read()).status == NOT_SERVING

    code, info = await end_of(stub.Notify(pb.NotifyRequest(namespace="orders", process_id="1")))
    read = await stub.Get(pb.GetRequest(namespace="orders", process_id="1"))
    engine.intake.release.set()
    answer = await waiting
    async with asyncio.timeout(5):
        await draining

    assert (code, info.reason) == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")
    assert read.process.process_id == "1"
    assert answer.response == b"hang"


async def as_coroutine(call: Any) -> process_service_pb2.CallResponse:
    return await call  # type: ignore[no-any-return]


async def test_a_drain_that_runs_out_of_grace_tells_those_who_wait(engine: Engine) -> None:
    hanging = pb.CallRequest(namespace="orders", process_id="1", args=b"hang")
    waiting = asyncio.ensure_future(end_of(engine.process_service.Call(hanging)))
    await engine.intake.asked.wait()
    async with asyncio.timeout(5):
        await engine.server.drain(SECOND / 20)
    code, info = await waiting

    assert (code, info.reason) == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")


async def test_a_taken_port_is_refused_by_its_key(engine: Engine) -> None:
    second, *_ = build(Listening(bind=(engine.address,)))

    with pytest.raises(errors.ConfigError) as caught:
        await second.start()
    assert caught.value.key == "server.bind"
    assert engine.address in str(caught.value)


async def test_a_port_taken_at_one_address_of_a_host_is_refused(engine: Engine) -> None:
    port = engine.address.rpartition(":")[2]
    second, *_ = build(Listening(bind=(f"localhost:{port}",)))

    with pytest.raises(errors.ConfigError, match=r"server\.bind.*already"):
        await second.start()


async def test_a_unix_socket_is_not_taken_from_who_listens_there(tmp_path: Path) -> None:
    bind = (f"unix:{tmp_path}/api.sock",)
    first, *_ = build(Listening(bind=bind))
    second, *_ = build(Listening(bind=bind))
    await first.start()
    with pytest.raises(errors.ConfigError, match=r"server\.bind.*already"):
        await second.start()
    await first.drain(dt.timedelta(0))

    assert await second.start() == list(bind)
    await second.drain(dt.timedelta(0))


async def test_ports_can_be_shared_on_request() -> None:
    first, *_ = build(Listening(bind=("127.0.0.1:0",), port_shared=True))
    (address,) = await first.start()
    second, *_ = build(Listening(bind=(address,), port_shared=True))

    assert await second.start() == [address]
    await first.drain(dt.timedelta(0))
    await second.drain(dt.timedelta(0))


async def test_several_addresses_are_served_at_once(tmp_path: Path) -> None:
    path = f"unix:{tmp_path}/api.sock"
    server, *_ = build(Listening(bind=("127.0.0.1:0", path, "[::1]:0")[: 3 if has_ipv6() else 2]))
    addresses = await server.start()
    for address in addresses:
        async with grpc.aio.insecure_channel(address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            status = (await stub.Check(health_pb2.HealthCheckRequest())).status
            assert status == NOT_SERVING
    await server.drain(dt.timedelta(0))

    assert addresses[1] == path


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "address",
    [
        "nonsense",
        "127.0.0.1:99999",
        ":7420",
        "no.such.host.invalid:1",
        "unix:/no/such/place/a.sock",
    ],
)
async def test_an_address_that_cannot_be_bound_is_refused(address: str) -> None:
    server, *_ = build(Listening(bind=(address,)))

    with pytest.raises(errors.ConfigError, match=r"server\.bind"):
        await server.start()


async def test_a_certificate_that_is_not_there_is_refused_by_its_key(tmp_path: Path) -> None:
    tls = Tls(certificate=tmp_path / "no.pem", key=tmp_path / "no.key")
    server, *_ = build(Listening(bind=("127.0.0.1:0",), tls=tls))

    with pytest.raises(errors.ConfigError, match=r"server\.tls_certificate"):
        await server.start()


async def test_a_certificate_that_is_none_is_refused(tmp_path: Path) -> None:
    for name in ("a.pem", "a.key"):
        (tmp_path / name).write_text("garbage")
    tls = Tls(certificate=tmp_path / "a.pem", key=tmp_path / "a.key")
    server, *_ = build(Listening(bind=("127.0.0.1:0",), tls=tls))

    with pytest.raises(errors.ConfigError, match=r"server\."):
        await server.start()


def test_a_server_without_address_or_room_for_a_payload_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match=r"server\.bind"):
        Listening(bind=())
    with pytest.raises(errors.ConfigError, match=r"server\.message_bytes_max"):
        Listening(bind=("127.0.0.1:0",), message_bytes_max=16 * 1024**2)
