"""Payloads: how many events, and how many bytes of what kind, settlements have added."""

import dataclasses
from collections.abc import Iterable

from progressor.domain.processes.intent import Complete, SetTimer
from progressor.domain.processes.settlement import Finish, Remove, Settlement
from progressor.telemetry.metrics.registry import Metrics


@dataclasses.dataclass(slots=True)
class _Sums:
    """Of one namespace in one batch; in bytes but for the first."""

    event_count: int = 0
    events: int = 0
    response: int = 0
    aux_state: int = 0
    args: int = 0
    result: int = 0

    def add(self, settlement: Settlement) -> None:
        if isinstance(settlement, Remove):
            self.response += len(settlement.response)
        if not isinstance(settlement, Finish):
            return
        intent = settlement.intent
        self.event_count += len(intent.events)
        for event in intent.events:
            self.events += len(event.payload)
        self.response += len(intent.response)
        self.aux_state += len(intent.aux_state or b"")
        if isinstance(intent.timer, SetTimer):
            self.args += len(intent.timer.args)
        if isinstance(intent.action, Complete):
            self.result += len(intent.action.result)


class Payloads:
    """Counts a batch at a time, since most are of one namespace."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def add(self, written: Iterable[tuple[str, Settlement]]) -> None:
        """Count settlements that are durable, each with its namespace."""
        by_namespace: dict[str, _Sums] = {}
        for namespace, settlement in written:
            sums = by_namespace.get(namespace)
            if sums is None:
                sums = by_namespace[namespace] = _Sums()
            sums.add(settlement)
        for namespace, sums in by_namespace.items():
            if sums.event_count:
                self._metrics.events_written.add(sums.event_count, (namespace,))
            for kind in ("events", "response", "aux_state", "args", "result"):
                amount = getattr(sums, kind)
                if amount:
                    self._metrics.bytes_written.add(amount, (namespace, kind))
