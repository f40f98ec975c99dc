"""Contexts: named engines, in a file of the user. A context supplies the defaults of a command.

Options and environment variables take precedence. If they give a different address, the context is
ignored, so that its credentials are never sent to another engine.
"""

import contextlib
import dataclasses
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from cyclopts import Token
from cyclopts.argument import ArgumentCollection

from progressor import errors
from progressor.cli.input.toml import toml_key, toml_value
from progressor.domain.processes.namespace import is_namespace_name
from progressor.settings.addresses import check_address
from progressor.settings.config import tables_of
from progressor.settings.decoding import Given, decode, given_table, keys_of, plain, setting
from progressor.wire.openid import SCOPE, TokenKind

_VARIABLE = "PROGRESSOR_CONTEXTS"
_OPTION, _ADDRESS = "--context", "--address"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """How to reach an engine, and how to log in to it."""

    address: str = setting("", "where the engine listens: host:port or unix:/path")
    tls: bool = setting(False, "use TLS")  # noqa: FBT003  # the default of a key
    tls_ca: Path | None = setting(None, "PEM file of the authorities that certify the engine")
    tls_certificate: Path | None = setting(None, "PEM file of a certificate to present")
    tls_key: Path | None = setting(None, "PEM file of the certificate's key")
    tls_server_name: str = setting("", "the name in the engine's certificate")
    token_file: Path | None = setting(None, "file with a bearer token")
    decode_url: str = setting("", "the endpoint that decrypts payloads")
    decode_token_file: Path | None = setting(None, "file with a bearer token for that endpoint")
    issuer: str = setting("", "the OpenID Connect issuer at which to log in")
    client_id: str = setting("", "the client id of this program at the issuer")
    scope: str = setting(SCOPE, "the scopes to request from the issuer")
    token: TokenKind = setting("access", "which token of the issuer to send to the engine")
    issuer_ca: Path | None = setting(None, "PEM file of the authorities that certify the issuer")


_OPTIONS: Mapping[str, str] = {
    "--tls": "tls",
    "--tls-ca": "tls_ca",
    "--tls-certificate": "tls_certificate",
    "--tls-key": "tls_key",
    "--tls-server-name": "tls_server_name",
    "--token-file": "token_file",
}
_DECODE_OPTIONS: Mapping[str, str] = {
    "--decode-url": "decode_url",
    "--decode-token-file": "decode_token_file",
}
"""Of the context both or none: a token is for its endpoint."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    """The content of the file; ``current``: the default context of commands, "" without one."""

    current: str
    by_name: Mapping[str, Context]

    def get(self, name: str) -> Context:
        """Return a context; ConfigError if it does not exist."""
        found = self.by_name.get(name)
        if found is None:
            known = ", ".join(self.by_name) or "none"
            raise errors.ConfigError(str(path()), f"has no context {name!r}; it has: {known}")
        return found


def path() -> Path:
    """Return the path of the file with the contexts."""
    given = os.environ.get(_VARIABLE)
    if given:
        return Path(given)
    config = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        home = Path(config) if Path(config).is_absolute() else Path("~/.config").expanduser()
    except RuntimeError:
        # A container's arbitrary user has no home, and no contexts.
        home = Path("/nonexistent")
    return home / "progressor" / "contexts.toml"


def read() -> Contexts:
    """Read the file; if it does not exist, there are no contexts.

    Raises:
        ConfigError: The file cannot be read, or a key is wrong; the error names it.
    """
    where = str(path())
    try:
        content = path().read_bytes()
    except FileNotFoundError:
        return Contexts(current="", by_name={})
    except OSError as error:
        raise errors.ConfigError(where, f"cannot be read: {error.strerror}") from error
    tables = tables_of(content, where)
    current, given = tables.pop("current", Given(value="")), tables.pop("contexts", None)
    if tables:
        raise errors.ConfigError(where, f"unknown key: {', '.join(tables)}")
    named = {} if given is None else given_table(given, prefix="contexts")
    found = Contexts(
        current=str(current.value), by_name={name: _read(name, it) for name, it in named.items()}
    )
    if found.current:
        found.get(found.current)
    return found


def _read(name: str, given: Given) -> Context:
    prefix = f"contexts.{name}"
    check_name(name, prefix)
    context = decode(Context, given_table(given, prefix=prefix), prefix=prefix)
    check_address(f"{prefix}.address", context.address, port_min=1)
    return context


def check_name(name: str, key: str) -> None:
    """Raise ConfigError unless a name is valid for a context and for the file of its tokens."""
    if not is_namespace_name(name):
        raise errors.ConfigError(key, f"must be 1 to 64 of [a-z0-9._-], got {name!r}")


def change(changed: Callable[[Contexts], Contexts]) -> None:
    """Replace the file atomically, one command at a time; only its owner can read it."""
    with locked(path()):
        write_private(path(), "\n".join(_lines(changed(read()))))


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Keep other commands from changing a file."""
    lock = file.with_suffix(".lock")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = lock.open("a")
    except OSError as error:
        raise errors.ConfigError(str(lock), f"cannot be written: {error.strerror}") from error
    with opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield


def write_private(file: Path, text: str) -> None:
    """Create or replace a file that only its owner can read; ConfigError if that fails.

    A symbolic link stays one: the file that it names is replaced.
    """
    file = Path(os.path.realpath(file))
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Its mode is 0600 from the beginning.
        number, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(number, "w", encoding="utf-8") as opened:
                opened.write(text)
            Path(name).replace(file)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise errors.ConfigError(str(file), f"cannot be written: {error.strerror}") from error


def table_of(context: Context) -> dict[str, object]:
    """Return the keys of a context that differ from their defaults."""
    default = Context()
    return {
        key.name: plain(value)
        for key in keys_of(Context)
        if (value := getattr(context, key.field)) != getattr(default, key.field)
    }


def _lines(contexts: Contexts) -> Iterator[str]:
    yield f"current = {toml_value(contexts.current)}"
    for name, context in contexts.by_name.items():
        yield f"\n[contexts.{toml_key(name)}]"
        yield from (f"{key} = {toml_value(it)}" for key, it in table_of(context).items())
    yield ""


def fill(arguments: ArgumentCollection) -> None:
    """Fill in from the context what neither options nor environment variables give."""
    by_name = {it.name: it for it in arguments}
    named, address = by_name[_OPTION], by_name[_ADDRESS]
    contexts = read()
    name = named.tokens[0].value if named.tokens else contexts.current
    if not name:
        return
    context = contexts.get(name)
    if address.tokens and address.tokens[0].value != context.address:
        named.tokens.clear()
        return
    found: dict[str, object] = {_OPTION: name, _ADDRESS: context.address}
    options = dict(_OPTIONS)
    if not any(by_name[it].tokens for it in _DECODE_OPTIONS):
        options |= _DECODE_OPTIONS
    found |= {option: plain(getattr(context, field)) for option, field in options.items()}
    for option, value in found.items():
        argument = by_name[option]
        if value and not argument.tokens:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            argument.append(Token(keyword=option, value=text, source=str(path())))
