"""What the engine does about gates, with a fault in the middle: see `faults_requests`.

Every operation has gates of its own, which have no holders once it has ended.
"""

import contextlib
import dataclasses
import datetime as dt
import functools
from collections.abc import AsyncIterator, Awaitable, Callable

import psycopg

from progressor import errors
from progressor.sdk import Constraints
from tests.support.engine.gates import Gated, constraints
from tests.support.engine.replica import answering, timer
from tests.support.faults.faults import Make
from tests.support.faults.ground import ATTEMPT_SECONDS, Ground, insisted
from tests.support.postgres.locks import blocked_count
from tests.support.processor.scripted import Answer, Hang, Step

_SETTLE = '"settle_tasks"('
_SOON = 0.3


@dataclasses.dataclass(frozen=True, slots=True)
class GateGround:
    """A ground, and its environment as one on which there are gates."""

    ground: Ground
    gated: Gated
    conninfo: str

    async def running(self, process_id: str, *steps: Step) -> None:
        """Bring a process into running; its next requests are served by `steps`.

        An engine with such timeouts may fail a request by itself where the machine is busy.
        """
        self.gated.env.processor.on_process(process_id, answering(), *(steps or (Answer(),)))
        await insisted(
            functools.partial(
                self.ground.client.start,
                process_id,
                idempotency_key="s",
                timeout=ATTEMPT_SECONDS,
            )
        )

    async def insisted(self, process_id: str, made: Constraints) -> int:
        """Call a process under the key "k" until it is accepted, and return the task."""

        async def attempt() -> int:
            accepted = await self.ground.client.call(
                process_id,
                b"1",
                constraints=made,
                idempotency_key="k",
                accept_only=True,
                timeout=ATTEMPT_SECONDS,
            )
            task_id: int = accepted.task_id
            return task_id

        return await insisted(attempt)

    async def held(self) -> tuple[str, str, int, Hang]:
        """Have a step hold a gate of its own.

        Returns:
            The gate, the process, the task, and what lets the step end.
        """
        process_id = self.ground.fresh()
        gate = f"gate of {process_id}"
        hang = Hang()
        # A replica that has lost its lease is not waited for.
        await self.running(process_id, hang, Answer())
        task_id = await self.insisted(process_id, Constraints(gates={gate: 1}))
        await self.gated.has_begun(process_id, args=b"1")
        return gate, process_id, task_id, hang

    async def in_line(self, gate: str) -> tuple[str, int]:
        """Have the call of a new process wait for a gate; return both."""
        process_id = self.ground.fresh()
        await self.running(process_id)
        return process_id, await self.insisted(process_id, Constraints(gates={gate: 1}))

    @contextlib.asynccontextmanager
    async def locked(self, process_id: str) -> AsyncIterator[None]:
        """Lock the row of a process for as long as the context lasts."""
        async with await psycopg.AsyncConnection.connect(self.conninfo) as connection:
            await connection.execute(
                "SELECT FROM progressor.processes WHERE namespace = %s AND process_id = %s"
                " FOR UPDATE",
                [self.gated.env.namespace, process_id],
            )
            yield
            await connection.rollback()

    async def finished(self, *tasks: tuple[str, int]) -> None:
        """Wait until tasks have ended well, and see that each of their steps is saved once."""
        client = self.ground.client
        for process_id, task_id in tasks:
            await insisted(functools.partial(client.await_task, process_id, task_id=task_id))
            events = self.ground.events(process_id)
            assert len(events) == 1, f"{process_id} has {events}"


Play = Callable[[GateGround, Make], Awaitable[None]]


async def call(on: GateGround, make: Make) -> None:
    """Call a process under constraints: done once, and its gate is given back."""
    process_id = on.ground.fresh()
    await on.running(process_id)
    async with on.ground.under(make, '"admit_gated_requests"('):
        task_id = await on.insisted(process_id, Constraints(gates={f"gate of {process_id}": 1}))
    await on.finished((process_id, task_id))


