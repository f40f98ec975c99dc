"""Requests with constraints, to one replica and another in turn, and what their processor noted."""

import collections
import contextlib
import dataclasses
import datetime as dt
import itertools
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any

import psycopg
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

from progressor.sdk import Client
from progressor.sdk.values.constraints import constraints_from_wire
from progressor.v1 import processor_service_pb2, types_pb2
from tests.support.engine.points import eventually
from tests.support.engine.replica import (
    QUIET,
    Env,
    Replica,
    answering,
    open_env,
    refusal,
    running_replica,
)
from tests.support.processor.scripted import Answer, Hang, ScriptedProcessor, Step

Wire = types_pb2.Constraints

CONSTRAINED = b"constrained"
"""The args of requests with constraints, unless they have others."""

_HELD = """
    SELECT gate, capacity, held,
        (SELECT count(*) FROM progressor.gate_holders h
         WHERE (h.namespace, h.gate) = (g.namespace, g.gate))
    FROM progressor.gates g WHERE namespace = %s"""
_STATES = """
    SELECT process_id, task_id, state::text FROM progressor.gated
    WHERE namespace = %s ORDER BY task_id"""
_SETTLED = """
    SELECT task_id, attempt_count FROM progressor.tasks
    WHERE namespace = %s AND constraints IS NOT NULL AND status IN ('finished', 'error')"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The begin or the end of a step in the processor; `at` is the time of day, in seconds."""

    process_id: str
    task_id: int
    attempt: int
    args: bytes
    begins: bool
    at: float


