"""The certificates that ``progressor dev --tls`` makes for itself, deleted at its end."""

import contextlib
import dataclasses
import datetime as dt
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from progressor.clock import SystemClock
from progressor.sdk import ServerTls, Tls, Trust
from progressor.settings.config import Config
from progressor.settings.credentials import ProcessorCredentials

CREDENTIALS = "dev"
"""The name by which namespaces reach the example's processors."""

_ENGINE_ID = "spiffe://progressor.dev/engine"
_LIFETIME = dt.timedelta(days=1)
_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclasses.dataclass(frozen=True, slots=True)
class OwnTls:
    """Files of an authority of our own, in a directory that only this user can read."""

    directory: Path

    @property
    def client(self) -> Tls:
        """Of clients on this machine, whatever the address."""
        certificate, key = self._pair("client")
        return Tls(ca=self._ca, certificate=certificate, key=key, server_name=_LOCAL[0])

    @property
    def served(self) -> Mapping[str, Any]:
        """The arguments of `running`: processors that accept this engine alone."""
        certificate, key = self._pair("processor")
        tls = ServerTls(certificate=certificate, key=key, client_ca=self._ca)
        return {"tls": tls, "trust": Trust(identities=[_ENGINE_ID])}

    @property
    def variables(self) -> str:
        """A shell command, after which others reach the engine."""
        certificate, key = self._pair("client")
        named = {"CA": self._ca, "CERTIFICATE": certificate, "KEY": key}
        return " ".join(["export", *(f"PROGRESSOR_TLS_{it}={path}" for it, path in named.items())])

    def applied(self, config: Config) -> Config:
        """Return a configuration with these certificates."""
        certificate, key = self._pair("server")
        server = dataclasses.replace(
            config.server, tls_certificate=certificate, tls_key=key, tls_client_ca=self._ca
        )
        certificate, key = self._pair("engine")
        credentials = ProcessorCredentials(ca=self._ca, certificate=certificate, key=key)
        named = {**config.processor_credentials, CREDENTIALS: credentials}
        return dataclasses.replace(config, server=server, processor_credentials=named)

    def make(self, config: Config) -> None:
        # Takes 80 ms to import, which only --tls needs.
        from progressor.example.certificates import Authority, replace  # noqa: PLC0415  # needs a library of the engine

        authority = Authority("progressor dev", now=SystemClock().now(), lifetime=_LIFETIME)
        replace(self._ca, authority.certificate)
        bound = (it.rpartition(":")[0].strip("[]") for it in config.server.bind)
        hosts = dict.fromkeys([*_LOCAL, socket.gethostname(), *filter(None, bound)])
        authority.issue("server", *hosts).write(*self._pair("server"))
        authority.issue("client").write(*self._pair("client"))
        authority.issue("engine", uris=[_ENGINE_ID]).write(*self._pair("engine"))
        authority.issue("processor", *_LOCAL).write(*self._pair("processor"))

    @property
    def _ca(self) -> Path:
        return self.directory / "ca.pem"

    def _pair(self, name: str) -> tuple[Path, Path]:
        return self.directory / f"{name}.pem", self.directory / f"{name}.key"


@contextlib.contextmanager
def own_tls(config: Config) -> Iterator[OwnTls]:
    """Make certificates, for the length of the context."""
    with tempfile.TemporaryDirectory(prefix="progressor-tls-", ignore_cleanup_errors=True) as path:
        made = OwnTls(Path(path))
        made.make(config)
        yield made
