"""Named points that the engine passes, for tests to wait for."""

import collections
from collections.abc import Callable

Observer = Callable[[str, dict[str, object]], None]
"""Called with the name of a point and its facts; must be quick and must not raise."""


class Observers:
    """The observers of one replica, and how often each point was passed."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []
        self.counts: collections.Counter[str] = collections.Counter()

    def add(self, observer: Observer) -> None:
        self._observers.append(observer)

    def tell(self, point: str, **facts: object) -> None:
        self.counts[point] += 1
        for observer in self._observers:
            observer(point, facts)
