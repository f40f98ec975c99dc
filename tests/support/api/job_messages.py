"""Jobs as the engine tells of them on the wire."""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from progressor.v1 import job_service_pb2 as pb
from progressor.v1 import nodes_pb2 as nodes
from progressor.v1 import types_pb2 as types

NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def at(seconds: float) -> Timestamp:
    """Return an instant so many seconds after noon."""
    stamp = Timestamp()
    stamp.FromDatetime(NOON + dt.timedelta(seconds=seconds))
    return stamp


def a_node(name: str, state: str = "waiting", after: Sequence[str] = (), **fields: Any) -> pb.Node:
    """Return a node that was started at noon and, if it has ended, took 1.5 s."""
    has_begun = state in {"running", "done", "failed"}
    has_ended = state not in {"waiting", "ready", "running"}
    times = {
        "ready_at": at(0) if has_begun else None,
        "started_at": at(0) if has_begun else None,
        "ended_at": at(1.5) if has_ended else None,
    }
    defaults = {"process_id": f"j/{name}", "attempt": 1, "created_at": at(0), **times}
    return pb.Node(
        name=name,
        state=nodes.NodeState.Value(f"NODE_STATE_{state.upper()}"),
        predecessors=after,
        **(defaults | fields),
    )


def an_error(reason: str, message: str) -> types.TaskError:
    return types.TaskError(code=13, reason=reason, message=message)


def a_job(state: str = "running", counts: Mapping[str, int] | None = None, **fields: Any) -> pb.Job:
    """Return job ``j`` of namespace ``default``; if it has ended, it took 90 s."""
    defaults: dict[str, Any] = {
        "namespace": "default",
        "job_id": "j",
        "led_by_engine": True,
        "created_at": at(0),
        "updated_at": at(90),
        "ended_at": None if state == "running" else at(90),
        "revision": 3,
    }
    return pb.Job(
        state=pb.JobState.Value(f"JOB_STATE_{state.upper()}"),
        counts=pb.NodeCounts(**(counts or {})),
        **(defaults | fields),
    )


def a_view(job: pb.Job, *its: pb.Node) -> pb.GetJobResponse:
    return pb.GetJobResponse(job=job, nodes=its)


def changes(job: pb.Job, *its: pb.Node) -> pb.WatchJobResponse:
    return pb.WatchJobResponse(job=job, nodes=its)
