"""Connections that were closed are never lent again."""

import pytest

from progressor.storage.postgres.pools import Pool

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_connection_whose_answer_came_just_before_the_hang_up_is_not_lent_again(
    database: str,
) -> None:
    options = {"autocommit": True}
    async with Pool(database, patience=60.0, kwargs=options, min_size=1, max_size=1) as pool:
        async with pool.connection() as connection:
            await connection.execute("SELECT 1")
            # As where a scan is cancelled while its answer arrives: all of it has been read.
            await connection.cancel_safe()
            assert not connection.closed

        async with pool.connection() as another:
            cursor = await another.execute("SELECT 2")
            assert await cursor.fetchone() == (2,)
