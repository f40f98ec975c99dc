"""A console of an engine with access control, and those who visit it."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Mapping

from progressor import access_errors
from progressor.domain.access.rights import EVERYTHING, Role
from progressor.sdk import BYTES, Client, NamespaceConfig
from progressor.settings.config import load
from progressor.storage.access.first_admin import create_first_admin
from tests.support.console.console import Console, logged_in, running_console
from tests.support.console.visitor import Visitor
from tests.support.engine.points import eventually
from tests.support.engine.replica import Replica

GUARDED = {"access.enabled": "true"}
"""The settings of a replica with access control."""

READABLE, HIDDEN = "orders", "payments"
"""Two namespaces; readers may see the first."""


@dataclasses.dataclass(frozen=True, slots=True)
class Guarded:
    """Browsers by who has logged in: admin and operator of all namespaces, reader of READABLE."""

    replica: Replica
    admin: Client
    console: Console
    visitors: Mapping[str, Visitor]


@contextlib.asynccontextmanager
async def running_guarded(database: str, replica: Replica) -> AsyncIterator[Guarded]:
    """Serve a console before a replica that runs with GUARDED."""
    config = load(environment={}, flags={"database.dsn": database}).database
    token = await asyncio.to_thread(create_first_admin, config, database, "admin")
    async with (
        Client(replica.address, namespace=READABLE, token=token, codec=BYTES) as admin,
        running_console(replica.address) as console,
    ):

        async def is_let_in() -> bool:
            try:
                await admin.access.who_am_i()
            except access_errors.UnauthenticatedError:
                return False
            return True

        await eventually(is_let_in)
        for name in (READABLE, HIDDEN):
            await admin.namespaces.create(NamespaceConfig(name=name, processor_targets=("x:1",)))
        tokens = {"admin": token}
        for name, role, where in (
            ("operator", Role.OPERATOR, EVERYTHING),
            ("reader", Role.READER, READABLE),
        ):
            _, tokens[name] = await admin.access.create_token(name)
            await admin.access.add_binding(f"token:{name}", role, where)
        visitors = {name: await logged_in(console, it) for name, it in tokens.items()}
        yield Guarded(replica, admin, console, visitors)
