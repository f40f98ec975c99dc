"""A client of an issuer of OpenID Connect: what it asks for, and the tokens that it gets; blocks.

Nothing here verifies a token's signature: the engine does, for each request.
"""

import base64
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote_plus

from progressor import errors
from progressor.wire.tls import is_token

TokenKind = Literal["access", "id"]

SCOPE = "openid offline_access"
"""What is requested from an issuer by default: who the user is, and a refresh token."""

_EARLY_SECONDS = 30.0
_LIFETIME_SECONDS = 300.0
"""Of a token whose issuer says nothing of it."""

_SECONDS_MAX = 1e9
_INSTANT_MAX = 1e11
_OK = 200


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What a login has given."""

    issuer: str
    expires_at: float
    access_token: str = dataclasses.field(repr=False)
    id_token: str = dataclasses.field(repr=False, default="")
    refresh_token: str = dataclasses.field(repr=False, default="")

    def of_kind(self, kind: TokenKind) -> str:
        return self.id_token if kind == "id" else self.access_token

    def are_old(self, now: float) -> bool:
        """Return whether they have expired, or are about to."""
        return now >= self.expires_at - _EARLY_SECONDS


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OpenIdClient:
    """A client as it is registered at its issuer; ``token``: which one goes to the engine."""

    issuer: str
    client_id: str
    client_secret: str = dataclasses.field(repr=False, default="")
    scope: str = SCOPE
    token: TokenKind = "access"  # noqa: S105  # a kind of token
    ca: Path | None = None

    def endpoint(self, name: str) -> str:
        """Return the URL of an endpoint of the issuer.

        Raises:
            ConfigError: The issuer does not say it.
        """
        from progressor.wire.https import HttpsError, discover  # noqa: PLC0415  # few commands need it

        try:
            return discover(self.issuer, name, ca=self.ca)
        except HttpsError as error:
            raise errors.ConfigError(self.issuer, f"cannot be asked: {error}") from error

    def ask(self, name: str, form: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        """Return the status and the answer of an endpoint of the issuer.

        Raises:
            ConfigError: There is none that can be used.
        """
        from progressor.wire.https import HttpsError, fetch_json  # noqa: PLC0415  # few commands need it

        url, headers = self.endpoint(name), {}
        if self.client_secret:
            pair = f"{quote_plus(self.client_id)}:{quote_plus(self.client_secret)}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form = {"client_id": self.client_id, **form}
        try:
            return fetch_json(url, form=form, headers=headers, ca=self.ca)
        except HttpsError as error:
            raise errors.ConfigError(self.issuer, f"cannot be asked: {error}") from error

    def tokens_of(
        self, answer: Mapping[str, Any], now: float, earlier: Tokens | None = None
    ) -> Tokens:
        """Return what the token endpoint has answered.

        Raises:
            ConfigError: The token that is to go to the engine is not there.
        """
        given = {
            key: it
            for key in ("access_token", "id_token", "refresh_token")
            if isinstance(it := answer.get(key), str) and is_token(it)
        }
        if earlier is not None:
            given = {"refresh_token": earlier.refresh_token, **given}
        expires_at = now + seconds_in(answer, "expires_in", _LIFETIME_SECONDS)
        # What an answer says of a lifetime is about the access token alone.
        exp = claims_of(given.get("id_token", "")).get("exp")
        is_sent = self.token == "id"  # noqa: S105  # a kind of token
        if is_sent and isinstance(exp, int | float) and 0 < exp < _INSTANT_MAX:
            expires_at = float(exp)
        found = Tokens(issuer=self.issuer, expires_at=expires_at, **{"access_token": "", **given})
        if not found.of_kind(self.token):
            words = f"has sent no {self.token} token; the scope is {self.scope!r}"
            raise errors.ConfigError(self.issuer, words)
        return found

    def renewed(self, tokens: Tokens, now: float) -> Tokens | None:
        """Return new tokens for old ones; None: the issuer gives none.

        Raises:
            ConfigError: The issuer cannot be asked, or has not sent the token for the engine.
        """
        if not tokens.refresh_token:
            return None
        form = {"grant_type": "refresh_token", "refresh_token": tokens.refresh_token}
        status, answer = self.ask("token_endpoint", form)
        return self.tokens_of(answer, now, tokens) if status == _OK else None


def claims_of(token: str) -> Mapping[str, Any]:
    """Return the claims of a token, unverified; none if it is not a JWT."""
    try:
        content = token.split(".")[1]
        found = json.loads(base64.urlsafe_b64decode(content + "=" * (-len(content) % 4)))
    except (IndexError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def seconds_in(answer: Mapping[str, Any], key: str, otherwise: float) -> float:
    """Return how long something lasts by an answer; `otherwise` if that is no such number."""
    value: object = answer.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return otherwise
    # Neither not-a-number nor what no float can hold is between these.
    return float(value) if 0 < value <= _SECONDS_MAX else otherwise
