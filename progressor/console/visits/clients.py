"""Clients of the engine, one per identity, and who the engine takes each for."""

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

from progressor import access_errors, errors
from progressor.clock import Clock
from progressor.console.options import Options
from progressor.domain.access.answers import Identity
from progressor.sdk.client.client import Client
from progressor.sdk.codec.codecs import BYTES

CLIENTS_MAX = 200
KNOWN_SECONDS = 5.0
"""For how long an identity is not asked for again."""

TIMEOUT_SECONDS = 10.0
IDENTITY_TIMEOUT_SECONDS = 2.0
"""Short, because what is known of an identity serves while the engine is away."""
IDLE_SECONDS = 600.0
"""How long an unused connection is kept; an open page uses its own."""


Credential = str | Callable[[], str] | None
"""The token of a visitor, or what is asked for it at each request; None: they have none."""


@dataclasses.dataclass(slots=True)
class _Known:
    client: Client
    identity: Identity | None = None
    asked_at: float = 0.0
    used_at: float = 0.0


class Clients:
    """The connections of a console to its engine."""

    def __init__(self, options: Options, clock: Clock) -> None:
        self._options, self._clock = options, clock
        self._known: collections.OrderedDict[Credential, _Known] = collections.OrderedDict()

    async def of(self, token: Credential) -> Client:
        """Return the client that sends a token; None: no token.

        Raises:
            ValueError: The token would be sent in the clear.
        """
        return (await self._of(token)).client

    async def check(self, token: Credential) -> Identity:
        """Return who the engine takes the bearer of a new token for.

        Only then is a connection kept: invalid tokens, however many, close no visitor's.

        Raises:
            ValueError: The token would be sent in the clear.
            UnauthenticatedError: The token is not valid.
            ProgressorError: The engine cannot tell.
        """
        if not token:
            raise access_errors.UnauthenticatedError
        known = _Known(self._made(token))
        try:
            known.identity = await known.client.access.who_am_i()
            known.asked_at = self._clock.monotonic()
            if known.identity.is_access_controlled and token not in self._known:
                known.used_at = known.asked_at
                self._known[token] = known
        finally:
            if self._known.get(token) is not known:
                await known.client.close()
        return known.identity

    async def identity(self, token: Credential) -> Identity:
        """Return who the engine takes the bearer of a token for.

        While the engine does not answer, that is what it said before.

        Raises:
            UnauthenticatedError: The token is not valid.
            ProgressorError: The engine cannot tell.
        """
        known, now = await self._of(token), self._clock.monotonic()
        if known.identity is None or now - known.asked_at > KNOWN_SECONDS:
            try:
                known.identity = await known.client.access.who_am_i(
                    timeout=IDENTITY_TIMEOUT_SECONDS
                )
            except access_errors.UnauthenticatedError:
                await self.forget(token)
                raise
            except errors.ProgressorError:
                if known.identity is None:
                    raise
            known.asked_at = now
        if token is None and known.identity.is_access_controlled:
            # It is that of the console's own certificate, which is not for its visitors.
            raise access_errors.UnauthenticatedError
        return known.identity

    async def forget(self, token: Credential) -> None:
        """Close the connection of a token. Safe to repeat."""
        known = self._known.pop(token, None)
        if known is not None:
            await known.client.close()

    async def close(self) -> None:
        """Close all connections."""
        while self._known:
            await self.forget(next(iter(self._known)))

    async def _of(self, token: Credential) -> _Known:
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = _Known(self._made(token))
        known.used_at = now = self._clock.monotonic()
        self._known.move_to_end(token)
        oldest = now - IDLE_SECONDS
        for unused, it in [*self._known.items()]:
            if it.used_at >= oldest and len(self._known) <= CLIENTS_MAX:
                break
            await self.forget(unused)
        return known

    def _made(self, token: Credential) -> Client:
        given = (lambda: token) if isinstance(token, str) else token
        arguments: dict[str, Any] = {**self._options.identity, "token": given}
        return Client(
            self._options.address,
            codec=BYTES,
            timeout=TIMEOUT_SECONDS,
            session=False,
            **arguments,
        )
