"""What clients note while they ask: every operation, every acknowledgement, every surprise."""

import collections
import dataclasses
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

from progressor import errors
from progressor.sdk import EngineUnavailableError, UnexpectedStatusError
from tests.chaos.load.process_pool import Request
from tests.support.models.history.history import (
    Accepted,
    Done,
    Kind,
    Operation,
    Outcome,
    Refused,
    Sight,
    Unknown,
)

_NO_WORD = (
    EngineUnavailableError,
    errors.StorageUnavailableError,
    errors.DeadlineExceededError,
    errors.ReplicaStoppedError,
)
_NOTHING_ACCEPTED = (errors.OverloadedError, errors.ShuttingDownError)
_WRITES = frozenset({Kind.START, Kind.CALL, Kind.NOTIFY, Kind.REPAIR, Kind.PUT})
_NEVER = frozenset(
    {"IDEMPOTENCY_KEY_REUSED", "INVALID_REQUEST", "NAMESPACE_NOT_FOUND", "TASK_FAILED"}
)


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

    async def seen(
        self,
        request: Request,
        reply: Awaitable[Any],
        read: Callable[[Any], Outcome],
        *,
        replica: int,
        kind: Kind,
        imported: tuple[str, ...] = (),
    ) -> Outcome:
        """Wait for a request to end, note it, and return how it ended.

        Args:
            request: What is asked.
            reply: Sent when it is awaited.
            read: Makes an outcome of the answer.
            replica: The number of the one that is asked.
            kind: That of the operation: AWAIT where a request is awaited by its key.
            imported: The elements that a Put brings.
        """
        subject = request.subject
        subject.in_flight += 1
        sent_at = time.monotonic()
        try:
            outcome = read(await reply)
        except errors.ProgressorError as error:
            outcome = self._outcome_of(error, request)
        finally:
            subject.in_flight -= 1
        answered_at = time.monotonic()
        is_lost = isinstance(outcome, Unknown)
        if is_lost and kind not in {Kind.LOOK, Kind.AWAIT}:
            subject.clean = False
        self._count(kind, outcome)
        if kind in _WRITES and isinstance(outcome, Done | Accepted):
            self.acknowledged.append((answered_at, replica))
        self.operations.append(
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

    def glimpsed(self, process_id: str, sight: Sight, sent_at: float, answered_at: float) -> None:
        """Note what was seen of a process among others."""
        self.totals["list", "done"] += 1
        self.operations.append(
            Operation(
                process_id=process_id,
                kind=Kind.LOOK,
                outcome=Done(sight),
                sent_at=sent_at,
                answered_at=answered_at,
            )
        )

    def _outcome_of(self, error: errors.ProgressorError, request: Request) -> Outcome:
        if isinstance(error, UnexpectedStatusError):
            self.surprises.append(
                f"{request.kind} {request.element} of {request.subject.process_id}: {error}"
            )
            return Unknown(f"UNEXPECTED_{error.code.name}")
        if error.reason in _NEVER:
            self.surprises.append(
                f"{request.kind} {request.element} of {request.subject.process_id}: {error}"
            )
        if isinstance(error, _NO_WORD) or (request.key and isinstance(error, _NOTHING_ACCEPTED)):
            # Of a request with a key an earlier attempt may have been accepted.
            return Unknown(error.reason)
        return Refused(error.reason)

    def _count(self, kind: Kind, outcome: Outcome) -> None:
        self.totals[str(kind), _word_for(outcome)] += 1


def _word_for(outcome: Outcome) -> str:
    match outcome:
        case Refused(word) | Unknown(word):
            return word
        case _:
            return type(outcome).__name__.lower()
