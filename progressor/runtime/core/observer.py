"""Named points that the engine passes: what tests wait for, and metrics count."""

import collections
from collections.abc import Callable

Observer = Callable[[str, dict[str, object]], None]
"""Told the name of a point and its facts; must be quick and must not raise."""


class Observers:
    """Those who want to be told."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []
        self.counts: collections.Counter[str] = collections.Counter()

    def add(self, observer: Observer) -> None:
        """Tell `observer` from now on."""
        self._observers.append(observer)

    def tell(self, point: str, **facts: object) -> None:
        """Say that a point was passed."""
        self.counts[point] += 1
        for observer in self._observers:
            observer(point, facts)
