"""Invariants of the requests of a session: each ends exactly once, in whatever order."""

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from progressor.sdk.transport.unanswered import Pending, Unanswered

MOVES = ("add", "write", "answer", "answer again", "expire", "cancel", "cut")

moves = st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 9)), max_size=60)


class CutError(Exception):
    """The session broke."""


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Return a loop that only gives out futures."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class Ledger:
    """What should have become of each request, told in the simplest way."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.unanswered = Unanswered()
        self.pendings: list[Pending] = []
        self.ends: dict[int, str] = {}

    def add(self) -> None:
        pending = Pending("call", b"", ends_at=0.0, trace=None, answer=self.loop.create_future())
        self.unanswered.add(pending)
        self.pendings.append(pending)

    def end(self, pending: Pending, how: str) -> bool:
        """Note an end unless there was one, and tell whether there was none."""
        return self.ends.setdefault(pending.call_id, how) == how

    def expire(self, pending: Pending) -> None:
        waits = pending in self.unanswered
        self.end(pending, "expired")
        assert self.unanswered.give_up(pending, TimeoutError()) == (waits and pending.is_written)

    def cancel(self, pending: Pending) -> None:
        # The caller is cancelled, and so is the future that it awaits.
        if not pending.answer.done():
            self.end(pending, "cancelled")
            pending.answer.cancel()
        self.unanswered.give_up(pending)

    def answer(self, pending: Pending) -> None:
        self.end(pending, "answered")
        self.unanswered.resolve(pending.call_id, ("call", b"%d" % pending.call_id))

    def cut(self) -> None:
        for pending in self.pendings:
            self.end(pending, "cut")
        self.unanswered.fail(CutError)


def end_of(pending: Pending) -> str | None:
    """Return how a request has ended, None while it has not."""
    future = pending.answer
    if not future.done():
        return None
    if future.cancelled():
        return "cancelled"
    error = future.exception()
    if error is None:
        assert future.result() == ("call", b"%d" % pending.call_id), "it is its own answer"
        return "answered"
    return "cut" if isinstance(error, CutError) else "expired"


@given(moves)
def test_each_request_ends_once_by_what_came_first(
    loop: asyncio.AbstractEventLoop, moves: list[tuple[str, int]]
) -> None:
    ledger = Ledger(loop)
    for move, number in moves:
        if move == "add":
            ledger.add()
        elif move == "cut":
            ledger.cut()
        elif ledger.pendings:
            pending = ledger.pendings[number % len(ledger.pendings)]
            if move == "write":
                pending.is_written = pending in ledger.unanswered or pending.is_written
            elif move == "expire":
                ledger.expire(pending)
            elif move == "cancel":
                ledger.cancel(pending)
            else:
                ledger.answer(pending)

    waiting = [it for it in ledger.pendings if it.call_id not in ledger.ends]
    assert [end_of(it) for it in ledger.pendings] == [
        ledger.ends.get(it.call_id) for it in ledger.pendings
    ]
    assert len(ledger.unanswered) == len(waiting)
    assert len({it.call_id for it in ledger.pendings}) == len(ledger.pendings)
    ledger.cut()
    assert all(it.answer.done() for it in ledger.pendings)


def test_an_answer_to_an_unknown_request_is_ignored() -> None:
    unanswered = Unanswered()
    unanswered.resolve(7, ("call", b""))

    assert len(unanswered) == 0