class NotingProcessor(ScriptedProcessor):
    """A scripted processor that notes when steps begin and end, in the order in which they do."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.notes: list[Note] = []

    async def carry_out(
        self,
        request: processor_service_pb2.ProcessRequest,
        context: aio.ServicerContext[bytes, bytes],
    ) -> tuple[Step, bytes]:
        self._note(request, begins=True)
        try:
            return await super().carry_out(request, context)
        finally:
            self._note(request, begins=False)

    def _note(self, request: processor_service_pb2.ProcessRequest, *, begins: bool) -> None:
        task = request.task
        self.notes.append(
            Note(
                process_id=request.process.process_id,
                task_id=task.task_id,
                attempt=task.attempt,
                args=task.args,
                begins=begins,
                at=time.time(),
            )
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gated:
    """An environment whose requests go to several replicas, one after the other."""

    env: Env
    notes: list[Note]
    observer: psycopg.Connection[Any]
    clients: Sequence[Client]
    turns: Iterator[Client]

    async def start(self, process_id: str, constraints: Wire | None = None, **fields: Any) -> int:
        wanted = _options(constraints, fields)
        reply = await next(self.turns).start(process_id, accept_only=True, **wanted)
        return reply.task_id

    async def call(self, process_id: str, constraints: Wire | None = None, **fields: Any) -> int:
        wanted = _options(constraints, fields)
        reply = await next(self.turns).call(process_id, accept_only=True, **wanted)
        return reply.task_id

    async def answered(
        self, process_id: str, constraints: Wire | None = None, **fields: Any
    ) -> bytes:
        response: bytes = (
            await next(self.turns).call(process_id, **_options(constraints, fields))
        ).response
        return response

    async def notify(self, process_id: str, constraints: Wire | None = None, **fields: Any) -> int:
        receipt = await next(self.turns).notify(process_id, **_options(constraints, fields))
        return receipt.task_id

    async def cancel(self, process_id: str, task: int | str) -> int:
        which = {"task_id" if isinstance(task, int) else "idempotency_key": task}
        return await next(self.turns).cancel(process_id, **which)  # type: ignore[arg-type]

    async def set_capacity(self, gate: str, capacity: int) -> None:
        await next(self.turns).gates.set(gate, capacity)

    async def line(self, gate: str) -> list[str]:
        return [each.process_id for each in (await next(self.turns).gates.get(gate)).line]

    async def ended_as(self, process_id: str, task_id: int) -> str:
        return await refused(next(self.turns).await_task(process_id, task_id=task_id, timeout=10))

    async def finished(self, *tasks: tuple[str, int]) -> None:
        for process_id, task_id in tasks:
            await self.env.client.await_task(process_id, task_id=task_id)

    async def running(self, *names: str, steps: Sequence[Step] = ()) -> None:
        for name in names:
            await self.env.running(name, *steps)

    async def held(self, *names: str) -> list[Hang]:
        """Bring processes into running; their next request each is answered once released."""
        hangs = [Hang() for _ in names]
        for name, hang in zip(names, hangs, strict=True):
            await self.env.running(name, hang, Answer())
        return hangs

    def will_hold(self, *names: str) -> list[Hang]:
        """Have the first request of processes, their start, answered once released."""
        hangs = [Hang(response=answering().response) for _ in names]
        for name, hang in zip(names, hangs, strict=True):
            self.env.processor.on_process(name, hang, Answer())
        return hangs

    def begun(self, process_id: str | None = None, args: bytes = CONSTRAINED) -> list[Note]:
        return [
            note
            for note in self.notes
            if note.begins and note.args == args and process_id in {None, note.process_id}
        ]

    def begun_at(self, process_id: str, args: bytes = CONSTRAINED) -> int:
        """Return the place among the notes of the first of these steps that has begun."""
        return self.notes.index(self.begun(process_id, args)[0])

    def ended_at(self, process_id: str, args: bytes = CONSTRAINED) -> int:
        """Return the place among the notes of the last of these steps that has ended."""
        return max(
            place
            for place, note in enumerate(self.notes)
            if (note.begins, note.process_id, note.args) == (False, process_id, args)
        )

    async def has_begun(self, process_id: str, count: int = 1, args: bytes = CONSTRAINED) -> None:
        await eventually(lambda: len(self.begun(process_id, args)) >= count)

    def at_once(self, names: Iterable[str] | None = None, args: bytes = CONSTRAINED) -> int:
        return at_once(
            note
            for note in self.notes
            if note.args == args and (names is None or note.process_id in names)
        )

    def settled_at_once(self) -> int:
        """Return how many steps that were settled were in hand at once, at most.

        Who has lost a lease may still be in the processor when another attempt is made. But the
        attempt that was settled had its lease, and its gates, from before its begin until after its
        end.
        """
        settled = set(self._rows(_SETTLED))
        return at_once(note for note in self.notes if (note.task_id, note.attempt) in settled)

    def at(self, *numbers: int) -> "Gated":
        """Return this with its requests to these replicas, in the order of their addresses."""
        return dataclasses.replace(
            self, turns=itertools.cycle([self.clients[number] for number in numbers])
        )

    def state(self, process_id: str) -> list[str]:
        return [state for name, _, state in self._rows(_STATES) if name == process_id]

    def states(self) -> dict[str, int]:
        return dict(collections.Counter(state for _, _, state in self._rows(_STATES)))

    def holders(self) -> Mapping[str, int]:
        """Return how many hold each gate that is held, and see that both who count agree."""
        found = self._rows(_HELD)
        assert all(held == counted for _, _, held, counted in found), found
        return {gate: held for gate, _, held, _ in found if held}

    async def until(self, holds: Callable[[], bool]) -> None:
        await eventually(holds)

    async def at_rest(self) -> None:
        await self.until(lambda: not self._rows(_STATES) and not self.holders())

    def _rows(self, query: str) -> list[Any]:
        return self.observer.execute(query.encode(), [self.env.namespace]).fetchall()


def _options(constraints: Wire | None, fields: dict[str, Any]) -> dict[str, Any]:
    wanted = None if constraints is None else constraints_from_wire(constraints)
    return {"args": CONSTRAINED, "constraints": wanted, **fields}


def constraints(
    *gates: str,
    capacity: int | None = 1,
    order: tuple[str, str] | None = None,
    run_at: dt.datetime | None = None,
    priority: int = 0,
    hold: types_pb2.GateHold.ValueType = types_pb2.GATE_HOLD_UNSPECIFIED,
) -> Wire:
    """Return constraints as they are on the wire; `capacity` is that of each gate."""
    made = Wire(
        gates=[types_pb2.GateUse(gate=gate, capacity=capacity) for gate in gates],
        priority=priority,
        hold=hold,
    )
    if order is not None:
        made.order.CopyFrom(types_pb2.Order(key=order[0], version=order[1]))
    if run_at is not None:
        instant = Timestamp()
        instant.FromDatetime(run_at)
        made.run_at.CopyFrom(instant)
    return made


def at_once(notes: Iterable[Note]) -> int:
    count = most = 0
    for note in notes:
        count += 1 if note.begins else -1
        most = max(most, count)
    return most


@contextlib.asynccontextmanager
async def running_pair(conninfo: str) -> AsyncIterator[tuple[Replica, Replica]]:
    """Run two replicas on a database that never scan; nothing was left to a scan, either."""
    async with running_replica(conninfo, QUIET) as here, running_replica(conninfo, QUIET) as there:
        yield here, there
        for replica in (here, there):
            found = [replica.points.count(each) for each in ("scan_found", "gates_scan_found")]
            assert found == [0, 0]


async def refused(request: Awaitable[object]) -> str:
    return (await refusal(request)).reason


@contextlib.asynccontextmanager
async def open_gated(
    conninfo: str, replica: Replica, *addresses: str, one_at_a_time: bool = True, **options: Any
) -> AsyncIterator[Gated]:
    """Make an environment on a replica, with requests to it and to others on the same database.

    ``options`` are fields of NamespaceConfig. Leaving it asserts that nothing is left of gates.
    """
    async with contextlib.AsyncExitStack() as stack:
        processor = await stack.enter_async_context(NotingProcessor(one_at_a_time=one_at_a_time))
        fields = {"processor_targets": (processor.target,), **options}
        observer = stack.enter_context(psycopg.connect(conninfo, autocommit=True))
        async with open_env(replica, one_at_a_time=one_at_a_time, **fields) as bare:
            # It has a processor of its own, which receives no requests.
            env = dataclasses.replace(bare, processor=processor)
            clients = [
                await stack.enter_async_context(env.client_at(address))
                for address in (replica.address, *addresses)
            ]
            gated = Gated(
                env=env,
                notes=processor.notes,
                observer=observer,
                clients=clients,
                turns=itertools.cycle(clients),
            )
            yield gated
            async for process in env.client.list(page_size=1000):
                await env.client.remove(process.process_id)
            # The observer may have been put out with the server.
            with psycopg.connect(conninfo, autocommit=True) as observer:
                await dataclasses.replace(gated, observer=observer).at_rest()


_WATCH = """
    CREATE TABLE public.overfull (gate text, held integer, capacity integer);
    CREATE FUNCTION public.note_overfull() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.overfull VALUES (NEW.gate, NEW.held, NEW.capacity);
        RETURN NULL;
    END; $$;
    CREATE TRIGGER note_overfull AFTER INSERT OR UPDATE ON progressor.gates
    FOR EACH ROW WHEN (NEW.held > NEW.capacity) EXECUTE FUNCTION public.note_overfull();"""


@contextlib.contextmanager
def watched_gates(conninfo: str) -> Iterator[None]:
    """Assert that inside no statement makes more holders than places; PostgreSQL may restart."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(_WATCH)
    yield
    with psycopg.connect(conninfo, autocommit=True) as connection:
        found = connection.execute("SELECT * FROM public.overfull").fetchall()
        connection.execute("DROP FUNCTION public.note_overfull CASCADE")
        connection.execute("DROP TABLE public.overfull")
    assert found == []
