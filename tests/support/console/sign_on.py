"""Single sign-on at the issuer of the tests: each login succeeds as `claims` say."""

import base64
import hashlib
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from tests.support.api.issuer import AUDIENCE, TestIssuer

CLIENT_ID = "console"


class SignOn:
    """The endpoints of an issuer that takes each code and each refresh token once.

    ``denied``: what it sends browsers back with instead of a code. ``changed``: what is otherwise
    in the next ID tokens. ``answer``: what the token endpoint says instead.
    """

    def __init__(self, issuer: TestIssuer) -> None:
        issuer.more = {"authorization_endpoint": "/authorize", "token_endpoint": "/token"}
        issuer.redirects = {"/authorize": self._authorize}
        issuer.posts = {"/token": self._token}
        self.issuer = issuer
        self.claims: dict[str, Any] = {"sub": "ada"}
        self.changed: dict[str, Any] = {}
        self.denied: dict[str, str] = {}
        self.answer: tuple[int, Any] | None = None
        self.queries: list[Mapping[str, str]] = []
        self.forms: list[Mapping[str, str]] = []
        self.codes: dict[str, Mapping[str, str]] = {}
        self.refresh_tokens: set[str] = set()
        self.given: list[str] = []
        """All tokens, which must show nowhere."""

    @property
    def renewal_count(self) -> int:
        return sum(form["grant_type"] == "refresh_token" for form in self.forms)

    def _authorize(self, query: Mapping[str, str]) -> str:
        self.queries.append(query)
        code = secrets.token_urlsafe()
        self.codes[code] = query
        answer = self.denied or {"code": code}
        return f"{query['redirect_uri']}?{urlencode({**answer, 'state': query['state']})}"

    def _token(self, form: Mapping[str, str]) -> tuple[int, Any]:
        self.forms.append(form)
        if self.answer is not None:
            return self.answer
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] not in self.refresh_tokens:
                return 400, {"error": "invalid_grant"}
            self.refresh_tokens.remove(form["refresh_token"])
            return 200, self._tokens({})
        asked = self.codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        is_its = asked is not None and (challenge, form["redirect_uri"]) == (
            asked["code_challenge"],
            asked["redirect_uri"],
        )
        if asked is None or not is_its:
            return 400, {"error": "invalid_grant", "error_description": "unknown code"}
        return 200, self._tokens({"nonce": asked["nonce"]})

    def _tokens(self, more: Mapping[str, Any]) -> dict[str, Any]:
        refresh = secrets.token_urlsafe()
        self.refresh_tokens.add(refresh)
        audiences = [CLIENT_ID, AUDIENCE]
        answer = {
            "access_token": self.issuer.token(**self.claims),
            "id_token": self.issuer.token(
                **{"aud": audiences, **self.claims, **more, **self.changed}
            ),
            "refresh_token": refresh,
        }
        self.given += answer.values()
        return {**answer, "token_type": "Bearer", "expires_in": 600}
