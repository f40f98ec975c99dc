"""Connections from a client to the replicas, and notes of each request on one of them."""

import asyncio
import collections
import contextlib
import dataclasses
import itertools
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from progressor import errors
from progressor.sdk import (
    Client,
    EngineUnavailableError,
    NewEvent,
    NewTimer,
    Process,
    Receipt,
    Reply,
    SimpleRepaired,
    Snapshot,
    TaskReply,
    Trace,
    UnexpectedStatusError,
)
from tests.chaos.history import (
    Accepted,
    Again,
    Appended,
    Done,
    Kind,
    Operation,
    Outcome,
    Refused,
    Revived,
    Sight,
    Unknown,
)
from tests.chaos.load.process_pool import Request, Subject
from tests.chaos.load.processor import NAMESPACE

TORN = Refused("TORN")
"""What no reader may see: a state that is not of its history. No order explains it."""

NO_WORD = (
    EngineUnavailableError,
    errors.StorageUnavailableError,
    errors.DeadlineExceededError,
    errors.ReplicaStoppedError,
)
NOTHING_ACCEPTED = (errors.OverloadedError, errors.ShuttingDownError)
_WRITES = frozenset({Kind.START, Kind.CALL, Kind.NOTIFY, Kind.REPAIR, Kind.PUT})
_NEVER = frozenset(
    {"IDEMPOTENCY_KEY_REUSED", "INVALID_REQUEST", "NAMESPACE_NOT_FOUND", "TASK_FAILED"}
)

_NEVER_INSISTING = frozenset({"INVALID_REQUEST", "INTERNAL", "IDEMPOTENCY_KEY_REUSED"})
_REPEATS_MAX = 5
_TIMEOUT_SECONDS = 5.0

_PAGE_SIZE = 20
_LISTED_MAX = 4


@dataclasses.dataclass(slots=True)
class Notes:
    """The operations of a run, in the order in which they ended.

    ``acknowledged`` has the instant and the replica of each write that was. ``surprises`` are
    answers that no client should ever get.
    """

    operations: list[Operation] = dataclasses.field(default_factory=list)
    acknowledged: list[tuple[float, int]] = dataclasses.field(default_factory=list)
    totals: collections.Counter[tuple[str, str]] = dataclasses.field(
        default_factory=collections.Counter
    )
    surprises: list[str] = dataclasses.field(default_factory=list)

    def outcome_of(self, error: errors.ProgressorError, request: Request) -> Outcome:
        """Return the outcome that an error is, and note it if no client should ever get it."""
        is_unexpected = isinstance(error, UnexpectedStatusError)
        if is_unexpected or error.reason in _NEVER:
            self.surprises.append(
                f"{request.kind} {request.element} of {request.subject.process_id}: {error}"
            )
        if isinstance(error, UnexpectedStatusError):
            return Unknown(f"UNEXPECTED_{error.code.name}")
        if isinstance(error, NO_WORD) or (request.key and isinstance(error, NOTHING_ACCEPTED)):
            # Of a request with a key an earlier attempt may have been accepted.
            return Unknown(error.reason)
        return Refused(error.reason)


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
class Insistence:
    """Asks what is not noted as an operation, on behalf of `who`, until it is known to be done."""

    connections: Connections
    notes: Notes
    who: str

    async def insist(self, word: str, request: Callable[[Client], Awaitable[object]]) -> bool:
        """Ask until it is known what became of it; tell whether it was done."""
        for _ in range(_REPEATS_MAX):
            try:
                async with asyncio.timeout(_TIMEOUT_SECONDS):
                    await request(self.connections.another().client)
            except TimeoutError:
                self.notes.totals[word, "timeout"] += 1
            except (*NO_WORD, *NOTHING_ACCEPTED) as error:
                self.note(word, error)
            except errors.ProgressorError as error:
                self.note(word, error)
                return False
            else:
                self.notes.totals[word, "done"] += 1
                return True
        return False

    def note(self, word: str, error: errors.ProgressorError) -> None:
        self.notes.totals[word, error.reason] += 1
        if error.reason in _NEVER_INSISTING:
            self.notes.surprises.append(f"{self.who}'s {word}: {error}")


