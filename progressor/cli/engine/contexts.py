"""Commands for contexts: named engines, in a file of the user."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from progressor import errors
from progressor.cli.input import contexts
from progressor.cli.input.contexts import Context, Contexts
from progressor.cli.input.login_tokens import forget
from progressor.cli.input.options import Json, bad_input, option
from progressor.cli.output import Column, facts, one_line, show, table
from progressor.settings.addresses import check_address
from progressor.wire.https import split_url
from progressor.wire.openid import TokenKind

_COLUMNS: Mapping[str, Column[tuple[str, Context, bool]]] = {
    "": lambda it: "*" if it[2] else "",
    "name": lambda it: it[0],
    "address": lambda it: one_line(it[1].address),
    "identity": lambda it: _identity(it[1]),
}


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ContextInput:
    """The options of a context."""

    address: str
    """Where the engine listens: host:port or unix:/path."""
    tls: Annotated[bool, Parameter(negative="")] = False
    """Use TLS, and trust the system's certificate authorities."""
    tls_ca: Path | None = None
    """Use TLS, and trust the certificate authorities in this PEM file."""
    tls_certificate: Path | None = None
    """Use TLS, and present the certificate in this PEM file."""
    tls_key: Path | None = None
    """The PEM file of the certificate's key."""
    tls_server_name: str = ""
    """Use TLS, and expect this name in the engine's certificate."""
    token_file: Path | None = None
    """Send the bearer token in this file."""
    decode_url: str = ""
    """Show encrypted payloads as this endpoint decrypts them."""
    decode_token_file: Path | None = None
    """Send the bearer token in this file to that endpoint."""
    issuer: str = ""
    """The OpenID Connect issuer at which `progressor login` logs in."""
    client_id: str = ""
    """The client id of this program at the issuer."""
    scope: str = Context().scope
    """The scopes to request from the issuer."""
    token: TokenKind = "access"  # noqa: S105  # a kind of token
    """Which token of the issuer to send to the engine."""
    issuer_ca: Path | None = None
    """Trust the certificate authorities in this PEM file for the issuer."""

    def context(self) -> Context:
        try:
            check_address("--address", self.address, port_min=1)
        except errors.ConfigError as error:
            raise bad_input(error.key, error.description) from error
        if bool(self.issuer) != bool(self.client_id):
            raise bad_input("--issuer", "and --client-id must be given together")
        for name, url in {"--issuer": self.issuer, "--decode-url": self.decode_url}.items():
            if url:
                check_url(name, url)
        # Absolute, because commands also run in other directories.
        fields: dict[str, Any] = {
            it.name: value.expanduser().absolute() if isinstance(value, Path) else value
            for it in dataclasses.fields(self)
            for value in (getattr(self, it.name),)
        }
        return Context(**fields)


def check_url(name: str, url: str) -> None:
    try:
        split_url(url)
    except ValueError as error:
        raise bad_input(name, str(error)) from error  # without the URL, which may have a password


def add(
    name: str,
    /,
    *,
    given: ContextInput,
    replace: Annotated[bool, option("Replace an existing context of this name.")] = False,
    json: Json = False,
) -> None:
    """Add a context, a named engine; the first one becomes the current context.

    The file is contexts.toml in $XDG_CONFIG_HOME/progressor (~/.config/progressor), or the one that
    PROGRESSOR_CONTEXTS names.
    """
    contexts.check_name(name, "NAME")
    context = given.context()

    def changed(known: Contexts) -> Contexts:
        if name in known.by_name and not replace:
            raise bad_input("NAME", f"context {name!r} already exists; replace it with --replace")
        forget(name)
        return Contexts(current=known.current or name, by_name={**known.by_name, name: context})

    contexts.change(changed)
    _show(name, context, json=json, words=f"added context {name}")


def use(name: str, /, *, json: Json = False) -> None:
    """Make a context the current one, which commands use by default."""
    context = contexts.read().get(name)
    contexts.change(lambda known: dataclasses.replace(known, current=name))
    _show(name, context, json=json, words=f"the current context is {name}")


def list_contexts(*, json: Json = False) -> None:
    """Print the contexts; a * marks the current one."""
    known = contexts.read()
    rows = [(name, it, name == known.current) for name, it in known.by_name.items()]
    document = {
        "current": known.current,
        "contexts": {name: contexts.table_of(it) for name, it in known.by_name.items()},
    }
    show(document, table(_COLUMNS, rows), as_json=json)


def show_context(name: str = "", /, *, json: Json = False) -> None:
    """Print a context; by default, the current one."""
    known = contexts.read()
    if not (name or known.current):
        raise errors.ConfigError(str(contexts.path()), "has no current context")
    name = name or known.current
    _show(name, known.get(name), json=json)


def remove(name: str, /, *, json: Json = False) -> None:
    """Remove a context, and delete the tokens of its login."""
    context = contexts.read().get(name)

    def changed(known: Contexts) -> Contexts:
        forget(name)
        others = {key: it for key, it in known.by_name.items() if key != name}
        return Contexts(current="" if known.current == name else known.current, by_name=others)

    contexts.change(changed)
    _show(name, context, json=json, words=f"removed context {name}")


def _show(name: str, context: Context, *, json: bool, words: str = "") -> None:
    found = contexts.table_of(context)
    people = words or facts({"name": name, **{key: one_line(str(it)) for key, it in found.items()}})
    show({"name": name, **found}, people, as_json=json)


def _identity(context: Context) -> str:
    if context.issuer:
        return one_line(context.issuer)
    return "token" if context.token_file else "certificate" if context.tls_certificate else ""
