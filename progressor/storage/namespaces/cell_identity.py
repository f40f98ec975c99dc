"""Which cell a database is, so that a wrong connection string cannot mix two of them up."""

import uuid
from typing import NamedTuple

from progressor import errors
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.pools import Pool, connection_of


class _Found(NamedTuple):
    name: str | None
    number: int | None
    installation: uuid.UUID | None
    is_used: bool


async def identify(
    pool: Pool,
    functions: Functions,
    name: str,
    *,
    is_home: bool,
    number: int | None = None,
    installation: uuid.UUID | None = None,
) -> uuid.UUID | None:
    """Return the installation that a cell belongs to; None: the database is no cell yet.

    With a number it becomes one: the home cell, which draws the installation, has number 0.

    Raises:
        StorageIdentityError: The database is not of this cell.
        StorageUnavailableError: PostgreSQL is.
    """
    become = functions.call("become_cell", _Found)
    async with connection_of(pool) as connection:
        [found] = await become.rows(connection, name=name, number=number, installation=installation)
    if found.is_used:
        words = "this database has processes of its own, and so can only be the home cell"
        raise errors.StorageIdentityError(words)
    if found.name is not None and found.name != name:
        raise errors.StorageIdentityError(f"this is the database of cell {found.name}")
    if found.number is not None and is_home != (found.number == 0):
        words = "is not the home cell" if is_home else "is the home cell"
        raise errors.StorageIdentityError(
            f"cell {name} {words}, which must be the first one of the configuration"
        )
    if None not in {installation, found.installation} and found.installation != installation:
        words = "this database belongs to the home cell of another engine"
        raise errors.StorageIdentityError(words)
    return found.installation


async def register(pool: Pool, functions: Functions, name: str) -> int:
    """Return the number of a cell, from the home cell."""
    function = functions.call("register_cell")
    async with connection_of(pool) as connection:
        [(number,)] = await function.rows(connection, name=name)
    return int(number)