@dataclasses.dataclass(frozen=True, slots=True)
class Connection:
    """A client of one replica; every method sends one request and notes what came of it."""

    client: Client
    replica: int
    notes: Notes

    async def send(self, request: Request) -> Outcome:
        fields: dict[str, Any] = {"idempotency_key": request.key, "timeout": request.timeout}
        if request.kind is not Kind.REPAIR:
            fields["constraints"] = request.constraints
        if request.kind is Kind.CALL:
            fields["accept_only"] = request.accept_only
        # The methods of a client have the names of these kinds.
        send = getattr(self.client, request.kind)
        reply = send(request.subject.process_id, request.order, **fields)
        return await self._seen(request, reply, _answered)

    async def wait_for(self, request: Request) -> Outcome:
        reply = self.client.await_task(
            request.subject.process_id, idempotency_key=request.key, timeout=request.timeout
        )
        return await self._seen(request, reply, _awaited, kind=Kind.AWAIT)

    async def cancel(self, request: Request) -> Outcome:
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
        reply = self.client.put(
            request.subject.process_id,
            state={"last": imported[-1], "count": len(imported)} if imported else None,
            history=[NewEvent(payload={"id": element}) for element in imported],
            timer=timer,
            idempotency_key=request.key,
            timeout=request.timeout,
        )
        return await self._seen(request, reply, _done, imported=imported)

    async def about(self, subject: Subject, what: str) -> Outcome:
        """Send a request that takes nothing but the process."""
        kind, method, read = _ABOUT[what]
        request = Request(kind=kind, subject=subject, element="")
        reply = getattr(self.client, method)(subject.process_id, timeout=request.timeout)
        return await self._seen(request, reply, read)

    async def list(self) -> None:
        found: list[Process] = []
        sent_at = time.monotonic()
        listing = self.client.list(page_size=_PAGE_SIZE, timeout=5.0)
        # A generator, whatever Client promises: it is closed after one page.
        async with contextlib.aclosing(listing):
            with contextlib.suppress(errors.ProgressorError):
                async for process in listing:
                    found.append(process)
                    if len(found) == _PAGE_SIZE:
                        break
        answered_at = time.monotonic()
        for process in found[:_LISTED_MAX]:
            sight = Sight(str(process.status), process.last_event_id)
            self.notes.totals["list", "done"] += 1
            self.notes.operations.append(
                Operation(
                    process_id=process.process_id,
                    kind=Kind.LOOK,
                    outcome=Done(sight),
                    sent_at=sent_at,
                    answered_at=answered_at,
                )
            )

    async def _seen(
        self,
        request: Request,
        reply: Awaitable[Any],
        read: Callable[[Any], Outcome],
        *,
        kind: Kind | None = None,
        imported: tuple[str, ...] = (),
    ) -> Outcome:
        """Wait for a request to end, note it, and return how it ended."""
        kind, subject = kind or request.kind, request.subject
        subject.in_flight += 1
        sent_at = time.monotonic()
        try:
            outcome = read(await reply)
        except errors.ProgressorError as error:
            outcome = self.notes.outcome_of(error, request)
        finally:
            subject.in_flight -= 1
        answered_at = time.monotonic()
        is_lost = isinstance(outcome, Unknown)
        if is_lost and kind not in {Kind.LOOK, Kind.AWAIT}:
            subject.clean = False
        self.notes.totals[str(kind), _word_for(outcome)] += 1
        if kind in _WRITES and isinstance(outcome, Done | Accepted):
            self.notes.acknowledged.append((answered_at, self.replica))
        self.notes.operations.append(
            Operation(
                process_id=subject.process_id,
                kind=kind,
                outcome=outcome,
                sent_at=sent_at,
                answered_at=math.inf if is_lost else answered_at,
                element=request.element,
                deed=request.deed,
                key=request.key,
                imported=imported,
            )
        )
        return outcome


def _word_for(outcome: Outcome) -> str:
    match outcome:
        case Refused(word) | Unknown(word):
            return word
        case _:
            return type(outcome).__name__.lower()


def _answered(answer: Reply | Receipt) -> Outcome:
    if isinstance(answer, Receipt) or answer.response is None:
        return Accepted()
    return Done(_appended(answer.response))


def _awaited(answer: TaskReply) -> Outcome:
    return Done(None if answer.response is None else _appended(answer.response))


def _appended(response: dict[str, Any]) -> Appended | Again:
    if "again" in response:
        return Again(response["again"])
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
        (event for task in trace.tasks for event in task.events), key=lambda each: each.event_id
    )
    if [event.event_id for event in events] != list(range(1, len(events) + 1)):
        return Unknown("not all of it is on the page")
    elements = tuple(event.payload["id"] for event in events)
    return (
        Unknown("more pages") if trace.next_page_token else Done(Sight("", len(elements), elements))
    )


_ABOUT: Mapping[str, tuple[Kind, str, Callable[[Any], Outcome]]] = {
    "remove": (Kind.REMOVE, "remove", _done),
    "fix": (Kind.SIMPLE_REPAIR, "simple_repair", _revived),
    "retry": (Kind.RETRY, "retry", _done),
    "look": (Kind.LOOK, "get", _looked),
    "trace": (Kind.LOOK, "trace", _traced),
}
"""The kind of an operation, the method of a client, and what makes an outcome of its answer."""
