"""What goes on, as the SDK tells it: made, every default valid; and awaited of an engine."""

import datetime as dt
from collections.abc import Callable
from typing import Any

from progressor.domain.views.activity import NamespaceQueue
from progressor.domain.views.replica import StepTally
from progressor.sdk import Client
from progressor.sdk.client.replicas import (
    Activity,
    NamespaceActivity,
    ReplicaActivity,
    ReplicaState,
)
from tests.support.builders import seconds
from tests.support.clock import START
from tests.support.engine.points import eventually

_PAUSE_SECONDS = 0.05


def a_namespace(
    name: str = "orders",
    *,
    busy: int = 0,
    workers: int = 10,
    unreachable: float | None = None,
    tally: StepTally | None = None,
) -> NamespaceActivity:
    return NamespaceActivity(
        namespace=name,
        busy_count=busy,
        worker_count=workers,
        unreachable_for=None if unreachable is None else seconds(unreachable),
        tally=tally or StepTally(),
    )


def a_replica(
    replica_id: int,
    *namespaces: NamespaceActivity,
    at: dt.datetime = START,
    state: ReplicaState = ReplicaState.SERVING,
    callers: int | None = 0,
    name: str = "",
) -> ReplicaActivity:
    return ReplicaActivity(
        replica_id=replica_id,
        name=name or f"host-{replica_id}",
        version="1.2.3",
        state=state,
        heartbeat_at=at,
        heartbeat_age=dt.timedelta(),
        step_count=sum(namespace.busy_count for namespace in namespaces),
        caller_count=callers,
        namespaces=namespaces,
        is_partial=False,
    )


def a_queue(
    name: str = "orders",
    *,
    due: int = 0,
    oldest: float | None = None,
    timers: int = 0,
    retries: int = 0,
    behind: int = 0,
    **others: Any,
) -> NamespaceQueue:
    """Return an empty queue; `others` are fields as they are."""
    return NamespaceQueue(
        namespace=name,
        due_count=due,
        due_age=None if oldest is None else seconds(oldest),
        timer_count=timers,
        retry_count=retries,
        retry_age=seconds(0) if retries else None,
        behind_count=behind,
        behind_age=seconds(0) if behind else None,
        **others,
    )


def an_activity(
    *replicas: ReplicaActivity,
    queues: tuple[NamespaceQueue, ...] = (),
    queues_age: float | None = 0.0,
    uncounted: int = 0,
    exact_below: int = 10_000,
) -> Activity:
    return Activity(
        read_at=START,
        replicas=replicas,
        queues=queues,
        queues_age=None if queues_age is None else seconds(queues_age),
        uncounted_namespace_count=uncounted,
        exact_below=exact_below,
    )


async def activity_where(client: Client, satisfied: Callable[[Activity], bool]) -> Activity:
    """Wait until an engine tells of an activity that satisfies, and return it.

    What it tells is up to a second old, and what replicas tell as old as their heartbeats.
    """

    async def read() -> Activity | None:
        activity = await client.replicas.activity()
        return activity if satisfied(activity) else None

    activity: Activity = await eventually(read, pause=_PAUSE_SECONDS)
    return activity


def replica_in(activity: Activity, replica_id: int) -> ReplicaActivity:
    unknown = a_replica(0, state=ReplicaState.UNSPECIFIED)
    return next(
        (replica for replica in activity.replicas if replica.replica_id == replica_id), unknown
    )


def namespace_in(activity: Activity, replica_id: int, name: str) -> NamespaceActivity:
    found = replica_in(activity, replica_id).namespaces
    return next((each for each in found if each.namespace == name), a_namespace(name))


def tally_in(activity: Activity, replica_id: int, namespace: str) -> StepTally:
    tally = namespace_in(activity, replica_id, namespace).tally
    assert tally is not None, "a replica of this release tells it"
    return tally


def queue_in(activity: Activity, namespace: str) -> NamespaceQueue:
    return next(
        (queue for queue in activity.queues if queue.namespace == namespace), a_queue(namespace)
    )
