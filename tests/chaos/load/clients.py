"""Clients: coroutines that go on asking, whatever is broken."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from progressor.sdk import NewTimer
from tests.chaos.history import (
    ENDING_DEEDS,
    GONE,
    Accepted,
    Deed,
    Done,
    Kind,
    Outcome,
    Refused,
    Unknown,
)
from tests.chaos.load.connections import Connection, Connections, Notes
from tests.chaos.load.gates import ELASTIC, ELASTIC_CAPACITIES, may_be_cancelled
from tests.chaos.load.process_pool import ProcessPool, Request, Requester, Subject

_PAUSE_SECONDS = 0.06
"""At most, between two requests of a client."""

_REPEATS_MAX = 4
_CROWD = 3
_IMPORTED_MAX = 3

_RUNNING = {"call": 60.0, "notify": 9.0, "look": 12.0, "trace": 2.0, "list": 2.0, "await": 4.0,
            "again": 4.0, "crowd": 1.5, "remove": 0.5, "repair": 0.7, "fix": 0.3, "retry": 0.3,
            "start": 0.5, "cancel": 2.0, "set_gate": 0.5}  # fmt: skip
_BROKEN = {"repair": 30.0, "fix": 15.0, "retry": 30.0, "call": 10.0, "look": 10.0, "again": 5.0,
           "remove": 1.0}  # fmt: skip
_BEGINNING = {"call": 50.0, "notify": 10.0, "look": 30.0, "fix": 2.0, "list": 5.0}


Send = Callable[[Connection, Request], Awaitable[Outcome]]


class Caller:
    """One client. It stays on a connection until a request is lost there, or at random."""

    def __init__(
        self, number: int, *, connections: Connections, pool: ProcessPool, notes: Notes, seed: int
    ) -> None:
        self._random = random.Random(f"{seed}:{number}")
        self._requester = Requester(f"c{number}", self._random)
        self._connections, self._pool, self._notes = connections, pool, notes
        self._connection = connections.another()

    async def run(self, ending: asyncio.Event) -> None:
        while not ending.is_set():
            await asyncio.sleep(self._random.uniform(0.0, _PAUSE_SECONDS))
            if self._random.random() < 0.02:
                self._move()
            subject = self._pool.pick()
            if subject is None:
                await self._begin(self._pool.grow())
            else:
                await self._act(subject)

    async def _begin(self, subject: Subject) -> None:
        """Start a process, or import one, and do not let go before it is known."""
        kind = Kind.PUT if self._random.random() < 0.05 else Kind.START
        request = self._requester.ask(kind, subject)
        outcome = await (self._put(request) if kind is Kind.PUT else self._insist(request))
        subject.begun = isinstance(outcome, Done)
        subject.broken = request.deed is Deed.FAIL
        subject.over = isinstance(outcome, Unknown) or request.deed is Deed.REJECT

    async def _act(self, subject: Subject) -> None:
        weights = _BROKEN if subject.broken else _RUNNING if subject.begun else _BEGINNING
        choice = self._random.choices(list(weights), list(weights.values()))[0]
        match choice:
            case "call" | "notify" | "repair":
                await self._request(self._requester.ask(Kind(choice), subject))
            case "again" | "await":
                await self._again(subject, choice)
            case "crowd":
                await self._crowd(subject)
            case "start" | "fix" | "retry" | "remove":
                await self._meddle(subject, choice)
            case "cancel":
                await self._cancel(subject)
            case "set_gate":
                await self._connection.set_gate(ELASTIC, self._random.choice(ELASTIC_CAPACITIES))
            case _:
                await self._read(subject, choice)

    async def _request(self, request: Request) -> None:
        subject = request.subject
        subject.ending = subject.ending or request.deed in ENDING_DEEDS
        if may_be_cancelled(request.kind, request.constraints, request.key):
            # While it is asked for: it may wait for long.
            subject.cancellable.append(request)
        outcome = await self._connection.send(request)
        if isinstance(outcome, Unknown):
            self._move()
            if request.key and self._random.random() < 0.75:
                outcome = await self._insist(request)
        self._learn(request, outcome)

    def _learn(self, request: Request, outcome: Outcome) -> None:
        subject = request.subject
        match outcome:
            case Refused("PROCESS_FAILED"):
                subject.broken = True
            case Refused("PROCESS_IS_RUNNING"):
                subject.broken = False
            case Refused("PROCESS_FINISHED"):
                subject.over = True
            case Refused(reason) if reason in GONE and subject.ending:
                subject.over = True
            case Done() | Accepted():
                subject.broken = subject.broken and request.kind is not Kind.REPAIR
                if request.key:
                    subject.known.append(request)
            case _:
                pass

    async def _insist(self, request: Request, send: Send = Connection.send) -> Outcome:
        """Ask until it is known what became of it, elsewhere each time; or not for ever."""
        is_start = request.kind in {Kind.START, Kind.PUT}
        request.subject.starting += is_start
        outcome: Outcome = Unknown()
        for attempt in range(_REPEATS_MAX):
            awaits = attempt > 0 and not is_start and self._random.random() < 0.5
            outcome = await (Connection.wait_for if awaits else send)(self._connection, request)
            if not isinstance(outcome, Unknown):
                break
            self._move()
        request.subject.starting -= is_start
        return outcome

    async def _put(self, request: Request) -> Outcome:
        elements = range(self._random.randint(0, _IMPORTED_MAX))
        imported = tuple(f"{request.element}.{number}" for number in elements)
        timer = None
        if self._random.random() < 0.5:
            args = {**self._requester.timer(), "by": request.element}
            timer = NewTimer(after=args["after"], args=args)
        return await self._insist(
            request, lambda connection, put: connection.put(put, imported, timer)
        )

    async def _again(self, subject: Subject, choice: str) -> None:
        """Ask once more for what is known: the same request, or by its key."""
        if not subject.known:
            return
        request = self._random.choice(subject.known)
        self._move()
        if choice == "again":
            await self._connection.send(request)
        elif (
            await self._connection.wait_for(request) == Refused("TASK_NOT_FOUND")
            and not subject.ending
            and not request.may_lose_its_key
        ):
            self._notes.surprises.append(
                f"{subject.process_id}: {request.element} was acknowledged, its key is unknown"
            )

    async def _cancel(self, subject: Subject) -> None:
        if subject.cancellable:
            request = subject.cancellable.pop()
            # A task that is cancelled before its step began gives its key back.
            subject.cancelled.append(request)
            await self._connection.cancel(request)

    async def _crowd(self, subject: Subject) -> None:
        """Ask the same at once on several connections."""
        request = self._requester.ask(Kind.CALL, subject)
        if not request.key or request.deed in ENDING_DEEDS:
            return
        async with asyncio.TaskGroup() as group:
            for _ in range(_CROWD):
                group.create_task(self._connections.another().send(request), name="one of a crowd")

    async def _meddle(self, subject: Subject, choice: str) -> None:
        if choice == "fix":
            fixed = await self._connection.about(subject, "fix")
            subject.broken = subject.broken and not isinstance(fixed, Done)
        elif choice == "retry":
            await self._connection.about(subject, "retry")
        elif choice == "remove":
            await self._remove(subject)
        elif subject.begun and not subject.ending:
            await self._insist(self._requester.ask(Kind.START, subject))

    async def _remove(self, subject: Subject) -> None:
        """Remove a process; where no word about it was ever lost, begin another in its place."""
        if not subject.may_end:
            return
        subject.ending = True
        outcome = await self._connection.about(subject, "remove")
        if not isinstance(outcome, Done) or not subject.may_begin_anew:
            subject.over = True
            return
        subject.begun = subject.broken = subject.ending = subject.completes = False
        subject.known.clear()
        subject.cancellable.clear()
        await self._begin(subject)

    async def _read(self, subject: Subject, choice: str) -> None:
        connection: Connection = (
            self._connections.another() if self._random.random() < 0.3 else self._connection
        )
        if choice == "list":
            await connection.list()
        else:
            await connection.about(subject, choice)

    def _move(self) -> None:
        self._connection = self._connections.another()
