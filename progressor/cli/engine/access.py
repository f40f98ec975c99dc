"""Commands for access control: bindings and API tokens."""

import datetime as dt
from collections.abc import Mapping
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import RenderableType

from progressor.cli.input.options import (
    PAGE_MAX,
    EngineOptions,
    Json,
    Settings,
    bad_input,
    client_of,
    duration,
    option,
)
from progressor.cli.output import (
    Column,
    ExitCode,
    facts,
    instant_text,
    one_line,
    show,
    table,
)
from progressor.domain.access.rights import Binding, Role
from progressor.domain.access.tokens import ApiToken
from progressor.storage.access.first_admin import create_first_admin
from progressor.storage.embedded.server import running_conninfo

RoleName = Literal["reader", "payload_reader", "caller", "processor", "operator", "admin"]
In = Annotated[
    str,
    Parameter(
        name="--in",
        help="Namespaces: a name, a prefix followed by *, or * alone.",
    ),
]


_BINDINGS: Mapping[str, Column[Binding]] = {
    "principal": lambda it: one_line(it.principal),
    "role": lambda it: it.role.value,
    "in": lambda it: it.namespace,
    "added": lambda it: instant_text(it.created_at),
    "by": lambda it: one_line(it.created_by),
}
_TOKENS: Mapping[str, Column[ApiToken]] = {
    "id": lambda it: it.token_id,
    "name": lambda it: one_line(it.name),
    "revoked": lambda it: instant_text(it.revoked_at) if it.revoked_at else "",
    "created": lambda it: instant_text(it.created_at),
    "by": lambda it: one_line(it.created_by),
    "expires": lambda it: instant_text(it.expires_at) if it.expires_at else "never",
    "last used": lambda it: instant_text(it.last_used_at) if it.last_used_at else "never",
}


def init(
    *,
    name: Annotated[str, option("The name of the token.")] = "admin",
    json: Json = False,
    settings: Annotated[Settings, Parameter(name="*")] = Settings(),
) -> None:
    """Create the first administrator: a token with the role admin in all namespaces.

    Writes to the database directly, and can be repeated, for example if all tokens are lost. The
    token is printed only once; the engine keeps only a hash of it.
    """
    database = settings.load().database
    dsn = database.dsn or running_conninfo(database.data_directory)
    text = create_first_admin(database, dsn, name)
    show({"principal": f"token:{name}", "token": text}, text, as_json=json)


async def whoami(*, options: EngineOptions = EngineOptions()) -> None:
    """Print your principal and your bindings, as the engine sees them."""
    async with client_of(options) as client:
        found = await client.access.who_am_i()
    if not found.is_access_controlled:
        words: list[RenderableType] = ["This engine has no access control: anyone may do anything."]
    else:
        groups = ", ".join(map(one_line, found.groups))
        words = [
            facts({"principal": one_line(found.principal), **({"also": groups} if groups else {})})
        ]
        words += [
            "",
            table(_BINDINGS, found.bindings) if found.bindings else "No bindings: no rights.",
        ]
    show(found, *words, as_json=options.json)


async def why(
    rpc: str,
    /,
    *,
    namespace: Annotated[
        str, Parameter(alias="-n", help="The namespace; default: all namespaces.")
    ] = "",
    principal: Annotated[str, option("The principal; default: you.")] = "",
    group: Annotated[tuple[str, ...], option("A group of the principal; may be repeated.")] = (),
    options: EngineOptions = EngineOptions(),
) -> ExitCode:
    """Say whether a request would be served, and which binding allows it; exit code 1 if not.

    RPC is the name of a method, such as Start. A principal is token:NAME, cert:NAME or
    user:ISSUER/NAME; a group is group:ISSUER/NAME.
    """
    async with client_of(options) as client:
        found = await client.access.check(
            rpc, namespace=namespace, principal=principal, groups=group
        )
    place = f"in {namespace}" if namespace else "in all namespaces"
    if not found.is_allowed:
        words = f"denied: {rpc} needs the right to {found.right} {place}"
    elif found.binding is None:
        words = f"allowed: {rpc} needs only valid credentials"
    else:
        words = (
            f"allowed: {one_line(found.binding.principal)} is {found.binding.role} "
            f"in {found.binding.namespace}"
        )
    show(found, words, as_json=options.json)
    return ExitCode.DONE if found.is_allowed else ExitCode.FAILED


async def grant(
    principal: str, role: RoleName, /, *, namespaces: In, options: EngineOptions = EngineOptions()
) -> None:
    """Give a role to a principal; repeating it changes nothing.

    A principal is token:NAME, cert:NAME, user:ISSUER/NAME or group:ISSUER/NAME, or a prefix
    followed by * (in quotes).
    """
    async with client_of(options) as client:
        added = await client.access.add_binding(principal, Role(role), namespaces)
    show(
        added,
        f"{one_line(added.principal)} is {added.role} in {added.namespace}",
        as_json=options.json,
    )


async def revoke(
    principal: str, role: RoleName, /, *, namespaces: In, options: EngineOptions = EngineOptions()
) -> None:
    """Revoke a role; principal and namespaces must be exactly as granted."""
    async with client_of(options) as client:
        await client.access.remove_binding(principal, Role(role), namespaces)
    document = {"principal": principal, "role": role, "namespace": namespaces}
    show(document, f"{principal} is no longer {role} in {namespaces}", as_json=options.json)


async def list_bindings(*, options: EngineOptions = EngineOptions()) -> None:
    """Print the bindings: principals, roles and namespaces."""
    async with client_of(options) as client:
        found = [it async for it in client.access.bindings(page_size=PAGE_MAX)]
    show({"bindings": found}, table(_BINDINGS, found), as_json=options.json)


async def create_token(
    name: str,
    /,
    *,
    lifetime: Annotated[
        dt.timedelta | None,
        duration("Lifetime of the token, for example 90d; default: until it is revoked."),
    ] = None,
    role: Annotated[RoleName | None, option("Also give the token this role.")] = None,
    namespaces: Annotated[str, Parameter(name="--in", help="The namespaces of that role.")] = "",
    options: EngineOptions = EngineOptions(),
) -> None:
    """Create an API token and print it only once: the engine keeps only a hash of it.

    Its principal is token:NAME. To replace a token, create another one with the same name, and
    revoke the old one when it is no longer used.
    """
    if (role is None) != (not namespaces):
        raise bad_input("--in", "and --role must be given together")
    async with client_of(options) as client:
        # The binding first: if it fails, no token is left that was never printed.
        if role is not None:
            await client.access.add_binding(f"token:{name}", Role(role), namespaces)
        created, text = await client.access.create_token(name, lifetime=lifetime)
    show({"token": created, "secret_token": text}, text, as_json=options.json)


async def list_tokens(*, options: EngineOptions = EngineOptions()) -> None:
    """Print the API tokens, without those that expired or were revoked over 90 days ago."""
    async with client_of(options) as client:
        found = [it async for it in client.access.tokens(page_size=PAGE_MAX)]
    show({"tokens": found}, table(_TOKENS, found), as_json=options.json)


async def revoke_token(token_id: str, /, *, options: EngineOptions = EngineOptions()) -> None:
    """Revoke an API token for good, by its id."""
    async with client_of(options) as client:
        revoked = await client.access.revoke_token(token_id)
    show(
        revoked,
        f"revoked token {revoked.token_id} of {one_line(revoked.name)}",
        as_json=options.json,
    )
