"""Every statement that has to do with gates, with every fault in the middle of it.

Every operation has gates of its own, which have no holders once it has ended. Of the two stalls,
which take long, each operation meets one; with FAULTS_ALL=1 both.
"""

import dataclasses
import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import psycopg
import pytest
import pytest_asyncio

from progressor import errors
from progressor.sdk import Constraints, RetryPolicy
from tests.support.engine.gates import Gated, constraints, open_gated, watched_gates
from tests.support.engine.replica import Replica, answering, timer
from tests.support.faults.env import UNCACHED, FaultEnv, cells, insist
from tests.support.faults.faults import STALLS
from tests.support.postgres.locks import blocked_count
from tests.support.postgres.proxy import Proxy
from tests.support.processor.scripted import Answer, Hang, Step

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETTINGS = UNCACHED
SETTLE = '"settle_tasks"('
SOON = 0.3

Task = tuple[str, int]
"""A process and its task."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateEnv(FaultEnv):
    gated: Gated

    async def running(self, process_id: str, *steps: Step) -> None:
        """Bring a process into running; its next requests are served by `steps`.

        An engine with such timeouts may fail a request by itself where the machine is busy.
        """
        self.processor.on_process(process_id, answering(), *(steps or (Answer(),)))
        await insist(self.client.start, process_id, idempotency_key="s")

    async def call(self, process_id: str, wanted: Constraints) -> Task:
        """Call a process under constraints until it is accepted."""
        accepted = await insist(
            self.client.call,
            process_id,
            b"1",
            constraints=wanted,
            idempotency_key="k",
            accept_only=True,
        )
        return process_id, accepted.task_id

    async def held(self) -> tuple[str, Task, Hang]:
        """Have a step hold a gate of its own; return both, and what lets the step end."""
        process_id = await self.fresh_running(hang := Hang(), Answer())
        gate = f"gate of {process_id}"
        # A replica that has lost its lease is not waited for.
        task = await self.call(process_id, Constraints(gates={gate: 1}))
        await self.gated.has_begun(process_id, args=b"1")
        return gate, task, hang

    async def in_line(self, gate: str) -> Task:
        """Have the call of a new process wait for a gate."""
        return await self.call(await self.fresh_running(), Constraints(gates={gate: 1}))

    async def done(self, *tasks: Task) -> None:
        for process_id, task_id in tasks:
            await insist(self.client.await_task, process_id, task_id=task_id, timeout=None)
            assert len(self.events(process_id)) == 1, process_id

    async def at_rest(self) -> None:
        """Wait until nothing is in hand or due, and no gate is held."""
        await FaultEnv.at_rest(self)
        await self.gated.at_rest()


Play = Callable[[GateEnv], Awaitable[None]]


async def call(env: GateEnv) -> None:
    """Call a process under constraints: done once, and its gate is given back."""
    process_id = await env.fresh_running()
    async with env.under('"admit_gated_requests"('):
        task = await env.call(process_id, Constraints(gates={f"gate of {process_id}": 1}))
    await env.done(task)


async def start(env: GateEnv) -> None:
    process_id = env.fresh()
    wanted = Constraints(gates={f"gate of {process_id}": 1}, order=("order", "1"))
    async with env.under('"admit_gated_starts"('):
        accepted = await insist(
            env.client.start, process_id, b"1", constraints=wanted, idempotency_key="k"
        )
    await env.done((process_id, accepted.task_id))


def release_under(text: str) -> Play:
    """Return the operation that settles a step with a gate: the next in line is promoted, and runs.

    Its statements: the settlement, and the claim that follows.
    """

    async def play(env: GateEnv) -> None:
        gate, first, hang = await env.held()
        second = await env.in_line(gate)
        async with env.under(text):
            hang.released.set()
        await env.done(first, second)

    return play


async def look_again(env: GateEnv) -> None:
    """Look again at a gate that was left while the next task in line was locked."""
    gate, first, hang = await env.held()
    second = await env.in_line(gate)
    async with env.under('"promote_again"(') as fault, env.locked(second[0]):
        hang.released.set()
        # What strikes an answer waits for one.
        await env.gated.until(lambda: fault.has_struck or blocked_count(env.observer) > 0)
    await env.done(first, second)


async def instant(env: GateEnv) -> None:
    """Look at a task whose instant has come."""
    process_id = await env.fresh_running()
    run_at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=SOON)
    async with env.under('"promote_due"('):
        task = await env.call(process_id, Constraints(run_at=run_at))
    await env.done(task)
    (begun, *_) = env.gated.begun(process_id, b"1")
    assert begun.at >= run_at.timestamp()


async def gated_timer(env: GateEnv) -> None:
    """Settle a step that sets a timer which has to wait for a gate."""
    gate, first, hang = await env.held()
    process_id = env.fresh()
    env.processor.on_process(
        process_id, answering(set_timer=timer(constraints=constraints(gate))), answering(b"fired")
    )
    async with env.under(SETTLE):
        await env.gated.start(process_id)
    await env.gated.until(lambda: env.gated.state(process_id) == ["gates"])
    hang.released.set()
    await env.done(first)
    await env.until(lambda: env.events(process_id) == [b"fired"])


async def cancel(env: GateEnv) -> None:
    """Cancel a waiting task; a repeated request learns that it has ended."""
    gate, first, hang = await env.held()
    process_id, task_id = await env.in_line(gate)
    behind = await env.in_line(gate)
    async with env.under('"cancel_task"('):
        await insist(
            env.client.cancel, process_id, task_id=task_id, unless=(errors.TaskHasEndedError,)
        )
    hang.released.set()
    await env.done(first, behind)

    assert env.events(process_id) == []
    assert await env.gated.ended_as(process_id, task_id) == "TASK_CANCELLED"


async def capacity(env: GateEnv) -> None:
    """Raise a gate's capacity by one while a task waits for it."""
    gate, first, hang = await env.held()
    second = await env.in_line(gate)
    async with env.under('"set_gate"('):
        await insist(env.client.gates.set, gate, 2)
    await env.done(second)
    hang.released.set()
    await env.done(first)


OPERATIONS: Mapping[str, Play] = {
    "call": call,
    "start": start,
    "release": release_under(SETTLE),
    "claim": release_under('"claim_tasks"('),
    "look again": look_again,
    "instant": instant,
    "gated timer": gated_timer,
    "cancel": cancel,
    "capacity": capacity,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gate_env(
    database: str, proxy: Proxy, behind: Replica, observer: psycopg.Connection[object]
) -> AsyncIterator[GateEnv]:
    policy = RetryPolicy(attempts_max=100)
    async with open_gated(database, behind, one_at_a_time=False, retry_policy=policy) as gated:
        with watched_gates(database):
            yield GateEnv.of(gated.env, proxy=proxy, observer=observer, gated=gated)
            proxy.restore()


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("operation", "fault"),
    cells(OPERATIONS, lambda row, fault: fault not in STALLS or fault == STALLS[row % 2]),
)
async def test_a_fault_in_the_middle_leaves_no_gate_held_and_no_queue(
    gate_env: GateEnv, operation: str, fault: str
) -> None:
    async with gate_env.cell(fault) as env:
        await OPERATIONS[operation](env)

    assert gate_env.gated.holders() == {}
