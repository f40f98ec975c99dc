"""Namespaces: their configuration, kept in PostgreSQL, remembered by each replica."""

import asyncio
import dataclasses
import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from progressor import errors
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.policy import Pause
from progressor.storage.namespaces.pauses import Pauses
from progressor.storage.postgres import statements
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.rows.effects import Effects

_SQL = statements.load("namespaces/namespaces")
_KEPT_APART = ("name", "cell", "created_at", "updated_at", "revision", "pause")

REFRESH_PAGE = 1000
UPDATE_ATTEMPTS_MAX = 10


class _Row(NamedTuple):
    name: str
    revision: int
    config: dict[str, Any]
    created_at: dt.datetime
    updated_at: dt.datetime
    pause: Pause | None


class Namespaces:
    """The namespaces, and a memory of them that the scan refreshes."""

    def __init__(self, context: StorageContext) -> None:
        self._context = context
        self._delete = context.functions.call("delete_namespace", str)
        self._gone: dict[str, None] = {}
        self.gone_noted = asyncio.Event()
        """Set while `take_gone` has something to return."""
        self._known: dict[str, Namespace] = {}
        self.pauses = Pauses()

    async def lookup(self, name: str) -> Namespace:
        """Return a namespace, from memory if it is known there: as of the last `refresh`.

        A change made through another replica takes effect here with the next scan; while PostgreSQL
        is unreachable, running steps end by the policy in memory.

        Raises:
            NamespaceNotFoundError: There is none.
            StorageUnavailableError: It is not in memory, and PostgreSQL is unreachable.
        """
        known = self._known.get(name)
        return await self.get(name) if known is None else known

    def known(self) -> tuple[Namespace, ...]:
        return tuple(self._known.values())

    def find(self, name: str) -> Namespace | None:
        """Return a namespace if it is in memory."""
        return self._known.get(name)

    def is_known(self, name: str) -> bool:
        """Tell whether a namespace is in memory; from any thread."""
        return name in self._known

    async def refresh(self) -> None:
        known = dict(self._known)
        found: list[Namespace] = []
        after = ""
        while True:
            page = await self.list(after=after, limit=REFRESH_PAGE)
            found.extend(page)
            if len(page) < REFRESH_PAGE:
                break
            after = page[-1].name
        self._forget_missing(known, found)

    async def refresh_pauses(self) -> None:
        """Read the namespaces that are paused, and those that this replica holds for paused."""
        mark = self.pauses.begin_reading()
        held = {name: self._known.get(name) for name in self.pauses.names}
        found: list[Namespace] = []
        after = ""
        while True:
            page = await self._read(
                "read_paused", names=list(held), after=after, limit=REFRESH_PAGE
            )
            found.extend(page)
            if len(page) < REFRESH_PAGE:
                break
            after = page[-1].name
        self._forget_missing(held, found)
        self.pauses.end_reading(mark)

    def take_gone(self) -> Effects:
        """Return the namespaces that left memory since the last call: they were deleted."""
        gone, self._gone = tuple(self._gone), {}
        self.gone_noted.clear()
        return Effects(gone=gone)

    async def create(self, namespace: Namespace) -> Namespace:
        """Create a namespace.

        Raises:
            NamespaceAlreadyExistsError: The name is taken.
        """
        found = await self._read("create_namespace", name=namespace.name, config=_config(namespace))
        if not found:
            raise errors.NamespaceAlreadyExistsError(namespace.name)
        return found[0]

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
        """
        for _ in range(UPDATE_ATTEMPTS_MAX):
            current = await self.get(name)
            if expected_revision not in {0, current.revision}:
                raise errors.NamespaceChangedError(name, expected_revision, current.revision)
            found = await self._read(
                "update_namespace",
                name=name,
                config=_config(change(current)),
                revision=current.revision,
            )
            if found:
                return found[0]
        raise errors.StorageUnavailableError(f"namespace {name} keeps changing")

    async def pause(
        self,
        names: Sequence[str] | None,
        *,
        reason: str,
        author: str,
        refuses_requests: bool = False,
    ) -> tuple[Namespace, ...]:
        """Pause namespaces and return them; None: all that are not paused.

        One that is paused already stays so since the same instant, with the new reason. All
        replicas are notified in the same transaction.
        """
        return await self._read(
            "pause_namespaces",
            names=None if names is None else list(names),
            reason=reason,
            author=author,
            refuses_requests=refuses_requests,
        )

    async def resume(self, name: str) -> Namespace:
        """Resume a namespace; one that is not paused is left as it is.

        Raises:
            NamespaceNotFoundError: There is none.
        """
        found = await self._read("resume_namespace", name=name)
        return found[0] if found else await self.get(name)

    async def get(self, name: str) -> Namespace:
        """Read a namespace. Raises NamespaceNotFoundError if there is none."""
        found = await self._read("read_namespaces", names=[name], after="", limit=1)
        if not found:
            self._forget(name)
            raise errors.NamespaceNotFoundError(name)
        return found[0]

    async def list(self, *, after: str, limit: int) -> tuple[Namespace, ...]:
        return await self._read("read_namespaces", names=None, after=after, limit=limit)

    async def delete(self, name: str) -> None:
        """Delete a namespace without processes.

        Raises:
            NamespaceNotFoundError: There is none.
            NamespaceNotEmptyError: It has processes.
        """
        [verdict] = await self._context.call(self._delete, name=name)
        if verdict == "not_empty":
            raise errors.NamespaceNotEmptyError(name)
        self._forget(name)
        if verdict == "not_found":
            raise errors.NamespaceNotFoundError(name)

    async def _read(self, statement: str, **named: Any) -> tuple[Namespace, ...]:  # noqa: ANN401  # as `read` takes it
        found = await self._context.read(_Row, _SQL[statement], **named)
        return tuple(self._remember(namespace_of(**row._asdict())) for row in found)

    def _remember(self, namespace: Namespace) -> Namespace:
        known = self._known.get(namespace.name)
        if known is not None and _age(known) >= _age(namespace):
            # Nothing new, or read before the change that we know of, and answered after it.
            return known
        self._known[namespace.name] = namespace
        self.pauses.learn(namespace)
        return namespace

    def _forget(self, name: str) -> None:
        self.pauses.forget(name)
        if self._known.pop(name, None) is not None:
            self._gone[name] = None
            self.gone_noted.set()

    def _forget_missing(
        self, known: Mapping[str, Namespace | None], found: Iterable[Namespace]
    ) -> None:
        for name in known.keys() - {namespace.name for namespace in found}:
            # One that was created meanwhile, under a new name or this one, stays.
            if self._known.get(name) is known[name]:
                self._forget(name)


def namespace_of(*, config: Mapping[str, Any], **apart: object) -> Namespace:
    return msgspec.convert({**config, **apart}, Namespace)


def _age(namespace: Namespace) -> tuple[dt.datetime, int]:
    """Return a key that grows with each change, even if the name was deleted in between."""
    assert namespace.created_at is not None, "it was read from the table"
    return namespace.created_at, namespace.revision


def _config(namespace: Namespace) -> str:
    plain = msgspec.to_builtins(dataclasses.replace(namespace, created_at=None, updated_at=None))
    return msgspec.json.encode(
        {name: value for name, value in plain.items() if name not in _KEPT_APART}
    ).decode()
