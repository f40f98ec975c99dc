"""Schedules as the engine tells of them on the wire."""

import datetime as dt
from typing import Any

from google.protobuf.duration_pb2 import Duration

from progressor.v1 import schedule_service_pb2 as pb
from tests.support.api.job_messages import at


def seconds(number: float) -> Duration:
    message = Duration()
    message.FromTimedelta(dt.timedelta(seconds=number))
    return message


def a_spec(**fields: Any) -> pb.ScheduleSpec:
    """Return a spec that calls a process each night, changed by fields."""
    defaults: dict[str, Any] = {
        "cron": pb.CronTimes(expression="30 2 * * *", time_zone="Europe/Berlin"),
        "jitter": seconds(300),
        "overlap_policy": pb.OVERLAP_POLICY_QUEUE_ONE,
        "catch_up_window": seconds(86_400),
        "call": pb.ScheduledCall(process_id="p", args=b'{"a":1}'),
    }
    return pb.ScheduleSpec(**(defaults | fields))


def a_schedule(spec: pb.ScheduleSpec | None = None, **fields: Any) -> pb.Schedule:
    """Return a schedule as it stands."""
    defaults: dict[str, Any] = {
        "namespace": "default",
        "schedule_id": "nightly",
        "spec": spec or a_spec(),
        "revision": 4,
        "created_at": at(0),
        "updated_at": at(60),
        "next_instant": at(3600),
        "next_at": at(3601),
        "started_count": 12,
        "missed_count": 2,
    }
    return pb.Schedule(**(defaults | fields))
