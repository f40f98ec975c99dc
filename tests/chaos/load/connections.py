"""Connections from a client to the replicas, and what is seen of each request on one of them."""

import contextlib
import dataclasses
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from progressor import errors
from progressor.sdk import (
    Client,
    NewEvent,
    NewTimer,
    Process,
    Receipt,
    Reply,
    SimpleRepaired,
    Snapshot,
    TaskReply,
    Trace,
)
from tests.chaos.load.notes import Notes
from tests.chaos.load.process_pool import Request, Subject
from tests.chaos.load.processor import NAMESPACE
from tests.support.models.history.history import (
    Accepted,
    Appended,
    Done,
    Kind,
    Outcome,
    Refused,
    Revived,
    Sight,
    Unknown,
)

TORN = Refused("TORN")
"""What no reader may see: a state that is not of its history. No order explains it."""

_PAGE_SIZE = 20
_LISTED_MAX = 4


class Connections:
    """To every replica four: directly and through its relay, in sessions and by single calls."""

    def __init__(
        self,
        addresses: Sequence[str],
        relayed: Sequence[str],
        *,
        notes: Notes,
        seed: int,
        namespace: str = NAMESPACE,
    ) -> None:
        self._random = random.Random(seed)
        self._connections = [
            Connection(Client(target, namespace=namespace, session=session), replica, notes)
            for replica, pair in enumerate(zip(addresses, relayed, strict=True))
            for target, session in itertools.product(pair, (True, False))
        ]

    def another(self) -> "Connection":
        return self._random.choice(self._connections)

    async def close(self) -> None:
        for connection in self._connections:
            await connection.client.close()


