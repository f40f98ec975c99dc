"""The overview of the activity: sums, order, and unknown values."""

import dataclasses
import datetime as dt

from progressor.domain.views.replica import StepTally
from progressor.sdk.client.overview import Meter, Overview, Pace, Totals, overview_of
from progressor.sdk.client.replicas import ReplicaState, StepRate
from tests.support.builders import seconds
from tests.support.clock import START
from tests.support.engine.activities import a_namespace, a_queue, a_replica, an_activity

RATE = StepRate(
    settled_per_second=4.0,
    attempts_per_second=2.0,
    failed_per_second=1.0,
    processor_seconds_per_second=0.5,
)


def names(overview: Overview) -> list[str]:
    return [line.namespace for line in overview.namespaces]


def test_a_namespace_is_what_all_living_replicas_do_in_it() -> None:
    first = a_replica(1, a_namespace("orders", busy=2, workers=10, unreachable=1.5))
    second = a_replica(
        2, a_namespace("orders", busy=3, workers=10, unreachable=4), state=ReplicaState.DRAINING
    )
    dead = a_replica(3, a_namespace("orders", busy=9, workers=10), state=ReplicaState.SILENT)

    overview = overview_of(
        an_activity(first, second, dead), {1: {"orders": RATE}, 2: {"orders": RATE}}
    )

    (line,) = overview.namespaces
    assert (line.busy_count, line.worker_count, line.unreachable_for) == (5, 20, seconds(4))
    assert line.pace == Pace(
        settled_per_second=8.0,
        attempts_per_second=4.0,
        failed_per_second=2.0,
        mean_processor_time=seconds(0.25),
    )


def test_the_oldest_due_task_comes_first_and_then_the_busiest_namespace() -> None:
    queues = (
        a_queue("late", due=1, oldest=1.0),
        a_queue("latest", due=1, oldest=9.0),
        a_queue("quick"),
        a_queue("slow"),
        a_queue("also-slow"),
    )
    rates = {1: {"quick": RATE, "slow": StepRate(settled_per_second=1.0)}}

    overview = overview_of(an_activity(a_replica(1), queues=queues), rates)

    assert names(overview) == ["latest", "late", "quick", "slow", "also-slow"]


def test_the_slowest_processors_begin_with_those_out_of_reach() -> None:
    replica = a_replica(
        1, a_namespace("away", unreachable=1.0), a_namespace("idle"), a_namespace("slow"),
        a_namespace("quick"),
    )  # fmt: skip
    rates = {
        1: {
            "slow": dataclasses.replace(RATE, processor_seconds_per_second=9.0),
            "quick": RATE,
            "idle": StepRate(),
        }
    }

    overview = overview_of(an_activity(replica), rates)

    assert [it.namespace for it in overview.slowest] == ["away", "slow", "quick"]


def test_the_totals_are_of_all_namespaces_and_of_the_replicas_that_live() -> None:
    queues = (
        a_queue(
            "orders", due=2, oldest=3.0, timers=5, retries=1, behind=4, job_count=1,
            running_node_count=4, schedule_count=5, late_schedule_count=1,
        ),
        a_queue("parcels", due=1, oldest=0.5, job_count=2, failed_node_count=1),
    )  # fmt: skip
    replicas = (
        a_replica(1, a_namespace("orders", busy=2, workers=4), callers=3),
        a_replica(2, a_namespace("parcels", busy=1, workers=4), callers=None),
        a_replica(3, state=ReplicaState.SILENT, callers=100),
        a_replica(4, state=ReplicaState.DRAINING, callers=1),
    )
    rates = {1: {"orders": RATE}, 2: {"parcels": RATE}}

    totals = overview_of(an_activity(*replicas, queues=queues), rates).totals

    assert totals == Totals(
        pace=Pace(
            settled_per_second=8.0,
            attempts_per_second=4.0,
            failed_per_second=2.0,
            mean_processor_time=seconds(0.25),
        ),
        busy_count=3,
        worker_count=8,
        caller_count=4,
        serving_count=2,
        draining_count=1,
        silent_count=1,
        queue=a_queue(
            "", due=3, oldest=3.0, timers=5, retries=1, behind=4, job_count=3,
            running_node_count=4, failed_node_count=1, schedule_count=5, late_schedule_count=1,
        ),
    )  # fmt: skip


def test_without_rates_no_pace_is_known_and_with_some_an_idle_namespace_does_nothing() -> None:
    activity = an_activity(a_replica(1, a_namespace("orders")))

    assert overview_of(activity, {}).namespaces[0].pace == Pace()
    assert overview_of(activity, {1: {}}).namespaces[0].pace.settled_per_second == 0.0


def test_a_meter_measures_from_one_activity_to_the_next() -> None:
    meter = Meter()
    later = START + dt.timedelta(seconds=2)
    begun = a_replica(1, a_namespace("orders", tally=StepTally(settled_count=10)))
    first = meter.read(an_activity(begun))
    was_ready = meter.is_ready
    second = meter.read(
        an_activity(
            a_replica(1, a_namespace("orders", tally=StepTally(settled_count=30)), at=later)
        )
    )

    assert first.totals.pace.settled_per_second is None
    assert not was_ready
    assert second.totals.pace.settled_per_second == 10.0
    assert second.replicas[0].pace.settled_per_second == 10.0
    assert meter.is_ready


def test_a_meter_is_not_ready_while_a_replica_that_serves_has_not_beaten_again() -> None:
    meter = Meter()
    later = START + dt.timedelta(seconds=2)
    dead = a_replica(3, state=ReplicaState.SILENT)
    meter.read(an_activity(a_replica(1), a_replica(2), dead))
    meter.read(an_activity(a_replica(1, at=later), a_replica(2), dead))
    half_way = meter.is_ready
    meter.read(an_activity(a_replica(1, at=later), a_replica(2, at=later), dead))

    assert not half_way
    assert meter.is_ready
    assert not Meter().is_ready
