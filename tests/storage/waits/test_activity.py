"""Activity: what the replicas told with their heartbeats and what waits, read by any of them."""

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
import pytest

from progressor.domain.views.replica import NamespaceLoad, ReplicaLoad, StepSize, StepTally
from progressor.settings.sections import ReplicaSettings
from progressor.storage.postgres.functions import Functions
from progressor.storage.replicas.heartbeats import Heartbeats, Identity
from progressor.storage.replicas.lineage import Lineage
from progressor.storage.replicas.queues import Activities, QueueWatch
from progressor.storage.replicas.status import AGE_MAX, Watch
from tests.support.builders import seconds
from tests.support.clock import ManualClock
from tests.support.storage.store import (
    COLLECTING,
    LEASE_TIMEOUT,
    NAMESPACE,
    Store,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

TELLER_ID = 901
TALLY = StepTally(
    settled_count=2**40, attempt_count=12, failed_count=3, processor_time=seconds(1234.567)
)


class Teller:
    """A replica that tells what it is given."""

    def __init__(self, database: str, clock: ManualClock) -> None:
        self._heartbeats = Heartbeats(
            dsn=database,
            identity=Identity(replica_id=TELLER_ID, name="teller", version="1.2.3", functions="f"),
            lineage=Lineage(Functions()),
            replica=ReplicaSettings(heartbeat_interval=seconds(1), lease_timeout=LEASE_TIMEOUT),
            clock=clock,
        )

    def tell(self, loads: Mapping[str, NamespaceLoad], *, draining: bool = False) -> None:
        """Beat once."""
        load = ReplicaLoad(step_count=3, caller_count=2, loads=loads)
        self._heartbeats.beat(draining=draining, load=load)

    def close(self) -> None:
        self._heartbeats.close()


@pytest.fixture
def teller(database: str, clock: ManualClock) -> Iterator[Teller]:
    found = Teller(database, clock)
    yield found
    found.close()


@pytest.fixture
def activities(store: Store, clock: ManualClock) -> Activities:
    watch = Watch(store.context, lease_timeout=LEASE_TIMEOUT, collecting=COLLECTING)
    queues = QueueWatch(queues=store.queues, namespaces=store.namespaces, clock=clock)
    return Activities(watch=watch, queues=queues)


async def test_a_heartbeat_tells_who_it_is_and_what_was_done(
    teller: Teller, activities: Activities, clock: ManualClock
) -> None:
    loads = {
        "orders": NamespaceLoad(busy_count=3, size=10, unreachable_for=seconds(2.5), tally=TALLY),
        "idle": NamespaceLoad(busy_count=0, size=10, tally=StepTally()),
    }
    teller.tell(loads, draining=True)

    facts = (await activities.read()).facts
    found = facts.replicas[TELLER_ID]

    assert (found.name, found.version, found.draining) == ("teller", "1.2.3", True)
    assert (found.step_count, found.caller_count) == (3, 2)
    assert found.loads == loads
    assert list(found.loads or ()) == ["orders", "idle"]
    assert (found.heartbeat_at, facts.read_at) == (clock.now(), clock.now())


async def test_a_release_before_tells_less_and_one_after_may_tell_more(
    teller: Teller, activities: Activities, observer: psycopg.Connection[Any]
) -> None:
    teller.tell({})
    told = {
        "before": [1, 4, None],
        "after": [2, 4, 1.5, 7, 6, 5, 0.5, "news"],
        "now": [2, 4, None, 7, 6, 5, 0.5, ["p", 3, 4], "news"],
    }
    observer.execute(
        "UPDATE progressor.replicas SET facts = %s, step_count = NULL WHERE replica_id = %s",
        (json.dumps(told), TELLER_ID),
    )

    found = (await activities.read()).facts.replicas[TELLER_ID]

    assert found.step_count is None
    assert found.loads == {
        "before": NamespaceLoad(busy_count=1, size=4),
        "after": NamespaceLoad(
            busy_count=2,
            size=4,
            unreachable_for=seconds(1.5),
            tally=StepTally(
                settled_count=7, attempt_count=6, failed_count=5, processor_time=seconds(0.5)
            ),
        ),
        "now": NamespaceLoad(
            busy_count=2,
            size=4,
            tally=StepTally(
                settled_count=7, attempt_count=6, failed_count=5, processor_time=seconds(0.5)
            ),
            largest_step=StepSize(process_id="p", size_bytes=3, limit_bytes=4),
        ),
    }


async def test_what_waits_is_counted_beside(store: Store, activities: Activities) -> None:
    await store.timed(dt.timedelta(hours=1))
    store.clock.advance(dt.timedelta(hours=1, seconds=2))

    counts = (await activities.read()).counts
    (queue,) = [it for it in counts.queues if it.namespace == NAMESPACE.name]

    assert (queue.due_count, queue.due_age) == (1, seconds(2))
    assert (counts.age, counts.left_out_count) == (seconds(0), 0)


async def test_all_who_ask_within_a_second_are_told_the_same(
    teller: Teller, activities: Activities, clock: ManualClock
) -> None:
    teller.tell({"orders": NamespaceLoad(busy_count=1, size=2)})
    first = await activities.read()
    teller.tell({"orders": NamespaceLoad(busy_count=2, size=2)})
    clock.advance(AGE_MAX / 2)
    again = await activities.read()
    clock.advance(AGE_MAX / 2)
    later = await activities.read()

    assert again.facts is first.facts
    assert later.facts.replicas[TELLER_ID].loads == {"orders": NamespaceLoad(busy_count=2, size=2)}
