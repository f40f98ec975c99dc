"""The commands login and logout: the device flow of OpenID Connect (RFC 8628)."""

import asyncio
import dataclasses
import sys
from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import Parameter

from progressor import errors
from progressor.cli.engine.contexts import check_url
from progressor.cli.input import contexts, login_tokens
from progressor.cli.input.contexts import Context, Contexts
from progressor.cli.input.options import Json, bad_input, option
from progressor.cli.output import one_line, show
from progressor.wire.openid import TokenKind, Tokens, seconds_in

_Name = Annotated[
    str,
    Parameter(env_var="PROGRESSOR_CONTEXT", help="The context to use; default: the current one."),
]

_OK = 200
_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_INTERVAL_SECONDS = 5.0
_SLOWER_SECONDS = 5.0
_PATIENCE_SECONDS_MAX = 1800.0
_SLOW_DOWN, _PENDING = "slow_down", "authorization_pending"
_MEANINGS: Mapping[str, str] = {
    "expired_token": "the code has expired; log in again",
    "access_denied": "the login was denied",
}


async def login(
    *,
    context: _Name = "",
    issuer: Annotated[
        str, option("The issuer; saved in the context, like the options below.")
    ] = "",
    client_id: Annotated[str, option("The client id of this program at the issuer.")] = "",
    scope: Annotated[str, option("The scopes to request from the issuer.")] = "",
    token: Annotated[
        TokenKind | None, option("The token to send to the engine: access (the default) or id.")
    ] = None,
    json: Json = False,
) -> None:
    """Log in to the engine of a context, at its issuer, with a browser on any device.

    Prints a code and the URL at which to enter it, and waits. The tokens are stored next to the
    contexts in a file that only you can read; commands renew them.
    """
    known = contexts.read()
    name = context or known.current
    if not name:
        raise bad_input("--context", "must be given: no context is current")
    given = {"issuer": issuer, "client_id": client_id, "scope": scope, "token": token}
    fields: dict[str, Any] = {key: it for key, it in given.items() if it}
    before = known.get(name)
    chosen = dataclasses.replace(before, **fields)
    for key, value in (("--issuer", chosen.issuer), ("--client-id", chosen.client_id)):
        if not value:
            raise bad_input(key, f"must be given: context {name!r} does not set it")
    check_url("--issuer", chosen.issuer)
    tokens = await _tokens(chosen)

    def changed(latest: Contexts) -> Contexts:
        # The tokens must not go to an engine that they were not requested for.
        if latest.by_name.get(name) != before:
            raise bad_input("--context", f"{name!r} was changed during the login; log in again")
        return dataclasses.replace(latest, by_name={**latest.by_name, name: chosen})

    contexts.change(changed)
    with login_tokens.locked(name):
        login_tokens.write(name, tokens)
    document = {"context": name, "issuer": chosen.issuer, "is_renewed": bool(tokens.refresh_token)}
    hint = "" if tokens.refresh_token else "; the issuer gave no refresh token, so it will expire"
    show(document, f"logged in to {name} ({one_line(chosen.address)}){hint}", as_json=json)


def logout(
    *,
    context: _Name = "",
    json: Json = False,
) -> None:
    """Delete the tokens of a login. They stay valid until they expire."""
    known = contexts.read()
    name = context or known.current
    if name:
        known.get(name)
    was_there = bool(name) and login_tokens.forget(name)
    words = f"logged out of {name}" if was_there else "not logged in"
    show({"context": name, "was_logged_in": was_there}, words, as_json=json)


async def _tokens(context: Context) -> Tokens:
    """Request a code, print it, and return the tokens once the user has entered it."""
    endpoint = "device_authorization_endpoint"
    status, device = await _ask(context, endpoint, {"scope": context.scope})
    code, user_code, url = (
        device.get(key) for key in ("device_code", "user_code", "verification_uri")
    )
    if status != _OK or not (code and user_code and url):
        raise _refused(context, device)
    complete = device.get("verification_uri_complete")
    lines = [f"Open {one_line(str(url))} and enter the code {one_line(str(user_code))}"]
    lines += [f"or open {one_line(str(complete))}"] if complete else []
    # Standard output may be read by a program.
    sys.stderr.write("\n".join([*lines, ""]))
    sys.stderr.flush()
    interval = _seconds(device, "interval", _INTERVAL_SECONDS)
    try:
        async with asyncio.timeout(_seconds(device, "expires_in", _PATIENCE_SECONDS_MAX)):
            return await _polled(context, str(code), interval)
    except TimeoutError:
        raise errors.ConfigError(context.issuer, _MEANINGS["expired_token"]) from None


async def _polled(context: Context, code: str, interval: float) -> Tokens:
    while True:  # ends at the latest when the code expires
        await asyncio.sleep(interval)
        form = {"grant_type": _GRANT, "device_code": code}
        status, answer = await _ask(context, "token_endpoint", form)
        if status == _OK:
            return login_tokens.client_of(context).tokens_of(answer, login_tokens.now())
        error = answer.get("error")
        if error == _SLOW_DOWN:
            interval += _SLOWER_SECONDS
        elif error != _PENDING:
            raise _refused(context, answer)


async def _ask(
    context: Context, endpoint: str, form: Mapping[str, str]
) -> tuple[int, dict[str, Any]]:
    return await asyncio.to_thread(login_tokens.client_of(context).ask, endpoint, form)


def _refused(context: Context, answer: Mapping[str, Any]) -> errors.ConfigError:
    error = answer.get("error")
    words = (
        _MEANINGS.get(str(error))
        or f"refused the login: {error}: {answer.get('error_description', '')}"
    )
    return errors.ConfigError(context.issuer, one_line(words))


def _seconds(answer: Mapping[str, Any], key: str, otherwise: float) -> float:
    # At least a second, so that polling pauses; at most half an hour.
    return min(max(seconds_in(answer, key, otherwise), 1), _PATIENCE_SECONDS_MAX)
