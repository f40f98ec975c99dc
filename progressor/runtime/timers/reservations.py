"""Places for due tasks: reserved before a claim, given back after it."""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from progressor.domain.processes.namespace import Namespace
from progressor.runtime.core.context import Context
from progressor.runtime.core.slots import Slots
from progressor.storage.processes.claims import Claimed, Room


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SlotReservations:
    """Reserves places, and starts what was claimed for them."""

    slots: Slots
    context: Context

    def rooms(self, namespaces: Iterable[Namespace], *, limit: int) -> list[Room]:
        """Reserve up to `limit` places in each namespace; those without any are left out."""
        rooms = []
        for namespace in namespaces:
            count = self.slots.reserve_up_to(namespace, limit)
            if count:
                rooms.append(
                    Room(
                        namespace=namespace.name,
                        limit=count,
                        expires_after=self.context.lease_of(namespace),
                        requests_first=self.slots.next_turn(namespace.name),
                    )
                )
        return rooms

    @contextlib.contextmanager
    def kept(self, rooms: Sequence[Room]) -> Iterator[None]:
        """Return the places if the claim inside fails or is cancelled."""
        with contextlib.ExitStack() as undo:
            for room in rooms:
                undo.callback(self.slots.give_back, room.namespace, room.limit)
            yield
            undo.pop_all()

    def fill(self, rooms: Sequence[Room], claimed: Sequence[Claimed]) -> None:
        """Start what was claimed, and return the places that are left."""
        left = {room.namespace: room.limit for room in rooms}
        for each in claimed:
            left[each.task.key.namespace] -= 1
            self.slots.start(each.task)
        for namespace, count in left.items():
            assert count >= 0, "claimed more tasks than there are places"
            if count:
                self.slots.give_back(namespace, count)
