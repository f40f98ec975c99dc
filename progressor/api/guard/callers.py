"""Identifies the caller of a request: its credentials, and the principal that they prove.

A bearer token takes precedence over a client certificate. A token sent in plaintext over a network
may have been read by others, and is refused.
"""

import dataclasses
import functools
import hashlib
import ssl
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from progressor import access_errors
from progressor.clock import Clock
from progressor.domain.access import tokens
from progressor.domain.access.rights import PRINCIPAL_BYTES_MAX, Principal
from progressor.storage.access.access import Access

if TYPE_CHECKING:  # needs a library that an engine without issuers does not load
    from progressor.api.guard.identity_tokens import IdentityTokens
    from progressor.api.guard.issuer_keys import IssuerKeys

_HEADER = "authorization"
_SCHEME = "bearer "
_SPIFFE = "peer_spiffe_id"
_PROVEN_MAX = 1024
_NAME_BYTES_MAX = PRINCIPAL_BYTES_MAX - len("cert:")
_LOCAL_PEERS = ("unix:", "ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D")


class UnknownKeyError(access_errors.UnauthenticatedError):
    """The key of an identity token is unknown; fetching ``keys`` again may find it."""

    def __init__(self, why: str, keys: "IssuerKeys") -> None:
        self.keys = keys
        super().__init__(why)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The credentials of a call, or of a session, which sends them only when it opens.

    ``certificate_names``: the SPIFFE id of a verified client certificate, else its subject
    alternative names. ``fingerprint``: of that certificate. ``tokens_allowed``: whether the
    connection protects a token from being read.
    """

    token: str | None = dataclasses.field(repr=False)
    certificate_names: tuple[str, ...]
    fingerprint: str
    tokens_allowed: bool
    peer: str


def credentials_of(context: Any) -> Credentials:  # noqa: ANN401  # of gRPC
    """Return the credentials of a call from its gRPC context."""
    certificate: Mapping[str, Iterable[bytes]] = context.auth_context()
    peer = context.peer()
    return Credentials(
        token=_bearer(context.invocation_metadata() or ()),
        certificate_names=_names(certificate),
        fingerprint=_fingerprint(*certificate.get("x509_pem_cert", ())),
        tokens_allowed=_is_encrypted(certificate) or peer.startswith(_LOCAL_PEERS),
        peer=peer,
    )


class Callers:
    """Maps credentials to principals."""

    def __init__(self, clock: Clock, identity_tokens: "IdentityTokens | None" = None) -> None:
        self._clock, self._identity_tokens = clock, identity_tokens
        self._proven: dict[str, tuple[tokens.ValidToken, Principal]] = {}

    def principal_of(self, credentials: Credentials, access: Access) -> Principal:
        """Return the principal that the credentials prove.

        Raises:
            UnknownKeyError: The token is signed with a key that has not been fetched.
            UnauthenticatedError: The credentials are not valid; it carries the reason for the log.
        """
        if credentials.token is not None:
            if not credentials.tokens_allowed:
                _refuse("a token in plaintext, from another machine")
            if self._identity_tokens is None or credentials.token.startswith(tokens.PREFIX):
                return self._of_api_token(credentials.token, access)
            return self._identity_tokens.principal_of(credentials.token)
        if not credentials.certificate_names:
            _refuse("neither a token nor a client certificate")
        first, *others = (f"cert:{name}" for name in credentials.certificate_names)
        return Principal(name=first, groups=tuple(others), credential=credentials.fingerprint)

    def _of_api_token(self, token: str, access: Access) -> Principal:
        proven = self._proven.get(token)
        # Another object: the tokens have been read again, and this one may have been revoked.
        if proven is None or access.tokens.get(proven[0].token_id) is not proven[0]:
            proven = self._prove(token, access)
        known, principal = proven
        if known.expires_at is not None and known.expires_at <= self._clock.now():
            _refuse(f"token {known.token_id}, which has expired")
        access.note_used(known.token_id)
        return principal

    def _prove(self, token: str, access: Access) -> tuple[tokens.ValidToken, Principal]:
        """Check the secret of a token, and remember it: of 3.4 us that takes 2.4."""
        parts = tokens.split(token)
        if parts is None:
            _refuse("a bearer token that is not an API token")
        token_id, secret = parts
        known = access.tokens.get(token_id)
        if known is None:
            _refuse(f"token {token_id}, which is unknown, revoked or expired")
        if not tokens.is_secret_of(secret, known):
            _refuse(f"token {token_id} with a wrong secret")
        if len(self._proven) >= _PROVEN_MAX:
            self._proven.clear()
        principal = Principal(name=f"token:{known.name}", credential=token_id)
        self._proven[token] = found = (known, principal)
        return found


def _refuse(why: str) -> NoReturn:
    raise access_errors.UnauthenticatedError(why)


def _bearer(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """Return the token of a call; "", which is never valid, for several or a malformed one."""
    found = [value for key, value in metadata if key == _HEADER]
    if not found:
        return None
    [value, *others] = found
    is_bearer = isinstance(value, str) and value[: len(_SCHEME)].lower() == _SCHEME
    return str(value)[len(_SCHEME) :] if is_bearer and not others else ""


@functools.lru_cache(maxsize=1024)
def _fingerprint(*certificates: bytes) -> str:
    """Return the SHA-256 fingerprint of a certificate in PEM, in hex."""
    if len(certificates) != 1:
        return ""
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificates[0].decode("ascii")))
    return digest.hexdigest()


def _names(certificate: Mapping[str, Iterable[bytes]]) -> tuple[str, ...]:
    """Return the names of a client certificate, which gRPC has verified."""
    identities = tuple(certificate.get(_SPIFFE, ()))
    if len(identities) > 1:
        # Not a SPIFFE certificate: those have exactly one id.
        return ()
    found = identities or certificate.get("x509_subject_alternative_name", ())
    names = (it.decode(errors="replace") for it in found if len(it) <= _NAME_BYTES_MAX)
    # Only a URI name can be a SPIFFE id; no other kind of name may look like one.
    return tuple(
        it
        for it in names
        if it.isprintable() and (identities or not it.lower().startswith("spiffe:"))
    )


def _is_encrypted(certificate: Mapping[str, Iterable[bytes]]) -> bool:
    return any(it in {b"ssl", b"tls"} for it in certificate.get("transport_security_type", ()))
