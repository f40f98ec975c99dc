"""Logins at an issuer of OpenID Connect: the authorization code flow, with PKCE (RFC 7636).

What must hold: a code counts only in the browser that began the login, once, and soon. The browser
never sees a token. Nothing of a login that failed is kept. The tokens of a visitor are renewed once
at a time, because some issuers accept a refresh token only once, and the visitor may leave.
"""

import asyncio
import base64
import dataclasses
import datetime as dt
import hashlib
import logging
import secrets
from collections.abc import Mapping
from urllib.parse import urlencode

from progressor import access_errors, errors
from progressor.clock import Clock
from progressor.console.words.words import mark
from progressor.telemetry.logs.printable import printable
from progressor.wire.openid import OpenIdClient, Tokens, claims_of

BEGUN_MAX = dt.timedelta(minutes=15)
"""How long a visitor may take at the issuer."""

_PAUSE_SECONDS = 5.0
"""Before an issuer that could not be asked is asked again for the same login."""

_WHY_CHARACTERS_MAX = 300
_OK = 200

_log = logging.getLogger(__name__)


class LoginFailedError(Exception):
    """Why a login failed: a text to translate, with values; ``status``: of HTTP."""

    def __init__(self, status: int, text: str, **values: str) -> None:
        self.status, self.text, self.values = status, text, values
        super().__init__(text)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A login whose visitor is at the issuer; they go on at ``onward``."""

    state: str = dataclasses.field(repr=False)
    nonce: str = dataclasses.field(repr=False)
    verifier: str = dataclasses.field(repr=False)
    redirect_uri: str
    onward: str
    ends_at: float


class Login:
    """A visitor whom the issuer has let in: a client asks it for the token of each request."""

    def __init__(self, client: OpenIdClient, clock: Clock, tokens: Tokens) -> None:
        self._client, self._clock = client, clock
        self._tokens: Tokens | None = tokens
        self._renewal: asyncio.Task[None] | None = None
        self._asked_again_at = 0.0

    def __call__(self) -> str:
        """Return the token. Raises UnauthenticatedError once the login has ended."""
        if self._tokens is None:
            raise access_errors.UnauthenticatedError
        return self._tokens.of_kind(self._client.token)

    def forget(self) -> None:
        """Forget the tokens. Safe to repeat."""
        self._tokens = None

    async def renew(self) -> None:
        """Renew the tokens if they are about to expire; goes on if the caller is cancelled.

        Raises:
            UnauthenticatedError: The login has ended.
        """
        if self._is_due():
            if self._renewal is None or self._renewal.done():
                self._renewal = asyncio.create_task(self._renew(), name="renew a login")
            await asyncio.shield(self._renewal)
        self()

    def _is_due(self) -> bool:
        is_old = self._tokens is not None and self._tokens.are_old(_now(self._clock))
        return is_old and self._clock.monotonic() >= self._asked_again_at

    async def _renew(self) -> None:
        tokens = self._tokens
        assert tokens is not None, "checked by `_is_due`"
        try:
            now = _now(self._clock)
            renewed = await asyncio.to_thread(self._client.renewed, tokens, now)
        except errors.ConfigError as error:
            _log.warning("a login was not renewed: %s", printable(str(error)))
            self._asked_again_at = self._clock.monotonic() + _PAUSE_SECONDS
            renewed = tokens if _now(self._clock) < tokens.expires_at else None
        # Unless it was forgotten meanwhile.
        if self._tokens is tokens:
            self._tokens = renewed


class Logins:
    """The logins at one issuer."""

    def __init__(self, client: OpenIdClient, clock: Clock) -> None:
        self._client, self._clock = client, clock

    async def begin(self, redirect_uri: str, onward: str) -> tuple[Begun, str]:
        """Return a login, and the address at the issuer to which the browser goes.

        Raises:
            LoginFailedError: The issuer cannot be asked for it.
        """
        begun = Begun(
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
            redirect_uri=redirect_uri,
            onward=onward,
            ends_at=self._clock.monotonic() + BEGUN_MAX.total_seconds(),
        )
        try:
            url = await asyncio.to_thread(self._client.endpoint, "authorization_endpoint")
        except errors.ConfigError as error:
            raise self._unusable(error) from error
        digest = hashlib.sha256(begun.verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self._client.client_id,
            "redirect_uri": redirect_uri,
            "scope": self._client.scope,
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        return begun, f"{url}{'&' if '?' in url else '?'}{urlencode(query)}"

    async def finish(self, begun: Begun | None, answer: Mapping[str, str]) -> Login:
        """Return the login that the issuer has sent the browser back with.

        Raises:
            LoginFailedError: It is not the one that was begun, or the issuer gives no tokens.
        """
        if begun is None or not self._is_answer_to(begun, answer):
            raise LoginFailedError(
                400, mark("This login has expired, or was not begun in this browser. Log in again.")
            )
        if "code" not in answer:
            raise self._refused(answer)
        try:
            tokens = await asyncio.to_thread(self._exchanged, begun, answer["code"])
        except errors.ConfigError as error:
            raise self._unusable(error) from error
        return Login(self._client, self._clock, tokens)

    def _is_answer_to(self, begun: Begun, answer: Mapping[str, str]) -> bool:
        is_its = secrets.compare_digest(answer.get("state", "").encode(), begun.state.encode())
        return is_its and self._clock.monotonic() < begun.ends_at

    def _exchanged(self, begun: Begun, code: str) -> Tokens:
        """Return the tokens for a code; blocks."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": begun.redirect_uri,
            "code_verifier": begun.verifier,
        }
        status, answer = self._client.ask("token_endpoint", form)
        if status != _OK:
            raise self._refused(answer)
        now = _now(self._clock)
        tokens = self._client.tokens_of(answer, now)
        self._check_id(tokens.id_token, begun.nonce)
        return tokens

    def _check_id(self, id_token: str, nonce: str) -> None:
        """Raise ConfigError unless an ID token is of this login, by OpenID Connect Core 3.1.3.7.

        It came from the issuer itself, so that its signature proves nothing more; if it goes to the
        engine, the engine verifies that as well.
        """
        claims, issuer = claims_of(id_token), self._client.issuer
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        if claims.get("iss") != issuer or self._client.client_id not in audiences:
            raise errors.ConfigError(issuer, "has sent no ID token for this client")
        if claims.get("nonce") != nonce:
            raise errors.ConfigError(issuer, "has sent the ID token of another login")

    def _refused(self, answer: Mapping[str, object]) -> LoginFailedError:
        given = [answer.get("error"), answer.get("error_description")]
        why = ": ".join(printable(it) for it in given if isinstance(it, str))
        text = mark("%(issuer)s refused the login: %(why)s")
        shown = why[:_WHY_CHARACTERS_MAX] or "?"
        return LoginFailedError(403, text, issuer=self._client.issuer, why=shown)

    def _unusable(self, error: errors.ConfigError) -> LoginFailedError:
        _log.warning("a login failed: %s", printable(str(error)))
        text = mark("%(issuer)s cannot be reached, or its answer cannot be used. Try again later.")
        return LoginFailedError(502, text, issuer=self._client.issuer)


def _now(clock: Clock) -> float:
    return clock.now().timestamp()