@dataclasses.dataclass(frozen=True, slots=True)
class Connection:
    """A client of one replica; every method sends one request and notes what came of it."""

    client: Client
    replica: int
    notes: Notes

    async def send(self, request: Request) -> Outcome:
        """Send a start, call, notify or repair."""
        fields: dict[str, Any] = {"idempotency_key": request.key, "timeout": request.timeout}
        process_id, order = request.subject.process_id, request.order
        reply: Awaitable[Reply | Receipt]
        match request.kind:
            case Kind.START:
                fields["constraints"] = request.constraints
                reply = self.client.start(process_id, order, **fields)
            case Kind.CALL:
                fields["constraints"] = request.constraints
                fields["accept_only"] = request.accept_only
                reply = self.client.call(process_id, order, **fields)
            case Kind.NOTIFY:
                fields["constraints"] = request.constraints
                reply = self.client.notify(process_id, order, **fields)
            case _:
                assert request.kind is Kind.REPAIR, f"{request.kind} is sent in its own way"
                reply = self.client.repair(process_id, order, **fields)
        return await self._seen(request, reply, _answered)

    async def wait_for(self, request: Request) -> Outcome:
        """Await a request by its key."""
        reply = self.client.await_task(
            request.subject.process_id, idempotency_key=request.key, timeout=request.timeout
        )
        return await self._seen(request, reply, _awaited, kind=Kind.AWAIT)

    async def cancel(self, request: Request) -> Outcome:
        """Cancel a request by its key."""
        reply = self.client.cancel(
            request.subject.process_id, idempotency_key=request.key, timeout=request.timeout
        )
        return await self._seen(request, reply, _done, kind=Kind.CANCEL)

    async def set_gate(self, gate: str, capacity: int) -> None:
        """Set the capacity of a gate, which is not a request to a process."""
        word = "done"
        try:
            await self.client.gates.set(gate, capacity, timeout=5.0)
        except errors.ProgressorError as error:
            word = error.reason
        self.notes.totals["set_gate", word] += 1

    async def put(
        self, request: Request, imported: tuple[str, ...], timer: NewTimer | None
    ) -> Outcome:
        """Import a process with some history."""
        reply = self.client.put(
            request.subject.process_id,
            state={"last": imported[-1], "count": len(imported)} if imported else None,
            history=[NewEvent(payload={"id": element}) for element in imported],
            timer=timer,
            idempotency_key=request.key,
            timeout=request.timeout,
        )
        return await self._seen(request, reply, _done, imported=imported)

    async def remove(self, subject: Subject) -> Outcome:
        """Remove a process."""
        request = Request(kind=Kind.REMOVE, subject=subject, element="")
        reply = self.client.remove(subject.process_id, timeout=request.timeout)
        return await self._seen(request, reply, _done)

    async def fix(self, subject: Subject) -> Outcome:
        """Repair a process without asking its processor."""
        request = Request(kind=Kind.SIMPLE_REPAIR, subject=subject, element="")
        reply = self.client.simple_repair(subject.process_id, timeout=request.timeout)
        return await self._seen(request, reply, _revived)

    async def look(self, subject: Subject) -> Outcome:
        """Get a process with all of its history."""
        request = Request(kind=Kind.LOOK, subject=subject, element="")
        reply = self.client.get(subject.process_id, timeout=request.timeout)
        return await self._seen(request, reply, _looked)

    async def trace(self, subject: Subject) -> Outcome:
        """Get the tasks of a process, with what each has brought."""
        request = Request(kind=Kind.LOOK, subject=subject, element="")
        reply = self.client.trace(subject.process_id, timeout=request.timeout)
        return await self._seen(request, reply, _traced)

    async def list(self) -> None:
        """List the newest processes, and note what is said of some of them."""
        found: list[Process] = []
        sent_at = time.monotonic()
        listing = self.client.list(page_size=_PAGE_SIZE, timeout=5.0)
        # A generator, whatever Client promises: it is closed after one page.
        async with contextlib.aclosing(listing):  # type: ignore[type-var]
            with contextlib.suppress(errors.ProgressorError):
                async for process in listing:
                    found.append(process)
                    if len(found) == _PAGE_SIZE:
                        break
        answered_at = time.monotonic()
        for process in found[:_LISTED_MAX]:
            sight = Sight(str(process.status), process.last_event_id)
            self.notes.glimpsed(process.process_id, sight, sent_at, answered_at)

    async def _seen(
        self,
        request: Request,
        reply: Awaitable[Any],
        read: Callable[[Any], Outcome],
        *,
        kind: Kind | None = None,
        imported: tuple[str, ...] = (),
    ) -> Outcome:
        return await self.notes.seen(
            request, reply, read, replica=self.replica, kind=kind or request.kind, imported=imported
        )


def _answered(answer: Reply | Receipt) -> Outcome:
    if isinstance(answer, Receipt) or answer.response is None:
        return Accepted()
    return Done(_appended(answer.response))


def _awaited(answer: TaskReply) -> Outcome:
    return Done(None if answer.response is None else _appended(answer.response))


def _appended(response: dict[str, Any]) -> Appended:
    return Appended(response["length"], tuple(response["before"]), response["first"])


def _done(_answer: object) -> Outcome:
    return Done()


def _revived(answer: SimpleRepaired) -> Outcome:
    return Done(Revived(timer=answer.task_id is not None))


def _looked(snapshot: Snapshot) -> Outcome:
    process = snapshot.process
    elements = tuple(event.payload["id"] for event in snapshot.history)
    register = {"last": elements[-1], "count": len(elements)} if elements else None
    if process.state != register or process.last_event_id != len(elements):
        return TORN
    return Done(Sight(str(process.status), len(elements), elements))


def _traced(trace: Trace) -> Outcome:
    events = sorted(
        (event for task in trace.tasks for event in task.events), key=lambda it: it.event_id
    )
    if [event.event_id for event in events] != list(range(1, len(events) + 1)):
        return Unknown("not all of it is on the page")
    elements = tuple(event.payload["id"] for event in events)
    return (
        Unknown("more pages") if trace.next_page_token else Done(Sight("", len(elements), elements))
    )
