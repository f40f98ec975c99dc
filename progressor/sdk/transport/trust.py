"""Which engines a processor trusts, by a token or by the names in their certificates."""

import dataclasses
import hmac
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from progressor.sdk.transport.security import FilePath, path_of
from progressor.wire.tls import Reloaded, TlsFiles, TlsMaterial, bearer, read_tokens

_NAMES = ("x509_subject_alternative_name", "peer_spiffe_id")
_SCHEME = "Bearer "

_log = logging.getLogger(__name__)

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """TLS of a processor.

    All files are PEM, and are reloaded when they change; new connections use the new content.

    Attributes:
        certificate: The certificate of the processor, with its chain.
        key: The key of the certificate.
        client_ca: The authorities that certify engines; only engines with a certificate from one of
            them can connect. None: engines need no certificate.
    """

    certificate: FilePath
    key: FilePath
    client_ca: FilePath | None = None

    def load(self) -> Reloaded[TlsMaterial]:
        """Read the files; ValueError if they cannot be used."""
        certificate, key = path_of(self.certificate), path_of(self.key)
        files = TlsFiles(certificate=certificate, key=key, ca=path_of(self.client_ca))
        found = Reloaded(files.paths, files.read, name="processor")
        found.load()
        return found


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Which engines a processor trusts; steps of others are refused with UNAUTHENTICATED.

    An engine must meet both conditions if both are given.

    Attributes:
        tokens: The engine must send one of these; use several while you replace a token.
        token_file: A file with more such tokens, one per line; it is reloaded when it changes.
        identities: The engine's certificate must have one of these subject alternative names, such
            as "spiffe://example.org/engine" or "engine.example.org". Needs `ServerTls.client_ca`.
    """

    tokens: Sequence[str] = ()
    token_file: FilePath | None = None
    identities: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Raise an error for a token that cannot be sent in a header, or if nothing is given."""
        if isinstance(self.tokens, str) or isinstance(self.identities, str):
            message = "Trust: tokens and identities must be sequences of strings, not a string"
            raise TypeError(message)
        if not (self.tokens or self.token_file or self.identities):
            message = "Trust: tokens, token_file or identities must be given"
            raise ValueError(message)
        for token in self.tokens:
            bearer(token)


class Guard:
    """Refuses the calls of engines that are not trusted."""

    def __init__(self, trust: Trust) -> None:
        """Read the tokens; ValueError if they cannot be read."""
        self._tokens = _tokens_of(trust)
        self._identities = frozenset(trust.identities)
        self._last_why = ""

    async def check(self, context: Context) -> None:
        """End a call with UNAUTHENTICATED unless its engine is trusted."""
        why = self._fault(context)
        if why != self._last_why:
            self._last_why = why
            if why:
                _log.warning("refusing an engine: %s", why, extra={"peer": context.peer()})
        if why:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, why)

    def _fault(self, context: Context) -> str:
        tokens = self._tokens()
        if tokens is not None:
            sent = _token_in(context)
            if sent is None:
                return "the processor expects a token, and the engine sent none"
            # Compare all of them, each in constant time, so that the duration reveals nothing.
            if not sum(hmac.compare_digest(sent, it.encode()) for it in tokens):
                return "the processor does not know the token of the engine"
        if self._identities and self._identities.isdisjoint(_names_in(context)):
            return "the certificate of the engine has no name that the processor trusts"
        return ""


def _tokens_of(trust: Trust) -> Callable[[], Sequence[str] | None]:
    if trust.token_file is None:
        return lambda: trust.tokens or None
    path = Path(trust.token_file).expanduser()
    file = Reloaded((path,), lambda: read_tokens(path), name="token")
    file.load()
    return lambda: (*trust.tokens, *file.latest())


def _token_in(context: Context) -> bytes | None:
    metadata: dict[str, str | bytes] = dict(context.invocation_metadata() or ())
    sent = metadata.get("authorization", "")
    if not isinstance(sent, str) or sent[: len(_SCHEME)].title() != _SCHEME:
        return None
    return sent[len(_SCHEME) :].encode()


def _names_in(context: Context) -> set[str]:
    found = context.auth_context()
    return {each.decode() for key in _NAMES for each in found.get(key, ())}
