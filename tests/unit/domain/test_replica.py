"""Replicas: when one is presumed dead, and when it only drains."""

import datetime as dt

import pytest

from progressor.domain.views.replica import ReplicaState
from tests.support.builders import make_replica_view, seconds

MICROSECOND = dt.timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("age", "draining", "state"),
    [
        (seconds(0), False, ReplicaState.SERVING),
        (seconds(5), False, ReplicaState.SERVING),
        (seconds(5) + MICROSECOND, False, ReplicaState.SILENT),
        (seconds(0), True, ReplicaState.DRAINING),
        (seconds(5) + MICROSECOND, True, ReplicaState.SILENT),
        # PostgreSQL's clock was set back.
        (seconds(-1), False, ReplicaState.SERVING),
    ],
)
def test_a_replica_is_silent_when_its_heartbeat_is_older_than_its_lease_timeout(
    age: dt.timedelta, draining: bool, state: ReplicaState
) -> None:
    view = make_replica_view(heartbeat_age=age, lease_timeout=seconds(5), draining=draining)

    assert view.state is state
