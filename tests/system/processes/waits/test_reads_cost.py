"""What it costs to tell why: the statements of a Get and of a List, seen on the wire."""

from collections import Counter
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.engine.replica import QUIET, Env, open_env, running_replica
from tests.support.faults.faults import Fault, Kind
from tests.support.postgres.proxy import running_proxy
from tests.support.postgres.wire import Turn

pytestmark = pytest.mark.asyncio(loop_scope="module")

COUNT = 40
GET, LIST, FIRST, FACTS = (
    '"read_processes"(', '"list_processes"(', '"read_waits"(', "AS now) moment",
)  # fmt: skip
# What a replica does at all times: heartbeats, the depth of the queues, seals of the audit, each
# minute retention and the upkeep of jobs; where a pool opens another connection, its settings,
# whether it can write, and the lineage of the database.
AT_ALL_TIMES = (
    "INSERT INTO progressor.replicas", "progressor.schedule", "SHOW transaction_read_only",
    "SELECT set_config(", '"delete_', '"recover_jobs"(', '"stop_orphans"(', "f.duty = ",
    "audit", '"check_lineage"(',
)  # fmt: skip


class Listener(Fault):
    """No fault: it hears every statement."""

    def __init__(self) -> None:
        super().__init__(Kind.CUT_BEFORE, "")
        self.texts: list[str] = []

    def matches(self, turn: Turn) -> bool:
        """Take note of a turn, and let it pass."""
        self.texts += turn.texts
        return False

    def heard(self) -> Counter[str]:
        """Return how many statements there were of each kind of a read, and of any other."""
        kinds = (GET, FIRST, FACTS, LIST)
        found: Counter[str] = Counter()
        for text in self.texts:
            kind = next((each for each in kinds if each in text), text)
            if kind in kinds or not any(time in text for time in AT_ALL_TIMES):
                found[kind] += 1
        return found


Scene = tuple[Env, Listener]


@pytest_asyncio.fixture(loop_scope="module")
async def scene(own_database: str) -> AsyncIterator[Scene]:
    """Return an environment with a process that runs, one without a worker, one with a timer."""
    with running_proxy(own_database) as proxy:
        async with (
            running_replica(proxy.conninfo, QUIET) as replica,
            open_env(replica, worker_count_max=1) as env,
        ):
            await env.timed("timer")
            hang, _ = await env.busy("busy")
            await env.client.call("busy", accept_only=True)
            await env.client.start("free", accept_only=True)
            listener = Listener()
            proxy.arm(listener)
            yield env, listener
            proxy.restore()
            hang.released.set()


async def test_a_get_is_one_statement_and_the_facts_of_replicas_are_read_once_for_many(
    scene: Scene,
) -> None:
    env, listener = scene
    for _ in range(COUNT):
        for name in ("busy", "free", "timer"):
            assert (await env.client.get(name)).waits
    heard = listener.heard()

    # The count of the queues may just have read the facts.
    assert heard.keys() | {FACTS} == {GET, FACTS}
    assert heard[GET] == 3 * COUNT
    assert heard[FACTS] < COUNT


async def test_a_list_is_one_statement_more_than_its_page(scene: Scene) -> None:
    env, listener = scene
    for _ in range(COUNT):
        found = {process.process_id: process.first_wait async for process in env.client.list()}
        assert None not in found.values()
        assert len(found) == 3
    heard = listener.heard()

    assert heard.keys() | {FACTS} == {LIST, FIRST, FACTS}
    assert (heard[LIST], heard[FIRST]) == (COUNT, COUNT)
    assert heard[FACTS] < COUNT


async def test_what_waits_for_nothing_costs_no_facts(scene: Scene) -> None:
    env, listener = scene
    async with open_env(env.replica) as other:
        await other.running("idle")
        listener.texts.clear()
        for _ in range(COUNT):
            assert (await other.client.get("idle")).waits == ()
        heard = listener.heard()

    assert heard == {GET: COUNT}
