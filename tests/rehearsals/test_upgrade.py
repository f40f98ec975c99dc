"""docs/how-to/deploy/upgrade.md: two releases on one database, a rollback in the middle."""

import sys
from pathlib import Path

import pytest

from progressor.sdk import Client, ReplicaState
from tests.rehearsals.load import (
    client_of,
    complete_histories,
    create_namespace,
    expected,
    processor,
    running_load,
)
from tests.rehearsals.releases import findings, migrated, open_fleet, previous_release
from tests.support.engine.process import ROOT
from tests.support.postgres.cluster import Cluster

pytestmark = pytest.mark.slow


async def schemas(client: Client) -> set[str]:
    """Return the schemas of functions that serving replicas use: one per release."""
    serving = [it async for it in client.replicas.list() if it.state is ReplicaState.SERVING]
    return {it.functions for it in serving}


async def test_an_upgrade_with_a_rollback_in_the_middle_loses_nothing(
    durable_cluster: Cluster, tmp_path: Path
) -> None:
    old, new = previous_release(tmp_path / "old"), ROOT
    conninfo = durable_cluster.create_database()
    async with (
        processor().running("127.0.0.1:0") as target,
        open_fleet(conninfo, tmp_path, "a", "b") as fleet,
    ):
        await fleet.start("a", old)
        await fleet.start("b", old)
        async with client_of(fleet.addresses) as client:
            await create_namespace(client, target)
            async with running_load(fleet.addresses) as load:
                await load.advance()
                await migrated(new, conninfo)
                await load.advance()
                await fleet.replace("a", new)
                await load.advance()
                together = await schemas(client)
                await fleet.kill("b")
                await load.advance(50)
                await fleet.start("b", old)
                await fleet.replace("a", old)  # the rollback
                await load.advance()
                await fleet.replace("a", new)
                await fleet.replace("b", new)
                await load.advance()
                await fleet.kill("a")
                await load.advance(50)
                await fleet.start("a", new)
                await load.advance()
            found = await complete_histories(client, [*load.acknowledged])
            left = await schemas(client)
            wrong = await findings(conninfo)

    sys.stdout.write(f"{load}\n")
    assert len(together) == 2, "both releases have the same functions: nothing was rehearsed"
    assert len(left) == 1
    assert found == expected(load.acknowledged)
    assert set(wrong) == {"heartbeats"}, wrong
    assert wrong["heartbeats"].startswith("2 replicas serving, 0 draining, 2 silent"), "the killed"
