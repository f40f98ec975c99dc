"""Access control of an engine: its guard, and the configured issuers of identity tokens."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from progressor.api.guard.callers import Callers
from progressor.api.guard.guard import Guard
from progressor.clock import Clock
from progressor.settings.config import Config
from progressor.settings.issuers import Issuer
from progressor.storage.access.access import Access
from progressor.telemetry.metrics.registry import Metrics


class AccessControl:
    """The guard of an engine, None without access control; ``fetchers`` run with the engine."""

    def __init__(
        self, config: Config, access: Callable[[], Access], *, clock: Clock, metrics: Metrics
    ) -> None:
        self.guard: Guard | None = None
        self.fetchers: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = ()
        if config.access.enabled:
            callers = self._callers(config.issuers, clock, metrics)
            self.guard = Guard(access, callers)

    def _callers(self, issuers: Mapping[str, Issuer], clock: Clock, metrics: Metrics) -> Callers:
        if not issuers:
            return Callers(clock)
        # Importing these takes 100 ms, which an engine without issuers need not spend.
        from progressor.api.guard.identity_tokens import IdentityTokens, KnownIssuer  # noqa: PLC0415  # as above
        from progressor.api.guard.issuer_keys import IssuerKeys  # noqa: PLC0415  # as above

        def counted(name: str) -> Callable[[str], None]:
            # The series must exist with 0 first: an alert does not see its first value as growth.
            metrics.key_fetches.add(0, (name, "failed"))
            return lambda result: metrics.key_fetches.add(1, (name, result))

        known = [
            KnownIssuer(name=name, settings=it, keys=IssuerKeys(name, it, counted=counted(name)))
            for name, it in issuers.items()
        ]
        self.fetchers = tuple(it.keys.run for it in known)
        return Callers(clock, IdentityTokens(known, clock))
