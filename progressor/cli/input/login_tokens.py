"""The tokens of a login: kept beside the contexts, and renewed when they are about to expire."""

import os
import stat
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from progressor import errors
from progressor.cli.input import contexts
from progressor.cli.input.contexts import Context
from progressor.clock import SystemClock
from progressor.wire.openid import OpenIdClient, Tokens

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class LoginToken:
    """The token of a context's login, as a client asks for it at each request."""

    def __init__(self, name: str, context: Context) -> None:
        self._name, self._context = name, context
        tokens = read(name)
        is_its = tokens is not None and tokens.issuer == context.issuer
        self._tokens = tokens if is_its else None

    @property
    def exists(self) -> bool:
        return self._tokens is not None

    def __call__(self) -> str:
        """Return it, renewed if it is about to expire. Raises ConfigError if that is impossible."""
        assert self._tokens is not None, "asked only if there is one"
        if self._tokens.are_old(now()):
            self._tokens = _renewed(self._name, self._context)
        return self._tokens.of_kind(self._context.token)


def client_of(context: Context) -> OpenIdClient:
    """Return this program as the issuer of a context knows it."""
    return OpenIdClient(
        issuer=context.issuer,
        client_id=context.client_id,
        scope=context.scope,
        token=context.token,
        ca=context.issuer_ca,
    )


def now() -> float:
    return SystemClock().now().timestamp()


def locked(name: str) -> AbstractContextManager[None]:
    """Keep other commands from renewing the same tokens: some issuers take each only once."""
    return contexts.locked(path_of(name))


def path_of(name: str) -> Path:
    return contexts.path().parent / f"{name}.tokens.json"


def read(name: str) -> Tokens | None:
    """Return the tokens of a context's login; None without one.

    Raises:
        ConfigError: The file is readable to others, or is not what was written.
    """
    file = path_of(name)
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            content = opened.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise errors.ConfigError(str(file), f"cannot be read: {error.strerror}") from error
    if mode & _OTHERS:
        words = f"must be readable to its user alone (0600), is {stat.S_IMODE(mode):04o}"
        raise errors.ConfigError(str(file), words)
    try:
        return msgspec.json.decode(content, type=Tokens)
    except msgspec.DecodeError as error:
        words = f"is not what `progressor login` writes ({error}); log in again"
        raise errors.ConfigError(str(file), words) from error


def write(name: str, tokens: Tokens) -> None:
    contexts.write_private(path_of(name), msgspec.json.encode(tokens).decode())


def forget(name: str) -> bool:
    """Delete the tokens of a context's login; return whether there were some."""
    if not path_of(name).exists():
        return False
    with locked(name):
        path_of(name).unlink(missing_ok=True)
    return True


def _renewed(name: str, context: Context) -> Tokens:
    with locked(name):
        # Another command may have renewed them meanwhile.
        tokens = read(name)
        if tokens is not None and not tokens.are_old(now()):
            return tokens
        renewed = None if tokens is None else client_of(context).renewed(tokens, now())
        if renewed is None:
            words = f"has expired: progressor login --context {name}"
            raise errors.ConfigError(f"the login of context {name}", words)
        write(name, renewed)
        return renewed
