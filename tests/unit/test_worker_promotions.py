"""Promotions: what becomes of what statements tell of gates."""

from collections.abc import Sequence

from progressor.domain.process import process_key
from progressor.storage.gates import GaveWay
from progressor.storage.promoted import Again, Later, LoweredGate, Promoted
from progressor.worker.agenda import Agenda
from progressor.worker.giving_way import GivingWay
from progressor.worker.promotions import Promotions
from tests.support.builders import seconds
from tests.support.clock import ManualClock

KEY = process_key("orders", "p1")


class NoGates:
    """Gates that nobody asks."""

    async def look_again(self, namespace: str, again: Sequence[Again]) -> Promoted:
        raise NotImplementedError

    async def promote_due(self, namespaces: Sequence[str]) -> Promoted:
        raise NotImplementedError

    async def give_way(self, lowered: LoweredGate) -> GaveWay:
        raise NotImplementedError


class Bench:
    """Promotions, and the agenda that they write into."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.agenda = Agenda(clock=self.clock, horizon=seconds(60), size_max=10)
        self.promotions = Promotions(
            gates=NoGates(),
            agenda=self.agenda,
            clock=self.clock,
            horizon_seconds=60,
            giving_way=GivingWay(gates=NoGates(), clock=self.clock),
        )

    def taken_after(self, pause: float) -> list[int]:
        self.clock.advance(seconds(pause))
        return [due.task_id for due in self.agenda.take_due(10)]


def test_who_has_passed_is_claimed_at_once() -> None:
    bench = Bench()

    bench.promotions.heard(Promoted(due=((KEY, 1),)))

    assert bench.taken_after(0.001) == [1]


def test_who_is_due_later_is_claimed_then_and_not_before() -> None:
    bench = Bench()

    bench.promotions.heard(Promoted(upcoming=(Later(KEY, 1, 2.0),)))

    assert (bench.taken_after(1.9), bench.taken_after(0.2)) == ([], [1])
