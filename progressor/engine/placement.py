"""Which database is which cell, and the configured namespaces of an engine with several cells."""

import asyncio
import contextlib
import functools
import logging
import uuid

from progressor import errors
from progressor.api.server.places import Places, naming
from progressor.engine.cell import tell_difference
from progressor.settings.config import Config
from progressor.storage.namespaces.cell_identity import identify, register
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.pools import Pools

_log = logging.getLogger(__name__)

_HOME_AWAY = "the home cell, which gives it its number, has not been reached yet"


class Placement:
    def __init__(self, config: Config) -> None:
        self._home = config.cells[0].name
        self._namespaces = {it.name: it for it in config.namespaces}
        self._home_pools: Pools | None = None
        self._installation: uuid.UUID | None = None
        self.settled = asyncio.Event()

    async def identify(self, cell: str, pools: Pools) -> None:
        """Make sure that a database is that of a cell; a new one becomes it.

        Raises:
            StorageIdentityError: It is not; or it is new, and the home cell is away.
            StorageUnavailableError: PostgreSQL is.
        """
        is_home = cell == self._home
        known = functools.partial(identify, pools.scan, Functions(), cell, is_home=is_home)
        found = await known(installation=self._installation)
        if is_home:
            if found is None:
                found = await known(number=await register(pools.scan, Functions(), cell))
            self._home_pools, self._installation = pools, found
        elif found is None:
            if self._home_pools is None:
                raise errors.StorageIdentityError(_HOME_AWAY)
            number = await register(self._home_pools.scan, Functions(), cell)
            await known(number=number, installation=self._installation)

    async def settle(self, places: Places) -> None:
        """Read the directory, and create the configured namespaces that do not exist yet.

        One at a time: `settled` is set after the first round.
        """
        try:
            await places.refresh()
            for name in list(self._namespaces):
                await self._create(places, name)
        except errors.StorageError:
            # The next round tries again, and the cell itself tells what is wrong.
            pass
        finally:
            self.settled.set()

    async def _create(self, places: Places, name: str) -> None:
        namespace = self._namespaces[name]
        try:
            cell = await places.place(name, namespace.cell)
            with naming(cell), contextlib.suppress(errors.NamespaceNotFoundError):
                namespaces = places.backend(cell).namespaces
                try:
                    await namespaces.create(namespace)
                except errors.NamespaceAlreadyExistsError:
                    tell_difference(namespace, await namespaces.get(name))
        except errors.NamespaceAlreadyExistsError:
            _log.warning(
                "namespace lives in another cell than configured",
                extra={"namespace": name, "cell": namespace.cell},
            )
        except errors.StorageUnavailableError:
            return
        del self._namespaces[name]
