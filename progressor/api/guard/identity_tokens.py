"""OpenID Connect tokens: signed JWTs of configured issuers, and the principals that they name.

Each check that fails has its own message, which only the engine's log shows. The result for a valid
token is cached by its hash, so that its signature is not verified again for each request.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from joserfc.errors import JoseError
from joserfc.jws import CompactSignature, JWSRegistry, extract_compact
from joserfc.util import urlsafe_b64decode

from progressor import access_errors
from progressor.api.guard.callers import UnknownKeyError
from progressor.api.guard.issuer_keys import IssuerKeys, Key
from progressor.clock import Clock
from progressor.domain.access.rights import PRINCIPAL_BYTES_MAX, Principal
from progressor.settings.issuers import Issuer
from progressor.wire.fields import shown

TOKEN_BYTES_MAX = 16 * 1024
GROUPS_MAX = 512
_WEIGHT_MAX = 500_000
"""Of the remembered tokens, about 80 bytes each: 10,000 tokens, fewer if they have many groups."""

_TOKEN_WEIGHT = 50
_CREDENTIAL_MAX = 256

_TYPES = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
"""Issuers sign other tokens with the same key, such as logout tokens; their types differ."""

_INSTANT_MAX = 1e15
"""Instants beyond it are refused, and so are infinity and integers that do not fit a float."""

_VERIFIED = (True, "true")

_NOT_SUPPORTED = ("crit", "b64", "zip")


class _Registry(JWSRegistry):
    max_header_length = TOKEN_BYTES_MAX
    max_signature_length = 4096


_SIZES = _Registry()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KnownIssuer:
    """A configured issuer, the name of its table, and its keys."""

    name: str
    settings: Issuer
    keys: IssuerKeys


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Checked:
    """The result of checking a valid token."""

    principal: Principal
    expires_at: float
    issuer: KnownIssuer
    kid: str
    key: Key


class IdentityTokens:
    """Checks the tokens of the configured issuers."""

    def __init__(self, issuers: Sequence[KnownIssuer], clock: Clock) -> None:
        self._issuers = {it.settings.issuer: it for it in issuers}
        self._clock = clock
        self._remembered: dict[bytes, _Checked] = {}
        self._weight = 0

    def principal_of(self, token: str) -> Principal:
        """Return the principal that a token names.

        Raises:
            UnknownKeyError: The token is signed with a key that has not been fetched.
            UnauthenticatedError: The token is not valid; it carries the reason for the log.
        """
        if len(token) > TOKEN_BYTES_MAX:
            _refuse(f"an identity token of {len(token)} bytes")
        digest, now = hashlib.sha256(token.encode()).digest(), self._clock.now().timestamp()
        known = self._remembered.get(digest)
        if known is None or known.issuer.keys.get(known.kid) is not known.key:
            self._forget(digest)
            known = self._checked(token, digest, now)
            self._remember(digest, known)
        if known.expires_at <= now:
            self._forget(digest)
            _refuse(f"an identity token of {known.principal.name}, which has expired")
        return known.principal

    def _remember(self, digest: bytes, checked: _Checked) -> None:
        self._weight += _weight_of(checked)
        while self._weight > _WEIGHT_MAX:
            self._forget(next(iter(self._remembered)))
        self._remembered[digest] = checked

    def _forget(self, digest: bytes) -> None:
        known = self._remembered.pop(digest, None)
        if known is not None:
            self._weight -= _weight_of(known)

    def _checked(self, token: str, digest: bytes, now: float) -> _Checked:
        signed, claims = _parsed(token)
        iss = claims.get("iss")
        issuer = self._issuers.get(iss) if isinstance(iss, str) else None
        if issuer is None:
            _refuse(f"an identity token of an unknown issuer, {shown(str(iss))}")
        kid = _kid_of(signed.headers(), issuer)
        key = issuer.keys.get(kid)
        if key is None:
            raise UnknownKeyError(
                f"an identity token of {issuer.name} by an unknown key, {shown(kid)}", issuer.keys
            )
        _check_signature(signed, key, issuer)
        expires_at = _check_claims(claims, issuer, now)
        return _Checked(
            principal=_principal_of(claims, issuer, digest),
            expires_at=expires_at,
            issuer=issuer,
            kid=kid,
            key=key,
        )


def _weight_of(checked: _Checked) -> int:
    return _TOKEN_WEIGHT + len(checked.principal.groups)


def _refuse(why: str) -> NoReturn:
    raise access_errors.UnauthenticatedError(why)


def _parsed(token: str) -> tuple[CompactSignature, Mapping[str, Any]]:
    try:
        signed = extract_compact(token.encode(), registry=_SIZES)
        claims = json.loads(signed.payload)
        if isinstance(claims, dict) and isinstance(signed.headers(), dict):
            return signed, claims
    except (JoseError, ValueError, TypeError, RecursionError):
        pass
    _refuse("a bearer token that is neither an API token nor a signed JWT")


def _kid_of(header: Mapping[str, Any], issuer: KnownIssuer) -> str:
    """Check the header of a token, and return the id of its key."""
    what = f"an identity token of {issuer.name}"
    for name in _NOT_SUPPORTED:
        if name in header:
            _refuse(f"{what} with the header {name}")
    algorithm, kind, kid = header.get("alg"), header.get("typ", "JWT"), header.get("kid")
    if algorithm not in issuer.settings.algorithms:
        _refuse(f"{what} signed by {shown(str(algorithm))}, which is not allowed")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        _refuse(f"{what} of the type {shown(str(kind))}")
    if not isinstance(kid, str) or not kid:
        _refuse(f"{what} without a kid")
    return kid


def _check_signature(signed: CompactSignature, key: Key, issuer: KnownIssuer) -> None:
    what = f"an identity token of {issuer.name}"
    # Bypasses joserfc's own registry, which warns about EdDSA at each signature.
    algorithm = JWSRegistry.algorithms[signed.headers()["alg"]]
    parts = signed.segments
    try:
        algorithm.check_key(key)
        key.check_alg(algorithm.name)
        signature = urlsafe_b64decode(parts["signature"])
        is_good = algorithm.verify(parts["header"] + b"." + parts["payload"], signature, key)
    except JoseError as error:
        _refuse(f"{what} whose key does not fit {algorithm.name}: {error.description}")
    except (ValueError, TypeError):
        is_good = False
    if not is_good:
        _refuse(f"{what} with a bad signature")


def _check_claims(claims: Mapping[str, Any], issuer: KnownIssuer, now: float) -> float:
    """Check the audience and the validity period of a token; return when it expires."""
    what = f"an identity token of {issuer.name}"
    skew = issuer.settings.clock_skew.total_seconds()
    audiences = claims.get("aud")
    named = audiences if isinstance(audiences, list) else [audiences]
    if not any(it in issuer.settings.audiences for it in named if isinstance(it, str)):
        _refuse(f"{what} for another audience, {shown(str(audiences))}")
    expires_at = _instant(claims, "exp", what)
    if expires_at is None:
        _refuse(f"{what} without exp")
    if expires_at + skew <= now:
        _refuse(f"{what}, which has expired")
    for name, words in (("nbf", "is not valid yet"), ("iat", "was issued in the future")):
        instant = _instant(claims, name, what)
        if instant is not None and instant - skew > now:
            _refuse(f"{what}, which {words}")
    return expires_at + skew


def _instant(claims: Mapping[str, Any], name: str, what: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # math.isfinite raises OverflowError for a huge integer.
    if not is_number or not abs(value) < _INSTANT_MAX:
        _refuse(f"{what} whose {name} is not a number")
    return float(value)


def _principal_of(claims: Mapping[str, Any], issuer: KnownIssuer, digest: bytes) -> Principal:
    settings = issuer.settings
    # Many issuers let users enter any address, and say whether they have confirmed it.
    if settings.principal_claim == "email" and claims.get("email_verified") not in _VERIFIED:
        _refuse(f"an identity token of {issuer.name} without email_verified")
    name = f"user:{issuer.name}/{claims.get(settings.principal_claim)}"
    if not _is_name(claims.get(settings.principal_claim), name):
        _refuse(f"an identity token of {issuer.name} with an invalid {settings.principal_claim}")
    found = claims.get(settings.groups_claim, []) if settings.groups_claim else []
    listed = found if isinstance(found, list) else [found]
    if len(listed) > GROUPS_MAX:
        _refuse(f"an identity token of {name} with {len(listed)} groups, more than {GROUPS_MAX}")
    # Groups with other names are dropped: no binding can name them.
    groups = (full for it in listed if _is_name(it, full := f"group:{issuer.name}/{it}"))
    return Principal(
        name=name, groups=tuple(dict.fromkeys(groups)), credential=_credential_of(claims, digest)
    )


def _credential_of(claims: Mapping[str, Any], digest: bytes) -> str:
    """Return the id that the issuer gave a token, by which its log has it; else its hash."""
    given = claims.get("jti")
    if isinstance(given, str) and 0 < len(given) <= _CREDENTIAL_MAX:
        return given
    return digest.hex()


def _is_name(value: object, full: str) -> bool:
    return (
        isinstance(value, str)
        and bool(value)
        and value.isprintable()
        and "*" not in value
        and len(full.encode(errors="replace")) <= PRINCIPAL_BYTES_MAX
    )
