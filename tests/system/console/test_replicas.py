"""The replicas in the console: each with its heartbeat, and releases side by side."""

import datetime as dt
from collections.abc import AsyncIterator

import psycopg
import pytest
import pytest_asyncio

from tests.support.console.visitor import Visitor
from tests.support.engine.replica import Replica, running_replica

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def later(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database, {"replica.name": "later <b>"}) as found:
        yield found


@pytest.mark.usefixtures("later")
async def test_each_replica_has_a_row_with_its_heartbeat_as_an_instant(visitor: Visitor) -> None:
    region = (await visitor.get("/replicas")).region
    rows = [it for it in region.one("tbody").all("tr") if "serving" in it.text]
    assert len(rows) == 2
    assert rows[1].one("th").text == "later <b>"
    for it in rows:
        beat = dt.datetime.fromisoformat(it.all("time")[0]["datetime"])
        assert abs(dt.datetime.now(dt.UTC) - beat) < dt.timedelta(minutes=1)
    assert "side by side" not in region.text


async def test_releases_that_differ_are_pointed_out(database: str, visitor: Visitor) -> None:
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        await connection.execute(
            "INSERT INTO progressor.replicas SELECT (jsonb_populate_record(r, "
            "jsonb_build_object('replica_id', r.replica_id + 1000000, 'version', '99.1.0', "
            "'heartbeat_at', now() + interval '1 hour'))).* FROM progressor.replicas r "
            "ORDER BY r.replica_id LIMIT 1"
        )
        region = (await visitor.get("/replicas")).region
        assert "99.1.0" in region.one("p", "warn").text
        await connection.execute("DELETE FROM progressor.replicas WHERE version = '99.1.0'")
