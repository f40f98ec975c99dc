"""The directory of the home cell: in which cell each namespace lives.

A name is claimed here before the namespace is created in its cell, and given back after it has been
deleted there, so that no two cells ever have a namespace of one name. Whoever dies in between
leaves a name without a namespace: creating or deleting it again is all that it takes.
"""

from collections.abc import Sequence
from typing import NamedTuple

from progressor.storage.postgres import statements
from progressor.storage.postgres.context import StorageContext

_SQL = statements.load("namespaces/cells")

PAGE = 1000


class _Entry(NamedTuple):
    namespace: str
    cell: str


class Place(NamedTuple):
    """The cell that has a name; the revision counts how often it was claimed."""

    cell: str
    revision: int


class Directory:
    """The directory, if this database is the home cell."""

    def __init__(self, context: StorageContext) -> None:
        self._context = context

    async def places(self) -> dict[str, str]:
        """Return the cell of each namespace."""
        found: dict[str, str] = {}
        after = ""
        while True:
            page = await self._context.read(_Entry, _SQL["read_places"], after=after, limit=PAGE)
            found.update(page)
            if len(page) < PAGE:
                return found
            after = page[-1].namespace

    async def find(self, namespace: str) -> Place | None:
        found = await self._context.read(Place, _SQL["find_place"], namespace=namespace)
        return found[0] if found else None

    async def claim(self, namespace: str, cell: str) -> str:
        """Claim a name for a cell, unless it is taken; return the cell that has it."""
        [found] = await self._context.read(str, _SQL["claim_place"], namespace=namespace, cell=cell)
        return found

    async def release(self, namespace: str, place: Place) -> None:
        """Give a name back, unless it has been claimed again since it was read."""
        await self._context.execute(
            _SQL["release_place"], namespace=namespace, cell=place.cell, revision=place.revision
        )

    async def adopt(self, namespaces: Sequence[str], cell: str) -> int:
        """Add those that the directory does not know; return how many there were."""
        return await self._context.execute(_SQL["adopt"], names=list(namespaces), cell=cell)
