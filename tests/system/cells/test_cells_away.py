"""A cell that is away takes down nothing but its own namespaces."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from progressor import errors
from progressor.sdk import BYTES, Client, NamespaceConfig, ProcessStatus
from progressor.storage.postgres.migrations import migrate_configured
from tests.conftest import TEMPLATE
from tests.support.engine.cells import (
    AWAY,
    CELLS,
    HEALTH,
    SERVING,
    Cells,
    Living,
    living,
    open_cells,
    running_cells,
)
from tests.support.engine.replica import Replica, answering, health_becomes, health_of
from tests.support.postgres.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def cells(cluster: Cluster) -> Iterator[Cells]:
    with open_cells(cluster, TEMPLATE) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(cells: Cells) -> AsyncIterator[Replica]:
    async with running_cells(cells) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def living_in(replica: Replica) -> AsyncIterator[dict[str, Living]]:
    async with (
        living(replica, "in-main", "main") as main,
        living(replica, "in-b", "b") as b,
    ):
        for it in (main, b):
            it.processor.on_process("one", *(answering() for _ in range(100)))
            await it.client.start("one")
        yield {"main": main, "b": b}


@pytest.mark.parametrize("away", CELLS)
async def test_the_other_cell_goes_on(
    cells: Cells, replica: Replica, living_in: dict[str, Living], away: str
) -> None:
    [other] = set(CELLS) - {away}
    cells.proxies[away].refuse()
    try:
        await health_becomes(replica.address, AWAY, service=HEALTH[away])
        with pytest.raises(errors.StorageUnavailableError) as caught:
            await living_in[away].client.call("one")
        await living_in[other].client.call("one")
        activity = await living_in[other].client.replicas.activity()
        with pytest.raises(errors.StorageUnavailableError) as listing:
            [it async for it in living_in[other].client.namespaces.list()]
        health = await health_of(replica.address, ["", HEALTH[away], HEALTH[other]])
    finally:
        cells.proxies[away].restore()
    await health_becomes(replica.address, SERVING, service=HEALTH[away])
    await living_in[away].client.call("one")

    assert f"cell {away}: " in str(caught.value)
    assert f"cell {away}: " in str(listing.value)
    assert health == {"": SERVING, HEALTH[away]: AWAY, HEALTH[other]: SERVING}
    assert {it.cell for it in activity.replicas} == {other}
    assert activity.unavailable_cells == (away,)


async def test_what_breaks_one_cell_ends_no_other(
    cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = {cells.proxies["b"].conninfo}

    def migrate(database: Any, dsn: str, **options: Any) -> Any:
        if dsn in broken:
            raise errors.ConfigError("database.dsn", "is ahead of this release")
        return migrate_configured(database, dsn, **options)

    monkeypatch.setattr("progressor.engine.cell.migrate_configured", migrate)
    monkeypatch.setattr("progressor.engine.cell._BROKEN_SECONDS", 0.05)
    async with running_cells(cells, waits_for=("main",)) as second:
        before = await health_of(second.address, [*HEALTH.values()])
        broken.clear()
        await health_becomes(second.address, SERVING, service=HEALTH["b"])

    assert before == {HEALTH["main"]: SERVING, HEALTH["b"]: AWAY}


async def test_without_the_home_cell_nothing_is_created(
    cells: Cells, replica: Replica, living_in: dict[str, Living]
) -> None:
    client = living_in["b"].client
    cells.proxies["main"].refuse()
    try:
        await health_becomes(replica.address, AWAY, service=HEALTH["main"])
        described = NamespaceConfig(name="new", processor_targets=("unix:/nowhere",), cell="b")
        with pytest.raises(errors.StorageUnavailableError) as creation:
            await client.namespaces.create(described)
        with pytest.raises(errors.StorageUnavailableError) as unknown:
            await client.namespaces.get("unknown")
    finally:
        cells.proxies["main"].restore()
    await health_becomes(replica.address, SERVING, service=HEALTH["main"])
    with pytest.raises(errors.NamespaceNotFoundError):
        await client.namespaces.get("new")

    assert "cell main: " in str(creation.value)
    assert "cell main: " in str(unknown.value)


@pytest.mark.usefixtures("living_in")
async def test_a_replica_that_starts_without_the_home_cell_serves_the_others(cells: Cells) -> None:
    cells.proxies["main"].refuse()
    try:
        async with running_cells(cells, waits_for=("b",)) as second:
            async with Client(second.address, namespace="in-b", codec=BYTES) as client:
                process = await client.get("one")
            health = await health_of(second.address, [*HEALTH.values()])
    finally:
        cells.proxies["main"].restore()

    assert process.process.status is ProcessStatus.RUNNING
    assert health == {HEALTH["main"]: AWAY, HEALTH["b"]: SERVING}
