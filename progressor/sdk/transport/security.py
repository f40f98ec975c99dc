"""How a client authenticates the server and itself: TLS, certificates and tokens."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from progressor.sdk.transport.failures import Status
from progressor.wire.tls import (
    NO_PROXY,
    Reloaded,
    TlsFiles,
    TlsMaterial,
    bearer,
    explained,
    read_token,
    stays_on_machine,
)

FilePath: TypeAlias = str | os.PathLike[str]
Token: TypeAlias = str | os.PathLike[str] | Callable[[], str]
"""A token, the path of a file that contains it, or a function that returns it."""

Authorization: TypeAlias = tuple[tuple[str, str], ...]
"""The metadata that carries the credentials of a call."""


def path_of(path: FilePath | None) -> Path | None:
    """Return a path that a user gave."""
    return None if path is None else Path(path).expanduser()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS of a client.

    All files are PEM, and are reloaded when they change; new connections use the new content.

    Attributes:
        ca: The authorities that certify the server; None: the system's.
        certificate: A certificate of the client, with its chain, for servers that require one.
        key: The key of the certificate.
        server_name: The name that the server's certificate must have, if it differs from the host
            of the target.
    """

    ca: FilePath | None = None
    certificate: FilePath | None = None
    key: FilePath | None = None
    server_name: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for a certificate without its key, or a key without its certificate."""
        if (self.certificate is None) != (self.key is None):
            message = "Tls: certificate and key must be given together"
            raise ValueError(message)


class Security:
    """The TLS settings and the token of connections to one target.

    Raises:
        ValueError: A file cannot be used, the token cannot be sent in a header, or it would leave
            the machine in plaintext.
    """

    def __init__(self, target: str, tls: Tls | None = None, token: Token | None = None) -> None:
        if token is not None and tls is None and not stays_on_machine(target):
            message = (
                f"a token is sent only over TLS, to this machine or to a unix socket, not to "
                f"{target!r}: give tls=Tls(…)"
            )
            raise ValueError(message)
        self._tls = tls
        self._files: Reloaded[TlsMaterial] | None = None
        if tls is not None:
            files = TlsFiles(
                ca=path_of(tls.ca), certificate=path_of(tls.certificate), key=path_of(tls.key)
            )
            self._files = Reloaded(files.paths, files.read, name="client")
            self._files.load()
        self._token = None if token is None else _token_of(token)
        self._sent: tuple[str, Authorization] = ("", ())

    @property
    def material(self) -> TlsMaterial | None:
        """The material for a new channel; a different object after a change."""
        return None if self._files is None else self._files.latest()

    def channel(
        self,
        kind: ModuleType,
        target: str,
        options: tuple[tuple[str, int | str], ...],
        material: TlsMaterial | None,
    ) -> Any:  # noqa: ANN401  # of that module
        """Return a new channel of `kind`, which is grpc or grpc.aio, that uses `material`."""
        if self._token is not None and self._tls is None:
            options = (*options, NO_PROXY)
        if self._tls is None or material is None:
            return kind.insecure_channel(target, options=options)
        if self._tls.server_name:
            options = (*options, ("grpc.ssl_target_name_override", self._tls.server_name))
        credentials = material.channel_credentials()
        return kind.secure_channel(target, credentials, options=options)

    def explained(self, status: Status) -> Status:
        """Return a status whose message explains the cause if TLS settings do not match."""
        material = None if self._files is None else self._files.content
        return dataclasses.replace(status, message=explained(status.message, material))

    def authorization(self) -> Authorization:
        """Return the metadata with the credentials of a call, or none.

        The same object until the token changes.
        """
        if self._token is None:
            return ()
        token = self._token()
        if token != self._sent[0]:
            self._sent = (token, bearer(token))
        return self._sent[1]


OPEN = Security("")
"""Without TLS and without a token."""


def _token_of(token: Token) -> Callable[[], str]:
    if callable(token):
        return token
    if isinstance(token, str):
        bearer(token)
        return lambda: token
    path = Path(token).expanduser()
    content = Reloaded((path,), lambda: read_token(path), name="token")
    content.load()
    return content.latest
