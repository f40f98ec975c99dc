"""Namespaces: their configuration, kept in PostgreSQL, remembered by each replica."""

import asyncio
import dataclasses
import datetime as dt
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from progressor import errors
from progressor.domain.processes.namespace import Namespace
from progressor.storage.postgres import statements
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.pools import Pool, connection_of
from progressor.storage.rows import tasks as rows
from progressor.storage.rows.effects import Effects

_SQL = statements.load("namespaces/namespaces")
_KEPT_APART = ("name", "created_at", "updated_at", "revision")

REFRESH_PAGE = 1000
UPDATE_ATTEMPTS_MAX = 10


class _DeletedRow(NamedTuple):
    verdict: str


class Namespaces:
    """The namespaces, and a memory of them that the scan refreshes."""

    def __init__(self, *, pool: Pool, functions: Functions) -> None:
        self._pool = pool
        self._delete = functions.call("delete_namespace", _DeletedRow)
        self._gone: dict[str, None] = {}
        self.gone_noted = asyncio.Event()
        """Set while `take_gone` has something to return."""
        self._known: dict[str, Namespace] = {}

    async def lookup(self, name: str) -> Namespace:
        """Return a namespace, from memory if it is there: as of the last `refresh`.

        So a change made in another replica takes effect here with the next scan; and a step in hand
        can end by yesterday's policy while PostgreSQL is unreachable.

        Raises:
            NamespaceNotFoundError: There is none.
            StorageUnavailableError: It is not in memory, and PostgreSQL is unreachable.
        """
        known = self._known.get(name)
        return await self.get(name) if known is None else known

    def known(self) -> tuple[Namespace, ...]:
        """Return the namespaces in memory."""
        return tuple(self._known.values())

    def is_known(self, name: str) -> bool:
        """Tell whether a namespace is in memory; from any thread."""
        return name in self._known

    async def refresh(self) -> None:
        """Read all namespaces into memory; at most REFRESH_PAGE per round trip."""
        found: list[Namespace] = []
        after = ""
        while True:
            page = await self.list(after=after, limit=REFRESH_PAGE)
            found.extend(page)
            if len(page) < REFRESH_PAGE:
                break
            after = page[-1].name
        gone = self._known.keys() - {namespace.name for namespace in found}
        for name in gone:
            self._forget(name)

    def take_gone(self) -> Effects:
        """Return the namespaces that left memory since the last call: they were deleted."""
        gone, self._gone = tuple(self._gone), {}
        self.gone_noted.clear()
        return Effects(gone=gone)

    async def create(self, namespace: Namespace) -> Namespace:
        """Create a namespace.

        Raises:
            NamespaceAlreadyExistsError: The name is taken.
            StorageUnavailableError: PostgreSQL is unreachable.
        """
        row = await self._one(
            "create_namespace", {"name": namespace.name, "config": _config(namespace)}
        )
        if row is None:
            raise errors.NamespaceAlreadyExistsError(namespace.name)
        return self._remember(row)

    async def update(
        self, name: str, change: Callable[[Namespace], Namespace], *, expected_revision: int = 0
    ) -> Namespace:
        """Change a namespace; concurrent changes are applied one after the other.

        Args:
            name: Which.
            change: Returns the changed namespace; may be called again with a newer one.
            expected_revision: Only if it is still at this revision; 0: whatever it is.

        Raises:
            NamespaceNotFoundError: There is none.
            NamespaceChangedError: It is at another revision.
            StorageUnavailableError: PostgreSQL is unreachable.
        """
        for _ in range(UPDATE_ATTEMPTS_MAX):
            current = await self.get(name)
            if expected_revision not in {0, current.revision}:
                raise errors.NamespaceChangedError(name, expected_revision, current.revision)
            row = await self._one(
                "update_namespace",
                {"name": name, "config": _config(change(current)), "revision": current.revision},
            )
            if row is not None:
                return self._remember(row)
        raise errors.StorageUnavailableError(f"namespace {name} keeps changing")

    async def get(self, name: str) -> Namespace:
        """Read a namespace. Raises NamespaceNotFoundError if there is none."""
        row = await self._one("get_namespace", {"name": name})
        if row is None:
            self._forget(name)
            raise errors.NamespaceNotFoundError(name)
        return self._remember(row)

    async def list(self, *, after: str, limit: int) -> tuple[Namespace, ...]:
        """Read `limit` namespaces after a name, in the order of names."""
        async with connection_of(self._pool) as connection:
            cursor = await connection.execute(
                _SQL["list_namespaces"], {"after": after, "limit": limit}
            )
            return tuple(self._remember(row) for row in await cursor.fetchall())

    async def delete(self, name: str) -> None:
        """Delete a namespace without processes.

        Raises:
            NamespaceNotFoundError: There is none.
            NamespaceNotEmptyError: It has processes.
            StorageUnavailableError: PostgreSQL is unreachable.
        """
        async with connection_of(self._pool) as connection:
            [found] = await self._delete.rows(connection, name=name)
        if found.verdict == "not_empty":
            raise errors.NamespaceNotEmptyError(name)
        self._forget(name)
        if found.verdict == "not_found":
            raise errors.NamespaceNotFoundError(name)

    async def _one(self, statement: str, parameters: dict[str, Any]) -> rows.Row | None:
        async with connection_of(self._pool) as connection:
            cursor = await connection.execute(_SQL[statement], parameters)
            return await cursor.fetchone()

    def _remember(self, row: rows.Row) -> Namespace:
        namespace = namespace_of(row)
        known = self._known.get(namespace.name)
        if known is not None and _age(known) > _age(namespace):
            # Read before the change that we know of, and answered after it.
            return known
        self._known[namespace.name] = namespace
        return namespace

    def _forget(self, name: str) -> None:
        if self._known.pop(name, None) is not None:
            self._gone[name] = None
            self.gone_noted.set()


def namespace_of(row: rows.Row) -> Namespace:
    """Return a row of the table as the namespace that it describes."""
    return msgspec.convert(
        {
            **row[2],
            "name": row[0],
            "revision": row[1],
            "created_at": row[3],
            "updated_at": row[4],
        },
        Namespace,
    )


def _age(namespace: Namespace) -> tuple[dt.datetime, int]:
    """Return what grows with each change, also where one of that name was deleted in between."""
    assert namespace.created_at is not None, "it was read from the table"
    return namespace.created_at, namespace.revision


def _config(namespace: Namespace) -> str:
    plain = msgspec.to_builtins(dataclasses.replace(namespace, created_at=None, updated_at=None))
    return msgspec.json.encode(
        {name: value for name, value in plain.items() if name not in _KEPT_APART}
    ).decode()
