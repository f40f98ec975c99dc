"""Certificates of an authority of one's own, as files."""

import dataclasses
import datetime as dt
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from progressor.clock import SystemClock
from progressor.example.certificates import Authority, replace
from progressor.wire.tls import TlsFiles

LOCAL = ("localhost", "127.0.0.1")


class Pki:
    """An authority, and the directory in which it leaves what it issues."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = directory / "ca.pem"
        self.renew()

    def renew(self) -> None:
        """Become another authority; what the earlier one issued counts no more."""
        now = SystemClock().now()
        self._authority = Authority("test", now=now, lifetime=dt.timedelta(hours=1))
        replace(self.ca, self._authority.certificate)

    def keep(self, files: TlsFiles) -> TlsFiles:
        """Return copies that stay as they are when the files are replaced."""
        kept = Path(tempfile.mkdtemp(dir=self.directory))
        for path in files.paths:
            shutil.copy(path, kept)
        return TlsFiles(
            **{
                it.name: kept / path.name
                for it in dataclasses.fields(files)
                if (path := getattr(files, it.name)) is not None
            }
        )

    def issue(
        self, name: str, *, hosts: Sequence[str] = LOCAL, uris: Sequence[str] = ()
    ) -> TlsFiles:
        """Write a certificate and its key; those of the same name are replaced."""
        files = TlsFiles(
            ca=self.ca,
            certificate=self.directory / f"{name}.pem",
            key=self.directory / f"{name}.key",
        )
        assert files.certificate is not None
        assert files.key is not None
        self._authority.issue(name, *hosts, uris=uris).write(files.certificate, files.key)
        return files
