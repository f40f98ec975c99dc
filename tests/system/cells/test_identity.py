"""Which database is which cell: a wrong connection string must not mix two of them up."""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from progressor import errors
from progressor.domain.processes.namespace import Namespace
from progressor.engine import engine as app
from progressor.sdk import BYTES, Client, NamespaceConfig
from tests.conftest import TEMPLATE
from tests.support.engine.cells import (
    AWAY,
    CELLS,
    HEALTH,
    Cells,
    living,
    open_cells,
    running_cells,
)
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.replica import Replica, answering, health_of, running_replica
from tests.support.postgres.cluster import Cluster

pytestmark = pytest.mark.asyncio


@pytest.fixture
def cells(cluster: Cluster) -> Iterator[Cells]:
    with open_cells(cluster, TEMPLATE) as opened:
        yield opened


def _read(conninfo: str, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(conninfo) as connection:
        return connection.execute(query).fetchall()


async def test_a_cell_keeps_its_number(cells: Cells) -> None:
    for _ in range(2):
        async with running_cells(cells):
            pass

    numbers = [
        _read(cells.databases[it], "SELECT name, number FROM progressor.cell") for it in CELLS
    ]
    assert numbers == [[("main", 0)], [("b", 1)]]
    assert _read(cells.databases["main"], "SELECT * FROM progressor.cells ORDER BY 1") == [
        (0, "main"), (1, "b")
    ]  # fmt: skip


async def test_the_database_of_another_cell_is_not_served(
    cells: Cells, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_cells(cells):
        pass
    swapped = dataclasses.replace(
        cells, proxies={"main": cells.proxies["main"], "c": cells.proxies["b"]}
    )
    async with running_cells(swapped, waits_for=("main",)):
        record = await _refused(caplog, "this is the database")

    assert record == {"why": "this is the database of cell b", "cell": "c"}


async def test_the_home_cell_stays_the_first_one(
    cells: Cells, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_cells(cells):
        pass
    turned = dataclasses.replace(cells, proxies={it: cells.proxies[it] for it in reversed(CELLS)})
    async with app.engine(turned.config()) as engine:
        first = await _refused(caplog, "b is not the home cell")
        second = await _refused(caplog, "main is the home cell")
        health = await health_of(engine.addresses[0], ["", *HEALTH.values()])

    assert (first["cell"], second["cell"]) == ("b", "main")
    assert health == dict.fromkeys(["", *HEALTH.values()], AWAY)


async def test_a_database_with_processes_can_only_be_the_home_cell(
    cells: Cells, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_replica(cells.databases["b"]) as alone, _started(alone):
        pass
    async with running_cells(cells, waits_for=("main",)):
        record = await _refused(caplog, "has processes")
    turned = dataclasses.replace(cells, proxies={it: cells.proxies[it] for it in reversed(CELLS)})
    async with (
        running_cells(turned, waits_for=("b",)) as replica,
        Client(replica.address, namespace="before", codec=BYTES) as client,
    ):
        process = await client.get("one")

    assert record["cell"] == "b"
    assert "can only be the home cell" in record["why"]
    assert process.process.process_id == "one"


async def test_namespaces_from_before_there_were_cells_are_found(cells: Cells) -> None:
    async with running_replica(cells.databases["main"]) as alone, Client(alone.address) as client:
        await client.namespaces.create(
            NamespaceConfig(name="before", processor_targets=("unix:/nowhere",))
        )
    async with running_cells(cells) as replica, Client(replica.address) as client:
        found = await client.namespaces.get("before")

    assert found.cell == "main"


async def test_configured_namespaces_are_created_where_they_are_wanted(cells: Cells) -> None:
    configured = tuple(
        Namespace(name=f"in-{cell}", processor_targets=("unix:/nowhere",), cell=cell)
        for cell in CELLS
    )
    for _ in range(2):
        async with (
            running_cells(cells, namespaces=configured) as replica,
            Client(replica.address) as client,
        ):
            found = [await _created(client, it.name) for it in configured]
            assert found == [*CELLS]


@pytest.mark.parametrize("wanted", ["", "b"])
async def test_a_creation_that_died_midway_can_be_repeated(cells: Cells, wanted: str) -> None:
    async with running_cells(cells) as replica:
        with psycopg.connect(cells.databases["main"], autocommit=True) as connection:
            connection.execute("INSERT INTO progressor.cell_namespaces VALUES ('half', 'b', 1)")
        async with living(replica, "half", wanted) as it:
            found = await it.client.namespaces.get("half")

    assert found.cell == "b"


async def test_the_name_of_a_deleted_namespace_is_free_in_all_cells(cells: Cells) -> None:
    async with running_cells(cells) as replica:
        for cell in (*CELLS, *CELLS):
            async with living(replica, "often", cell) as it:
                assert (await it.client.namespaces.get("often")).cell == cell
                await it.client.namespaces.delete("often")
        # A deletion that died midway.
        with psycopg.connect(cells.databases["main"], autocommit=True) as connection:
            connection.execute("INSERT INTO progressor.cell_namespaces VALUES ('often', 'b', 1)")
        async with Client(replica.address) as client:
            with pytest.raises(errors.NamespaceNotFoundError):
                await client.namespaces.delete("often")
        async with living(replica, "often", "main"):
            pass


async def _created(client: Client, name: str) -> str:
    """Return the cell of a namespace once it exists."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            with contextlib.suppress(errors.NamespaceNotFoundError):
                return (await client.namespaces.get(name)).cell


async def _refused(caplog: pytest.LogCaptureFixture, why: str) -> dict[str, str]:
    """Return the cell that is not served, and why, once the log has it."""
    noted = asyncio.Event()
    loop = asyncio.get_running_loop()
    found: dict[str, str] = {}

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told = vars(record)
            if why in told.get("why", ""):
                found.update(cell=told["cell"], why=told["why"])
                loop.call_soon_threadsafe(noted.set)

    handler, logger = Noting(), logging.getLogger("progressor")
    logger.addHandler(handler)
    try:
        for record in caplog.records:
            handler.handle(record)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await noted.wait()
    finally:
        logger.removeHandler(handler)
    return found


@contextlib.asynccontextmanager
async def _started(replica: Replica) -> AsyncIterator[None]:
    async with living(replica, "before") as it:
        it.processor.on_process("one", answering())
        await it.client.start("one")
        yield
