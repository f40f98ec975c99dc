"""An old task gets through its gates whatever else comes; and no two of them deadlock."""

import datetime as dt
import itertools
from collections.abc import Collection, Sequence

import pytest

from progressor.domain.gates.constraint import Constraints
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import RunningTask
from progressor.storage.postgres.context import STARVATION_TIMEOUT
from tests.support.clock import ManualClock
from tests.support.storage.store import (
    NAMESPACE,
    Store,
    a_request,
    fresh_key,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUNDS = 20


_numbers = itertools.count()


class Crowd:
    """Tasks of processes of their own, by names, over gates that no other crowd has."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.mark = next(_numbers)
        self.names: dict[int, str] = {}
        self.running: dict[str, RunningTask] = {}

    async def want(
        self,
        name: str,
        gates: Collection[str],
        *,
        priority: int = 3,
        key: ProcessKey | None = None,
    ) -> None:
        """Call a process, by default a fresh one, with gates that have one place each."""
        if key is None:
            key = fresh_key()
            await self.store.started(key)
        wanted = Constraints(gates={f"{it}{self.mark}": 1 for it in gates}, priority=priority)
        admission = await self.store.admit(a_request(key, constraints=wanted), run=False)
        assert admission.task_id is not None, f"it is refused: {admission}"
        self.names[admission.task_id] = name
        await self.begin()

    async def begin(self) -> None:
        """Claim what is reported as due."""
        told, self.store.reported[:] = list(self.store.reported), []
        for promoted in told:
            assert promoted.again == ()
            for key, task_id in promoted.due:
                for claimed in await self.store.claim(key, task_id):
                    self.running[self.names[task_id]] = claimed.task

    async def end(self, name: str) -> None:
        """Settle a running task; the next in line begins."""
        await self.store.settled(self.running.pop(name))
        await self.begin()

    async def reserved(self) -> set[tuple[str, str]]:
        """Return which gates are reserved, and for whom."""
        found = set()
        for gate in await self.store.gates.list(NAMESPACE.name, after="", limit=1000):
            if gate.gate.endswith(str(self.mark)):
                view = await self.store.gates.get(NAMESPACE.name, gate.gate)
                found |= {
                    (gate.gate.removesuffix(str(self.mark)), self.names[holder.task_id])
                    for holder in view.holders
                    if holder.is_reserved
                }
        return found


async def _rounds(crowd: Crowd, rounds: Sequence[int]) -> None:
    """Let the holders of a and b end in turns; each has a successor of higher priority."""
    for number in rounds:
        await crowd.want(f"a{number + 1}", "a", priority=1)
        await crowd.end(f"a{number}")
        if f"a{number + 1}" not in crowd.running:
            return
        await crowd.want(f"b{number + 1}", "b", priority=1)
        await crowd.end(f"b{number}")


async def test_one_of_low_priority_that_wants_two_busy_gates_gets_through_once_it_is_old(
    store: Store, clock: ManualClock
) -> None:
    crowd = Crowd(store)
    await crowd.want("a0", "a")
    await crowd.want("b0", "b")
    await crowd.want("patient", "ab", priority=5)

    # Gates are never free together, and others are more urgent: so long it waits.
    await _rounds(crowd, range(ROUNDS))
    assert set(crowd.running) == {f"a{ROUNDS}", f"b{ROUNDS}"}

    clock.advance(STARVATION_TIMEOUT)
    await _rounds(crowd, range(ROUNDS, 2 * ROUNDS))
    assert await crowd.reserved() == {("a", "patient")}
    assert set(crowd.running) == {f"b{ROUNDS}"}

    await crowd.want("urgent", "b", priority=1)
    await crowd.end(f"b{ROUNDS}")
    assert set(crowd.running) == {"patient"}

    await crowd.end("patient")
    assert set(crowd.running) == {f"a{ROUNDS + 1}", "urgent"}


async def test_the_oldest_goes_first_among_the_old_whatever_their_priority(
    store: Store, clock: ManualClock
) -> None:
    crowd = Crowd(store)
    await crowd.want("first", "a")
    await crowd.want("oldest", "a", priority=5)
    clock.advance(STARVATION_TIMEOUT / 2)
    await crowd.want("younger", "a", priority=4)
    clock.advance(STARVATION_TIMEOUT)
    await crowd.want("urgent", "a", priority=1)

    order = []
    for _ in range(4):
        [name] = crowd.running
        order.append(name)
        await crowd.end(name)

    assert order == ["first", "oldest", "younger", "urgent"]


async def test_who_comes_into_a_line_later_but_is_older_takes_over_what_is_reserved(
    store: Store, clock: ManualClock
) -> None:
    crowd = Crowd(store)
    busy = fresh_key()
    await store.started(busy)
    step = await store.run_task(a_request(busy))
    await crowd.want("oldest", "ab", key=busy)
    clock.advance(dt.timedelta(seconds=1))
    await crowd.want("a", "a")
    await crowd.want("b", "b")
    await crowd.want("old", "ab")
    clock.advance(STARVATION_TIMEOUT)
    await crowd.end("a")
    assert await crowd.reserved() == {("a", "old")}

    await store.settled(step)
    await crowd.end("b")

    assert set(crowd.running) == {"oldest"}
    assert await crowd.reserved() == set()
    await crowd.end("oldest")
    assert set(crowd.running) == {"old"}


async def test_what_was_reserved_for_one_who_is_cancelled_goes_to_others(
    store: Store, clock: ManualClock
) -> None:
    crowd = Crowd(store)
    key = fresh_key()
    await store.started(key)
    await crowd.want("a", "a")
    await crowd.want("b", "b")
    await crowd.want("old", "ab", key=key)
    clock.advance(STARVATION_TIMEOUT)
    await crowd.end("a")
    await crowd.want("young", "a")
    assert set(crowd.running) == {"b"}

    [task_id] = [it for it, name in crowd.names.items() if name == "old"]
    await store.cancel(key, task_id)
    await crowd.begin()

    assert set(crowd.running) == {"b", "young"}


@pytest.mark.parametrize("order", list(itertools.permutations("abc")), ids="".join)
@pytest.mark.parametrize("wishes", [("ab", "bc"), ("bc", "ab"), ("ac", "bc"), ("abc", "bc")])
async def test_two_that_are_old_never_wait_for_each_other(
    store: Store, clock: ManualClock, order: Sequence[str], wishes: tuple[str, str]
) -> None:
    crowd = Crowd(store)
    for gate in "abc":
        await crowd.want(gate, gate)
    for name, gates in zip(("one", "other"), wishes, strict=True):
        await crowd.want(name, gates, priority=5)
    clock.advance(STARVATION_TIMEOUT)
    # Others keep coming, and want one gate each.
    for gate in "abc":
        await crowd.want(f"young {gate}", gate, priority=1)

    began = []
    for gate in order:
        await crowd.end(gate)
        for name in crowd.running.keys() - {*"abc"}:
            began.append(name)
            await crowd.end(name)
    while crowd.running:
        name = next(iter(crowd.running))
        began.append(name)
        await crowd.end(name)

    assert {"one", "other"} <= set(began)
    assert await crowd.reserved() == set()
