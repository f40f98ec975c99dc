"""Where namespaces live, as this replica knows it, and what serves each cell.

The directory of the home cell decides. A replica remembers what it says, so a home cell that is
away takes down only its own namespaces, those that are unknown here, and creations and deletions.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TypeVar

from progressor import errors
from progressor.api.calls.servicer import Backend
from progressor.domain.processes.namespace import is_namespace_name
from progressor.storage.namespaces.directory import PAGE, Directory
from progressor.wire import fields as wire

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

BUILT_IN = "progressor."
"""How the names of namespaces begin that every cell has of its own."""


@contextlib.contextmanager
def naming(cell: str) -> Iterator[None]:
    """Make an error say which cell is away."""
    try:
        yield
    except errors.StorageUnavailableError as error:
        error.cell = error.cell or cell
        raise


class Places:
    """The cells by their names, the home cell first."""

    def __init__(self, backends: Mapping[str, Callable[[], Backend]]) -> None:
        """Take what serves each cell; it raises StorageUnavailableError while nothing does."""
        self.names = tuple(backends)
        self.home = self.names[0]
        self._backends = backends
        self._known: dict[str, str] = {}
        self._adopted: dict[str, Backend] = {}
        self._calls: Mapping[str, set[asyncio.Task[object]]] = {name: set() for name in backends}

    @property
    def only(self) -> Callable[[], Backend]:
        """What serves the only cell."""
        [backend] = self._backends.values()
        return backend

    def backend(self, cell: str) -> Backend:
        """Return what serves a cell, which the errors of its absence name."""
        with naming(cell):
            if cell not in self._backends:
                raise errors.StorageUnavailableError("the cell is not one of this replica's")
            return self._backends[cell]()

    async def find(self, namespace: str) -> str | None:
        """Return the cell of a namespace; None: there is no such namespace.

        Raises:
            StorageUnavailableError: It is not known here, and the home cell is away.
        """
        if namespace.startswith(BUILT_IN):
            return self.home
        if not is_namespace_name(namespace):
            return None
        return self._known.get(namespace) or await self._ask(namespace)

    def forget(self, namespace: str) -> None:
        """Ask the directory again: the namespace is not where it was."""
        self._known.pop(namespace, None)

    async def _ask(self, namespace: str) -> str | None:
        try:
            with naming(self.home):
                place = await self.backend(self.home).directory.find(namespace)
        except errors.StorageUnavailableError:
            for name in self.names:
                with contextlib.suppress(errors.StorageUnavailableError):
                    if self.backend(name).namespaces.is_known(namespace):
                        return name
            raise
        if place is None:
            return None
        self._known[namespace] = place.cell
        return place.cell

    async def place(self, namespace: str, wanted: str) -> str:
        """Claim the name of a new namespace for a cell: the one wanted, or the emptiest.

        Raises:
            InvalidRequestError: There is no such cell.
            NamespaceAlreadyExistsError: Another cell has the name.
            StorageUnavailableError: The home cell is away, or the one that it would be.
        """
        if wanted and wanted not in self.names:
            words = f"must be one of {', '.join(self.names)}, got {wire.shown(wanted)}"
            wire.refuse("namespace.cell", words)
        with naming(self.home):
            directory = self.backend(self.home).directory
            known = await directory.find(namespace)
        cell = wanted or (known.cell if known else await self._emptiest())
        # If its cell is away, the name would be taken without a namespace.
        self.backend(cell)
        with naming(self.home):
            has_it = await directory.claim(namespace, cell)
        if has_it != cell:
            raise errors.NamespaceAlreadyExistsError(namespace)
        self._known[namespace] = cell
        return cell

    async def delete(self, namespace: str, delete: Callable[[str], Awaitable[Answer]]) -> Answer:
        """Delete a namespace in its cell, by `delete`, and give its name back.

        Raises:
            NamespaceNotFoundError: There is none.
            StorageUnavailableError: The home cell is away, or its own.
        """
        with naming(self.home):
            directory = self.backend(self.home).directory
            place = await directory.find(namespace)
        if place is None:
            raise errors.NamespaceNotFoundError(namespace)
        is_gone = False
        try:
            answer = await delete(place.cell)
            is_gone = True
        except errors.NamespaceNotFoundError:
            # An earlier creation or deletion was cut short.
            is_gone = True
            raise
        finally:
            if is_gone:
                self._known.pop(namespace, None)
                with naming(self.home):
                    await directory.release(namespace, place)
        return answer

    async def _emptiest(self) -> str:
        """Return the cell with the fewest processes of those that are served."""
        sizes: dict[str, tuple[int, int]] = {}
        for name in self.names:
            with contextlib.suppress(errors.StorageUnavailableError):
                counts = await self.backend(name).counts.read()
                # Many namespaces may be created before the first process is.
                namespace_count = sum(cell == name for cell in self._known.values())
                sizes[name] = (sum(it.total for it in counts), namespace_count)
        if not sizes:
            raise errors.StorageUnavailableError("no cell can be reached")
        return min(sizes, key=lambda name: sizes[name])

    async def refresh(self) -> None:
        """Read the directory, once what it lacks has been added to it.

        Namespaces that were created before there were cells are not in it yet.

        Raises:
            StorageUnavailableError: The home cell is away.
        """
        with naming(self.home):
            directory = self.backend(self.home).directory
            known = await directory.places()
        for cell in self.names:
            with contextlib.suppress(errors.StorageUnavailableError):
                await self._adopt(cell, directory, known)
        self._known = known

    async def _adopt(self, cell: str, directory: Directory, known: dict[str, str]) -> None:
        backend = self.backend(cell)
        if self._adopted.get(cell) is backend:
            return
        # Once after each connection, and from its table: what is in memory may have been deleted.
        names, after = list[str](), ""
        while page := await backend.namespaces.list(after=after, limit=PAGE):
            names += [it.name for it in page if not it.name.startswith(BUILT_IN)]
            after = page[-1].name
        unknown = [name for name in names if name not in known]
        if unknown and await directory.adopt(unknown, cell):
            facts = {"cell": cell, "namespaces": unknown}
            _log.info("namespaces added to the directory of cells", extra=facts)
        known |= dict.fromkeys(unknown, cell)
        if twice := [name for name in names if known[name] != cell]:
            facts = {"cell": cell, "namespaces": twice}
            _log.warning(
                "another cell has namespaces of these names, which are served", extra=facts
            )
        self._adopted[cell] = backend

    @contextlib.contextmanager
    def calling(self, cell: str, task: asyncio.Task[object] | None = None) -> Iterator[None]:
        """Note that a task, or the current one, is a request to a cell; its errors name it."""
        task, calls = task or asyncio.current_task(), self._calls[cell]
        assert task is not None, "each request runs in a task"
        calls.add(task)
        try:
            with naming(cell):
                yield
        finally:
            calls.discard(task)

    def calls(self, cell: str) -> tuple[asyncio.Task[object], ...]:
        """Return the requests that are in flight to a cell."""
        return tuple(self._calls[cell])
