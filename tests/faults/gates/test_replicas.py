"""Replicas that die, or freeze past their leases, in the middle of what they do about gates."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.engine.gates import Gated, constraints, open_gated, watched_gates
from tests.support.engine.process import ReplicaProcess, running_process
from tests.support.engine.replica import Replica, answering, response
from tests.support.faults.env import asked_twice
from tests.support.faults.faults import Make, stalled_after, stalled_before
from tests.support.postgres.proxy import Proxy, running_proxy
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATE, CAPACITY = "gate", 2
WAITING = 6
SETTLE, CLAIM = '"settle_tasks"(', '"claim_tasks"('
HERE, THERE, ELSEWHERE = 0, 1, 2

Task = tuple[str, int]
"""A process and its task."""

Places = tuple[int, ...]


@pytest.fixture(autouse=True)
def _never_more(database: str) -> Iterator[None]:
    with watched_gates(database):
        yield


@dataclasses.dataclass(frozen=True, slots=True)
class Victim:
    """A replica that will be killed, and an environment there (THERE) and at one that stays."""

    process: ReplicaProcess
    gated: Gated

    async def holding(self) -> tuple[list[Hang], list[Task]]:
        """Have two steps in hand there that hold all places of the gate."""
        hangs, tasks = await self.gated.held("p0", "p1"), []
        for name in ("p0", "p1"):
            task_id = await self.gated.at(THERE).call(name, constraints(GATE, capacity=CAPACITY))
            tasks.append((name, task_id))
            await self.gated.has_begun(name)
        return hangs, tasks

    async def killed(self) -> None:
        self.process.kill()
        await self.process.left()


@pytest_asyncio.fixture(loop_scope="module")
async def victim(
    second_replica: Replica, database: str, proxy: Proxy, tmp_path: Path
) -> AsyncIterator[Victim]:
    async with (
        running_process(proxy.conninfo, tmp_path) as process,
        open_gated(database, second_replica, process.address, one_at_a_time=False) as gated,
    ):
        yield Victim(process, gated)


async def in_line(gated: Gated) -> list[Task]:
    """Have processes wait for the gate, asked for at every replica in turn."""
    names = [f"w{number}" for number in range(WAITING)]
    await gated.running(*names)
    return [(name, await gated.call(name, constraints(GATE, capacity=CAPACITY))) for name in names]


async def judge(gated: Gated, *tasks: Task) -> None:
    """Assert that all tasks are done, and that no gate exceeded its capacity."""
    await gated.finished(*tasks)
    await gated.at_rest()
    assert gated.settled_at_once() <= CAPACITY
    assert asked_twice(gated.env) == []


class TestKilled:
    async def test_between_a_promotion_at_the_admission_and_its_claim(
        self, victim: Victim, proxy: Proxy
    ) -> None:
        gated = victim.gated
        await gated.running("p")
        claiming = proxy.arm(stalled_before(CLAIM))
        task = await gated.at(THERE).call("p", constraints(GATE, capacity=CAPACITY))
        await claiming.struck()
        state, holders = gated.state("p"), gated.holders()
        await victim.killed()
        proxy.restore()
        await judge(gated, ("p", task))

        assert (state, holders) == (["available"], {GATE: 1})

    @pytest.mark.parametrize(
        ("stall", "text", "count", "places"),
        [
            pytest.param(stalled_before, CLAIM, 2, (HERE, THERE), id="before its claim of them"),
            pytest.param(stalled_after, SETTLE, 1, (HERE,), id="before its answer"),
            # It arrives while its lease is being lost, or after: either is right, and both at once
            # would not be.
            pytest.param(stalled_before, SETTLE, 1, (HERE, THERE), id="when it is on the way"),
        ],
    )
    async def test_while_its_settlement_lets_others_in(
        self, victim: Victim, proxy: Proxy, stall: Make, text: str, count: int, places: Places
    ) -> None:
        hangs, tasks = await victim.holding()
        tasks += await in_line(victim.gated.at(*places))
        stalled = proxy.arm(stall(text))
        for hang in hangs[:count]:
            hang.released.set()
        await stalled.struck()
        await victim.killed()
        proxy.restore()
        await judge(victim.gated, *tasks)

    async def test_while_its_steps_hold_all_places(self, victim: Victim) -> None:
        gated = victim.gated
        _, tasks = await victim.holding()
        tasks += await in_line(gated)
        states, begun = gated.states(), len(gated.begun())
        await victim.killed()
        await judge(gated, *tasks)

        assert states == {"available": CAPACITY, "gates": WAITING}
        assert begun == CAPACITY
        assert [len(gated.begun(name)) for name, _ in tasks] == [2, 2, *[1] * WAITING]


class TestFrozen:
    async def test_two_whose_steps_hold_all_places_are_fenced_when_they_come_back(
        self, second_replica: Replica, database: str, tmp_path: Path
    ) -> None:
        late = Hang(response=response(b"late", response=b"late"))
        in_time = Hang(response=response(b"in time", response=b"in time"))
        async with (
            running_process(database, directory(tmp_path, "there")) as there,
            running_process(database, directory(tmp_path, "elsewhere")) as elsewhere,
            open_gated(
                database, second_replica, there.address, elsewhere.address, one_at_a_time=False
            ) as gated,
        ):
            tasks = await carried_by_two(gated, late, in_time)
            tasks += await in_line(gated.at(HERE))
            there.freeze()
            elsewhere.freeze()
            late.released.set()
            for name, _ in tasks[:CAPACITY]:
                await gated.has_begun(name, 2)
            there.thaw()
            elsewhere.thaw()
            # They are back, and hear what their processor has said meanwhile.
            passed = [await answered_at(gated, number) for number in (THERE, ELSEWHERE)]
            holders = gated.holders()
            in_time.released.set()
            await judge(gated, *tasks)
            answers = await answers_of(gated, tasks[:CAPACITY])

        assert passed == [b"other"] * 2
        assert holders == {GATE: CAPACITY}
        assert answers == [b"in time"] * CAPACITY

    async def test_two_whose_releases_arrive_late_release_nothing_a_second_time(
        self, second_replica: Replica, database: str, tmp_path: Path
    ) -> None:
        late = Hang(response=response(b"late", response=b"late"))
        in_time = Hang(response=response(b"in time", response=b"in time"))
        with running_proxy(database) as one, running_proxy(database) as two:
            async with (
                running_process(one.conninfo, directory(tmp_path, "there")) as there,
                running_process(two.conninfo, directory(tmp_path, "elsewhere")) as elsewhere,
                open_gated(
                    database, second_replica, there.address, elsewhere.address, one_at_a_time=False
                ) as gated,
            ):
                tasks = await carried_by_two(gated, late, in_time)
                tasks += await in_line(gated.at(HERE))
                on_the_way = [proxy.arm(stalled_before(SETTLE)) for proxy in (one, two)]
                late.released.set()
                for each in on_the_way:
                    await each.struck()
                there.freeze()
                elsewhere.freeze()
                for name, _ in tasks[:CAPACITY]:
                    await gated.has_begun(name, 2)
                before = gated.holders(), gated.states()
                one.restore()
                two.restore()
                there.thaw()
                elsewhere.thaw()
                there.terminate()
                elsewhere.terminate()
                await there.left()
                await elsewhere.left()
                after = gated.holders(), gated.states()
                in_time.released.set()
                await judge(gated.at(HERE), *tasks)
                answers = await answers_of(gated, tasks[:CAPACITY])

        assert before == after == ({GATE: CAPACITY}, {"available": CAPACITY, "gates": WAITING})
        assert answers == [b"in time"] * CAPACITY


def directory(parent: Path, name: str) -> Path:
    """Return a new directory, for the socket of a replica."""
    made = parent / name
    made.mkdir()
    return made


async def carried_by_two(gated: Gated, late: Hang, in_time: Hang) -> list[Task]:
    """Have each of the two replicas there carry a step that holds a place of the gate."""
    tasks = []
    for number, name in ((THERE, "p0"), (ELSEWHERE, "p1")):
        await gated.running(name, steps=[late, in_time, Answer()])
        made = constraints(GATE, capacity=CAPACITY)
        tasks.append((name, await gated.at(number).call(name, made)))
        await gated.has_begun(name)
    return tasks


async def answered_at(gated: Gated, number: int) -> bytes:
    """Call a new process at one replica, which is awake then."""
    name = f"o{number}"
    gated.env.processor.on_process(name, answering(), Answer())
    await gated.at(HERE).finished((name, await gated.at(HERE).start(name)))
    return await gated.at(number).answered(name, args=b"other")


async def answers_of(gated: Gated, tasks: list[Task]) -> list[bytes]:
    """Return the responses of tasks."""
    async with asyncio.TaskGroup() as group:
        asked = [
            group.create_task(gated.env.client.await_task(name, task_id=task_id))
            for name, task_id in tasks
        ]
    return [each.result().response for each in asked]
