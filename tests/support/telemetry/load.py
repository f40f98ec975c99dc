"""Every operation, in every way in which it can end, for those who look at what is counted."""

import asyncio
import dataclasses

from google.rpc import code_pb2

from progressor.sdk import Constraints, GateHold, NewEvent, NewTimer
from progressor.v1.processor_service_pb2 import RemoveProcess
from tests.support.engine.replica import (
    Env,
    Replica,
    answering,
    broken,
    refusal,
    timer,
    unavailable,
)
from tests.support.processor.scripted import Answer, reject

ROUNDS = 20
"""How often all of it is done, side by side."""

SOON = 0.05
HOUR = 3600.0


async def keep_a_gate(env: Env) -> None:
    """Have a process that holds a gate as long as it is there: metrics tell of gates then."""
    env.processor.on_process("keeper", answering(), Answer())
    constraints = Constraints(gates={"kept": 1}, hold=GateHold.PROCESS)
    await env.client.start("keeper", constraints=constraints)


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """Does all of it on an environment that retries NOW_AND_THEN."""

    env: Env
    elsewhere: Replica
    name: str = "load"
    """What the processes' ids begin with: each load has processes of its own."""

    async def run(self) -> None:
        """Do everything ROUNDS times."""
        async with asyncio.TaskGroup() as group:
            for number in range(ROUNDS):
                group.create_task(self._calls(f"{self.name}-called-{number}"))
                group.create_task(self._failures(f"{self.name}-failed-{number}"))
                group.create_task(self._timers(f"{self.name}-timed-{number}"))
                group.create_task(self._reads(f"{self.name}-read-{number}"))
                group.create_task(self._ends(f"{self.name}-ended-{number}"))
        await self._from_elsewhere()
        _ = [it async for it in self.env.client.list(page_size=1000)]

    async def _calls(self, name: str) -> None:
        client = self.env.client
        await self.env.running(name, answering(b"event", response=b"answer", aux_state=b"state"))
        for _ in range(5):
            await client.call(name, b"args")
        await client.notify(name, b"args")
        accepted = await client.call(name, b"args", idempotency_key="k", accept_only=True)
        await client.await_task(name, task_id=accepted.task_id)

    async def _failures(self, name: str) -> None:
        env, client = self.env, self.env.client
        await refusal(client.call(f"no-{name}"))
        await env.running(
            name, unavailable(), Answer(), reject(code_pb2.NOT_FOUND, reason="NONE"), broken(),
            Answer(),
        )  # fmt: skip
        await client.call(name)
        await refusal(client.call(name))
        await refusal(client.call(name))
        await client.repair(name)

    async def _timers(self, name: str) -> None:
        env, client = self.env, self.env.client
        await env.timed(name, broken(), answering(set_timer=timer(SOON, remove=True)), after=SOON)
        await env.settled(name, 2)
        await client.simple_repair(name)
        await env.points.wait("settled", key=env.key(name), settlement="Remove")

    async def _reads(self, name: str) -> None:
        client = self.env.client
        await client.put(name, state=b"state", history=[NewEvent(payload=b"event")])
        await client.put(f"{name}-later", timer=NewTimer(after=HOUR))
        await client.get(name)
        await client.trace(name)

    async def _ends(self, name: str) -> None:
        env, client = self.env, self.env.client
        await env.finished(f"{name}-with-a-result", b"result")
        await env.running(f"{name}-by-a-step", answering(remove=RemoveProcess()))
        await client.call(f"{name}-by-a-step")
        await env.running(f"{name}-by-a-request")
        await client.remove(f"{name}-by-a-request")

    async def _from_elsewhere(self) -> None:
        """Have a call wait at the other replica for a step of this one."""
        env = self.env
        name = f"{self.name}-shared"
        hang, _ = await env.busy(name)
        other = self.elsewhere
        async with env.client_at(other.address) as there, asyncio.TaskGroup() as group:
            waiting = group.create_task(there.call(name, b"args"))
            await other.points.wait("admitted", key=env.key(name))
            hang.released.set()
            await waiting
