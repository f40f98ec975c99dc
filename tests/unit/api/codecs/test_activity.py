"""Activity on the wire: every number, unknown ones absent, all of it bounded."""

import datetime as dt

from progressor.api.processes.responses import PAGE_BYTES_MAX
from progressor.api.replicas import LOADS_SENT_MAX, NAME_LENGTH_MAX, activity_to_wire
from progressor.domain.views import replica
from progressor.domain.views.activity import QUEUES_MAX, Activity
from progressor.domain.views.replica import LOADS_MAX, NamespaceLoad, StepTally
from progressor.sdk.client.replicas import Activity as SdkActivity
from progressor.sdk.client.replicas import ReplicaState, read_activity
from progressor.storage.replicas.status import REPLICAS_MAX
from tests.support.builders import make_activity, make_queue, make_replica_view, seconds
from tests.support.clock import START

LONG_AGO = dt.datetime(1, 1, 2, tzinfo=dt.UTC)


def told(activity: Activity) -> SdkActivity:
    """Return what comes to the SDK."""
    message = activity_to_wire(activity)
    return read_activity(type(message).FromString(message.SerializeToString()))


def test_fields_unknown_to_an_older_release_are_absent_and_zeros_are_present() -> None:
    old = make_replica_view(1, loads=None, step_count=None, caller_count=None)
    silent_on_tallies = make_replica_view(2, loads={"orders": NamespaceLoad(busy_count=0, size=4)})
    fresh = make_replica_view(
        3, loads={"orders": NamespaceLoad(busy_count=0, size=4, tally=replica.StepTally())}
    )

    first, second, third = told(make_activity(old, silent_on_tallies, fresh)).replicas

    assert (first.step_count, first.caller_count, first.namespaces) == (None, None, ())
    assert (first.is_partial, second.is_partial) == (True, False)
    assert (second.step_count, second.namespaces[0].tally) == (0, None)
    assert third.namespaces[0].tally == StepTally()
    assert third.namespaces[0].unreachable_for is None


def test_the_age_of_an_empty_queue_is_absent() -> None:
    (queue,) = told(make_activity(queues=(make_queue(),), age=seconds(0))).queues

    ages = (queue.due_age, queue.retry_age, queue.behind_age, queue.order_age, queue.gate_age)
    assert {*ages, queue.available_age} == {None}


def test_uncounted_queues_differ_from_empty_ones() -> None:
    assert told(make_activity(age=None)).queues_age is None
    assert told(make_activity(age=seconds(0))).queues_age == seconds(0)


def test_the_state_of_a_replica_follows_from_its_heartbeat() -> None:
    silent = make_replica_view(1, heartbeat_at=START - seconds(6), draining=True)
    draining = make_replica_view(2, heartbeat_at=START - seconds(5), draining=True)
    # It beat while the rows were read.
    early = make_replica_view(3, heartbeat_at=START + seconds(0.001))

    found = told(make_activity(silent, draining, early)).replicas

    assert [it.state for it in found] == [
        ReplicaState.SILENT, ReplicaState.DRAINING, ReplicaState.SERVING,
    ]  # fmt: skip
    assert found[2].heartbeat_age == seconds(0)


def test_replicas_are_in_the_order_of_their_ids() -> None:
    found = told(make_activity(*map(make_replica_view, (9, 2, 5)))).replicas

    assert [it.replica_id for it in found] == [2, 5, 9]


def test_every_replica_reports_equally_many_namespaces_and_says_if_it_is_partial() -> None:
    load = NamespaceLoad(busy_count=1, size=1, tally=replica.StepTally())
    crowd = {f"n{number}": load for number in range(LOADS_MAX - 1)}
    many = [make_replica_view(number, loads=crowd) for number in range(1, 101)]
    small = make_replica_view(101, loads=dict(list(crowd.items())[:5]))

    found = told(make_activity(*many, small)).replicas

    share = (LOADS_SENT_MAX - 5) // 100
    assert [len(it.namespaces) for it in found] == [share] * 100 + [5]
    assert [it.is_partial for it in found] == [True] * 100 + [False]
    # As the heartbeat has them: what matters most comes first.
    assert [it.namespace for it in found[0].namespaces] == list(crowd)[:share]


def test_a_full_heartbeat_makes_the_replica_partial() -> None:
    crowd = {f"n{number}": NamespaceLoad(busy_count=1, size=1) for number in range(LOADS_MAX)}
    (found,) = told(make_activity(make_replica_view(loads=crowd))).replicas

    assert len(found.namespaces) == LOADS_MAX
    assert found.is_partial


def test_an_answer_with_everything_at_its_bound_fits_into_a_page() -> None:
    tally = replica.StepTally(
        settled_count=2**62,
        attempt_count=2**62,
        failed_count=2**62,
        processor_time=dt.timedelta(days=100_000, microseconds=123_457),
    )
    load = NamespaceLoad(
        busy_count=2**30, size=2**30, unreachable_for=dt.timedelta(days=999.9999), tally=tally
    )
    names = [f"{number:064}" for number in range(QUEUES_MAX)]
    replicas = [
        make_replica_view(
            2**62 + number,
            loads=dict.fromkeys(names[:LOADS_MAX], load),
            heartbeat_at=LONG_AGO + seconds(1.000001),
            name="\N{GRINNING FACE}" * 1000,
            version="\N{GRINNING FACE}" * 1000,
            step_count=2**30,
            caller_count=2**30,
        )
        for number in range(REPLICAS_MAX)
    ]
    queues = [
        make_queue(
            name, due_count=10_000, due_age=seconds(1e9 + 0.1), timer_count=10_000,
            retry_count=10_000, retry_age=seconds(1e9 + 0.1), behind_count=10_000,
            behind_age=seconds(1e9 + 0.1),
        )
        for name in names
    ]  # fmt: skip

    message = activity_to_wire(
        make_activity(
            *replicas,
            queues=tuple(queues),
            age=seconds(1e9),
            left_out_count=2**30,
            exact_below=2**30,
        )
    )

    assert len(message.replicas) == REPLICAS_MAX
    assert len(message.replicas[0].name) == NAME_LENGTH_MAX
    assert message.ByteSize() < PAGE_BYTES_MAX