async def start(on: GateGround, make: Make) -> None:
    """Start a process under constraints."""
    process_id = on.ground.fresh()
    made = Constraints(gates={f"gate of {process_id}": 1}, order=("order", "1"))
    async with on.ground.under(make, '"admit_gated_starts"('):
        accepted = await insisted(
            lambda: on.ground.client.start(
                process_id, b"1", constraints=made, idempotency_key="k", timeout=ATTEMPT_SECONDS
            )
        )
    await on.finished((process_id, accepted.task_id))


async def release(on: GateGround, make: Make) -> None:
    """Settle a step that holds a gate: the next in line follows, and both run once."""
    gate, first, first_id, hang = await on.held()
    second = await on.in_line(gate)
    async with on.ground.under(make, _SETTLE):
        hang.released.set()
    await on.finished((first, first_id), second)


async def claim(on: GateGround, make: Make) -> None:
    """Claim the one that was promoted with the settlement of the one before."""
    gate, first, first_id, hang = await on.held()
    second = await on.in_line(gate)
    async with on.ground.under(make, '"claim_tasks"('):
        hang.released.set()
    await on.finished((first, first_id), second)


async def look_again(on: GateGround, make: Make) -> None:
    """Look again at a gate that was left while the next task in line was locked."""
    gate, first, first_id, hang = await on.held()
    second = await on.in_line(gate)
    async with on.ground.under(make, '"promote_again"(') as fault, on.locked(second[0]):
        hang.released.set()
        # What strikes an answer waits for one.
        await on.gated.until(lambda: fault.has_struck or blocked_count(on.ground.observer) > 0)
    await on.finished((first, first_id), second)


async def instant(on: GateGround, make: Make) -> None:
    """Look at a task whose instant has come."""
    process_id = on.ground.fresh()
    await on.running(process_id)
    run_at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=_SOON)
    async with on.ground.under(make, '"promote_due"('):
        task_id = await on.insisted(process_id, Constraints(run_at=run_at))
    await on.finished((process_id, task_id))
    (begun, *_) = on.gated.begun(process_id, b"1")
    assert begun.at >= run_at.timestamp()


async def gated_timer(on: GateGround, make: Make) -> None:
    """Settle a step that sets a timer which has to wait for a gate."""
    gate, first, first_id, hang = await on.held()
    process_id = on.ground.fresh()
    on.gated.env.processor.on_process(
        process_id, answering(set_timer=timer(constraints=constraints(gate))), answering(b"fired")
    )
    async with on.ground.under(make, _SETTLE):
        await on.gated.start(process_id)
    await on.gated.until(lambda: on.gated.state(process_id) == ["gates"])
    hang.released.set()
    await on.finished((first, first_id))
    await on.ground.until(lambda: on.ground.events(process_id) == [b"fired"])


async def cancel(on: GateGround, make: Make) -> None:
    """Cancel a waiting task; a repeated request learns that it has ended."""
    gate, first, first_id, hang = await on.held()
    process_id, task_id = await on.in_line(gate)
    behind = await on.in_line(gate)

    async def attempt() -> None:
        with contextlib.suppress(errors.TaskHasEndedError):
            await on.ground.client.cancel(process_id, task_id=task_id, timeout=ATTEMPT_SECONDS)

    async with on.ground.under(make, '"cancel_task"('):
        await insisted(attempt)
    hang.released.set()
    await on.finished((first, first_id), behind)

    assert on.ground.events(process_id) == []
    assert await on.gated.ended_as(process_id, task_id) == "TASK_CANCELLED"


async def capacity(on: GateGround, make: Make) -> None:
    """Raise a gate's capacity by one while a task waits for it."""
    gate, first, first_id, hang = await on.held()
    second = await on.in_line(gate)

    async def attempt() -> None:
        await on.ground.client.gates.set(gate, 2, timeout=ATTEMPT_SECONDS)

    async with on.ground.under(make, '"set_gate"('):
        await insisted(attempt)
    await on.finished(second)
    hang.released.set()
    await on.finished((first, first_id))


OPERATIONS: tuple[Play, ...] = (
    call,
    start,
    release,
    claim,
    look_again,
    instant,
    gated_timer,
    cancel,
    capacity,
)
