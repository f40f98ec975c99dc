"""ReplicaService: the replicas on this database, what they do, log levels, and the doctor."""

import dataclasses
import datetime as dt
import itertools
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar

from progressor.api.calls import page_tokens
from progressor.api.calls.page_tokens import Listing
from progressor.api.calls.servicer import Backend, LogLevels, Servicer, reading
from progressor.api.calls.traces import CallContext, caller_of
from progressor.api.guard.guard import ANYBODY, Caller
from progressor.domain.access.rights import Right
from progressor.domain.views.activity import Activity, NamespaceQueue, even_share
from progressor.domain.views.replica import (
    LOADS_MAX,
    NamespaceLoad,
    ReplicaState,
    ReplicaView,
)
from progressor.storage.doctor.doctor import Examination
from progressor.storage.doctor.findings import Finding
from progressor.telemetry.logs.level import LEVELS, Level
from progressor.v1 import replica_service_pb2 as pb
from progressor.wire import fields as wire
from progressor.wire.shapes import UNSENT, Field, Shape, between, enum_numbers

LOG_CHANGE_MAX = dt.timedelta(days=7)

LOADS_SENT_MAX = 5_000
"""Namespaces of replicas in one answer. With all else at its bound they take 1.4 MiB, and 50 ms of
the event loop (2026-11-21, 2-core reference machine); 20 namespaces of 5 replicas, 1 ms."""

NAME_LENGTH_MAX = 256
"""Characters of a replica's name, which its configuration does not bound."""

_STATE_TO_WIRE = enum_numbers(ReplicaState, pb.ReplicaState.DESCRIPTOR)
_LEVEL_TO_WIRE = {it: pb.LogLevel.Value(f"LOG_LEVEL_{it.upper()}") for it in LEVELS}
_LEVEL_FROM_WIRE = {number: it for it, number in _LEVEL_TO_WIRE.items()}
_NO_TIME = dt.timedelta()

R = TypeVar("R")


def _level_of(message: pb.SetLogLevelRequest, path: str, _: object) -> Level:
    level = _LEVEL_FROM_WIRE.get(message.level)
    if level is None:
        wire.refuse(f"{path}level", f"unknown log level {message.level}")
    return level


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogChange:
    """A SetLogLevel; `lasting` zero: until it is changed again."""

    level: Annotated[Level, Field(read=_level_of)]
    lasting: Annotated[dt.timedelta, between(_NO_TIME, LOG_CHANGE_MAX)]


_QUEUE = Shape(NamespaceQueue, pb.NamespaceQueue)
_FINDING = Shape(Finding, pb.Finding)
_LOAD = Shape(NamespaceLoad, pb.NamespaceActivity, size="worker_count", largest_step=UNSENT)

list_from_wire = page_tokens.REPLICAS.listing(pb.ListReplicasRequest).read
log_change_from_wire = Shape(LogChange, pb.SetLogLevelRequest).read
replica_to_wire = Shape(ReplicaView, pb.Replica, state=Field(), loads=UNSENT, rates=UNSENT).message


def log_level_to_wire(level: Level) -> pb.LogLevel.ValueType:
    return _LEVEL_TO_WIRE[level]


def page_to_wire(replicas: tuple[ReplicaView, ...], *, page_size: int) -> pb.ListReplicasResponse:
    page, token = page_tokens.REPLICAS.page(replicas, page_size, lambda it: it.replica_id)
    return pb.ListReplicasResponse(replicas=map(replica_to_wire, page), next_page_token=token)


def activity_to_wire(activity: Activity, *, caller: Caller = ANYBODY) -> pb.GetActivityResponse:
    """Return what a caller may see of the activity, cut to what one response may hold."""
    facts, counts = activity.facts, activity.counts
    share = even_share([len(it.loads or ()) for it in facts.replicas.values()], LOADS_SENT_MAX)
    replicas = sorted(facts.replicas.values(), key=lambda it: it.replica_id)
    return pb.GetActivityResponse(
        read_at=wire.datetime_to_timestamp(facts.read_at),
        replicas=[_replica(it, share, caller) for it in replicas],
        queues=[_QUEUE.message(it) for it in counts.queues if caller.may(Right.READ, it.namespace)],
        queues_age=None if counts.age is None else wire.timedelta_to_duration(counts.age),
        uncounted_namespace_count=counts.left_out_count,
        exact_below=counts.exact_below,
    )


def _replica(replica: ReplicaView, share: int, caller: Caller) -> pb.ReplicaActivity:
    loads = replica.loads or {}
    is_whole = replica.loads is not None and len(loads) < LOADS_MAX and len(loads) <= share
    return pb.ReplicaActivity(
        replica_id=replica.replica_id,
        name=replica.name[:NAME_LENGTH_MAX],
        version=replica.version[:NAME_LENGTH_MAX],
        state=_STATE_TO_WIRE[replica.state],
        heartbeat_at=wire.datetime_to_timestamp(replica.heartbeat_at),
        # One that was written while the others were read is not from the future.
        heartbeat_age=wire.timedelta_to_duration(max(_NO_TIME, replica.heartbeat_age)),
        step_count=replica.step_count,
        caller_count=replica.caller_count,
        # Those that matter most came first with the heartbeat, and still do.
        namespaces=[
            _namespace(name, loads[name])
            for name in itertools.islice(loads, share)
            if caller.may(Right.READ, name)
        ],
        is_partial=not is_whole,
    )


def _namespace(name: str, load: NamespaceLoad) -> pb.NamespaceActivity:
    message = _LOAD.message(load)
    message.namespace = name
    return message


def _examination(found: Examination) -> pb.RunDoctorResponse:
    return pb.RunDoctorResponse(
        examined_at=wire.datetime_to_timestamp(found.examined_at),
        findings=map(_FINDING.message, found.findings),
    )


def _in_cell(response: R, items: Iterable[Any], cell: str) -> R:
    """Return a response whose items name the cell that they are of."""
    for item in items:
        item.cell = cell
    return response


class ReplicaServicer(Servicer):
    """What operators ask of replicas."""

    service = pb.DESCRIPTOR.services_by_name["ReplicaService"]

    def __init__(
        self, backend: Callable[[], Backend], *, log_levels: LogLevels, name: str, cell: str = ""
    ) -> None:
        """Serve the replicas of a cell; "": the only one, which they do not name."""
        super().__init__(backend)
        self._log_levels = log_levels
        self._name, self._cell = name, cell

    @reading(list_from_wire)
    async def list_replicas(self, asked: Listing[int], _: CallContext) -> pb.ListReplicasResponse:
        found = await self._backend().roster.list(after=asked.after, limit=asked.limit + 1)
        response = page_to_wire(found, page_size=asked.limit)
        return _in_cell(response, response.replicas, self._cell)

    @reading(lambda _: None)
    async def get_activity(self, _message: None, context: CallContext) -> pb.GetActivityResponse:
        activity = await self._backend().activities.read()
        response = activity_to_wire(activity, caller=caller_of(context))
        return _in_cell(response, response.replicas, self._cell)

    @reading(log_change_from_wire)
    async def set_log_level(self, change: LogChange, _: CallContext) -> pb.SetLogLevelResponse:
        previous = self._log_levels.set(change.level, change.lasting)
        return pb.SetLogLevelResponse(
            previous_level=log_level_to_wire(previous), replica_name=self._name
        )

    @reading(lambda _: None)
    async def run_doctor(self, _message: None, _: CallContext) -> pb.RunDoctorResponse:
        response = _examination(await self._backend().doctor.examine())
        return _in_cell(response, response.findings, self._cell)
