"""Certificates, keys and tokens in files, which are read again when they change.

New contents are used once they fit together: the key belongs to the certificate, the authorities
can be read. Until then the last ones that did stay in use. Files that do not fit may be half
written, so that this is reported only if they are still the same at the next look, once.
"""

import asyncio
import dataclasses
import logging
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Generic, TypeVar

import grpc

LOOK_SECONDS = 1.0
"""How often files are looked at."""

NO_PROXY = ("grpc.enable_http_proxy", 0)
"""A channel option: through a proxy, what is sent to this machine would leave it (`http_proxy`)."""

_READS_MAX = 3
_TOKEN = re.compile(r"[\x21-\x7e]{1,16384}")
_LOCAL = re.compile(
    r"unix(-abstract)?:.*|(dns:///|ipv[46]:)?(localhost|127(\.\d{1,3}){3}|\[::1\]):\d+", re.ASCII
)

_UNSENDABLE = "a token must be 1 to 16,384 printable ASCII characters without spaces"

_NOT_CONNECTED = "failed to connect to all addresses"
# Before the connection was ready; a server says no more than that.
_CLOSED = re.compile(r"Socket closed|Connection reset|End of TCP stream")
_WRONG_AUTHORITY = "the certificate of the other side is not of an authority that is trusted here"
_MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "WRONG_VERSION_NUMBER": "the other side does not use TLS",
        "certificate has expired": "the certificate of the other side has expired",
        "CERTIFICATE_VERIFY_FAILED": _WRONG_AUTHORITY,
        "BAD_SIGNATURE": _WRONG_AUTHORITY,
        "Hostname Verification Check failed": "the certificate of the other side is for other "
        "names than that of the address; server_name can give the one to expect",
        "missing selected ALPN property": "the other side uses TLS, but is not a gRPC server",
    }
)
"""What errors of gRPC and BoringSSL mean, the first that fits."""

_log = logging.getLogger(__name__)


class TlsFileError(ValueError):
    """A file that cannot be used; ``field`` says what it is for: certificate, key, ca, token."""

    def __init__(self, field: str, why: str) -> None:
        self.field, self.why = field, why
        super().__init__(why)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TlsMaterial:
    """The contents of `TlsFiles`, which fit together."""

    ca: bytes | None
    certificate: bytes | None
    key: bytes | None = dataclasses.field(repr=False)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return credentials of a client."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.certificate)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files: the authorities that the peer must be certified by, and one's own certificate."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that there are."""
        return tuple(it for it in (self.ca, self.certificate, self.key) if it is not None)

    def read(self) -> TlsMaterial:
        """Return the contents; TlsFileError if they are not what they should be."""
        certificate, key = read("certificate", self.certificate), read("key", self.key)
        if self.certificate is not None and self.key is not None:
            _check_pair(self.certificate, self.key)
        ca = read("ca", self.ca)
        if ca is not None:
            _check_authorities(f"{self.ca}", ca)
        return TlsMaterial(ca=ca, certificate=certificate, key=key)


Content = TypeVar("Content")
_State = tuple[tuple[int, ...] | None, ...]


class Reloaded(Generic[Content]):
    """The contents of files, as of the last time that they could be used."""

    def __init__(
        self,
        paths: Sequence[Path],
        read: Callable[[], Content],
        *,
        name: str,
        changed: Callable[[Content], None] = lambda _: None,
        counted: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Take what `load` will read.

        Args:
            paths: Read again when one of them changes.
            read: Returns their contents, or raises TlsFileError.
            name: Of the files, for the log.
            changed: Called after each reload, in a thread of its own.
            counted: Called with ok or failed, likewise.
        """
        self._paths, self._read, self._name = tuple(paths), read, name
        self.changed, self._counted = changed, counted
        self._content: Content | None = None
        self._known: _State = ()
        self._suspect: _State = ()
        self._looked_at = 0.0
        self._lock = threading.Lock()

    @property
    def content(self) -> Content:
        """What is in use."""
        assert self._content is not None, "files are used after they were loaded"
        return self._content

    def latest(self) -> Content:
        """Return what is in use, after a look unless there was one within LOOK_SECONDS.

        For those who have no task that watches; from any thread.
        """
        now = time.monotonic()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self.look()
        return self.content

    def load(self) -> None:
        """Read the files for the first time.

        Raises:
            TlsFileError: They cannot be used.
        """
        self._looked_at = time.monotonic()
        self._known, self._content = self._read_all()

    def look(self) -> None:
        """Read the files again if they have changed; from any thread."""
        with self._lock:
            self._look()

    def _look(self) -> None:
        state = self._state()
        if state == self._known:
            return
        try:
            self._known, self._content = self._read_all()
        except TlsFileError as error:
            if state == self._suspect:
                self._known = state
                facts = {"files": self._name, "field": error.field, "why": error.why}
                _log.error("changed files not used; keeping the last ones", extra=facts)
                self._counted("failed")
            self._suspect = state
            return
        _log.info("files reloaded", extra={"files": self._name})
        self._counted("ok")
        self.changed(self.content)

    async def watch(self) -> None:
        """Look again and again; ends only by cancellation."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await asyncio.to_thread(self.look)

    def _read_all(self) -> tuple[_State, Content]:
        """Read the files while none of them changes."""
        for _ in range(_READS_MAX):
            state = self._state()
            content = self._read()
            if self._state() == state:
                return state, content
        raise TlsFileError("certificate", "the files change while they are read")

    def _state(self) -> _State:
        return tuple(map(_state_of, self._paths))


def server_credentials(
    files: Reloaded[TlsMaterial], *, with_clients: bool
) -> grpc.ServerCredentials:
    """Return the credentials of one address, which follow the files from handshake to handshake.

    `with_clients`: only clients with a certificate of the authorities get in.
    """
    handshakes = _Handshakes(files, with_clients=with_clients)
    return grpc.dynamic_ssl_server_credentials(
        handshakes.configuration(),
        handshakes.fetch,  # type: ignore[arg-type]  # the stubs know of no None
        require_client_authentication=with_clients,
    )


class _Handshakes:
    """What gRPC asks for before each handshake at one address."""

    def __init__(self, files: Reloaded[TlsMaterial], *, with_clients: bool) -> None:
        self._files, self._with_clients = files, with_clients
        self._given = files.content

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        given = self._given
        assert given.key is not None, "a server has a key"
        assert given.certificate is not None, "a server has a certificate"
        return grpc.ssl_server_certificate_configuration(
            [(given.key, given.certificate)], given.ca if self._with_clients else None
        )

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Return what has changed since the last handshake; None: nothing. It must not raise."""
        latest = self._files.latest()
        if latest is self._given:
            return None
        self._given = latest
        return self.configuration()


