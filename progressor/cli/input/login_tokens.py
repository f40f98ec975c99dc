"""The tokens of a login: kept beside the contexts, and renewed when they are about to expire."""

import dataclasses
import os
import stat
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec

from progressor import errors
from progressor.cli.input import contexts
from progressor.cli.input.contexts import Context
from progressor.clock import SystemClock
from progressor.wire.tls import is_token

_EARLY_SECONDS = 30.0
_LIFETIME_SECONDS = 300.0
"""Of a token whose issuer says nothing of it."""

_SECONDS_MAX = 1e9
_OK = 200
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What a login has given."""

    issuer: str
    expires_at: float
    access_token: str = dataclasses.field(repr=False)
    id_token: str = dataclasses.field(repr=False, default="")
    refresh_token: str = dataclasses.field(repr=False, default="")

    def of_kind(self, kind: str) -> str:
        return self.id_token if kind == "id" else self.access_token


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
        if _is_old(self._tokens):
            self._tokens = _renewed(self._name, self._context)
        return self._tokens.of_kind(self._context.token)


def _is_old(tokens: Tokens) -> bool:
    return SystemClock().now().timestamp() >= tokens.expires_at - _EARLY_SECONDS


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


def tokens_of(answer: Mapping[str, Any], context: Context, earlier: Tokens | None) -> Tokens:
    """Return what a token endpoint has answered.

    Raises:
        ConfigError: The token that is to go to the engine is not there.
    """
    given = {
        key: it
        for key in ("access_token", "id_token", "refresh_token")
        if isinstance(it := answer.get(key), str) and is_token(it)
    }
    if earlier is not None:
        given = {"refresh_token": earlier.refresh_token, **given}
    found = Tokens(
        issuer=context.issuer,
        expires_at=SystemClock().now().timestamp()
        + seconds_in(answer, "expires_in", _LIFETIME_SECONDS),
        **{"access_token": "", **given},
    )
    if not found.of_kind(context.token):
        words = f"has sent no {context.token} token; the scope is {context.scope!r}"
        raise errors.ConfigError(context.issuer, words)
    return found


def seconds_in(answer: Mapping[str, Any], key: str, otherwise: float) -> float:
    """Return how long something lasts by an answer; `otherwise` if that is no such number."""
    value: object = answer.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return otherwise
    # Neither not-a-number nor what no float can hold is between these.
    return float(value) if 0 < value <= _SECONDS_MAX else otherwise


def _renewed(name: str, context: Context) -> Tokens:
    with locked(name):
        # Another command may have renewed them meanwhile.
        tokens = read(name)
        if tokens is None or (_is_old(tokens) and not tokens.refresh_token):
            raise _expired(name)
        if not _is_old(tokens):
            return tokens
        form = {"grant_type": "refresh_token", "refresh_token": tokens.refresh_token}
        status, answer = ask(context, "token_endpoint", form)
        if status != _OK:
            raise _expired(name)
        renewed = tokens_of(answer, context, tokens)
        write(name, renewed)
        return renewed


def _expired(name: str) -> errors.ConfigError:
    words = f"has expired: progressor login --context {name}"
    return errors.ConfigError(f"the login of context {name}", words)


def ask(context: Context, endpoint: str, form: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """Return the answer of an endpoint of the issuer.

    Raises:
        ConfigError: There is none that can be used.
    """
    from progressor.wire.https import HttpsError, discover, fetch_json  # noqa: PLC0415  # few commands need it

    try:
        url = discover(context.issuer, endpoint, ca=context.issuer_ca)
        return fetch_json(url, form={"client_id": context.client_id, **form}, ca=context.issuer_ca)
    except HttpsError as error:
        raise errors.ConfigError(context.issuer, f"cannot be asked: {error}") from error