def explained(why: str, material: TlsMaterial | None) -> str:
    """Return the error of a connection with what it probably means where TLS does not fit.

    `material`: what the connection was opened with; None: no TLS.
    """
    if not why.startswith(_NOT_CONNECTED):
        return why
    if material is None:
        meaning = "the other side may expect TLS" if _CLOSED.search(why) else ""
    elif _CLOSED.search(why):
        meaning = (
            "the other side may expect a certificate"
            if material.certificate is None
            else "the other side may not accept the certificate that was shown"
        )
    else:
        meaning = next((text for sign, text in _MEANINGS.items() if sign in why), "")
    return f"{meaning}: {why}" if meaning else why


def read(field: str, path: Path | None) -> bytes | None:
    """Return the contents of a file, None without one."""
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise TlsFileError(field, f"{path}: {error.strerror}") from error


def read_token(path: Path) -> str:
    """Return the token in a file; TlsFileError if it does not have just one."""
    tokens = read_tokens(path)
    if len(tokens) > 1:
        raise TlsFileError("token", f"{path}: must have one token, got {len(tokens)}")
    return tokens[0]


def read_tokens(path: Path) -> tuple[str, ...]:
    """Return the tokens in a file, one per line; TlsFileError if it has none."""
    content = read("token", path) or b""
    lines = content.decode("ascii", errors="replace").splitlines()
    tokens = tuple(it.strip() for it in lines if it.strip())
    if not tokens or not all(map(is_token, tokens)):
        raise TlsFileError("token", f"{path}: {_UNSENDABLE}")
    return tokens


def is_token(text: str) -> bool:
    """Return whether a text can be sent as a token."""
    return _TOKEN.fullmatch(text) is not None


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata that carries a token; ValueError, without it, if that is impossible."""
    if not is_token(token):
        raise ValueError(_UNSENDABLE)
    return (("authorization", f"Bearer {token}"),)


def stays_on_machine(target: str) -> bool:
    """Return whether what is sent to a target does not leave the machine."""
    return _LOCAL.fullmatch(target) is not None


def _check_pair(certificate: Path, key: Path) -> None:
    try:
        # Without a password it would ask for one on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        what = f"{certificate} and {key} are not a PEM certificate and its key: {_why(error)}"
        raise TlsFileError("certificate", what) from error
    except OSError as error:  # it went after it was read
        raise TlsFileError("certificate", f"{certificate}: {error.strerror}") from error


def _check_authorities(name: str, content: bytes) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(
            cadata=content.decode("ascii")
        )
    except (ssl.SSLError, ValueError) as error:
        why = _why(error) if isinstance(error, ssl.SSLError) else "not ASCII"
        raise TlsFileError("ca", f"{name} has no PEM certificates: {why}") from error


def _why(error: ssl.SSLError) -> str:
    return (error.reason or "no PEM data").replace("_", " ").lower()


def _state_of(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
